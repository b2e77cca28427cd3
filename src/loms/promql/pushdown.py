"""Aggregation over series in the database, so that of many series only their groups leave it.

Each series' points on the grid are an array, and ClickHouse's ``…ForEach`` combinators fold arrays. Groups are numbered
here, from the labels that the selection knows, and handed in as a constant mapping of ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loms.core.model import STALE_NAN_BITS, Floats, Ints, Labels
from loms.promql.aggregations import group_keys
from loms.promql.grids import GRID_FUNCTIONS, SPOILT_BY_INFINITY, lists, points_sql
from loms.promql.selection import Index, Layer, Selection, listed
from loms.promql.source import Budget
from loms.promql.syntax import NAME, Aggregation, Matchers
from loms.promql.values import Grid, Vector


@dataclass(frozen=True, slots=True)
class Threshold:
    """With fewer series, or fewer on average in a group, fetching all points and folding them here is as fast."""

    series: int = 1_000
    series_a_group: int = 8


_FOLDS: Mapping[str, str] = {
    "sum": "sumKahanForEach(g)",
    "avg": "sumKahanForEach(g)",
    "min": "minForEach(g)",  # these pass over NaN as long as there is a number, as PromQL does
    "max": "maxForEach(g)",
    "count": "",
    "group": "",
}
"""Operator → its values by group, besides the counts."""
_KEEP_NAME = frozenset({"last", "last_over_time"})


def aggregate(
    selection: Selection,
    threshold: Threshold,
    node: Aggregation,
    function: str,
    matchers: Matchers,
    grid: Grid,
    window_ms: int,
    budget: Budget,
    seen_ms: int = 0,
) -> Vector | None:
    """The aggregation at each time of the grid; None where folding here is as fast, or the only right way."""
    if node.op not in _FOLDS or function not in GRID_FUNCTIONS or function == "predict_linear":
        return None
    index = selection.find(matchers, budget, seen_ms)
    if len(index.labels) < threshold.series or not _is_plain(index, function, matchers):
        return None
    if function not in _KEEP_NAME:
        node = replace(node, labels=tuple(name for name in node.labels if name != NAME))
    numbers: dict[Labels, int] = {}
    group = [numbers.setdefault(key, len(numbers)) for key in group_keys(node, index.labels)]
    if len(numbers) * threshold.series_a_group > len(index.labels):
        return None
    budget.take_samples(len(numbers) * len(grid))
    layer = index.layers[0]
    found = selection.query(_sql(node.op, function, layer, np.array(group)[layer.rows], grid, window_ms), budget)
    values, counts = np.zeros((len(numbers), len(grid))), np.zeros((len(numbers), len(grid)), np.int64)
    known = found["n"].to_numpy() < len(numbers)  # the others are series that were new between the two queries
    rows = found["n"].to_numpy()[known]
    counts[rows] = lists(found["c"], len(grid))[known]
    if _FOLDS[node.op]:
        values[rows] = lists(found["v"], len(grid))[known]
    if node.op in ("sum", "avg") and not np.isfinite(values).all():
        return None  # infinities and NaN add up to something only in the exact way of the engine
    if function in SPOILT_BY_INFINITY and found["nan"].to_numpy().any():
        return None
    return Vector(tuple(numbers), _finished(node.op, values, counts), counts > 0).compact()


def _is_plain(index: Index, function: str, matchers: Matchers) -> bool:
    """Whether each id belongs to one series only, and no two series become equal when they lose their name."""
    if function not in _KEEP_NAME and not any(one.name == NAME and one.op == "=" for one in matchers):
        return False
    return len(index.layers) == 1 and len(np.unique(index.layers[0].keys)) == len(index.labels)


def _sql(op: str, function: str, layer: Layer, group: Ints, grid: Grid, window_ms: int) -> str:
    points = "{}"
    if function in ("last", "timestamp"):
        points = f"arrayMap(x -> if(reinterpretAsUInt64(ifNull(x, 0.)) = {STALE_NAN_BITS}, NULL, x), {{}})"
    elif function == "present_over_time":
        points = "arrayMap(x -> if(x > 0, 1., NULL), {})"
    inner = points_sql(function, layer, grid, window_ms, None, points)
    number = f"transform(k, {listed(layer.keys)}, {listed(group, 'UInt32')}, toUInt32({int(group.max()) + 1}))"
    columns = [f"{number} AS n", "countForEach(g) AS c"]
    if fold := _FOLDS[op]:
        columns.append(f"arrayMap(x -> ifNull(x, 0.), {fold}) AS v")
    if function in SPOILT_BY_INFINITY:
        columns.append("max(arrayExists(x -> isNaN(x), g)) AS nan")
    return f"SELECT {', '.join(columns)} FROM ({inner}) GROUP BY n"  # noqa: S608


def _finished(op: str, values: Floats, counts: Ints) -> Floats:
    numbers = counts.astype(np.float64)
    if op == "count":
        return numbers
    if op == "group":
        return np.ones(values.shape)
    return values / np.maximum(numbers, 1.0) if op == "avg" else values
