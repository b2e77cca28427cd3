"""Functions of instant vectors, scalars and strings. Functions over windows are in `loms.promql.windows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loms.core.model import Floats, Ints, Labels
from loms.promql import regexes
from loms.promql.histograms import histogram_quantile
from loms.promql.operators import scalar_of
from loms.promql.values import EvaluationError, Grid, Scalar, Value, Vector, merged, nameless

Function = Callable[[Sequence[Value], Grid], Value]
"""Evaluated arguments and the grid they were evaluated on → the value."""


def _vector(value: Value) -> Vector:
    assert isinstance(value, Vector)
    return value


def _scalar(value: Value) -> Scalar:
    assert isinstance(value, np.ndarray)
    return value


def _text(value: Value) -> str:
    assert isinstance(value, str)
    return value


def _elementwise(function: Callable[[Floats], Floats]) -> Function:
    return lambda args, grid: nameless(_vector(args[0]), function(_vector(args[0]).values))


def _round(args: Sequence[Value], grid: Grid) -> Value:
    vector = _vector(args[0])
    inverse = 1.0 / _scalar(args[1]) if len(args) > 1 else 1.0
    return nameless(vector, np.floor(vector.values * inverse + 0.5) / inverse)


def _clamp(args: Sequence[Value], grid: Grid) -> Value:
    vector, low, high = _vector(args[0]), _scalar(args[1]), _scalar(args[2])
    clamped = np.maximum(low, np.minimum(high, vector.values))
    return nameless(Vector(vector.labels, clamped, vector.present & ~(high < low)))


def _clamp_min(args: Sequence[Value], grid: Grid) -> Value:
    return nameless(_vector(args[0]), np.maximum(_scalar(args[1]), _vector(args[0]).values))


def _clamp_max(args: Sequence[Value], grid: Grid) -> Value:
    return nameless(_vector(args[0]), np.minimum(_scalar(args[1]), _vector(args[0]).values))


def _vector_of(args: Sequence[Value], grid: Grid) -> Value:
    values = _scalar(args[0])[None, :]
    return Vector(((),), values, np.ones(values.shape, dtype=np.bool_))


def _timestamp(args: Sequence[Value], grid: Grid) -> Value:
    vector = _vector(args[0])
    return nameless(vector, np.broadcast_to(grid.times_ms / 1000, vector.values.shape))


def _sorted(args: Sequence[Value], descending: bool) -> Value:
    """Orders an instant query's vector, NaN last; ranges are always ordered by labels."""
    vector = _vector(args[0])
    if vector.values.shape[1] != 1:
        return vector
    values = vector.values[:, 0]
    return vector.take(np.lexsort((-values if descending else values, np.isnan(values))))


def _relabelled(vector: Vector, name: str, values: Sequence[str | None]) -> Vector:
    """Each series with label ``name`` set to the value that belongs to it (None: as it was, "": without)."""
    if not name:
        raise EvaluationError('invalid destination label name ""')
    labels: list[Labels] = []
    for old, value in zip(vector.labels, values, strict=True):
        rest = tuple(pair for pair in old if pair[0] != name)
        labels.append(old if value is None else tuple(sorted((*rest, (name, value)))) if value else rest)
    return merged(labels, vector.values, vector.present)


def _column(vector: Vector, name: str) -> list[str]:
    return [dict(labels).get(name, "") for labels in vector.labels]


def _label_replace(args: Sequence[Value], grid: Grid) -> Value:
    vector, name, template, source, pattern = _vector(args[0]), *(_text(text) for text in args[1:])
    return _relabelled(vector, name, regexes.replaced(pattern, template, _column(vector, source)))


def _label_join(args: Sequence[Value], grid: Grid) -> Value:
    vector, name, separator, *sources = _vector(args[0]), *(_text(text) for text in args[1:])
    columns = [_column(vector, source) for source in sources]
    joined = [separator.join(values) for values in zip(*columns, strict=True)] if columns else [""] * len(vector)
    return _relabelled(vector, name, joined)


