"""The samples of the last while, in memory: what rules look at when history is replayed.

`loms.promql.memory.MemorySource` keeps all it gets and looks through every series for each selector. Here samples come
in the order of time, series after series or moment after moment, the old ones can be let go of, and what a selector
matches is remembered until a new series comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loms.core.model import Floats, Ints, Labels
from loms.promql import regexes
from loms.promql.source import Budget, Samples
from loms.promql.syntax import NAME, Aggregation, Matchers
from loms.promql.values import Grid, Vector

_FIRST_ROOM = 64
_T = TypeVar("_T")


class _Column:
    """One series: its samples in order of time, with room behind them."""

    __slots__ = ("count", "times", "values")

    def __init__(self) -> None:
        self.times: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self.values: Floats = np.empty(_FIRST_ROOM)
        self.count = 0

    def append(self, times: Ints, values: Floats) -> None:
        count = self.count + len(times)
        if count > len(self.times):
            room = max(count, 2 * len(self.times))
            self.times, self.values = np.resize(self.times, room), np.resize(self.values, room)
        self.times[self.count : count], self.values[self.count : count] = times, values
        self.count = count

    def forget(self, before_ms: int) -> None:
        gone = int(np.searchsorted(self.times[: self.count], before_ms))
        self.times, self.values = self.times[gone : self.count].copy(), self.values[gone : self.count].copy()
        self.count -= gone


class RecentSource:
    """A `loms.promql.source.Source`; series are ordered by labels. One thread at a time."""

    def __init__(self) -> None:
        self._columns: dict[Labels, _Column] = {}
        self._by_name: dict[str, list[Labels]] = {}
        self._found: dict[Matchers, tuple[Labels, ...]] = {}

    def append(self, labels: Labels, times_ms: Ints, values: Floats) -> None:
        """More samples of one series (``labels`` with ``__name__``), in order of time and after those it has.

        What is no later than the newest sample is left out.
        """
        column = self._columns.get(labels)
        if column is None:
            column = self._columns[labels] = _Column()
            self._by_name.setdefault(dict(labels).get(NAME, ""), []).append(labels)
            self._found.clear()
        if column.count and len(times_ms) and times_ms[0] <= column.times[column.count - 1]:
            first = int(np.searchsorted(times_ms, column.times[column.count - 1], "right"))
            times_ms, values = times_ms[first:], values[first:]
        column.append(times_ms, values)

    def forget(self, before_ms: int) -> None:
        """Let go of older samples, and of the series that have no others."""
        for column in self._columns.values():
            column.forget(before_ms)
        if empty := [labels for labels, column in self._columns.items() if not column.count]:
            for labels in empty:
                del self._columns[labels]
            self._by_name = {}
            for labels in self._columns:
                self._by_name.setdefault(dict(labels).get(NAME, ""), []).append(labels)
            self._found.clear()

    def __len__(self) -> int:
        """How many samples there are."""
        return sum(column.count for column in self._columns.values())

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        found = self._matching(matchers, budget)
        if start_ms is None or end_ms is None:
            return found
        return [labels for labels in found if np.diff(self._span(self._columns[labels], start_ms - 1, end_ms))[0]]

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        found = self._matching(matchers, budget)
        times, values, counts = [np.empty(0, np.int64)], [np.empty(0)], [0]
        for labels in found:
            column = self._columns[labels]
            low, high = self._span(column, start_ms, end_ms)
            times.append(column.times[low:high])
            values.append(column.values[low:high])
            counts.append(high - low)
        budget.take_samples(sum(counts))
        return Samples(found, np.cumsum(counts), np.concatenate(times), np.concatenate(values))

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        return None

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        return None

    def _span(self, column: _Column, after_ms: int, until_ms: int) -> tuple[int, int]:
        low, high = np.searchsorted(column.times[: column.count], (after_ms, until_ms), "right").tolist()
        return low, high

    def _matching(self, matchers: Matchers, budget: Budget) -> tuple[Labels, ...]:
        found = self._found.get(matchers)
        if found is None:
            names = list(self._by_name)
            for matcher in matchers:
                if matcher.name == NAME:
                    names = _fitting(names, names, matcher.op, matcher.value)
            rows = sorted(labels for name in names for labels in self._by_name[name])
            for matcher in matchers:
                if matcher.name != NAME:
                    texts = [dict(labels).get(matcher.name, "") for labels in rows]
                    rows = _fitting(rows, texts, matcher.op, matcher.value)
            found = self._found[matchers] = tuple(rows)
        budget.check_series(len(found))
        return found


def _fitting(items: Sequence[_T], texts: Sequence[str], op: str, value: str) -> list[_T]:
    return [item for item, fits in zip(items, regexes.fitting(op, value, texts), strict=True) if fits]
