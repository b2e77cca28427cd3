"""What the engine computes with and what it answers.

Inside, everything is evaluated on the whole grid of evaluation times at once. NaN is a legitimate value, so
"no sample here" is a mask beside the values, never a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from loms.core.errors import QueryError
from loms.core.model import Bools, Floats, Frame, Ints, Labels
from loms.promql.syntax import NAME


class EvaluationError(QueryError):
    """A well-formed expression that cannot be evaluated on the data found (Prometheus's ``execution``)."""

    kind = "execution"


@dataclass(frozen=True, slots=True)
class Grid:
    """Evaluation times ``start_ms, start_ms + step_ms, … ≤ end_ms``; ``step_ms`` > 0 even for one time."""

    start_ms: int
    end_ms: int
    step_ms: int = 1

    @classmethod
    def instant(cls, at_ms: int) -> Grid:
        return cls(at_ms, at_ms)

    def __len__(self) -> int:
        return max((self.end_ms - self.start_ms) // self.step_ms + 1, 0)

    @property
    def times_ms(self) -> Ints:
        return self.start_ms + self.step_ms * np.arange(len(self), dtype=np.int64)

    @property
    def step_seconds(self) -> float:
        """The step of a range query, 0 of an instant one."""
        return 0.0 if self.step_ms == 1 and self.start_ms == self.end_ms else self.step_ms / 1000

    @property
    def span_seconds(self) -> float:
        return (self.end_ms - self.start_ms) / 1000

    def shifted(self, offset_ms: int) -> Grid:
        """The same times, ``offset_ms`` earlier."""
        return Grid(self.start_ms - offset_ms, self.end_ms - offset_ms, self.step_ms)


@dataclass(frozen=True, slots=True)
class Vector:
    """One instant vector at each time of a grid.

    ``values`` and ``present`` have the shape [series, time]; a value counts only where ``present``. No two
    series carry the same labels.

    ``unnamed`` tells of each series whether its metric name is to go at the end of the query (Prometheus's "delayed
    name removal"); None: names go at once.
    """

    labels: tuple[Labels, ...]
    values: Floats
    present: Bools
    unnamed: Bools | None = None

    @classmethod
    def empty(cls, times: int) -> Vector:
        return cls((), np.empty((0, times)), np.empty((0, times), dtype=np.bool_))

    def __len__(self) -> int:
        return len(self.labels)

    def with_values(self, values: Floats) -> Vector:
        return replace(self, values=values)

    def compact(self) -> Vector:
        """Without the series that are present nowhere."""
        keep = self.present.any(axis=1)
        return self if keep.all() else self.take(np.flatnonzero(keep))

    def take(self, rows: Ints) -> Vector:
        unnamed = None if self.unnamed is None else self.unnamed[rows]
        return Vector(tuple(self.labels[i] for i in rows.tolist()), self.values[rows], self.present[rows], unnamed)

    def repeated(self, times: int) -> Vector:
        """A vector of one time, as the same vector at each of ``times`` times."""
        values, present = np.repeat(self.values, times, axis=1), np.repeat(self.present, times, axis=1)
        return replace(self, values=values, present=present)

    def delayed(self) -> Vector:
        """The same vector, whose names go at the end of the query."""
        return replace(self, unnamed=np.zeros(len(self), np.bool_)) if self.unnamed is None else self


Scalar = Floats
"""One number at each time of a grid, shape [time]."""
Value = Vector | Floats | str


KEPT_LABELS = 2**16
"""Of so many label sets it is remembered what they become: rules ask for the same ones again and again."""
METADATA_LABELS = frozenset({NAME, "__type__", "__unit__"})
"""Labels that say what a metric is; they go where the values become something else."""


@lru_cache(maxsize=KEPT_LABELS)
def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] not in METADATA_LABELS)


def merged(
    labels: list[Labels], values: Floats, present: Bools, ranged: bool = False, unnamed: Bools | None = None
) -> Vector:
    """A vector of series whose labels may have become equal: such series are joined into one.

    Raises `EvaluationError` where two of them have a value at one time; with ``ranged`` (functions over windows)
    already where both have any value at all, as Prometheus does.
    """
    row_of: dict[Labels, int] = {}
    rows = np.fromiter((row_of.setdefault(one, len(row_of)) for one in labels), np.int64, len(labels))
    if len(row_of) == len(labels):
        return Vector(tuple(labels), values, present, unnamed)
    counted = present.any(axis=1, keepdims=True) if ranged else present
    counts = np.zeros((len(row_of), counted.shape[1]), dtype=np.int64)
    np.add.at(counts, rows, counted)
    if (counts > 1).any():
        raise EvaluationError("vector cannot contain metrics with the same labelset")
    joined = np.zeros((len(row_of), values.shape[1]))
    mask = np.zeros(joined.shape, dtype=np.bool_)
    series, times = np.nonzero(present)
    joined[rows[series], times] = values[series, times]
    mask[rows[series], times] = True
    flags = None
    if unnamed is not None:
        flags = np.zeros(len(row_of), np.bool_)
        np.logical_or.at(flags, rows, unnamed)
    return Vector(tuple(row_of), joined, mask, flags)


def nameless(vector: Vector, values: Floats | None = None, ranged: bool = False) -> Vector:
    """The vector without metric names, with other values if given (same shape)."""
    values = vector.values if values is None else values
    if vector.unnamed is not None:
        return Vector(vector.labels, values, vector.present, np.ones(len(vector), np.bool_))
    return merged([without_name(labels) for labels in vector.labels], values, vector.present, ranged)


def settled(vector: Vector) -> Vector:
    """The vector at the end of a query, when names that were to go have gone."""
    if vector.unnamed is None:
        return vector
    labels = [without_name(one) if gone else one for one, gone in zip(vector.labels, vector.unnamed, strict=True)]
    return merged(labels, vector.values, vector.present)


def flags_of(*vectors: Vector) -> Bools | None:
    """``unnamed`` of several vectors one after the other."""
    if all(one.unnamed is None for one in vectors):
        return None
    return np.concatenate([np.zeros(len(one), np.bool_) if one.unnamed is None else one.unnamed for one in vectors])


@dataclass(frozen=True, slots=True)
class ScalarResult:
    at_ms: int
    value: float
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StringResult:
    at_ms: int
    value: str


@dataclass(frozen=True, slots=True)
class VectorResult:
    """An instant vector, in the order the expression gave it (``sort``, ``topk``)."""

    at_ms: int
    labels: tuple[Labels, ...]
    values: Floats
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Series with their points, sorted by labels; ``times_ms[i]`` and ``values[i]`` belong to ``labels[i]``."""

    labels: tuple[Labels, ...]
    times_ms: tuple[Ints, ...]
    values: tuple[Floats, ...]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


Result = ScalarResult | StringResult | VectorResult | MatrixResult


def frame_of(vector: Vector, grid: Grid) -> Frame:
    """The vector for readers that know no mask: NaN where there is no sample."""
    return Frame(
        tuple(dict(labels) for labels in vector.labels), grid.times_ms, np.where(vector.present, vector.values, np.nan)
    )
