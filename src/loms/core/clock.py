"""Time, injected: the wall clock for what is stored, a monotonic one for intervals."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """``now_ms`` is UTC milliseconds since the epoch; ``monotonic`` is seconds that never jump."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to go on; for replay and tests.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance(2.5)
    >>> clock.now_ms(), clock.monotonic()
    (3500, 2.5)
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed = 0.0

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        self._elapsed += seconds


def iso_utc(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, as Prometheus and Alertmanager write times.

    >>> iso_utc(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def local_and_utc(ms: int) -> str:
    """A moment for people: local time with its zone, then UTC."""
    local = datetime.fromtimestamp(ms / 1000).astimezone()
    if local.utcoffset() == UTC.utcoffset(None):
        return local.strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({local.astimezone(UTC):%H:%M:%S} UTC)"
