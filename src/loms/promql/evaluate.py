"""Evaluation of a syntax tree on a whole grid of times at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from loms.core.model import Labels
from loms.promql import extended
from loms.promql.aggregations import aggregate
from loms.promql.annotations import Annotations
from loms.promql.context import Context
from loms.promql.functions import FUNCTIONS
from loms.promql.info import Enrichment, reference
from loms.promql.operators import binary, negated
from loms.promql.sides import Sides, selectors_of
from loms.promql.source import Budget, Samples, Source
from loms.promql.syntax import (
    NAME,
    Aggregation,
    At,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
)
from loms.promql.values import Grid, Scalar, Value, Vector, nameless, settled
from loms.promql.windows import KEEPS_NAME, WINDOW_FUNCTIONS, Windows, applied, double_exponential_smoothing

_ARGUMENTS = {"quantile_over_time": (1, 0), "predict_linear": (0, 1)}
"""Places of the range vector and of the scalar among the arguments, where there are two."""


class Evaluator:
    """Evaluates the nodes of one query; ``query`` is its own grid, which ``@ start()`` and ``@ end()`` refer to.

    ``notes`` collects what the answer should be read with; ``sides`` may evaluate two operands at the same time.
    """

    def __init__(
        self,
        source: Source,
        budget: Budget,
        query: Grid,
        notes: Annotations | None = None,
        sides: Sides | None = None,
    ) -> None:
        self._source = source
        self._budget = budget
        self._query = query
        self.notes = notes or Annotations()
        self._sides = sides or Sides()
        self._leaves: dict[tuple[str, Selector, int, Grid, float | None], Vector] = {}
        self._rules: dict[type, Callable[[Node, Grid], Value]] = {
            Number: lambda node, grid: np.full(len(grid), cast(Number, node).value),
            Text: lambda node, grid: cast(Text, node).value,
            Selector: lambda node, grid: self._selected("last", cast(Selector, node), grid),
            Negation: lambda node, grid: negated(self.value(cast(Negation, node).expr, grid)),
            Binary: lambda node, grid: self._binary(cast(Binary, node), grid),
            Aggregation: lambda node, grid: self._aggregation(cast(Aggregation, node), grid),
            Call: lambda node, grid: self._call(cast(Call, node), grid),
        }

    def result(self, node: Node) -> Value:
        """The value of the whole query."""
        value = self.value(node, self._query)
        return settled(value) if isinstance(value, Vector) else value

    def value(self, node: Node, grid: Grid) -> Value:
        """The node's value at each time of the grid; not for range vectors, which only functions take."""
        self._budget.remaining_seconds()
        return self._rules[type(node)](node, grid)

    def vector(self, node: Node, grid: Grid) -> Vector:
        value = self.value(node, grid)
        assert isinstance(value, Vector)
        return value

    def samples(self, node: Range | Subquery, at: Grid) -> Samples:
        """The fresh samples in all windows of a range vector that end at the times of ``at``."""
        if isinstance(node, Range):
            start_ms = at.start_ms - node.range_ms
            return self._marked(self._source.samples(node.selector.matchers, start_ms, at.end_ms, self._budget).fresh())
        step_ms = node.step_ms or self._budget.limits.subquery_step_ms
        first_ms = ((at.start_ms - node.range_ms) // step_ms + 1) * step_ms
        inner = Grid(first_ms, at.end_ms, step_ms)
        self._budget.take_samples(len(inner))
        if not len(inner):
            return Samples((), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
        vector = self.vector(node.expr, inner)
        counts = vector.present.sum(axis=1)
        self._budget.take_samples(int(counts.sum()))
        times = np.broadcast_to(inner.times_ms, vector.values.shape)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        return Samples(vector.labels, offsets, times[vector.present], vector.values[vector.present], vector.unnamed)

    def anchored(self, at: At | None, offset_ms: int, grid: Grid) -> Grid:
        """Where a selector under ``@`` and ``offset`` looks: one fixed time, or the grid's times."""
        if at is None:
            return grid.shifted(offset_ms)
        named = {"start": self._query.start_ms, "end": self._query.end_ms}
        return Grid.instant((named[at] if isinstance(at, str) else at) - offset_ms)

    def _binary(self, node: Binary, grid: Grid) -> Value:
        left, right = selectors_of(node.left), selectors_of(node.right)
        if not left or not right or left & right:  # what both read is read once, one after the other
            return binary(node, self.value(node.left, grid), self.value(node.right, grid))
        return binary(
            node, *self._sides.both(lambda: self.value(node.left, grid), lambda: self.value(node.right, grid))
        )

    def _aggregation(self, node: Aggregation, grid: Grid) -> Vector:
        param = None if node.param is None else self.value(node.param, grid)
        assert not isinstance(param, Vector)
        pushed = self._pushed(node, grid)
        return pushed if pushed is not None else aggregate(node, self.vector(node.expr, grid), param, self.notes)

    def _pushed(self, node: Aggregation, grid: Grid) -> Vector | None:
        """An aggregation over a plain leaf, if the source computes it by itself."""
        call, child = (node.expr, node.expr.args[0]) if isinstance(node.expr, Call) else (None, node.expr)
        if call is None and isinstance(child, Selector):
            child = Range(child, self._budget.limits.lookback_ms)
        limits = self._budget.limits
        if not isinstance(child, Range) or child.selector.extension or limits.delayed_names or node.param is not None:
            return None
        if call is not None and (len(call.args) != 1 or call.function not in WINDOW_FUNCTIONS):
            return None
        function, ends = call.function if call is not None else "last", self._ends(child, grid)
        matchers = child.selector.matchers
        found = self._source.aggregate(node, function, matchers, ends, child.range_ms, self._budget)
        if found is None:
            return None
        if function in ("rate", "increase") and len(found):  # of one metric: see `loms.promql.pushdown`
            names = {one.value for one in matchers if one.name == NAME and one.op == "="}
            self.notes.check_counters([((NAME, name),) for name in names], child.place)
        return found if len(ends) == len(grid) else found.repeated(len(grid))

    def _call(self, node: Call, grid: Grid) -> Value:
        name, args = node.function, node.args
        if name in ("absent", "absent_over_time"):
            return self._absent(args[0], grid)
        if name == "timestamp" and isinstance(args[0], Selector):
            return nameless(self._selected("timestamp", args[0], grid))
        if name == "info":
            return self._info(node, grid)
        if name in FUNCTIONS:
            context = Context(grid, self._query, self.notes, node)
            return FUNCTIONS[name]([self.value(argument, grid) for argument in args], context)
        if name == "double_exponential_smoothing":
            return self._smoothed(node, grid)
        matrix, scalar = _ARGUMENTS.get(name, (0, None))
        argument = np.zeros(len(grid)) if scalar is None else self.value(args[scalar], grid)
        vector = self._windowed(name, args[matrix], grid, cast(Scalar, argument)).compact()
        if name in ("rate", "increase"):
            self.notes.check_counters(vector.labels, args[matrix].place)
        elif name == "quantile_over_time":
            self.notes.check_quantile(cast(Scalar, argument), args[0].place)
        return vector if name in KEEPS_NAME else nameless(vector, ranged=True)

    def _info(self, node: Call, grid: Grid) -> Vector:
        second = node.args[1] if len(node.args) > 1 else None
        call = Enrichment(self.vector(node.args[0], grid), second.matchers if isinstance(second, Selector) else ())
        matchers = call.matchers()
        if matchers is None:
            return call.joined(Vector.empty(len(grid)))
        at, offset_ms = reference(node.args[0])
        return call.joined(self._selected("timestamp", Selector(matchers, offset_ms, at), grid))

    def _smoothed(self, node: Call, grid: Grid) -> Vector:
        factors = [cast(Scalar, self.value(argument, grid)) for argument in node.args[1:]]
        argument = node.args[0]
        assert isinstance(argument, Range | Subquery)
        ends = self._ends(argument, grid)
        windows = Windows.over(self.samples(argument, ends), ends, argument.range_ms, self._budget)
        vector = double_exponential_smoothing(windows, *(float(factor[0]) for factor in factors))
        return nameless(vector if len(ends) == len(grid) else vector.repeated(len(grid)), ranged=True)

    def _ends(self, node: Range | Subquery, grid: Grid) -> Grid:
        anchor = node.selector if isinstance(node, Range) else node
        return self.anchored(anchor.at, anchor.offset_ms, grid)

    def _selected(self, function: str, node: Selector, grid: Grid) -> Vector:
        if node.extension:
            return self._interpolated(node, grid)
        looked_back = Range(node, self._budget.limits.lookback_ms)
        return self._windowed(function, looked_back, grid, np.zeros(len(grid)))

    def _interpolated(self, node: Selector, grid: Grid) -> Vector:
        lookback_ms, ends = self._budget.limits.lookback_ms, self.anchored(node.at, node.offset_ms, grid)
        samples = self._around(Range(node, 0), ends)
        vector = extended.interpolated(samples, ends, lookback_ms, self._budget)
        return vector if len(ends) == len(grid) else vector.repeated(len(grid))

    def _around(self, node: Range, ends: Grid) -> Samples:
        """The fresh samples of extended windows that end at ``ends``."""
        extension, lookback_ms = node.selector.extension, self._budget.limits.lookback_ms
        last_ms = extended.reach(ends, extension, lookback_ms).end_ms
        start_ms = ends.start_ms - node.range_ms - lookback_ms
        found = self._source.samples(node.selector.matchers, start_ms, last_ms, self._budget).fresh()
        return self._marked(found)

    def _marked(self, samples: Samples) -> Samples:
        """Samples of the source, whose names go at once or at the end."""
        if not self._budget.limits.delayed_names:
            return samples
        return replace(samples, unnamed=np.zeros(len(samples.labels), np.bool_))

    def _windowed(self, function: str, node: Node, grid: Grid, argument: Scalar) -> Vector:
        """A window function over a range vector at each time; ``argument`` is its scalar argument, [time]."""
        assert isinstance(node, Range | Subquery)
        at, ends = (node.selector if isinstance(node, Range) else node).at, self._ends(node, grid)
        if function == "predict_linear":  # from the evaluation time, not from the end of a shifted window
            argument = argument + (grid.times_ms - ends.times_ms) / 1000
        if isinstance(node, Range) and node.selector.extension:
            vector = self._extended(function, node, ends)
            return vector if len(ends) == len(grid) else vector.repeated(len(grid))
        if at is None:
            return self._at(function, node, ends, argument)
        if (argument == argument[0]).all():
            return self._at(function, node, ends, argument[:1]).repeated(len(grid))
        samples = self.samples(node, ends)
        windows = Windows.over(samples, ends, node.range_ms, self._budget)
        columns = [WINDOW_FUNCTIONS[function](windows, argument[i : i + 1]) for i in range(len(grid))]
        values, present = (np.hstack([getattr(one, part) for one in columns]) for part in ("values", "present"))
        return Vector(samples.labels, values, present, samples.unnamed)

    def _extended(self, function: str, node: Range, ends: Grid) -> Vector:
        extension, lookback_ms = node.selector.extension, self._budget.limits.lookback_ms
        extended.check(function, extension)
        samples = self._around(node, ends)
        return extended.applied(function, extension, samples, ends, node.range_ms, lookback_ms, self._budget)

    def _at(self, function: str, node: Range | Subquery, ends: Grid, argument: Scalar) -> Vector:
        if isinstance(node, Subquery):
            return WINDOW_FUNCTIONS[function](
                Windows.over(self.samples(node, ends), ends, node.range_ms, self._budget), argument
            )
        constant = float(argument[0]) if (argument == argument[0]).all() else None
        key = (function, node.selector, node.range_ms, ends, constant)
        if key not in self._leaves or constant is None:
            leaf = self._leaf(function, node, ends, argument, constant)
            self._leaves[key] = leaf.delayed() if self._budget.limits.delayed_names else leaf
        return self._leaves[key]

    def _leaf(self, function: str, node: Range, ends: Grid, argument: Scalar, constant: float | None) -> Vector:
        matchers = node.selector.matchers
        if constant is not None:
            found = self._source.grid(function, matchers, ends, node.range_ms, constant, self._budget)
            if found is not None:
                return found
        samples = self._source.samples(matchers, ends.start_ms - node.range_ms, ends.end_ms, self._budget)
        return applied(function, self._marked(samples), ends, node.range_ms, argument, self._budget)

    def _absent(self, node: Node, grid: Grid) -> Vector:
        """1 where the vector is empty, with the labels that its selector demands by ``=``."""
        if isinstance(node, Range | Subquery):
            found = self._windowed("present_over_time", node, grid, np.zeros(len(grid)))
        else:
            found = self.vector(node, grid)
        missing = np.equal(found.present.sum(axis=0), 0)[None, :]
        return Vector((_demanded_labels(node),), np.ones(missing.shape), missing)


def _demanded_labels(node: Node) -> Labels:
    """Labels that the selector fixes to one value; a label that it names twice counts for nothing."""
    selector = node.selector if isinstance(node, Range) else node
    if not isinstance(selector, Selector):
        return ()
    named = [matcher.name for matcher in selector.matchers]
    fixed = {m.name: m.value for m in selector.matchers if m.op == "=" and m.name != NAME and named.count(m.name) == 1}
    return tuple(sorted((name, value) for name, value in fixed.items() if value))
