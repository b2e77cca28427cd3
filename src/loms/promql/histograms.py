"""Functions of classic histograms: series with cumulative counts and an ``le`` label."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np

from loms.core.model import Bools, Floats, Labels
from loms.promql.annotations import number_text
from loms.promql.context import Context
from loms.promql.lexer import quoted
from loms.promql.syntax import NAME
from loms.promql.values import KEPT_LABELS, Scalar, Vector, flags_of, merged, nameless

_TOLERANCE = 1e-12
"""Relative differences between neighbouring counts below this are rounding, not observations."""


@dataclass(frozen=True, slots=True)
class Histograms:
    """Classic histograms with the same bounds, ascending."""

    places: list[int]
    """Which of all histograms these are."""
    bounds: Floats
    counts: Floats
    """[histogram, bucket, time], cumulative, 0 where not present."""
    present: Bools


def histogram_quantile(q: Scalar, buckets: Vector, context: Context, number: int = 1) -> Vector:
    """The ``q``-quantile of each histogram, linear within its bucket (Prometheus's documentation).

    ``number`` is the buckets' place among the arguments of the call.
    """

    def quantiles(one: Histograms, labels: list[Labels]) -> Floats:
        counts = _monotonic(one.counts, one.present)
        if np.isposinf(one.bounds[-1]):
            _tell_fixed(one, counts, labels, buckets.unnamed is not None, (q >= 0) & (q <= 1), context, number)
        return _quantiles(q, one.bounds, counts, one.present)

    return _each(buckets, quantiles, context, number)


def histogram_quantiles(qs: Sequence[Scalar], label: str, buckets: Vector, context: Context) -> Vector:
    """The quantiles ``qs`` side by side, told apart by ``label``."""
    parts = []
    for q in qs:
        one = histogram_quantile(q, buckets, context, number=0)
        text = number_text(float(q[0]))
        text += "" if any(char in text for char in ".eNI") else ".0"
        labelled = [tuple(sorted({**dict(labels), label: text}.items())) for labels in one.labels]
        parts.append(merged(labelled, one.values, one.present, unnamed=one.unnamed))
    return merged(
        [labels for one in parts for labels in one.labels],
        np.concatenate([one.values for one in parts]),
        np.concatenate([one.present for one in parts]),
        unnamed=flags_of(*parts),
    )


def histogram_fraction(lower: Scalar, upper: Scalar, buckets: Vector, context: Context) -> Vector:
    """The share of each histogram's observations between ``lower`` and ``upper``, linear within buckets."""

    def fractions(one: Histograms, labels: list[Labels]) -> Floats:
        counts = np.where(one.present, one.counts, -np.inf)
        counts = np.maximum.accumulate(counts, axis=1)
        total = counts[:, -1]
        inside = (_rank(upper, one.bounds, counts) - _rank(lower, one.bounds, counts)) / total
        inside = np.where(lower >= upper, 0.0, inside)
        undefined = (
            np.isnan(lower) | np.isnan(upper) | (total == 0) | ~one.present[:, -1] | ~np.isposinf(one.bounds[-1])
        )
        return np.where(undefined, np.nan, inside)

    return _each(buckets, fractions, context, 2)


def _rank(value: Scalar, bounds: Floats, counts: Floats) -> Floats:
    """How many observations lie below ``value`` [time], shape [histogram, time]; none of an endless bucket do."""
    bucket = np.minimum(np.searchsorted(bounds, value, "right"), len(bounds) - 1)  # the one that value lies in
    times = np.arange(counts.shape[2])
    before = np.where(bucket > 0, counts[:, bucket - 1, times], 0.0)
    inside = counts[:, bucket, times]
    first_low = 0.0 if bounds[0] > 0 else -np.inf
    low = np.where(bucket > 0, bounds[bucket - 1], first_low)
    between = before + (inside - before) * (value - low) / (bounds[bucket] - low)
    between = np.where(np.isneginf(low), inside, between)
    between = np.where(np.isposinf(bounds[bucket]), before, between)
    ranks: Floats = np.where(value <= low, before, between)
    return np.where(np.isposinf(value), counts[:, -1], ranks)


def _each(
    buckets: Vector, value: Callable[[Histograms, list[Labels]], Floats], context: Context, number: int
) -> Vector:
    """One value for each histogram and time; histograms with the same bounds are computed together."""
    histograms: dict[Labels, dict[float, list[int]]] = {}
    for row, labels in enumerate(buckets.labels):
        bound, key = _bucket(labels)
        if bound is None:
            text = dict(labels).get("le", "")
            name = dict(labels).get(NAME, "")
            of = f' for metric name "{name}"' if name else ""
            problem = f'bucket label "le" is missing or has a malformed value of {quoted(text)}{of}'
            context.notes.warn(problem, context.call.args[number].place)
            continue
        histograms.setdefault(key, {}).setdefault(bound, []).append(row)
    values = np.zeros((len(histograms), buckets.values.shape[1]))
    present = np.zeros(values.shape, dtype=np.bool_)
    alike: dict[tuple[float, ...], list[int]] = {}
    for place, bounds in enumerate(histograms.values()):
        alike.setdefault(tuple(sorted(bounds)), []).append(place)
    names, rows_of = list(histograms), list(histograms.values())
    for ordered, places in alike.items():
        counts, there = _stacked(buckets, [rows_of[place] for place in places], ordered)
        one = Histograms(places, np.array(ordered), counts, there)
        values[places] = value(one, [names[place] for place in places])
        present[places] = there.any(axis=1)
    flags = None if buckets.unnamed is None else np.ones(len(names), np.bool_)
    return nameless(Vector(tuple(names), values, present, flags))


def _tell_fixed(
    one: Histograms, fixed: Floats, labels: list[Labels], named: bool, asked: Bools, context: Context, number: int
) -> None:
    """Tells of histograms whose counts fell from bucket to bucket by more than rounding."""
    before, now = fixed[:, :-1], one.counts[:, 1:]
    fell = one.present[:, 1:] & (now < before - _TOLERANCE * (np.abs(now) + np.abs(before))) & asked
    for name in {dict(labels[row]).get(NAME, "") if named else "" for row in np.flatnonzero(fell.any(axis=(1, 2)))}:
        rows = [row for row, own in enumerate(labels) if not named or dict(own).get(NAME, "") == name]
        where = fell[rows]
        bounds, times = one.bounds[1:][where.any(axis=(0, 2))], context.grid.times_ms[where.any(axis=(0, 1))]
        most, count = float((before - now)[rows][where].max()), int(where.any(axis=1).sum())
        first, last = (datetime.fromtimestamp(int(at) // 1000, UTC) for at in (times[0], times[-1]))
        of = f' for metric name "{name}"' if name else ""
        low, high = number_text(bounds[0]), number_text(bounds[-1])
        context.notes.info(
            "input to histogram_quantile needed to be fixed for monotonicity (see "
            f"https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile){of}, from buckets "
            f"{low} to {high}, with a max diff of {most:.2g}, over {count} samples "
            f"from {first:%Y-%m-%dT%H:%M:%SZ} to {last:%Y-%m-%dT%H:%M:%SZ}",
            context.call.args[number].place,
        )


@lru_cache(maxsize=KEPT_LABELS)
def _bucket(labels: Labels) -> tuple[float | None, Labels]:
    """The bound that ``le`` gives, if it does, and the other labels."""
    try:
        bound = float(dict(labels).get("le") or "nan")
    except ValueError:
        bound = math.nan
    return None if math.isnan(bound) else bound, tuple(pair for pair in labels if pair[0] != "le")


def _stacked(
    vector: Vector, histograms: list[dict[float, list[int]]], bounds: tuple[float, ...]
) -> tuple[Floats, Bools]:
    """Counts and presence as [histogram, bucket, time]; buckets written twice (``1``, ``1.0``) are added."""
    rows = np.array([[histogram[bound][0] for bound in bounds] for histogram in histograms])
    there = vector.present[rows]
    counts = np.where(there, vector.values[rows], 0.0)
    for i, histogram in enumerate(histograms):
        if sum(map(len, histogram.values())) == len(bounds):
            continue
        for j, bound in enumerate(bounds):
            for row in histogram[bound][1:]:
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
