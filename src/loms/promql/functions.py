"""Functions of instant vectors, scalars and strings. Functions over windows are in `loms.promql.windows`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loms.core.errors import QueryError
from loms.core.model import Floats, Ints, Labels
from loms.promql import regexes
from loms.promql.context import Context
from loms.promql.histograms import histogram_fraction, histogram_quantile, histogram_quantiles
from loms.promql.lexer import quoted
from loms.promql.operators import scalar_of
from loms.promql.regexes import well_formed
from loms.promql.syntax import NAME
from loms.promql.values import EvaluationError, Scalar, Value, Vector, merged, nameless

Function = Callable[[Sequence[Value], Context], Value]
"""Evaluated arguments → the value."""


_RUNS = re.compile(r"[0-9]+|[^0-9]+")


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
    return lambda args, context: nameless(_vector(args[0]), function(_vector(args[0]).values))


def _round(args: Sequence[Value], context: Context) -> Value:
    vector = _vector(args[0])
    inverse = 1.0 / _scalar(args[1]) if len(args) > 1 else 1.0
    return nameless(vector, np.floor(vector.values * inverse + 0.5) / inverse)


def _max(left: Floats, right: Floats) -> Floats:
    """As Go's ``math.Max``: an infinity that decides does so beside NaN too."""
    return np.where(np.isposinf(left) | np.isposinf(right), np.inf, np.maximum(left, right))


def _min(left: Floats, right: Floats) -> Floats:
    """As Go's ``math.Min``."""
    return np.where(np.isneginf(left) | np.isneginf(right), -np.inf, np.minimum(left, right))


def _clamp(args: Sequence[Value], context: Context) -> Value:
    vector, low, high = _vector(args[0]), _scalar(args[1]), _scalar(args[2])
    clamped = _max(low, _min(high, vector.values))
    return nameless(replace(vector, values=clamped, present=vector.present & ~(high < low)))


def _clamp_min(args: Sequence[Value], context: Context) -> Value:
    return nameless(_vector(args[0]), _max(_scalar(args[1]), _vector(args[0]).values))


def _clamp_max(args: Sequence[Value], context: Context) -> Value:
    return nameless(_vector(args[0]), _min(_scalar(args[1]), _vector(args[0]).values))


def _vector_of(args: Sequence[Value], context: Context) -> Value:
    values = _scalar(args[0])[None, :]
    return Vector(((),), values, np.ones(values.shape, dtype=np.bool_))


def _timestamp(args: Sequence[Value], context: Context) -> Value:
    vector = _vector(args[0])
    return nameless(vector, np.broadcast_to(context.grid.times_ms / 1000, vector.values.shape))


def _sorted(args: Sequence[Value], context: Context, descending: bool) -> Value:
    """Orders an instant query's vector, NaN last; ranges are always ordered by labels."""
    vector = _vector(args[0])
    if not _orders(context):
        return vector
    values = vector.values[:, 0]
    return vector.take(np.lexsort((-values if descending else values, np.isnan(values))))


def _orders(context: Context) -> bool:
    if context.query.step_seconds:
        ineffective = "sort is ineffective for range queries since results are always ordered by labels"
        context.notes.warn(ineffective, context.call.place)
    return len(context.grid) == 1 and not context.query.step_seconds


def _sorted_by_label(args: Sequence[Value], context: Context, descending: bool) -> Value:
    """Orders by the values of labels, digits in them as numbers; ties by all labels."""
    vector, names = _vector(args[0]), [_text(name) for name in args[1:]]
    if not _orders(context):
        return vector

    def key(row: int) -> tuple[list[_Natural], Labels]:
        labels = vector.labels[row]
        return [_Natural(dict(labels).get(name, "")) for name in names], labels

    return vector.take(np.array(sorted(range(len(vector)), key=key, reverse=descending), dtype=np.int64))


@dataclass(frozen=True, slots=True, order=False)
class _Natural:
    """Text whose runs of digits compare as numbers, so that ``a9`` is less than ``a10``."""

    text: str

    def __lt__(self, other: _Natural) -> bool:
        left, right = (_RUNS.findall(one.text) for one in (self, other))
        for a, b in zip(left, right, strict=False):
            if a.isdecimal() and b.isdecimal() and int(a) != int(b):
                return int(a) < int(b)
            if a != b and not (a.isdecimal() and b.isdecimal()):
                return bool(a < b)
        return (len(left), self.text) < (len(right), other.text)


def _relabelled(vector: Vector, function: str, name: str, values: Sequence[str | None]) -> Vector:
    """Each series with label ``name`` set to the value that belongs to it (None: as it was, "": without)."""
    if not name or any("\ud800" <= char <= "\udfff" for char in name):
        raise EvaluationError(f"invalid destination label name in {function}(): {quoted(name)[1:-1]}")
    unnamed = vector.unnamed
    if unnamed is not None and name == NAME:  # a name that is set anew stays
        unnamed = unnamed & np.array([value is None for value in values], np.bool_)
    labels: list[Labels] = []
    for old, value in zip(vector.labels, values, strict=True):
        rest = tuple(pair for pair in old if pair[0] != name)
        labels.append(old if value is None else tuple(sorted((*rest, (name, value)))) if value else rest)
    return merged(labels, vector.values, vector.present, unnamed=unnamed)


def _column(vector: Vector, name: str) -> list[str]:
    return [dict(labels).get(name, "") for labels in vector.labels]


def _label_replace(args: Sequence[Value], context: Context) -> Value:
    vector, name, template, source, pattern = _vector(args[0]), *(_text(text) for text in args[1:])
    try:
        values = regexes.replaced(pattern, well_formed(template), _column(vector, source))
    except QueryError:
        shown = well_formed(pattern[:200])
        raise EvaluationError(f"invalid regular expression in label_replace(): {shown}") from None
    return _relabelled(vector, "label_replace", name, values)


