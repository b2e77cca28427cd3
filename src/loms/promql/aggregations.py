"""Aggregation operators: over the series of a vector, at each time of the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from loms.core.model import Bools, Floats, Ints, Labels
from loms.promql import reductions
from loms.promql.annotations import Annotations
from loms.promql.hashes import labels_hash
from loms.promql.lexer import quoted
from loms.promql.syntax import NAME, Aggregation
from loms.promql.values import KEPT_LABELS, EvaluationError, Scalar, Vector


def aggregate(node: Aggregation, vector: Vector, param: Scalar | str | None, notes: Annotations) -> Vector:
    """The value of ``op by/without (…) (param, vector)``; ``param`` is a scalar at each time, or a label name."""
    param = _checked(node, param, notes)
    vector = vector.compact()
    if not len(vector):
        return vector
    groups = _Groups.of(vector, group_keys(node, vector.labels))
    if node.op in _REDUCTIONS:
        values = _REDUCTIONS[node.op](groups)
        return groups.vector(values, np.logical_or.reduceat(groups.present, groups.starts, axis=0))
    if isinstance(param, str):
        return _count_values(groups, param)
    assert param is not None
    if node.op == "quantile":
        return _quantile(groups, param)
    if node.op in ("topk", "bottomk"):
        return _ranked(groups, param, largest=node.op == "topk")
    if node.op == "limitk":
        return _first(groups, param)
    return _sampled(vector, param)


def _checked(node: Aggregation, param: Scalar | str | None, notes: Annotations) -> Scalar | str | None:
    """The parameter, in its bounds. Raises `EvaluationError` for one that cannot be."""
    place = node.param.place if node.param is not None else node.place
    if isinstance(param, str):
        if not param or any("\ud800" <= char <= "\udfff" for char in param):
            raise EvaluationError(f"invalid label name {quoted(param)}")
    elif param is not None and node.op == "quantile":
        notes.check_quantile(param, place)
    elif param is not None and node.op == "limit_ratio":
        if np.isnan(param).any():
            raise EvaluationError("Ratio value is NaN")
        notes.check_ratio(param, place)
        return np.clip(param, -1.0, 1.0)
    elif param is not None:
        _check_rank(param)
    return param


def group_keys(node: Aggregation, series: Sequence[Labels]) -> list[Labels]:
    """Of each series the labels of its group."""
    if not node.without and not node.labels:
        return [()] * len(series)
    named = frozenset((*node.labels, NAME) if node.without else node.labels)
    return [_group_key(labels, named, node.without) for labels in series]


@lru_cache(maxsize=KEPT_LABELS)
def _group_key(labels: Labels, named: frozenset[str], without: bool) -> Labels:
    return tuple(pair for pair in labels if (pair[0] in named) is not without)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The series sorted by group: group ``i`` has the label set ``labels[i]`` and the rows from ``starts[i]`` on."""

    labels: tuple[Labels, ...]
    starts: Ints
    series: tuple[Labels, ...]
    values: Floats
    """[row, time]; 0 where not present."""
    present: Bools
    unnamed: Bools | None
    """Of the sorted series."""

    @classmethod
    def of(cls, vector: Vector, keys: list[Labels]) -> _Groups:
        number: dict[Labels, int] = {}
        group = np.fromiter((number.setdefault(key, len(number)) for key in keys), np.int64, len(keys))
        order = np.argsort(group, kind="stable")
        sizes = np.bincount(group)
        present = vector.present[order]
        return cls(
            tuple(number),
            np.cumsum(sizes) - sizes,
            tuple(vector.labels[row] for row in order.tolist()),
            np.where(present, vector.values[order], 0.0),
            present,
            None if vector.unnamed is None else vector.unnamed[order],
        )

    def vector(self, values: Floats, present: Bools) -> Vector:
        """One value a group; its name goes at the end if that of any of its series does."""
        unnamed = None if self.unnamed is None else np.logical_or.reduceat(self.unnamed, self.starts)
        return Vector(self.labels, values, present, unnamed)

    def kept(self, keep: Bools) -> Vector:
        """Those of the series that are kept."""
        return Vector(self.series, self.values, keep, self.unnamed)

    @property
    def slices(self) -> list[slice]:
        return [slice(a, b) for a, b in zip(self.starts, [*self.starts[1:], len(self.values)], strict=True)]

    def counts(self) -> Floats:
        return np.add.reduceat(self.present, self.starts, axis=0, dtype=np.float64)

    def extremes(self, ufunc: np.ufunc) -> Floats:
        found: Floats = ufunc.reduceat(np.where(self.present, self.values, np.nan), self.starts, axis=0)
        return found

    def variance(self) -> Floats:
        counts = self.counts()
        sizes = np.diff(np.append(self.starts, len(self.values)))
        # Measured from one member of the group, equal members give exactly 0.
        shifted = np.where(self.present, self.values - np.repeat(self.extremes(np.fmax), sizes, axis=0), 0.0)
        means = np.repeat(reductions.segment_mean(shifted, counts, self.starts), sizes, axis=0)
        deviation = np.where(self.present, shifted - means, 0.0)
        return reductions.segment_total(deviation * deviation, self.starts) / counts


