"""Sums, means, variances and quantiles of many small sets at once, as exact as Prometheus computes them.

Sums are compensated (A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen",
ZAMM 54, 1974), so that [1, 1e100, 1, -1e100] is 2.
"""

from __future__ import annotations

import numpy as np

from loms.core.model import Bools, Floats, Ints


def _added(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Sum and its rounding error, elementwise; no error is told of an infinite or undefined sum."""
    total = left + right
    large = np.abs(left) >= np.abs(right)
    error = np.where(large, (left - total) + right, (right - total) + left)
    return total, np.where(np.isfinite(total), error, 0.0)


def total(rows: Floats) -> Floats:
    """Sum over the first axis of ``rows`` [set member, set] in order; members that are none must be 0."""
    sums, errors = np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:])
    for row in rows:
        sums, error = _added(sums, row)
        errors += error
    return np.where(np.isfinite(sums), sums + errors, sums)


def mean(rows: Floats, counts: Ints) -> Floats:
    """Mean of each set, also where its sum would overflow; members that are none must be 0."""
    plain = total(rows) / counts
    overflown = ~np.isfinite(plain) & np.isfinite(rows).all(axis=0)
    return np.where(overflown, total(rows / counts), plain) if overflown.any() else plain


def variance(rows: Floats, mask: Bools, counts: Ints) -> Floats:
    """Population variance of each set; members that are none must be outside ``mask``, the first must be one."""
    shifted = np.where(mask, rows - rows[0], 0.0)  # equal members then give exactly 0
    deviation = np.where(mask, shifted - mean(shifted, counts), 0.0)
    return total(deviation * deviation) / counts


def quantile(rows: Floats, mask: Bools, q: Floats) -> Floats:
    """The ``q``-quantile of each set, linear between ranks; NaN sorts lowest; ``q`` outside [0, 1] gives ∓∞.

    ``rows`` and ``mask`` are [set member, set], ``q`` [set]; sets must not be empty.
    """
    counts = mask.sum(axis=0)
    falling = np.sort(np.where(mask, -rows, np.nan), axis=0)  # numpy sorts NaN last, so the order is turned round
    rank = np.nan_to_num(np.clip(q, 0.0, 1.0)) * (counts - 1)
    lower = np.floor(rank).astype(np.int64)
    upper = np.minimum(lower + 1, counts - 1)
    sets = np.arange(rows.shape[1])
    weight = rank - lower
    between = -falling[counts - 1 - lower, sets] * (1 - weight) - falling[counts - 1 - upper, sets] * weight
    return np.select([np.isnan(q), q < 0, q > 1], [np.nan, -np.inf, np.inf], between)


def segment_total(rows: Floats, starts: Ints) -> Floats:
    """Sums of consecutive rows: ``rows`` [row, time], a segment from each of ``starts`` to the next one.

    Adds pairs of neighbours until one row a segment is left. Values that are none must be 0.
    """
    lengths = np.diff(np.append(starts, len(rows)))
    sums, errors = rows, np.zeros(rows.shape)
    while lengths.size and lengths.max() > 1:
        place = np.arange(len(sums)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        left = np.flatnonzero(place % 2 == 0)
        paired = place[left] + 1 < np.repeat(lengths, (lengths + 1) // 2)
        right = np.minimum(left + 1, len(sums) - 1)
        summed, error = _added(sums[left], np.where(paired[:, None], sums[right], 0.0))
        errors = errors[left] + np.where(paired[:, None], errors[right], 0.0) + error
        sums, lengths = summed, (lengths + 1) // 2
    return np.where(np.isfinite(sums), sums + errors, sums)


def segment_mean(rows: Floats, counts: Floats, starts: Ints) -> Floats:
    """Means of segments, also where a sum would overflow; ``counts`` is [segment, time]."""
    sums = segment_total(rows, starts)
    overflown = ~np.isfinite(sums) & np.logical_and.reduceat(np.isfinite(rows), starts, axis=0)
    plain = sums / counts
    if not overflown.any():
        return plain
    lengths = np.diff(np.append(starts, len(rows)))
    return np.where(overflown, segment_total(rows / np.repeat(counts, lengths, axis=0), starts), plain)
