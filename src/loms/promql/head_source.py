"""Newest samples from memory, all others from the store: the answers are the same."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from loms.core.model import Labels, is_stale
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.head import Head
from loms.promql.head_parts import Wanted
from loms.promql.selection import Index
from loms.promql.source import Budget, Samples
from loms.promql.syntax import Aggregation, Matchers
from loms.promql.values import Grid, Vector
from loms.promql.windows import applied

_NEWEST = frozenset({"last", "timestamp"})
"""Functions that look at one sample of each series."""
_MOST_SAMPLES = 500_000
"""From more samples, or points of a grid, the database computes faster."""


class HeadSource:
    """A `loms.promql.source.Source` that reads from ``head`` what it holds, and passes on the rest to ``store``.

    Series and their labels are always the store's, which keeps what it found (`loms.promql.selection.Selection`).
    """

    def __init__(self, head: Head, store: ClickHouseSource, most_samples: int = _MOST_SAMPLES) -> None:
        self._head = head
        self._store = store
        self._most_samples = most_samples
        self._wanted: WeakKeyDictionary[Index, Wanted] = WeakKeyDictionary()

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        return self._store.series(matchers, start_ms, end_ms, budget)

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        if (index := self._mine("", matchers, Grid.instant(end_ms), end_ms - start_ms, budget)) is not None:
            found = self._samples(index, start_ms, end_ms, budget)
            if found is not None:
                return found
        return self._store.samples(matchers, start_ms, end_ms, budget)

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        if (index := self._mine(function, matchers, grid, window_ms, budget)) is not None:
            if len(grid) == 1 and function in _NEWEST:
                found = self._newest(function, index, grid.start_ms, window_ms, budget)
            else:
                found = self._applied(function, index, grid, window_ms, arg, budget)
            if found is not None:
                return found
        return self._store.grid(function, matchers, grid, window_ms, arg, budget)

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        if self._mine(function, matchers, grid, window_ms, budget) is not None:
            return None  # the engine asks for the grid
        return self._store.aggregate(node, function, matchers, grid, window_ms, budget)

    def _mine(self, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget) -> Index | None:
        """The series, if all that the windows can see is in the head and not so much that the database is faster."""
        start_ms = grid.start_ms - window_ms
        if not self._head.holds(start_ms, grid.end_ms):
            return None
        budget.remaining_seconds()
        index = self._store.find(matchers, start_ms, budget)
        count = len(index.labels) * len(grid)
        if count <= self._most_samples and (len(grid) > 1 or function not in _NEWEST):
            count = self._head.count(self._wanted_of(index), start_ms, grid.end_ms)
        return index if count <= self._most_samples else None

    def _samples(self, index: Index, start_ms: int, end_ms: int, budget: Budget) -> Samples | None:
        read = self._head.read(self._wanted_of(index), start_ms, end_ms)
        if read is None:
            return None
        budget.take_samples(len(read.times_ms))
        return Samples(index.labels, read.offsets, read.times_ms, read.values)

    def _applied(
        self, function: str, index: Index, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        samples = self._samples(index, grid.start_ms - window_ms, grid.end_ms, budget)
        if samples is None:
            return None
        return applied(function, samples, grid, window_ms, np.full(len(grid), 0.0 if arg is None else arg), budget)

    def _newest(self, function: str, index: Index, at_ms: int, window_ms: int, budget: Budget) -> Vector | None:
        """The newest sample of each series, but not a staleness marker."""
        budget.take_samples(len(index.labels))
        read = self._head.read(self._wanted_of(index), at_ms - window_ms, at_ms, newest=True)
        if read is None:
            return None
        some = np.flatnonzero(np.diff(read.offsets))
        values, present = np.zeros((len(index.labels), 1)), np.zeros((len(index.labels), 1), np.bool_)
        values[some, 0] = read.values if function == "last" else read.times_ms / 1000
        present[some, 0] = ~is_stale(read.values)
        return Vector(index.labels, values, present)

    def _wanted_of(self, index: Index) -> Wanted:
        """The same object for the same index, so that its places in the head are looked up once."""
        wanted = self._wanted.get(index)
        if wanted is None:
            wanted = self._wanted[index] = Wanted(index.ids)
        return wanted