_REDUCTIONS: Mapping[str, Callable[[_Groups], Floats]] = {
    "sum": lambda groups: reductions.segment_total(groups.values, groups.starts),
    "avg": lambda groups: reductions.segment_mean(groups.values, groups.counts(), groups.starts),
    "count": _Groups.counts,
    "group": lambda groups: np.ones((len(groups.labels), groups.values.shape[1])),
    "min": lambda groups: groups.extremes(np.fmin),
    "max": lambda groups: groups.extremes(np.fmax),
    "stddev": lambda groups: np.sqrt(groups.variance()),
    "stdvar": _Groups.variance,
}


def _quantile(groups: _Groups, q: Scalar) -> Vector:
    values = np.zeros((len(groups.labels), groups.values.shape[1]))
    present = groups.counts() > 0
    for group, rows in enumerate(groups.slices):
        some = present[group]
        values[group, some] = reductions.quantile(groups.values[rows][:, some], groups.present[rows][:, some], q[some])
    return groups.vector(values, present)


def _check_rank(k: Scalar) -> None:
    if np.isnan(k).any():
        raise EvaluationError("Parameter value is NaN")
    if (np.abs(k) >= 2.0**63).any():
        raise EvaluationError(f"Scalar value {k[np.abs(k) >= 2.0**63][0]} overflows int64")


def _ranked(groups: _Groups, k: Scalar, largest: bool) -> Vector:
    """The ``k`` greatest or least of each group; NaN is worse than any number, ties go to the first."""
    keep = np.zeros(groups.present.shape, dtype=np.bool_)
    order = []
    for rows in groups.slices:
        values, present = groups.values[rows], groups.present[rows]
        undefined = np.isnan(values)
        by_value = np.argsort(np.where(undefined, 0.0, -values if largest else values), axis=0, kind="stable")
        badness = np.where(present, undefined, 2)
        by_badness = np.argsort(np.take_along_axis(badness, by_value, axis=0), axis=0, kind="stable")
        best = np.take_along_axis(by_value, by_badness, axis=0)
        rank = np.empty(best.shape)
        np.put_along_axis(rank, best, np.arange(len(best), dtype=np.float64)[:, None], axis=0)
        keep[rows] = present & (rank < np.trunc(k))
        order.extend(rows.start + best[:, -1])
    return groups.kept(keep).take(np.array(order, dtype=np.int64)).compact()


def _first(groups: _Groups, k: Scalar) -> Vector:
    """Any ``k`` series of each group."""
    keep = np.zeros(groups.present.shape, dtype=np.bool_)
    for rows in groups.slices:
        keep[rows] = groups.present[rows] & (np.cumsum(groups.present[rows], axis=0) <= np.trunc(k))
    return groups.kept(keep).compact()


def _sampled(vector: Vector, ratio: Scalar) -> Vector:
    """The series whose hash lies in the first ``ratio`` of all hashes, or in the last ``-ratio``."""
    place = np.array([labels_hash(labels) / (2**64 - 1) for labels in vector.labels])[:, None]
    chosen = np.where(ratio >= 0, place < ratio, place >= 1.0 + ratio)
    return replace(vector, present=vector.present & chosen).compact()


def _count_values(groups: _Groups, label: str) -> Vector:
    counts: dict[Labels, Floats] = {}
    for key, rows in zip(groups.labels, groups.slices, strict=True):
        values, present = groups.values[rows], groups.present[rows]
        rest = tuple(pair for pair in key if pair[0] != label)
        for value in np.unique(values[present]):
            same = np.isnan(values) if np.isnan(value) else values == value
            labels = tuple(sorted((*rest, (label, _number_text(float(value))))))
            counts[labels] = counts.get(labels, 0.0) + (same & present).sum(axis=0, dtype=np.float64)
    values = np.stack(list(counts.values()))
    return Vector(tuple(counts), values, values > 0)


def _number_text(value: float) -> str:
    """Shortest decimal text without an exponent, as Prometheus writes label values."""
    if np.isnan(value) or np.isinf(value):
        return "NaN" if np.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
