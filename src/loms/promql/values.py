"""What the engine computes with and what it answers.

Inside, everything is evaluated on the whole grid of evaluation times at once. NaN is a legitimate value, so
"no sample here" is a mask beside the values, never a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def shifted(self, offset_ms: int) -> Grid:
        """The same times, ``offset_ms`` earlier."""
        return Grid(self.start_ms - offset_ms, self.end_ms - offset_ms, self.step_ms)


@dataclass(frozen=True, slots=True)
class Vector:
    """One instant vector at each time of a grid.

    ``values`` and ``present`` have the shape [series, time]; a value counts only where ``present``. No two
    series carry the same labels.
    """

    labels: tuple[Labels, ...]
    values: Floats
    present: Bools

    @classmethod
    def empty(cls, times: int) -> Vector:
        return cls((), np.empty((0, times)), np.empty((0, times), dtype=np.bool_))

    def __len__(self) -> int:
        return len(self.labels)

    def with_values(self, values: Floats) -> Vector:
        return Vector(self.labels, values, self.present)

    def compact(self) -> Vector:
        """Without the series that are present nowhere."""
        keep = self.present.any(axis=1)
        return self if keep.all() else self.take(np.flatnonzero(keep))

    def take(self, rows: Ints) -> Vector:
        return Vector(tuple(self.labels[i] for i in rows), self.values[rows], self.present[rows])

    def repeated(self, times: int) -> Vector:
        """A vector of one time, as the same vector at each of ``times`` times."""
        return Vector(self.labels, np.repeat(self.values, times, axis=1), np.repeat(self.present, times, axis=1))


Scalar = Floats
"""One number at each time of a grid, shape [time]."""
Value = Vector | Floats | str


def without_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != NAME)


def merged(labels: list[Labels], values: Floats, present: Bools, ranged: bool = False) -> Vector:
    """A vector of series whose labels may have become equal: such series are joined into one.

    Raises `EvaluationError` where two of them have a value at one time; with ``ranged`` (functions over windows)
    already where both have any value at all, as Prometheus does.
    """
    row_of: dict[Labels, int] = {}
    rows = np.fromiter((row_of.setdefault(one, len(row_of)) for one in labels), np.int64, len(labels))
    if len(row_of) == len(labels):
        return Vector(tuple(labels), values, present)
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
    return Vector(tuple(row_of), joined, mask)


def nameless(vector: Vector, values: Floats | None = None, ranged: bool = False) -> Vector:
    """The vector without metric names, with other values if given (same shape)."""
    values = vector.values if values is None else values
    return merged([without_name(labels) for labels in vector.labels], values, vector.present, ranged)


@dataclass(frozen=True, slots=True)
class ScalarResult:
    at_ms: int
    value: float


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


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Series with their points, sorted by labels; ``times_ms[i]`` and ``values[i]`` belong to ``labels[i]``."""

    labels: tuple[Labels, ...]
    times_ms: tuple[Ints, ...]
    values: tuple[Floats, ...]


Result = ScalarResult | StringResult | VectorResult | MatrixResult


def frame_of(vector: Vector, grid: Grid) -> Frame:
    """The vector for readers that know no mask: NaN where there is no sample."""
    return Frame(
        tuple(dict(labels) for labels in vector.labels), grid.times_ms, np.where(vector.present, vector.values, np.nan)
    )
