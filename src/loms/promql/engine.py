"""The PromQL engine: text in, typed result or frame out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from loms.core.clock import Clock, SystemClock
from loms.core.errors import QueryError
from loms.core.model import Frame, Labels
from loms.promql.annotations import Annotations
from loms.promql.evaluate import Evaluator
from loms.promql.parse import parse, parse_selector
from loms.promql.sides import Sides
from loms.promql.source import Budget, Cancel, Capacity, Limits, Samples, Source
from loms.promql.syntax import NAME, Matchers, Node, Range, Subquery, value_type
from loms.promql.values import (
    Grid,
    MatrixResult,
    Result,
    ScalarResult,
    StringResult,
    Value,
    Vector,
    VectorResult,
    frame_of,
)


class Engine:
    """Evaluates PromQL on a source: a `loms.core.model.Querier`, and typed results for the HTTP API.

    Semantics are those of Prometheus 3 (windows open on the left). Safe to call from several threads. Every method
    raises `QueryError` for a wrong expression, `QueryLimitError` and `QueryTimeoutError` when it passes a limit, and
    `QueryCancelledError` when the ``cancel`` handed in is cancelled meanwhile.

    >>> from loms.promql.memory import MemorySource
    >>> Engine(MemorySource()).query("1 + 2 * 3", at_ms=0)
    ScalarResult(at_ms=0, value=7.0, warnings=(), infos=())
    """

    def __init__(
        self,
        source: Source,
        limits: Limits | None = None,
        clock: Clock | None = None,
        workers: Executor | None = None,
    ) -> None:
        """With ``workers`` the two sides of an operator are read at the same time; the source must allow that."""
        self._source = source
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._capacity = Capacity()
        self._workers = workers

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        """The expression at each step, series sorted by labels; a scalar is one series without labels."""
        grid = self._grid(start_ms, end_ms, step_ms)
        return frame_of(_by_labels(self._ranged(parse(expr, grid), grid)), grid)

    def instant(self, expr: str, at_ms: int) -> Frame:
        """The expression at one time: a frame of one column."""
        grid = Grid.instant(at_ms)
        node = parse(expr, grid)
        if value_type(node) not in ("vector", "scalar"):
            raise QueryError(f"an expression of type {value_type(node)} gives no frame", hint="wrap it in a function")
        return frame_of(_as_vector(self._evaluated(node, grid)).compact(), grid)

    def query(self, expr: str, at_ms: int, cancel: Cancel | None = None) -> Result:
        """An instant query, typed as the expression is; of a range vector, its raw samples."""
        grid, notes = Grid.instant(at_ms), Annotations()
        node = parse(expr, grid)
        if isinstance(node, Range | Subquery):
            return self._raw(node, grid, cancel)
        value = self._evaluated(node, grid, cancel, notes)
        if isinstance(value, str):
            return StringResult(at_ms, value)
        if not isinstance(value, Vector):
            return ScalarResult(at_ms, float(value[0]), notes.warnings, notes.infos)
        value = value.compact()
        return VectorResult(at_ms, value.labels, value.values[:, 0], notes.warnings, notes.infos)

    def query_range(
        self, expr: str, start_ms: int, end_ms: int, step_ms: int, cancel: Cancel | None = None
    ) -> MatrixResult:
        """A range query: each series with the points that it has."""
        grid, notes = self._grid(start_ms, end_ms, step_ms), Annotations()
        vector, times = _by_labels(self._ranged(parse(expr, grid), grid, cancel, notes)), grid.times_ms
        return MatrixResult(
            vector.labels,
            tuple(times[there] for there in vector.present),
            tuple(values[there] for values, there in zip(vector.values, vector.present, strict=True)),
            notes.warnings,
            notes.infos,
        )

    def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None = None,
        end_ms: int | None = None,
        cancel: Cancel | None = None,
        limit: int | None = None,
    ) -> list[Labels]:
        """Labels of the series that match any of the selectors; with times, of those with samples between them.

        At most ``limit``, the first by their labels.
        """
        found: set[Labels] = set()
        with self._budget(cancel) as budget:
            for matchers in [parse_selector(text) for text in selectors]:
                found.update(self._source.series(matchers, start_ms, end_ms, budget))
        return sorted(found)[:limit]

    def within(self, timeout_seconds: float | None = None, lookback_ms: int | None = None) -> Engine:
        """The same engine with a shorter time for each query, or another lookback."""
        shorter = copy.copy(self)
        shorter._limits = replace(
            self._limits,
            timeout_seconds=min(self._limits.timeout_seconds, timeout_seconds or self._limits.timeout_seconds),
            lookback_ms=lookback_ms or self._limits.lookback_ms,
        )
        return shorter

    def stored(self, matchers: Matchers, start_ms: int, end_ms: int, cancel: Cancel | None = None) -> Samples:
        """The samples from ``start_ms`` to ``end_ms`` as they are, staleness markers among them."""
        with self._budget(cancel) as budget:
            return self._source.samples(matchers, start_ms - 1, end_ms, budget)

    def label_values(
        self,
        name: str,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        cancel: Cancel | None = None,
    ) -> list[str]:
        """The values of one label, of all series or of those that the selectors match."""
        series = self.series(selectors or [f'{{{NAME}!=""}}'], start_ms, end_ms, cancel)
        return sorted({value for labels in series for key, value in labels if key == name})

    def label_names(
        self,
        selectors: Sequence[str] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
        cancel: Cancel | None = None,
    ) -> list[str]:
        series = self.series(selectors or [f'{{{NAME}!=""}}'], start_ms, end_ms, cancel)
        return sorted({key for labels in series for key, _ in labels})

    def _grid(self, start_ms: int, end_ms: int, step_ms: int) -> Grid:
        if step_ms <= 0:
            raise QueryError("zero or negative query resolution step widths are not accepted. Try a positive integer")
        if end_ms < start_ms:
            raise QueryError("end timestamp must not be before start time")
        grid = Grid(start_ms, end_ms, step_ms)
        if len(grid) > self._limits.max_points:
            raise QueryError(
                f"exceeded maximum resolution of {self._limits.max_points:,} points per timeseries. "
                "Try decreasing the query resolution (?step=XX)"
            )
        return grid

    def _budget(self, cancel: Cancel | None) -> Budget:
        return Budget(self._limits, self._clock, cancel, self._capacity)

    def _evaluated(
        self, node: Node, grid: Grid, cancel: Cancel | None = None, notes: Annotations | None = None
    ) -> Value:
        with self._budget(cancel) as budget, np.errstate(all="ignore"):
            return Evaluator(self._source, budget, grid, notes, Sides(self._workers)).result(node)

    def _ranged(self, node: Node, grid: Grid, cancel: Cancel | None = None, notes: Annotations | None = None) -> Vector:
        if value_type(node) not in ("vector", "scalar"):
            kind = "range vector" if value_type(node) == "matrix" else "string"
            raise QueryError(f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector')
        return _as_vector(self._evaluated(node, grid, cancel, notes)).compact()

    def _raw(self, node: Range | Subquery, grid: Grid, cancel: Cancel | None) -> MatrixResult:
        anchor = node.selector if isinstance(node, Range) else node
        with self._budget(cancel) as budget, np.errstate(all="ignore"):
            evaluator = Evaluator(self._source, budget, grid, notes := Annotations())
            samples = evaluator.samples(node, evaluator.anchored(anchor.at, anchor.offset_ms, grid))
        some = np.flatnonzero(np.diff(samples.offsets))
        rows = sorted(some, key=lambda row: samples.labels[row])
        slices = [slice(samples.offsets[row], samples.offsets[row + 1]) for row in rows]
        return MatrixResult(
            tuple(samples.labels[row] for row in rows),
            tuple(samples.times_ms[one] for one in slices),
            tuple(samples.values[one] for one in slices),
            notes.warnings,
            notes.infos,
        )


def _as_vector(value: Value) -> Vector:
    assert not isinstance(value, str)
    return value if isinstance(value, Vector) else Vector(((),), value[None, :], np.ones((1, len(value)), np.bool_))


def _by_labels(vector: Vector) -> Vector:
    return vector.take(np.array(sorted(range(len(vector)), key=lambda row: vector.labels[row]), dtype=np.int64))
