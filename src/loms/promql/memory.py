"""Samples in memory as a source: for tests and for the replay of dumps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from loms.core.model import Floats, Ints, Labels, SampleBatch, Series
from loms.promql import regexes
from loms.promql.source import Budget, Samples
from loms.promql.syntax import NAME, Aggregation, Matchers
from loms.promql.values import Grid, Vector


class MemorySource:
    """A `Source` over arrays that were handed to it; series are ordered by labels."""

    def __init__(self) -> None:
        self._series: dict[Labels, tuple[Ints, Floats]] = {}

    def add(self, labels: Labels, times_ms: Ints, values: Floats) -> None:
        """Samples of one series (``labels`` with ``__name__``) in any order; of equal times the last one stays."""
        old_times, old_values = self._series.get(labels, (np.empty(0, np.int64), np.empty(0)))
        newest_first = np.concatenate((old_times, times_ms))[::-1]
        times, places = np.unique(newest_first, return_index=True)
        self._series[labels] = (times, np.concatenate((old_values, values))[::-1][places])

    @classmethod
    def from_batches(cls, batches: Iterable[SampleBatch]) -> MemorySource:
        """A source of everything in the batches; each series must be announced in one of them."""
        source, columns, known = cls(), [], set[Series]()
        for batch in batches:
            known.update(batch.series)
            columns.append((batch.series_ids, batch.timestamps_ms, batch.values))
        if columns:
            ids, times, values = (np.concatenate(column) for column in zip(*columns, strict=True))
            order = np.lexsort((times, ids))
            ids, times, values = ids[order], times[order], values[order]
            for one in known:
                low, high = (
                    np.searchsorted(ids, np.uint64(one.id), "left"),
                    np.searchsorted(ids, np.uint64(one.id), "right"),
                )
                source.add(tuple(sorted((*one.labels, (NAME, one.name)))), times[low:high], values[low:high])
        return source

    def _matching(self, matchers: Matchers, budget: Budget) -> list[Labels]:
        found = sorted(self._series)
        for matcher in matchers:
            values = [dict(labels).get(matcher.name, "") for labels in found]
            if matcher.op in ("=", "!="):
                fits = [value == matcher.value for value in values]
            else:
                fits = regexes.matches(matcher.value, values)
            found = [labels for labels, fit in zip(found, fits, strict=True) if fit is not matcher.op.startswith("!")]
        budget.check_series(len(found))
        return found

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        found = self._matching(matchers, budget)
        if start_ms is None or end_ms is None:
            return found
        return [
            one for one in found if np.diff(np.searchsorted(self._series[one][0], (start_ms - 1, end_ms), "right"))[0]
        ]

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        found = self._matching(matchers, budget)
        times, values, counts = [np.empty(0, np.int64)], [np.empty(0)], [0]
        for labels in found:
            low, high = np.searchsorted(self._series[labels][0], (start_ms, end_ms), "right")
            times.append(self._series[labels][0][low:high])
            values.append(self._series[labels][1][low:high])
            counts.append(high - low)
        budget.take_samples(sum(counts))
        return Samples(tuple(found), np.cumsum(counts), np.concatenate(times), np.concatenate(values))

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        return None

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        return None
