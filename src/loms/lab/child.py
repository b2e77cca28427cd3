"""A process of our own that announces itself with one line of JSON, can be frozen, and never outlives us by much."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, Self

from loms.core.clock import Clock, SystemClock
from loms.core.errors import TargetError


class Child:
    """``python -m module arguments…`` as a child process; a context manager that stops it.

    The child gets a pipe as standard input and ends when that is closed, so it also ends when we are killed.
    """

    def __init__(
        self, what: str, arguments: Sequence[str], *, deadline_seconds: float, clock: Clock | None = None
    ) -> None:
        """Start it and wait for its line. Raises `TargetError` when none comes before the deadline."""
        self._what = what
        self._clock = clock or SystemClock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C in our terminal is for us; we end the child ourselves
        )
        try:
            self.announcement: dict[str, Any] = self._await_line(deadline_seconds)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay open, nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self, grace_seconds: float = 5.0) -> None:
        """End the process, by force after a grace period; a second call does nothing."""
        if self.running:
            self._process.terminate()
            self.resume()
            try:
                self._process.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _await_line(self, deadline_seconds: float) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        end, line = self._clock.monotonic() + deadline_seconds, b""
        while not line.endswith(b"\n"):
            left = end - self._clock.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise TargetError(f"{self._what} did not start within {deadline_seconds:g} s", reason="timeout")
            part = os.read(output.fileno(), 65536)
            if not part:
                self._process.wait()
                raise TargetError(f"{self._what} ended while starting: {self._last_words()}", reason="refused")
            line += part
        announcement: dict[str, Any] = json.loads(line)
        return announcement

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}, nothing on stderr"


def end_with_parent() -> None:
    """In a child: get SIGTERM when standard input is closed, which happens at the latest when the parent ends."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
