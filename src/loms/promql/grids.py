"""Window functions over leaves as SQL: ClickHouse's ``timeSeries…ToGrid`` aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loms.core.model import STALE_NAN_BITS, Floats
from loms.promql.selection import Layer, between, select
from loms.promql.values import Grid

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

SPOILT_BY_INFINITY = frozenset({"rate", "increase"})
"""After an infinite value these give NaN for good, not only while it is in the window."""

STALE = f"reinterpretAsUInt64(value) = {STALE_NAN_BITS}"
MARKER = f"reinterpretAsFloat64(toUInt64({STALE_NAN_BITS}))"

_VALUES = {
    "changes": "value + 0.0",  # -0 is no other value than 0; the aggregate compares bits
    "timestamp": f"if({STALE}, value, toUnixTimestamp64Milli(ts) / 1000)",
}


def points_sql(function: str, layer: Layer, grid: Grid, window_ms: int, arg: float | None, points: str = "{}") -> str:
    """Per key of the layer ``k`` and ``g``, the points on the grid, NULL for none; ``points`` is written around them.

    Of ``last`` and ``timestamp`` a point may also be a staleness marker, which means none.
    """
    start_ms, end_ms = grid.start_ms, grid.start_ms + (len(grid) - 1) * grid.step_ms
    where = f"{layer.where} AND {between(start_ms - window_ms, end_ms)}"
    if function not in ("last", "timestamp"):  # there a staleness marker ends the series; windows leave it out
        where += f" AND NOT ({STALE})"
    value = _VALUES.get(function, "value")
    parameters = [
        f"fromUnixTimestamp64Milli({start_ms})",
        f"fromUnixTimestamp64Milli({end_ms})",
        _seconds(grid.step_ms),
        _seconds(window_ms),
        *([repr(arg)] if function == "predict_linear" else []),
    ]
    aggregate = f"timeSeries{GRID_FUNCTIONS[function]}ToGrid({', '.join(parameters)})(ts, {value})"
    return select(f"{layer.key} AS k, {points.format(aggregate)} AS g", "samples", f"{where} GROUP BY k")


def lists(column: Any, length: int) -> Floats:
    """A column of equally long lists without NULLs, as [row, length]."""
    values: Floats = column.flatten().to_numpy().reshape(-1, length)
    return values


def _seconds(ms: int) -> str:
    return f"toDecimal64('{ms // 1000}.{ms % 1000:03d}', 3)"