def _label_join(args: Sequence[Value], context: Context) -> Value:
    vector, name, separator, *sources = _vector(args[0]), *(_text(text) for text in args[1:])
    columns = [_column(vector, source) for source in sources]
    if any(not source or well_formed(source) != source for source in sources):
        wrong = next(source for source in sources if not source or well_formed(source) != source)
        raise EvaluationError(f"invalid source label name in label_join(): {quoted(wrong)[1:-1]}")
    joined = (
        [well_formed(separator).join(values) for values in zip(*columns, strict=True)]
        if columns
        else [""] * len(vector)
    )
    return _relabelled(vector, "label_join", name, joined)


def _histogram_quantile(args: Sequence[Value], context: Context) -> Value:
    context.notes.check_quantile(_scalar(args[0]), context.call.args[0].place)
    return histogram_quantile(_scalar(args[0]), _vector(args[1]), context)


def _histogram_quantiles(args: Sequence[Value], context: Context) -> Value:
    for number in range(2, len(args)):
        context.notes.check_quantile(_scalar(args[number]), context.call.args[number].place)
    return histogram_quantiles([_scalar(one) for one in args[2:]], _text(args[1]), _vector(args[0]), context)


def _histogram_fraction(args: Sequence[Value], context: Context) -> Value:
    return histogram_fraction(_scalar(args[0]), _scalar(args[1]), _vector(args[2]), context)


_Times = NDArray[np.datetime64]


_FURTHEST_SECONDS = 2.0**63


def _calendar(part: Callable[[_Times], Ints], beyond: float) -> Function:
    """A function of UTC calendar time: of the vector's values as Unix seconds, or of the evaluation time.

    ``beyond`` stands for NaN and for what does not fit into 64 bits: Prometheus takes these for its last moment,
    292277026596-12-04 15:30:08, which is a Sunday.
    """

    def function(args: Sequence[Value], context: Context) -> Value:
        vector = _vector(args[0] if args else _vector_of([context.grid.times_ms / 1000], context))
        sensible = np.abs(vector.values) < _FURTHEST_SECONDS
        seconds = np.trunc(np.where(sensible, vector.values, 0.0)).astype("datetime64[s]")
        return nameless(vector, np.where(sensible, part(seconds).astype(np.float64), beyond))

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


def _native(args: Sequence[Value], context: Context) -> Value:
    raise EvaluationError("native histograms are not supported: histogram_count, _sum, _avg and the like need them")


def _start_timestamp(args: Sequence[Value], context: Context) -> Value:
    raise EvaluationError("start_timestamp() needs start timestamps, which are not stored")


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
    "day_of_month": _calendar(lambda time: _since("D", "M")(time) + 1, 4),
    "day_of_week": _calendar(lambda time: (time.astype("datetime64[D]").astype(np.int64) + 4) % 7, 0),
    "day_of_year": _calendar(lambda time: _since("D", "Y")(time) + 1, 339),
    "days_in_month": _calendar(_days_in_month, 31),
    "deg": _elementwise(np.degrees),
    "end": lambda args, context: np.full(len(context.grid), context.query.end_ms / 1000),
    "exp": _elementwise(np.exp),
    "floor": _elementwise(np.floor),
    "histogram_avg": _native,
    "histogram_count": _native,
    "histogram_fraction": _histogram_fraction,
    "histogram_quantile": _histogram_quantile,
    "histogram_quantiles": _histogram_quantiles,
    "histogram_stddev": _native,
    "histogram_stdvar": _native,
    "histogram_sum": _native,
    "hour": _calendar(_since("h", "D"), 15),
    "label_join": _label_join,
    "label_replace": _label_replace,
    "ln": _elementwise(np.log),
    "log10": _elementwise(np.log10),
    "log2": _elementwise(np.log2),
    "max_of": lambda args, context: _max(_scalar(args[0]), _scalar(args[1])),
    "min_of": lambda args, context: _min(_scalar(args[0]), _scalar(args[1])),
    "minute": _calendar(_since("m", "h"), 30),
    "month": _calendar(lambda time: _since("M", "Y")(time) + 1, 12),
    "pi": lambda args, context: np.full(len(context.grid), np.pi),
    "range": lambda args, context: np.full(len(context.grid), context.query.span_seconds),
    "rad": _elementwise(np.radians),
    "round": _round,
    "scalar": lambda args, context: scalar_of(_vector(args[0])),
    "sgn": _elementwise(np.sign),
    "sin": _elementwise(np.sin),
    "sinh": _elementwise(np.sinh),
    "sort": lambda args, context: _sorted(args, context, descending=False),
    "sort_desc": lambda args, context: _sorted(args, context, descending=True),
    "sort_by_label": lambda args, context: _sorted_by_label(args, context, descending=False),
    "sort_by_label_desc": lambda args, context: _sorted_by_label(args, context, descending=True),
    "start": lambda args, context: np.full(len(context.grid), context.query.start_ms / 1000),
    "start_timestamp": _start_timestamp,
    "step": lambda args, context: np.full(len(context.grid), context.query.step_seconds),
    "sqrt": _elementwise(np.sqrt),
    "tan": _elementwise(np.tan),
    "tanh": _elementwise(np.tanh),
    "time": lambda args, context: context.grid.times_ms / 1000,
    "timestamp": _timestamp,
    "vector": _vector_of,
    "year": _calendar(lambda time: time.astype("datetime64[Y]").astype(np.int64) + 1970, 292_277_026_596),
}
