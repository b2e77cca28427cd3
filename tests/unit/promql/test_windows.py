from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.core.clock import ManualClock
from loms.core.errors import QueryTimeoutError
from loms.promql import windows as module
from loms.promql.source import Budget, Limits, Samples
from loms.promql.values import Grid
from loms.promql.windows import WINDOW_FUNCTIONS, Windows


def samples_of(*series: list[tuple[int, float]]) -> Samples:
    points = [point for one in series for point in one]
    return Samples(
        tuple((("i", str(i)),) for i in range(len(series))),
        np.cumsum([0, *map(len, series)]),
        np.array([time for time, _ in points], np.int64),
        np.array([value for _, value in points], np.float64),
    )


def budget(clock: ManualClock | None = None) -> Budget:
    return Budget(Limits(), clock or ManualClock())


@given(
    st.lists(st.lists(st.integers(-50, 50), unique=True, max_size=12).map(sorted), min_size=1, max_size=4),
    st.integers(-60, 40),
    st.integers(1, 9),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_each_window_holds_what_lies_in_it(
    times: list[list[int]], start: int, step: int, steps: int, width: int
) -> None:
    grid = Grid(start, start + step * (steps - 1), step)
    found = Windows.over(samples_of(*[[(t, float(t)) for t in one] for one in times]), grid, width, budget())
    got = {
        (int(cell) // len(grid), int(cell) % len(grid)): found.samples.times_ms[low:high].tolist()
        for cell, low, high in zip(found.cell, found.low, found.high, strict=True)
    }
    want = {}
    for i, one in enumerate(times):
        for j, end in enumerate(grid.times_ms.tolist()):
            if inside := [t for t in one if end - width < t <= end]:
                want[i, j] = inside
    assert got == want


def test_pieces_cover_all_windows_within_the_bound() -> None:
    points = [(t, float(t % 7)) for t in range(9_000)]
    found = Windows.over(samples_of(points[:3], points), Grid(0, 9_999), 500, budget())
    assert found.shape == (2, 10_000)
    seen = 0
    for piece, values, times, mask in found.padded():
        assert values.shape == times.shape == mask.shape
        assert mask.sum(axis=0).tolist() == found.counts[piece].tolist()
        assert values.size <= module._CELLS
        assert piece.start == seen
        seen += values.shape[1]
    assert seen == len(found.low)


def test_time_runs_out_between_pieces() -> None:
    clock = ManualClock()
    limited = budget(clock)
    found = Windows.over(samples_of([(0, 1.0)]), Grid(0, 10), 100, limited)
    clock.advance(31)
    with pytest.raises(QueryTimeoutError):
        WINDOW_FUNCTIONS["sum_over_time"](found, np.zeros(11))


@pytest.mark.parametrize("function", sorted(WINDOW_FUNCTIONS))
def test_no_samples_give_no_values(function: str) -> None:
    for samples in (samples_of([]), samples_of()):
        vector = WINDOW_FUNCTIONS[function](Windows.over(samples, Grid(0, 10, 5), 5, budget()), np.zeros(3))
        assert vector.values.shape == (len(samples.labels), 3)
        assert not vector.present.any()


@pytest.mark.parametrize("function", sorted(WINDOW_FUNCTIONS))
def test_series_do_not_touch_one_another(function: str) -> None:
    """The last sample of one series is no neighbour of the first of the next."""
    first, second = [(t, float(t)) for t in range(10)], [(t, float(5 - t)) for t in range(10)]
    grid, half = Grid(3, 12, 3), np.full(4, 0.5)

    def values(*series: list[tuple[int, float]]) -> list[list[float]]:
        with np.errstate(all="ignore"):
            vector = WINDOW_FUNCTIONS[function](Windows.over(samples_of(*series), grid, 6, budget()), half)
        return np.where(vector.present, vector.values, -999.0).tolist()  # type: ignore[no-any-return]

    assert values(first, second) == values(first) + values(second)
