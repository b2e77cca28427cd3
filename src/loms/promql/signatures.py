"""What PromQL's functions and aggregation operators take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loms.promql.syntax import ValueType

WITH_PARAMETER: Mapping[str, ValueType] = {
    "bottomk": "scalar",
    "count_values": "string",
    "limit_ratio": "scalar",
    "limitk": "scalar",
    "quantile": "scalar",
    "topk": "scalar",
}
"""Aggregation operators with a parameter, and its type."""
AGGREGATIONS = frozenset({"avg", "count", "group", "max", "min", "stddev", "stdvar", "sum", *WITH_PARAMETER})


@dataclass(frozen=True, slots=True)
class Signature:
    """``arguments`` in order; of the last, ``optional`` more or fewer (None: as many as one likes, also none)."""

    arguments: tuple[ValueType, ...]
    returns: ValueType = "vector"
    optional: int | None = 0

    def wrong_count(self, name: str, given: int) -> str:
        """What is wrong with so many arguments, in Prometheus's words; empty when nothing is."""
        wanted = len(self.arguments)
        if self.optional == 0:
            return "" if given == wanted else f'expected {wanted} argument(s) in call to "{name}", got {given}'
        if given < wanted - 1:
            return f'expected at least {wanted - 1} argument(s) in call to "{name}", got {given}'
        if self.optional is not None and given > wanted - 1 + self.optional:
            return f'expected at most {wanted - 1 + self.optional} argument(s) in call to "{name}", got {given}'
        return ""

    def of(self, argument: int) -> ValueType:
        return self.arguments[min(argument, len(self.arguments) - 1)]


_VECTOR = Signature(("vector",))
_WINDOW = Signature(("matrix",))
_CALENDAR = Signature(("vector",), optional=1)
_CONSTANT = Signature((), "scalar")
_SORTED = Signature(("vector", "string"), optional=None)

_ALIKE: Mapping[Signature, str] = {
    _VECTOR: """
        abs absent acos acosh asin asinh atan atanh ceil cos cosh deg exp floor histogram_avg histogram_count
        histogram_stddev histogram_stdvar histogram_sum ln log10 log2 rad sgn sin sinh sort sort_desc sqrt
        start_timestamp tan tanh timestamp
    """,
    _WINDOW: """
        absent_over_time avg_over_time changes count_over_time delta deriv first_over_time idelta increase irate
        last_over_time mad_over_time max_over_time min_over_time present_over_time rate resets stddev_over_time
        stdvar_over_time sum_over_time ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time
        ts_of_min_over_time
    """,
    _CALENDAR: "day_of_month day_of_week day_of_year days_in_month hour minute month year",
    _CONSTANT: "end pi range start step time",
}

SIGNATURES: Mapping[str, Signature] = {
    **{name: signature for signature, names in _ALIKE.items() for name in names.split()},
    "clamp": Signature(("vector", "scalar", "scalar")),
    "clamp_max": Signature(("vector", "scalar")),
    "clamp_min": Signature(("vector", "scalar")),
    "double_exponential_smoothing": Signature(("matrix", "scalar", "scalar")),
    "histogram_fraction": Signature(("scalar", "scalar", "vector")),
    "histogram_quantile": Signature(("scalar", "vector")),
    "histogram_quantiles": Signature(("vector", "string", "scalar", "scalar"), optional=9),
    "info": Signature(("vector", "vector"), optional=1),
    "label_join": Signature(("vector", "string", "string", "string"), optional=None),
    "label_replace": Signature(("vector", "string", "string", "string", "string")),
    "max_of": Signature(("scalar", "scalar"), "scalar"),
    "min_of": Signature(("scalar", "scalar"), "scalar"),
    "predict_linear": Signature(("matrix", "scalar")),
    "quantile_over_time": Signature(("scalar", "matrix")),
    "round": Signature(("vector", "scalar"), optional=1),
    "scalar": Signature(("vector",), "scalar"),
    "sort_by_label": _SORTED,
    "sort_by_label_desc": _SORTED,
    "vector": Signature(("scalar",)),
}
