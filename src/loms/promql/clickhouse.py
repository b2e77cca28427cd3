"""The store's tables as a source: leaves, and aggregations over many of them, become SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from loms.core.model import STALE_NAN, Floats, Ids, Ints, Labels, is_stale
from loms.promql.grids import GRID_FUNCTIONS, MARKER, SPOILT_BY_INFINITY, lists, points_sql
from loms.promql.pushdown import Threshold, aggregate
from loms.promql.rollups import Rollups, grid_sql
from loms.promql.selection import FURTHEST_MS, Index, Layer, QueryColumns, Selection, SeriesSince, between, select
from loms.promql.source import Budget, Samples
from loms.promql.syntax import Aggregation, Matchers
from loms.promql.values import Grid, Vector
from loms.promql.windows import WINDOW_FUNCTIONS, Windows

_EARLIEST_MS = -2_000_000_000_000
"""In 1906: the database's times begin in 1900."""
_PRESENT = f"arrayMap(x -> ifNull(x, {MARKER}), {{}})"
"""Points without NULL, which is slow to read: a staleness marker stands for it."""


class ClickHouseSource:
    """A `loms.promql.source.Source` over the tables of one ClickHouse database, embedded or remote.

    ``end_query``, ``series_version``, ``series_since`` are for `Selection`: without them a cancelled query goes on in
    the database, and each query asks the series table. Safe to use from several threads as ``query_columns`` is.
    """

    def __init__(
        self,
        query_columns: QueryColumns,
        end_query: Callable[[str], None] | None = None,
        series_version: Callable[[], int] | None = None,
        rollups: Rollups | None = None,
        pushed_from: Threshold | None = None,
        series_since: SeriesSince | None = None,
    ) -> None:
        self._selection = Selection(query_columns, end_query, series_version, series_since)
        self._rollups = rollups
        self._pushed_from = pushed_from or Threshold()

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        index = self.find(matchers, start_ms, budget)
        if start_ms is None or end_ms is None:
            return index.labels
        found: set[int] = set()
        for layer in index.layers:
            where = f"{layer.where} AND {between(start_ms - 1, end_ms)}"
            table = self._selection.query(select(f"DISTINCT {layer.key} AS k", "samples", where), budget)
            found.update(layer.rows[np.isin(layer.keys, table["k"].to_numpy())].tolist())
            for sql in self._rollups.thinned(layer, start_ms - 1, end_ms) if self._rollups else ():
                table = self._selection.query(select("DISTINCT k", f"({sql})", "1"), budget)
                found.update(layer.rows[np.isin(layer.keys, table["k"].to_numpy())].tolist())
        return [labels for row, labels in enumerate(index.labels) if row in found]

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        start_ms, end_ms = min(max(start_ms, -1), FURTHEST_MS), min(max(end_ms, -1), FURTHEST_MS)
        return self._samples(self.find(matchers, start_ms, budget), start_ms, end_ms, budget)

    def find(self, matchers: Matchers, start_ms: int | None, budget: Budget) -> Index:
        """The series that may have samples after ``start_ms``, or all. The very same object as long as they stay."""
        return self._selection.find(matchers, budget, self._seen_ms(start_ms))

    def _seen_ms(self, start_ms: int | None) -> int:
        return self._rollups.seen_ms(start_ms) if self._rollups and start_ms is not None else 0

    def _samples(self, index: Index, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        counts = np.zeros(len(index.labels), np.int64)
        parts: list[tuple[Ints, Ints, Floats]] = []
        for layer in index.layers:
            key, times, values = self._rows(layer, start_ms, end_ms, budget)
            low, high = np.searchsorted(key, layer.keys, "left"), np.searchsorted(key, layer.keys, "right")
            sizes = high - low
            counts[layer.rows] = sizes
            place = np.arange(sizes.sum()) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
            parts.append((np.repeat(layer.rows, sizes), times[place], values[place]))
        if not parts:
            return Samples((), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
        rows, times, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return Samples(index.labels, np.concatenate(([0], np.cumsum(counts))), times[order], values[order])

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        if not _within_times(grid):
            return None
        if self._rollups and self._rollups.thins(function, grid.start_ms - window_ms):
            return None
        pieces = self._rollups.pieces(function, grid, window_ms) if self._rollups else ()
        if not pieces and function not in GRID_FUNCTIONS:
            return None
        index = self.find(matchers, grid.start_ms - window_ms, budget)
        if not pieces:
            return self._sampled(function, index, grid, window_ms, arg, budget)
        parts: list[Vector] = []
        for piece in pieces:
            part = piece.of(grid)
            if piece.width_ms:
                sql = partial(grid_sql, function, grid=grid, window_ms=window_ms, piece=piece)
                values = self._filled(index, len(part), sql, budget)
                parts.append(Vector(index.labels, values, ~is_stale(values)))
            elif (sampled := self._sampled(function, index, part, window_ms, arg, budget)) is not None:
                parts.append(sampled)
            else:
                fresh = self._samples(index, part.start_ms - window_ms, part.end_ms, budget).fresh()
                windows = Windows.over(fresh, part, window_ms, budget)
                parts.append(WINDOW_FUNCTIONS[function](windows, np.zeros(len(part))))
        return joined(parts)

    def _sampled(
        self, function: str, index: Index, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        """`grid` from the samples alone."""
        if function not in GRID_FUNCTIONS:
            return None
        values = self._filled(
            index, len(grid), lambda layer: points_sql(function, layer, grid, window_ms, arg, _PRESENT), budget
        )
        present = ~is_stale(values)
        if function == "present_over_time":
            values = np.ones(values.shape)
        elif function in SPOILT_BY_INFINITY and np.isnan(values[present]).any():
            return None
        elif function == "avg_over_time" and np.isinf(values[present]).any():
            return None  # the sum may have overflown, and the mean does not
        return Vector(index.labels, values, present)

    def _filled(self, index: Index, length: int, sql: Callable[[Layer], str], budget: Budget) -> Floats:
        """The arrays ``g`` of keys ``k`` that ``sql`` selects for each layer, as [series, time]."""
        values = np.full((len(index.labels), length), STALE_NAN)
        for layer in index.layers:
            budget.take_samples(len(layer.rows) * length)
            found = self._selection.query(sql(layer), budget)
            keys = found["k"].to_numpy()
            if not len(keys):
                continue
            order = np.argsort(keys)
            place = np.minimum(np.searchsorted(keys, layer.keys, sorter=order), len(keys) - 1)
            hit = keys[order[place]] == layer.keys
            values[layer.rows[hit]] = lists(found["g"], length)[order[place[hit]]]
        return values

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        if not _within_times(grid):
            return None
        rollups, start_ms = self._rollups, grid.start_ms - window_ms
        if rollups and (rollups.thins(function, start_ms) or rollups.pieces(function, grid, window_ms)):
            return None
        return aggregate(
            self._selection,
            self._pushed_from,
            node,
            function,
            matchers,
            grid,
            window_ms,
            budget,
            self._seen_ms(start_ms),
        )

    def _rows(self, layer: Layer, start_ms: int, end_ms: int, budget: Budget) -> tuple[Ids, Ints, Floats]:
        """Keys, times and values of the layer's samples, by key and time, each time once."""
        limit = budget.remaining_samples() + 1
        where = f"{layer.where} AND {between(start_ms, end_ms)}"
        sql = select(f"{layer.key} AS k, toUnixTimestamp64Milli(ts) AS t, value", "samples", where)
        if self._rollups and (thinned := self._rollups.thinned(layer, start_ms, end_ms)):
            sql = select("k, t, value", f"({' UNION ALL '.join((sql, *thinned))})", "1")
        table = self._selection.query(f"{sql} ORDER BY k, t LIMIT {limit}", budget)
        budget.take_samples(len(table["k"]))
        key, times, values = (table[name].to_numpy() for name in ("k", "t", "value"))
        last = np.append((key[1:] != key[:-1]) | (times[1:] != times[:-1]), np.ones(min(len(key), 1), np.bool_))
        return key[last], times[last], values[last]


def _within_times(grid: Grid) -> bool:
    """Whether the database can write all times of the grid; others are computed with in the engine."""
    return grid.start_ms >= _EARLIEST_MS and grid.end_ms <= FURTHEST_MS


def joined(parts: Sequence[Vector]) -> Vector:
    """Vectors of the same series at times that follow one another, as one."""
    values, present = (np.hstack([getattr(part, name) for part in parts]) for name in ("values", "present"))
    return Vector(parts[0].labels, values, present)
