"""Deltas → running totals, as Prometheus's counters are: kept from request to request, and over a restart of LOMS.

- A delta counts once. One with the time of another that was counted is the same one, sent again.
- One that comes late is added to the total, and shows with the next sample: a sample that was stored is not changed.
  So does one in the same millisecond as a sample of an earlier request; of one request the last in a millisecond shows.
- After a start of LOMS the total goes on from the newest stored sample of the series. Deltas up to the time of that
  sample are taken to be in it.
- One that is older than all of the last 64 that were counted cannot be told from a repeated one: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile, zip_longest

from loms.ingest.otlp.streams import Point, Total

Recall = Callable[[Sequence[int]], Mapping[int, tuple[int, float]]]
"""Series ids → newest stored time (ms) and value of each that has one."""

_REMEMBERED = 64


def begin(points: Iterable[Point], recall: Recall | None) -> None:
    """Give every point that has no total yet the one that is in the store, if there is one."""
    new = [point for point in dict.fromkeys(points) if point.total is None]
    if not new or recall is None:
        return
    stored = recall([one for point in new for one in point.ids])
    for point in new:
        found = [stored[one] for one in takewhile(stored.__contains__, point.ids)]
        if len(found) >= max(1, len(point.ids) - 1):  # a histogram may have no sum, which stands last
            newest_ns = max(at for at, _ in found) * 1_000_000
            point.total = Total(tuple(value for _, value in found), newest_ns, newest_ns + 999_999)


def added(total: Total | None, time_ns: int, values: Sequence[float]) -> Total | None:
    """The total with a delta in it; the very ``total`` when that is counted already, None when it comes too late."""
    if total is None:
        return Total(tuple(values), time_ns, 0, (time_ns,))
    counted, floor_ns = total.counted, total.floor_ns
    if time_ns <= total.last_ns:
        if time_ns in counted or (time_ns <= floor_ns and not counted):
            return total
        if time_ns <= floor_ns:
            return None
    if len(counted) == _REMEMBERED:
        floor_ns, counted = max(floor_ns, counted[0]), counted[1:]
    pairs = zip_longest(total.values, values, fillvalue=0.0)
    return Total(tuple([was + more for was, more in pairs]), max(total.last_ns, time_ns), floor_ns, (*counted, time_ns))
