"""Sending on: a thread per destination that empties its queue, and tries again what may yet succeed.

Order is kept: an item that cannot be sent now holds up those behind it, which wait on disk. An item is sent at least
once; should LOMS be killed between the answer and the note that it came, it is sent again.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import ForwardError, LomsError
from loms.core.guard import guard
from loms.forward.queue import DiskQueue

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 300.0
_LOOK_SECONDS = 1.0
"""Between looks at the queue while nothing happens."""

_log = logging.getLogger("loms.forward")


class Destination(Protocol):
    """Where items go."""

    def send(self, item: bytes, /) -> int:
        """Returns how much it counted for (samples, spans, …). Raises `ForwardError`."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with one destination."""

    destination: str
    queued_bytes: int
    oldest_seconds: float
    """Age of the oldest item that waits; 0 when none does."""
    trouble: str
    """Why the newest attempt failed; empty when it went well."""


class Sender:
    """`put` from any thread. Between `start` and `stop` a thread of its own sends; tests call `step` instead."""

    def __init__(
        self,
        name: str,
        queue: DiskQueue,
        destination: Destination,
        clock: Clock,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.trouble = ""
        self._queue = queue
        self._destination = destination
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 (spreads retries, guards nothing)
        self._failed = 0
        """Attempts in a row."""
        self._refused: set[str] = set()
        """Reasons that were logged."""
        self._wake = threading.Condition()
        self._news = 0
        self._until: float | None = None
        """When to stop at the latest, by the monotonic clock; None while there is no end in sight."""
        self._thread = threading.Thread(target=self._run, name=f"forward-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: bytes, weight: int = 1) -> None:
        """Queue an item; what the disk does not take is counted and reported, not raised."""
        try:
            self._queue.append(item, weight)
        except LomsError as error:
            selfmetrics.forward_dropped.labels(self.name, "disk").inc(weight)
            self._report(error.message)
        with self._wake:
            self._news += 1
            self._wake.notify_all()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Send what waits as long as that succeeds, for so long at most; the rest stays on disk."""
        with self._wake:
            self._until = self._clock.monotonic() + timeout_seconds
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._queue.close()

    def standing(self) -> Standing:
        oldest_ms = self._queue.oldest_ms()
        age = 0.0 if oldest_ms is None else max(0.0, (self._clock.now_ms() - oldest_ms) / 1000)
        return Standing(self.name, self._queue.size, age, self.trouble)

    def step(self) -> float | None:
        """Send the first item; the seconds to wait before the next step, None when nothing waits."""
        item = self._queue.peek()
        if item is None:
            return None
        try:
            weight = self._destination.send(item.data)
        except ForwardError as error:
            selfmetrics.forward_failures.labels(self.name, error.reason).inc()
            if error.retry:
                self._report(f"{error.message}; trying again")
                return self._pause(error.retry_after_seconds)
            self._give_up(error)
        else:
            selfmetrics.forwarded.labels(self.name).inc(weight)
            if self.trouble:
                _log.info("%s takes what is sent on again", self.name)
            self.trouble = ""
        self._failed = 0
        self._queue.done(item)
        return 0.0

    def _give_up(self, error: ForwardError) -> None:
        selfmetrics.forward_dropped.labels(self.name, error.reason).inc(error.weight)
        self.trouble = error.message
        if error.message not in self._refused and len(self._refused) < 100:
            self._refused.add(error.message)
            _log.error("%s; this is given up, and counted in loms_forward_dropped_total", error.message)

    def _pause(self, retry_after_seconds: float | None) -> float:
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << min(self._failed, 16)))
        self._failed += 1
        pause *= self._rng.uniform(0.75, 1.25)
        return max(pause, min(retry_after_seconds or 0.0, LONGEST_RETRY_AFTER_SECONDS))

    def _report(self, trouble: str) -> None:
        """Log a trouble when it begins or changes, not at each attempt."""
        if trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble = trouble

    def _run(self) -> None:
        wait: float | None = 0.0
        news = 0
        while not self._ended(wait):
            with self._wake:
                if wait is None:
                    self._wake.wait_for(partial(self._called, news), _LOOK_SECONDS)
                elif wait:
                    self._wake.wait_for(lambda: self._until is not None, wait)
                news = self._news
            wait = LONGEST_PAUSE_SECONDS  # after something unexpected
            with guard(f"forward {self.name}"):
                if not self._ended(0.0):
                    wait = self.step()
                self._queue.sync()
                standing = self.standing()
                selfmetrics.forward_queue.labels(self.name).set(standing.queued_bytes)
                selfmetrics.forward_oldest.labels(self.name).set(standing.oldest_seconds)

    def _called(self, news: int) -> bool:
        """There is something new, or an end."""
        return self._news != news or self._until is not None

    def _ended(self, wait: float | None) -> bool:
        """At the end: nothing waits, or what waits cannot be sent now, or the time is up."""
        if self._until is None:
            return False
        idle = wait is None and not self._queue.size
        return idle or bool(wait) or self._clock.monotonic() >= self._until
