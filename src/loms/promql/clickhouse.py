"""The store's tables as a source: leaves become SQL, windows are computed by ClickHouse's grid aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loms.core.model import STALE_NAN_BITS, Bools, Floats, Ids, Ints, Labels, is_stale
from loms.promql.selection import Layer, QueryColumns, Selection, between, select
from loms.promql.source import Budget, Samples
from loms.promql.syntax import Matchers
from loms.promql.values import Grid, Vector

GRID_FUNCTIONS: Mapping[str, str] = {
    "avg_over_time": "Avg",
    "changes": "Changes",
    "count_over_time": "Count",
    "delta": "Delta",
    "deriv": "Deriv",
    "idelta": "InstantDelta",
    "increase": "Increase",
    "irate": "InstantRate",
    "last": "Last",
    "last_over_time": "Last",
    "max_over_time": "Max",
    "min_over_time": "Min",
    "predict_linear": "PredictLinear",
    "present_over_time": "Count",
    "rate": "Rate",
    "resets": "Resets",
    "sum_over_time": "Sum",
    "timestamp": "Last",
}
"""PromQL function → the X of ClickHouse's ``timeSeriesXToGrid``."""

_STALE = f"reinterpretAsUInt64(value) = {STALE_NAN_BITS}"

_VALUES = {
    "changes": "value + 0.0",  # -0 is no other value than 0; the aggregate compares bits
    "timestamp": f"if({_STALE}, value, toUnixTimestamp64Milli(ts) / 1000)",
}


class ClickHouseSource:
    """A `loms.promql.source.Source` over the tables of one ClickHouse database, embedded or remote.

    Safe to use from several threads as ``query_columns`` is.
    """

    def __init__(self, query_columns: QueryColumns) -> None:
        self._selection = Selection(query_columns)

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        index = self._selection.find(matchers, budget)
        if start_ms is None or end_ms is None:
            return index.labels
        found: set[int] = set()
        for layer in index.layers():
            where = f"{layer.where} AND {between(start_ms - 1, end_ms)}"
            table = self._selection.query(select(f"DISTINCT {layer.key} AS k", "samples", where), budget)
            found.update(layer.rows[np.isin(layer.keys, table["k"].to_numpy())].tolist())
        return [labels for row, labels in enumerate(index.labels) if row in found]

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        index = self._selection.find(matchers, budget)
        counts = np.zeros(len(index.labels), np.int64)
        parts: list[tuple[Ints, Ints, Floats]] = []
        for layer in index.layers():
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
        if function not in GRID_FUNCTIONS:
            return None
        index = self._selection.find(matchers, budget)
        values = np.zeros((len(index.labels), len(grid)))
        present = np.zeros(values.shape, dtype=np.bool_)
        for layer in index.layers():
            budget.take_samples(len(layer.rows) * len(grid))
            found = self._selection.query(_grid_sql(function, layer, grid, window_ms, arg), budget)
            keys = found["k"].to_numpy()
            order = np.argsort(keys)
            place = np.minimum(np.searchsorted(keys, layer.keys, sorter=order), max(len(keys) - 1, 0))
            if not len(keys):
                continue
            hit = keys[order[place]] == layer.keys
            rows, of = layer.rows[hit], order[place[hit]]
            layer_values, layer_present = _lists(found["g"], len(grid))
            values[rows], present[rows] = layer_values[of], layer_present[of]
        if function == "present_over_time":
            values = np.ones(values.shape)
        elif function in ("last", "timestamp"):
            present &= ~is_stale(values)
        elif function in ("rate", "increase") and np.isnan(values[present]).any():
            return None  # after an infinite value the aggregate gives NaN for good, not only while it is in the window
        return Vector(index.labels, values, present)

    def _rows(self, layer: Layer, start_ms: int, end_ms: int, budget: Budget) -> tuple[Ids, Ints, Floats]:
        """Keys, times and values of the layer's samples, by key and time, each time once."""
        limit = budget.remaining_samples() + 1
        where = f"{layer.where} AND {between(start_ms, end_ms)}"
        sql = select(f"{layer.key} AS k, toUnixTimestamp64Milli(ts) AS t, value", "samples", where)
        table = self._selection.query(f"{sql} ORDER BY k, t LIMIT {limit}", budget)
        budget.take_samples(len(table["k"]))
        key, times, values = (table[name].to_numpy() for name in ("k", "t", "value"))
        last = np.append((key[1:] != key[:-1]) | (times[1:] != times[:-1]), np.ones(min(len(key), 1), np.bool_))
        return key[last], times[last], values[last]


def _seconds(ms: int) -> str:
    return f"toDecimal64('{ms // 1000}.{ms % 1000:03d}', 3)"


def _grid_sql(function: str, layer: Layer, grid: Grid, window_ms: int, arg: float | None) -> str:
    start_ms, end_ms = grid.start_ms, grid.start_ms + (len(grid) - 1) * grid.step_ms
    where = f"{layer.where} AND {between(start_ms - window_ms, end_ms)}"
    if function not in ("last", "timestamp"):  # there a staleness marker ends the series; windows leave it out
        where += f" AND NOT ({_STALE})"
    value = _VALUES.get(function, "value")
    parameters = [
        f"fromUnixTimestamp64Milli({start_ms})",
        f"fromUnixTimestamp64Milli({end_ms})",
        _seconds(grid.step_ms),
        _seconds(window_ms),
        *([repr(arg)] if function == "predict_linear" else []),
    ]
    aggregate = f"timeSeries{GRID_FUNCTIONS[function]}ToGrid({', '.join(parameters)})(ts, {value})"
    return select(f"{layer.key} AS k, {aggregate} AS g", "samples", f"{where} GROUP BY k")


def _lists(column: Any, length: int) -> tuple[Floats, Bools]:
    """A column of equally long lists with NULLs as values and presence, both [row, length]."""
    flat = column.flatten()
    present = flat.is_valid().to_numpy(zero_copy_only=False)
    return flat.to_numpy(zero_copy_only=False).reshape(-1, length), present.reshape(-1, length)
