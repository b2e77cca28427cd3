"""Long, coarse queries from the rows of a minute or an hour, where these give the same answer or no other is left.

A bucket is (end - width, end], open on the left like a window. So where all windows begin and end where buckets do,
the rows give what the samples give, up to the last digits of sums. Everywhere else a bucket counts as a whole to the
windows that its middle lies in: that is how queries over times of which no samples are kept are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from loms.core.clock import Clock
from loms.core.model import STALE_NAN_BITS
from loms.promql.rollup_windows import ENDING, ORDERED, windows
from loms.promql.selection import Layer, QueryColumns, select
from loms.promql.values import Grid

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
UNSEEN_MS = 3 * DAY_MS
"""To spare, as series are kept longer than what they have."""
COARSE_MS = 300_000
"""From this step on minutes may be read in place of samples that are still there."""
DENSE, DENSE_ORDERED = 6.0, 8.0
"""Samples in a row of a minute from which on reading it is cheaper (`benchmarks/rollups.py`); the second number is for
functions that look at neighbours."""
STALE_SQL = f"reinterpretAsFloat64(toUInt64({STALE_NAN_BITS}))"
_FRESH_SECONDS = 15.0
_DENSITY_SECONDS = 3600.0

_COVERAGE = "SELECT key, value FROM rollup_progress FINAL WHERE key IN ('minute', 'hour')"
_DENSITY = "SELECT sum(samples) AS n, count() AS rows FROM rollup_minute WHERE bucket > toDateTime({}, 'UTC')"


@dataclass(frozen=True, slots=True)
class Piece:
    """The times ``first`` to ``last`` - 1 of a grid, from one table; ``width_ms`` is its bucket's, 0 for samples."""

    first: int
    last: int
    width_ms: int
    exact: bool = True

    def of(self, grid: Grid) -> Grid:
        """This part of ``grid``."""
        start_ms = grid.start_ms + self.first * grid.step_ms
        return Grid(start_ms, start_ms + (self.last - self.first - 1) * grid.step_ms, grid.step_ms)


