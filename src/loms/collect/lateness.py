"""How late the event loop is: LOMS's own fault must not be taken for that of a target.

A loop that is starved of the processor, or held by a long computation, sees an answer late and a timer later still.
While somebody `watch`\\ es, a heartbeat every 100 ms measures by how much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_BEAT_SECONDS = 0.1


@dataclass(slots=True)
class Watch:
    """What one caller has seen so far."""

    worst: float = 0.0
    """Seconds by which a beat was late at most."""


class Lateness:
    """The heartbeat of one event loop. It rests while nobody watches."""

    def __init__(self) -> None:
        self._watches: list[Watch] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Measure inside of the block."""
        watch = Watch()
        self._watches.append(watch)
        if self._timer is None:
            self._schedule()
        try:
            yield watch
        finally:
            self._watches = [each for each in self._watches if each is not watch]
            if not self._watches and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def look(self) -> None:
        """Count the beat that is overdue at this moment, too."""
        late = asyncio.get_running_loop().time() - self._due
        for watch in self._watches:
            watch.worst = max(watch.worst, late)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _BEAT_SECONDS
        self._timer = loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self.look()
        self._schedule()
