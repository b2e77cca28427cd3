"""An engine's HTTP face made of written expositions, of which one can take another's place, as in an upgrade."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.http_host import TEXT, Host

_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_SAMPLE = re.compile(r"^([^#\s{]+)(\{.*\})? (\S+)$", re.MULTILINE)
_CUMULATIVE = ("counter", "histogram")


class EngineServer(Host):
    """Serves ``/metrics`` and ``/version``; a context manager.

    At each scrape every counter and histogram has grown by a hundredth of what the file says, from one time the file's
    values on, so that equal stories stay equal whichever file tells them.
    """

    def __init__(self, text: Path, version: str) -> None:
        self.version = version
        self.scrapes = 0
        self._exchange(text)
        super().__init__(self._answer)

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        if path == "/metrics":
            return TEXT, self.scraped().encode()
        if path == "/version":
            return "application/json", json.dumps({"version": self.version}).encode()
        return None

    def upgrade(self, text: Path, version: str, *, restarted: bool = False) -> None:
        """From the next scrape on this file is told. ``restarted``: the counters begin anew, at the file's values."""
        if restarted:
            self.scrapes = 0
        self.version = version
        self._exchange(text)

    def scraped(self) -> str:
        """The exposition of the next scrape."""
        self.scrapes += 1
        share = 1 + self.scrapes / 100
        return _SAMPLE.sub(lambda m: self._grown(m, share), self._text)

    def _exchange(self, path: Path) -> None:
        self._text = path.read_text()
        self._types = dict(_TYPE.findall(self._text))

    def _grown(self, sample: re.Match[str], share: float) -> str:
        name, labels, value = sample[1], sample[2] or "", sample[3]
        bases = (name, *(name.removesuffix(part) for part in ("_bucket", "_sum", "_count")))
        grows = any(self._types.get(base) in _CUMULATIVE for base in bases)
        return f"{name}{labels} {float(value) * share!r}" if grows else sample[0]
