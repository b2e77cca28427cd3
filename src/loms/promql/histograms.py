"""``histogram_quantile`` of classic histograms: series with cumulative counts and an ``le`` label."""

from __future__ import annotations

import numpy as np

from loms.core.model import Bools, Floats, Labels
from loms.promql.values import Scalar, Vector, nameless

_TOLERANCE = 1e-12
"""Relative differences between neighbouring counts below this are rounding, not observations."""


def histogram_quantile(q: Scalar, buckets: Vector) -> Vector:
    """The ``q``-quantile of each histogram, linear within its bucket (Prometheus's documentation)."""
    histograms: dict[Labels, dict[float, list[int]]] = {}
    for row, labels in enumerate(buckets.labels):
        bound = _bound(dict(labels).get("le"))
        if bound is not None:
            key = tuple(pair for pair in labels if pair[0] != "le")
            histograms.setdefault(key, {}).setdefault(bound, []).append(row)
    values = np.zeros((len(histograms), buckets.values.shape[1]))
    present = np.zeros(values.shape, dtype=np.bool_)
    # Histograms with the same bounds are computed together.
    alike: dict[tuple[float, ...], list[int]] = {}
    for place, bounds in enumerate(histograms.values()):
        alike.setdefault(tuple(sorted(bounds)), []).append(place)
    rows_of = list(histograms.values())
    for ordered, places in alike.items():
        counts, there = _stacked(buckets, [rows_of[place] for place in places], ordered)
        values[places] = _quantiles(q, np.array(ordered), counts, there)
        present[places] = there.any(axis=1)
    return nameless(Vector(tuple(histograms), values, present))


def _bound(text: str | None) -> float | None:
    try:
        bound = float(text or "nan")
    except ValueError:
        return None
    return None if np.isnan(bound) else bound


def _stacked(
    vector: Vector, histograms: list[dict[float, list[int]]], bounds: tuple[float, ...]
) -> tuple[Floats, Bools]:
    """Counts and presence as [histogram, bucket, time]; buckets written twice (``1``, ``1.0``) are added."""
    shape = (len(histograms), len(bounds), vector.values.shape[1])
    counts, there = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    for i, histogram in enumerate(histograms):
        for j, bound in enumerate(bounds):
            for row in histogram[bound]:
                counts[i, j] += np.where(vector.present[row], vector.values[row], 0.0)
                there[i, j] |= vector.present[row]
    return counts, there


def _monotonic(counts: Floats, there: Bools) -> Floats:
    """Counts that never fall from bucket to bucket; a bucket that is not there repeats the one before."""
    counts = np.where(there, counts, -np.inf)
    for bucket in range(1, counts.shape[1]):
        before, now = counts[:, bucket - 1], counts[:, bucket]
        slight = np.abs(now - before) < _TOLERANCE * (np.abs(now) + np.abs(before))
        counts[:, bucket] = np.where(~there[:, bucket] | slight | (now < before), before, now)
    return counts


def _quantiles(q: Scalar, bounds: Floats, counts: Floats, there: Bools) -> Floats:
    """Quantiles [histogram, time] from counts [histogram, bucket, time]; NaN without +Inf bucket or observation."""
    counts = _monotonic(counts, there)
    numbers = np.arange(len(bounds))[:, None]
    # Of each bucket, the nearest one below that is there; -1: none.
    newest = np.maximum.accumulate(np.where(there, numbers, -1), axis=1)
    below = np.concatenate((np.full_like(newest[:, :1], -1), newest[:, :-1]), axis=1)
    observations = counts[:, -1]
    rank = q * observations
    reached = counts >= rank[:, None]
    reached[:, -1] = True
    bucket = np.argmax(reached, axis=1)

    def pick(column: np.ndarray, place: np.ndarray) -> np.ndarray:
        return np.take_along_axis(column, place[:, None], axis=1)[:, 0]

    lower = pick(below, bucket)
    floor = np.where(lower >= 0, bounds[lower], 0.0)
    base = np.where(lower >= 0, pick(counts, np.maximum(lower, 0)), 0.0)
    inside = floor + (bounds[bucket] - floor) * ((rank - base) / (pick(counts, bucket) - base))
    inside = np.where((lower < 0) & (bounds[bucket] <= 0), bounds[bucket], inside)
    inside = np.where(bucket == len(bounds) - 1, floor, inside)
    defined = there[:, -1] & (there.sum(axis=1) > 1) & (observations != 0) & np.isposinf(bounds[-1])
    return np.select([np.isnan(rank), q < 0, q > 1], [np.nan, -np.inf, np.inf], np.where(defined, inside, np.nan))
