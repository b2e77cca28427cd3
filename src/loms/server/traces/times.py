"""Times and durations as the trace APIs are asked with them. What the store cannot hold is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.core.units import parse_duration
from loms.server.traces.traceql import duration_ns
from loms.server.wire import FURTHEST_SECONDS, parse_time
from loms.store.trace_conditions import Condition, Field

_HOUR = "1h"


def asked_time(
    clock: Clock, start_ms: int | None = None, end_ms: int | None = None, since: str = _HOUR
) -> tuple[int, int]:
    """First and last millisecond; without a start, ``since`` before the end, and without an end, now.

    Nothing began before 1970. Raises `QueryError`.
    """
    until = clock.now_ms() if end_ms is None else end_ms
    if start_ms is None:
        start_ms = until - _since_ms(since)
    return max(0, start_ms), until


def _since_ms(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise QueryError(f'invalid parameter "since": {error}') from None
    if seconds > FURTHEST_SECONDS:
        raise QueryError(f'invalid parameter "since": {text[:80]!r} is longer than 292 years')
    return round(seconds * 1000)


def moment_ms(name: str, text: str) -> int | None:
    """From Unix seconds or RFC 3339; None where nothing is given. Raises `QueryError`."""
    return parse_time(name, text) if text else None


def moment_of_us(name: str, text: str) -> int | None:
    """Milliseconds, rounded down, from whole microseconds; None where nothing is given. Raises `QueryError`."""
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or abs(int(text)) > FURTHEST_SECONDS * 10**6:
        raise QueryError(f'invalid parameter "{name}": {text[:80]!r} is no time in microseconds since 1970')
    return int(text) // 1000


def durations(field: Field, least: tuple[str, str], most: tuple[str, str]) -> Iterable[Condition]:
    """Conditions from two parameters, each a name and a text; an empty text asks nothing. Raises `QueryError`."""
    if least[1]:
        yield Condition(field, ">=", _duration(*least))
    if most[1]:
        yield Condition(field, "<=", _duration(*most))


def _duration(name: str, text: str) -> int:
    try:
        return duration_ns(text)
    except QueryError as error:
        raise QueryError(f'invalid parameter "{name}": {error.message}') from None