def _histogram_quantile(args: Sequence[Value], grid: Grid) -> Value:
    return histogram_quantile(_scalar(args[0]), _vector(args[1]))


_Times = NDArray[np.datetime64]


def _calendar(part: Callable[[_Times], Ints]) -> Function:
    """A function of UTC calendar time: of the vector's values as Unix seconds, or of the evaluation time."""

    def function(args: Sequence[Value], grid: Grid) -> Value:
        vector = _vector(args[0] if args else _vector_of([grid.times_ms / 1000], grid))
        sensible = np.abs(vector.values) < 1e11
        seconds = np.trunc(np.where(sensible, vector.values, 0.0)).astype("datetime64[s]")
        return nameless(vector, np.where(sensible, part(seconds).astype(np.float64), np.nan))

    return function


def _since(unit: str, around: str) -> Callable[[_Times], Ints]:
    """How many ``unit`` have passed since the ``around`` (day, month, year) of each time began."""

    def passed(time: _Times) -> Ints:
        begin = time.astype(f"datetime64[{around}]").astype(f"datetime64[{unit}]")
        count: Ints = (time.astype(f"datetime64[{unit}]") - begin).astype(np.int64)
        return count

    return passed


def _days_in_month(time: _Times) -> Ints:
    month = time.astype("datetime64[M]")
    days: Ints = ((month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")).astype(np.int64)
    return days


def _native(args: Sequence[Value], grid: Grid) -> Value:
    raise EvaluationError("native histograms are not supported: histogram_count, _sum, _avg and the like need them")


FUNCTIONS: Mapping[str, Function] = {
    "abs": _elementwise(np.abs),
    "acos": _elementwise(np.arccos),
    "acosh": _elementwise(np.arccosh),
    "asin": _elementwise(np.arcsin),
    "asinh": _elementwise(np.arcsinh),
    "atan": _elementwise(np.arctan),
    "atanh": _elementwise(np.arctanh),
    "ceil": _elementwise(np.ceil),
    "clamp": _clamp,
    "clamp_max": _clamp_max,
    "clamp_min": _clamp_min,
    "cos": _elementwise(np.cos),
    "cosh": _elementwise(np.cosh),
    "day_of_month": _calendar(lambda time: _since("D", "M")(time) + 1),
    "day_of_week": _calendar(lambda time: (time.astype("datetime64[D]").astype(np.int64) + 4) % 7),
    "day_of_year": _calendar(lambda time: _since("D", "Y")(time) + 1),
    "days_in_month": _calendar(_days_in_month),
    "deg": _elementwise(np.degrees),
    "exp": _elementwise(np.exp),
    "floor": _elementwise(np.floor),
    "histogram_avg": _native,
    "histogram_count": _native,
    "histogram_quantile": _histogram_quantile,
    "histogram_stddev": _native,
    "histogram_stdvar": _native,
    "histogram_sum": _native,
    "hour": _calendar(_since("h", "D")),
    "label_join": _label_join,
    "label_replace": _label_replace,
    "ln": _elementwise(np.log),
    "log10": _elementwise(np.log10),
    "log2": _elementwise(np.log2),
    "minute": _calendar(_since("m", "h")),
    "month": _calendar(lambda time: _since("M", "Y")(time) + 1),
    "pi": lambda args, grid: np.full(len(grid), np.pi),
    "rad": _elementwise(np.radians),
    "round": _round,
    "scalar": lambda args, grid: scalar_of(_vector(args[0])),
    "sgn": _elementwise(np.sign),
    "sin": _elementwise(np.sin),
    "sinh": _elementwise(np.sinh),
    "sort": lambda args, grid: _sorted(args, descending=False),
    "sort_desc": lambda args, grid: _sorted(args, descending=True),
    "sqrt": _elementwise(np.sqrt),
    "tan": _elementwise(np.tan),
    "tanh": _elementwise(np.tanh),
    "time": lambda args, grid: grid.times_ms / 1000,
    "timestamp": _timestamp,
    "vector": _vector_of,
    "year": _calendar(lambda time: time.astype("datetime64[Y]").astype(np.int64) + 1970),
}
