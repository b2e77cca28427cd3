"""Exponential histograms → the buckets of a grid that stays the same from point to point and from sender to sender.

A sender moves its buckets as its values move; classic buckets (``le``) that come and go break rates and sums. So for
every unit there is one grid of powers of two, finer by ``2 ** scale`` steps to the octave. Buckets finer than the grid
are added up exactly. Of a bucket that is coarser, the count stands at its upper end: exact at each bound that is also
one of the sender's, and never too early in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loms.core.model import Floats

SCALES = range(-10, 21)
"""What OpenTelemetry's data model allows."""


@dataclass(frozen=True)
class Grid:
    """Bounds ``2 ** (i / 2 ** scale)`` from ``2 ** first`` to ``2 ** last``, and 0 before them."""

    scale: int
    first: int
    last: int
    name: str = field(default="", compare=False)

    @cached_property
    def bounds(self) -> tuple[float, ...]:
        steps = np.arange(self.first << self.scale, (self.last << self.scale) + 1)
        return (0.0, *np.exp2(steps / (1 << self.scale)).tolist())


_TIME = 23
"""Octaves from an eighth of a millisecond to a quarter of an hour."""
_GRIDS = {
    "s": Grid(2, -13, -13 + _TIME),
    "ms": Grid(2, -3, -3 + _TIME),
    "us": Grid(2, 7, 7 + _TIME),
    "ns": Grid(2, 17, 17 + _TIME),
    "By": Grid(1, 0, 40),
}
_OTHER = Grid(1, -10, 30)


def grid_of(unit: str) -> Grid:
    """The grid of a unit (UCUM): fine over the times that requests take, coarser over bytes, tokens and all else."""
    return _GRIDS.get(unit, _OTHER)


def cumulative_counts(point: Any, grid: Grid) -> Floats:
    """How many values of an ``ExponentialHistogramDataPoint`` are at most each of ``grid.bounds``. Shape [bounds].

    Values below the grid count in its lowest positive bucket, those above it only in ``+Inf``. Negative values count at
    0; so do zeros, unless the point's ``zero_threshold`` puts them at the first bound that is not below it.
    ``point.scale`` must be one of `SCALES`.
    """
    counts = np.zeros(len(grid.bounds) + 1)
    counts[0] = float(sum(point.negative.bucket_counts))
    counts[np.searchsorted(grid.bounds, point.zero_threshold)] += float(point.zero_count)
    positive = np.fromiter(point.positive.bucket_counts, np.float64)
    if len(positive):
        index = np.arange(len(positive), dtype=np.int64) + point.positive.offset
        finer = point.scale - grid.scale
        ends = (index >> finer) + 1 if finer >= 0 else (index + 1) << -finer
        places = np.clip(ends - (grid.first << grid.scale) + 1, 1, len(grid.bounds))
        counts += np.bincount(places, weights=positive, minlength=len(counts))
    return np.cumsum(counts)[:-1]