class Rollups:
    """Says which times of a query come from which table, and how. Safe from several threads as ``query_columns`` is.

    ``samples_seconds`` and ``minute_seconds``: how long rows of these tables are kept. ``dense`` scales `DENSE`; with 0
    minutes are read wherever they are right.
    """

    def __init__(
        self,
        query_columns: QueryColumns,
        clock: Clock,
        *,
        samples_seconds: float,
        minute_seconds: float,
        dense: float = 1.0,
    ) -> None:
        self._query_columns = query_columns
        self._clock = clock
        self._samples_ms = round(samples_seconds * 1000)
        self._minute_ms = round(max(minute_seconds, samples_seconds) * 1000)
        self._dense_factor = dense
        self._until: tuple[float, Mapping[str, int]] | None = None
        self._density: tuple[float, float] | None = None

    def pieces(self, function: str, grid: Grid, window_ms: int) -> tuple[Piece, ...]:
        """The grid in order, cut by where its values come from; empty when all come from the samples.

        ``function`` as in `loms.promql.source.Source.grid`.
        """
        if function not in windows or not len(grid):
            return ()
        now_ms, step_ms = self._clock.now_ms(), grid.step_ms
        by_hour, by_minute = (self._fits(function, grid, window_ms, width) for width in (HOUR_MS, MINUTE_MS))
        kept_ms = now_ms - self._samples_ms
        if not by_hour and not by_minute and grid.start_ms - window_ms >= kept_ms:
            return ()

        def upto(until_ms: int) -> int:
            """How many of the times lie up to then."""
            return min(max((until_ms - grid.start_ms) // step_ms + 1, 0), len(grid))

        until = self._coverage()
        coarse = by_minute and (len(grid) == 1 or step_ms >= COARSE_MS) and self._dense(function)
        hours, minutes = (upto(until.get(key, grid.start_ms - 1)) for key in ("hour", "minute"))
        # A window that begins before a table's oldest row: this many.
        before_minutes, before_samples = (
            upto(oldest_ms + window_ms - 1) for oldest_ms in (now_ms - self._minute_ms, kept_ms)
        )

        def source(place: int) -> tuple[int, bool]:
            if by_hour and place < hours:
                return HOUR_MS, True
            if "hour" in until and place < before_minutes:
                return HOUR_MS, by_hour
            if "minute" in until and place < before_samples:
                return MINUTE_MS, by_minute
            return (MINUTE_MS, True) if coarse and place < minutes else (0, True)

        edges = sorted({0, len(grid), hours, minutes, before_minutes, before_samples})
        found: list[Piece] = []
        for first, last in pairwise(edges):
            width, exact = source(first)
            if found and (found[-1].width_ms, found[-1].exact) == (width, exact):
                found[-1] = Piece(found[-1].first, last, width, exact)
            else:
                found.append(Piece(first, last, width, exact))
        return tuple(found) if any(piece.width_ms for piece in found) else ()

    def thinned(self, layer: Layer, start_ms: int, end_ms: int) -> tuple[str, ...]:
        """SELECTs of ``k, t, value``: where samples are gone, the last one of each bucket after ``start_ms``."""
        now_ms = self._clock.now_ms()
        kept_ms, minute_ms = now_ms - self._samples_ms, now_ms - self._minute_ms
        spans = (("rollup_hour", HOUR_MS, start_ms, minute_ms), ("rollup_minute", MINUTE_MS, minute_ms, kept_ms))
        found = []
        for table, width_ms, oldest_ms, newest_ms in spans:
            first_ms, last_ms = max(start_ms, oldest_ms), min(end_ms, newest_ms)
            if first_ms < last_ms:
                time = "toInt64(toUnixTimestamp(bucket)) * 1000 - closing_before_ms"
                near = f"bucket > {_time(first_ms)} AND bucket <= {_time(last_ms + width_ms)}"
                exactly = f"{time} > {first_ms} AND {time} <= {last_ms}"
                where = f"{layer.where} AND samples > 0 AND {near} AND {exactly}"
                found.append(select(f"{layer.key} AS k, {time} AS t, closing AS value", f"{table} FINAL", where))
        return tuple(found)

    def thins(self, function: str, start_ms: int) -> bool:
        """Whether samples since ``start_ms`` are gone that rows cannot stand for: `thinned` ones are to be used."""
        return function not in windows and start_ms < self._clock.now_ms() - self._samples_ms

    def seen_ms(self, start_ms: int) -> int:
        """Since when a series must have been seen that has samples after ``start_ms``; whole days.

        Series are kept as long as their rows, which may be years, and most of them ended long before a usual query.
        A living series may go unseen for as long as samples are kept (`loms.store.series`).
        """
        return (start_ms - self._samples_ms - UNSEEN_MS) // DAY_MS * DAY_MS

    def _fits(self, function: str, grid: Grid, window_ms: int, width_ms: int) -> bool:
        """Whether rows give exactly what samples do. Of the newest sample it matters only where the window ends."""
        steps = () if len(grid) == 1 else (grid.step_ms,)
        begins = () if function in ENDING else (window_ms,)
        return all(time % width_ms == 0 for time in (grid.start_ms, *steps, *begins))

    def _dense(self, function: str) -> bool:
        now = self._clock.monotonic()
        if self._density is None or now - self._density[0] > _DENSITY_SECONDS:
            found = self._query_columns(_DENSITY.format((self._clock.now_ms() - 2 * HOUR_MS) // 1000))
            samples, rows = found["n"][0].as_py(), found["rows"][0].as_py()
            self._density = now, samples / rows if rows else 0.0
        return self._density[1] >= self._dense_factor * (DENSE_ORDERED if function in ORDERED else DENSE)

    def _coverage(self) -> Mapping[str, int]:
        """``minute`` and ``hour`` → the end of the newest bucket; a key is missing where there is none."""
        now = self._clock.monotonic()
        if self._until is None or now - self._until[0] > _FRESH_SECONDS:
            found = self._query_columns(_COVERAGE)
            until = dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
            self._until = now, until
        return self._until[1]


def rows_sql(function: str, layer: Layer, grid: Grid, window_ms: int, piece: Piece) -> str:
    """A SELECT of ``k, i, v``: the key of a set of ids, the place of a time in ``piece``, the function's value there.

    A time without a value has no row.
    """
    return windows[function].sql(layer, piece.of(grid), window_ms, piece.width_ms, piece.exact)


def grid_sql(function: str, layer: Layer, grid: Grid, window_ms: int, piece: Piece) -> str:
    """A SELECT of ``k, g``: the same as one array a key, a staleness marker where there is no value."""
    length = piece.last - piece.first
    values, there = (f"groupArrayInsertAt({zero}, {length})({one}, i)" for zero, one in (("0.", "v"), ("0", "1")))
    points = f"arrayMap((v, there) -> if(there = 1, v, {STALE_SQL}), {values}, {there})"
    return f"SELECT k, {points} AS g FROM ({rows_sql(function, layer, grid, window_ms, piece)}) GROUP BY k"  # noqa: S608


def _time(ms: int) -> str:
    return f"toDateTime({max(ms // 1000, 0)}, 'UTC')"
