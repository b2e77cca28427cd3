"""Exponential histograms on a fixed grid, held against bounds worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint as Point

from loms.ingest.otlp.exponential import Grid, cumulative_counts, grid_of

SMALL = Grid(scale=1, first=-1, last=2)
"""0, 0.5, 0.707, 1, 1.414, 2, 2.828, 4."""


def point(scale: int, offset: int, counts: list[int], **more: object) -> Point:
    return Point(scale=scale, positive={"offset": offset, "bucket_counts": counts}, **more)


def test_the_bounds_are_powers_of_two_and_their_roots() -> None:
    root = math.sqrt(2)
    assert SMALL.bounds == pytest.approx((0, 0.5, root / 2, 1, root, 2, 2 * root, 4))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "By", "", "{token}", "1"])
def test_the_grids_are_modest_and_increase(unit: str) -> None:
    bounds = grid_of(unit).bounds
    assert 80 < len(bounds) < 100
    assert all(low < high for low, high in itertools.pairwise(bounds))


def test_the_same_latencies_in_other_units_lie_on_nearly_the_same_grid() -> None:
    seconds, milliseconds = np.array(grid_of("s").bounds[1:]), np.array(grid_of("ms").bounds[1:])
    assert seconds * 1024 == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("scale", "offset", "counts", "expected"),
    [
        # scale 1: bucket 0 is (1, 1.414], 1 is (1.414, 2]: one to one
        (1, 0, [5, 7], [0, 0, 0, 0, 5, 12, 12, 12]),
        # scale 2: buckets 0 and 1 make (1, 1.414], 2 and 3 make (1.414, 2]
        (2, 0, [1, 2, 3, 4], [0, 0, 0, 0, 3, 10, 10, 10]),
        # scale 2 from -1: bucket -1 is the end of (0.707, 1], and 0 begins (1, 1.414]
        (2, -1, [1, 2], [0, 0, 0, 1, 3, 3, 3, 3]),
        # scale 0: (1, 2] is coarser than the grid: it stands at 2; (2, 4] at 4
        (0, 0, [5, 6], [0, 0, 0, 0, 0, 5, 5, 11]),
        # scale -1: bucket 0 is (1, 4]
        (-1, 0, [5], [0, 0, 0, 0, 0, 0, 0, 5]),
        # below the grid: in the lowest positive bucket; above it: only in +Inf
        (1, -9, [2], [0, 2, 2, 2, 2, 2, 2, 2]),
        (1, 9, [2], [0] * 8),
        (20, 0, [1], [0, 0, 0, 0, 1, 1, 1, 1]),
        (20, 2**31 - 1, [1], [0] * 8),
        (-10, -(2**31), [1], [0, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_counts_on_the_grid(scale: int, offset: int, counts: list[int], expected: list[int]) -> None:
    assert cumulative_counts(point(scale, offset, counts), SMALL).tolist() == expected


def test_zeros_and_negative_values_are_at_most_zero_unless_the_threshold_says_otherwise() -> None:
    negative = {"offset": 0, "bucket_counts": [2, 1]}
    assert cumulative_counts(Point(scale=1, zero_count=4, negative=negative), SMALL).tolist() == [7] * 8
    assert cumulative_counts(Point(scale=1, zero_count=4, zero_threshold=0.6), SMALL).tolist() == [0, 0, *[4] * 6]
    assert cumulative_counts(Point(scale=1, zero_count=4, zero_threshold=99), SMALL).tolist() == [0] * 8


def test_a_quantile_is_right_to_a_step_of_the_grid() -> None:
    """1000 latencies whose 90th percentile is known: classic interpolation finds it within a fifth (2 ** 0.25)."""
    values = np.random.default_rng(7).lognormal(-1.0, 1.0, 1000)
    scale = 5
    index = np.ceil(np.log2(values) * 2**scale).astype(int) - 1
    counts = np.bincount(index - index.min())
    grid = grid_of("s")
    cumulative = cumulative_counts(point(scale, int(index.min()), counts.tolist()), grid)
    place = int(np.searchsorted(cumulative, 900))
    low, high = grid.bounds[place - 1 : place + 1]
    below, within = cumulative[place - 1], cumulative[place] - cumulative[place - 1]
    estimate = low + (high - low) * (900 - below) / within
    truth = float(np.sort(values)[899])
    assert low < truth <= high
    assert estimate == pytest.approx(truth, rel=2**0.25 - 1)
    for bound, count in zip(grid.bounds, cumulative, strict=True):
        assert count == int((values <= bound).sum()), bound
