"""Functions over windows of raw samples, in numpy, for all windows of all series at once.

The windows of one call are flat: window ``i`` holds the samples ``low[i]`` to ``high[i]`` of the ragged columns
in `Samples`, and there is none without a sample. Formulas follow the documentation of Prometheus's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from loms.core.model import Bools, Floats, Ints, is_stale
from loms.promql import reductions
from loms.promql.source import Budget, Samples
from loms.promql.values import EvaluationError, Grid, Vector

_CELLS = 2_000_000
"""Samples laid out in one piece of `Windows.padded`, which bounds its memory."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows (t - ``width_ms``, t] of each series for each time t of a grid, but for the empty ones."""

    samples: Samples
    width_ms: int
    budget: Budget
    shape: tuple[int, int]
    """[series, time], empty windows included."""
    cell: Ints
    """Place of each window in ``shape``, flattened."""
    low: Ints
    high: Ints
    end_ms: Ints

    @classmethod
    def over(cls, samples: Samples, grid: Grid, width_ms: int, budget: Budget) -> Windows:
        shape = (len(samples.labels), len(grid))
        budget.take_samples(shape[0] * shape[1])
        ends = np.tile(grid.times_ms, shape[0])
        if not len(samples.times_ms):
            none = np.empty(0, dtype=np.int64)
            return cls(samples, width_ms, budget, shape, none, none, none, none)
        base = min(int(samples.times_ms.min()), grid.start_ms - width_ms)
        span = max(int(samples.times_ms.max()), grid.end_ms) - base + 1
        # One sorted key for all series: each series has a span of its own.
        key = np.repeat(np.arange(shape[0]) * span, np.diff(samples.offsets)) + (samples.times_ms - base)
        wanted = np.repeat(np.arange(shape[0]) * span, shape[1]) + (ends - base)
        high = np.searchsorted(key, wanted, "right")
        low = np.searchsorted(key, wanted - width_ms, "right")
        cell = np.flatnonzero(high > low)
        return cls(samples, width_ms, budget, shape, cell, low[cell], high[cell], ends[cell])

    @property
    def counts(self) -> Ints:
        return self.high - self.low

    def only(self, keep: Bools) -> Windows:
        return replace(self, cell=self.cell[keep], low=self.low[keep], high=self.high[keep], end_ms=self.end_ms[keep])

    def at_least(self, samples: int) -> Windows:
        return self.only(self.counts >= samples)

    def padded(self) -> Iterator[tuple[slice, Floats, Ints, Bools]]:
        """Pieces as rectangles [sample, window]: which windows, values (0 where there is none), times, mask."""
        done, counts = 0, self.counts
        while done < len(self.low):
            self.budget.remaining_seconds()
            # A piece ends where its longest window times its windows would pass the bound.
            longest = np.maximum.accumulate(counts[done : done + _CELLS // int(counts[done]) + 1])
            size = max(int(np.searchsorted(longest * np.arange(1, len(longest) + 1), _CELLS, "right")), 1)
            piece = slice(done, done + size)
            places = self.low[piece] + np.arange(longest[size - 1])[:, None]
            mask = places < self.high[piece]
            places = np.where(mask, places, 0)
            yield piece, np.where(mask, self.samples.values[places], 0.0), self.samples.times_ms[places], mask
            done += size

    def vector(self, values: Floats) -> Vector:
        """One value a window → a vector on the grid, present where there is a window."""
        flat, present = np.zeros(self.shape[0] * self.shape[1]), np.zeros(self.shape[0] * self.shape[1], dtype=np.bool_)
        flat[self.cell], present[self.cell] = values, True
        return Vector(self.samples.labels, flat.reshape(self.shape), present.reshape(self.shape), self.samples.unnamed)


def _reduced(windows: Windows, reduce: Callable[[Floats, Ints, Bools, slice], Floats]) -> Vector:
    out = np.empty(len(windows.low))
    for piece, values, times, mask in windows.padded():
        out[piece] = reduce(values, times, mask, piece)
    return windows.vector(out)


def _folded(windows: Windows, ufunc: np.ufunc, column: Floats, skip: int = 0) -> Floats:
    """``ufunc`` over ``column`` in each window, its first ``skip`` samples left out; windows must be longer."""
    edges = np.stack((windows.low + skip, windows.high), axis=1).ravel()
    folded: Floats = ufunc.reduceat(np.append(column, 0.0), edges)[::2]
    return folded


def _inside(samples: Samples, happened: Bools) -> Floats:
    """1.0 at samples where ``happened`` (shape [sample - 1], between it and the one before), within a series."""
    column = np.zeros(len(samples.values))
    column[1:] = happened
    column[samples.offsets[:-1][samples.offsets[:-1] < len(column)]] = 0.0
    return column


def _count(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(windows.counts.astype(np.float64))


def _present(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(np.ones(len(windows.low)))


def _last(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(windows.samples.values[windows.high - 1])


def _first(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(windows.samples.values[windows.low])


def _timestamp(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(windows.samples.times_ms[windows.high - 1] / 1000)


def _max(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(_folded(windows, np.fmax, windows.samples.values))


def _min(windows: Windows, arg: Floats) -> Vector:
    return windows.vector(_folded(windows, np.fmin, windows.samples.values))


def _sum(windows: Windows, arg: Floats) -> Vector:
    return _reduced(windows, lambda values, times, mask, piece: reductions.total(values))


def _avg(windows: Windows, arg: Floats) -> Vector:
    return _reduced(windows, lambda values, times, mask, piece: reductions.mean(values, windows.counts[piece]))


def _stdvar(windows: Windows, arg: Floats) -> Vector:
    return _reduced(
        windows, lambda values, times, mask, piece: reductions.variance(values, mask, windows.counts[piece])
    )


def _stddev(windows: Windows, arg: Floats) -> Vector:
    variances = _stdvar(windows, arg)
    return variances.with_values(np.sqrt(variances.values))


def _mad(windows: Windows, arg: Floats) -> Vector:
    """Median distance from the median; NaN where any sample is."""

    def reduce(values: Floats, times: Ints, mask: Bools, piece: slice) -> Floats:
        half = np.full(values.shape[1], 0.5)
        distance = np.abs(values - reductions.quantile(values, mask, half))
        undefined = (np.isnan(values) & mask).any(axis=0)
        return np.where(undefined, np.nan, reductions.quantile(distance, mask, half))

    return _reduced(windows, reduce)


def _time_of(windows: Windows, worse: Callable[[Floats, Floats], Bools]) -> Vector:
    """When the best sample of each window was taken; of equal ones the last, a number before NaN."""
    out = np.empty(len(windows.low))
    for piece, values, times, mask in windows.padded():
        best, at = values[0].copy(), times[0].copy()
        for row in range(1, len(values)):
            better = mask[row] & (worse(best, values[row]) | np.isnan(best))
            best, at = np.where(better, values[row], best), np.where(better, times[row], at)
        out[piece] = at / 1000
    return windows.vector(out)


def _smoothed(windows: Windows, smoothing: float, trend: float) -> Vector:
    """Double exponential smoothing (Holt's linear method) of each window's samples."""
    windows = windows.at_least(2)
    out = np.empty(len(windows.low))
    for piece, values, _, mask in windows.padded():
        level, slope = values[0].copy(), values[1] - values[0]
        before = np.zeros(len(level))
        for row in range(1, len(values)):
            bent = slope if row == 1 else trend * (level - before) + (1 - trend) * slope
            risen = smoothing * values[row] + (1 - smoothing) * (level + bent)
            slope = np.where(mask[row], bent, slope)
            before, level = np.where(mask[row], level, before), np.where(mask[row], risen, level)
        out[piece] = level
    return windows.vector(out)


def double_exponential_smoothing(windows: Windows, smoothing: float, trend: float) -> Vector:
    """Raises `EvaluationError` for factors outside (0, 1)."""
    for name, factor, short in (("smoothing", smoothing, "sf"), ("trend", trend, "tf")):
        if not 0 < factor < 1:
            raise EvaluationError(f"invalid {name} factor. Expected: 0 < {short} < 1, got: {factor:f}")
    return _smoothed(windows, smoothing, trend)


def _quantile(windows: Windows, arg: Floats) -> Vector:
    q = arg[windows.cell % windows.shape[1]]
    return _reduced(windows, lambda values, times, mask, piece: reductions.quantile(values, mask, q[piece]))


def _changes(windows: Windows, arg: Floats) -> Vector:
    before, after = windows.samples.values[:-1], windows.samples.values[1:]
    changed = _inside(windows.samples, (before != after) & ~(np.isnan(before) & np.isnan(after)))
    return _counted_pairs(windows, changed)


def _resets(windows: Windows, arg: Floats) -> Vector:
    return _counted_pairs(windows, _inside(windows.samples, windows.samples.values[1:] < windows.samples.values[:-1]))


def _counted_pairs(windows: Windows, column: Floats) -> Vector:
    running = np.cumsum(column)
    return windows.vector(running[windows.high - 1] - running[windows.low])


def _increase_between(windows: Windows, counter: bool) -> Floats:
    """Last minus first value; of a counter, what stood before each reset is added."""
    values = windows.samples.values
    increase = values[windows.high - 1] - values[windows.low]
    if not counter:
        return increase
    reset = _inside(windows.samples, values[1:] < values[:-1]) > 0
    if not reset.any():
        return increase
    lost = np.where(reset, np.append(0.0, values[:-1]), 0.0)
    return increase + _folded(windows, np.add, lost, skip=1)


def _extrapolated(windows: Windows, counter: bool, per_second: bool) -> Vector:
    """``rate``, ``increase``, ``delta``: the change between a window's samples, stretched towards its edges.

    To an edge nearer than 1.1 average intervals it is stretched fully, else by half an interval, and for a
    counter never beyond where the counter would have been zero.
    """
    windows = windows.at_least(2)
    change = _increase_between(windows, counter)
    times, first_value = windows.samples.times_ms, windows.samples.values[windows.low]
    first, last = times[windows.low], times[windows.high - 1]
    sampled = (last - first) / 1000
    interval = sampled / (windows.counts - 1)
    to_start = (first - (windows.end_ms - windows.width_ms)) / 1000
    to_end = (windows.end_ms - last) / 1000
    to_start = np.where(to_start >= interval * 1.1, interval / 2, to_start)
    to_end = np.where(to_end >= interval * 1.1, interval / 2, to_end)
    if counter:
        to_zero = np.where((change > 0) & (first_value >= 0), sampled * (first_value / change), to_start)
        to_start = np.minimum(to_start, to_zero)
    factor = (sampled + to_start + to_end) / sampled
    return windows.vector(change * (factor / (windows.width_ms / 1000) if per_second else factor))


def _between_last_two(windows: Windows, counter: bool, per_second: bool) -> Vector:
    windows = windows.at_least(2)
    values, times = windows.samples.values, windows.samples.times_ms
    last, before = values[windows.high - 1], values[windows.high - 2]
    change = np.where(last < before, last, last - before) if counter else last - before
    seconds = (times[windows.high - 1] - times[windows.high - 2]) / 1000
    return windows.vector(change / seconds if per_second else change)


def _line(windows: Windows, at_ms: Ints) -> tuple[Floats, Floats]:
    """Least-squares line through each window's samples: slope per second, value at ``at_ms`` [window].

    Sums are taken of distances from the means, which loses fewer digits than Prometheus's sums of products.
    """
    slope, there = np.empty(len(windows.low)), np.empty(len(windows.low))
    for piece, values, times, mask in windows.padded():
        n, zero = windows.counts[piece], times[0]
        x = np.where(mask, (times - zero) / 1000, 0.0)
        mean_x, mean_y = reductions.total(x) / n, reductions.mean(values, n)
        from_x = np.where(mask, x - mean_x, 0.0)
        from_y = np.where(mask, values - mean_y, 0.0)
        slope[piece] = reductions.total(from_x * from_y) / reductions.total(from_x * from_x)
        level = ((values == values[0]) | ~mask).all(axis=0)
        slope[piece] = np.where(level & np.isfinite(values[0]), 0.0, slope[piece])
        there[piece] = mean_y + slope[piece] * ((at_ms[piece] - zero) / 1000 - mean_x)
        there[piece] = np.where(level & np.isfinite(values[0]), values[0], there[piece])
    return slope, there


def _deriv(windows: Windows, arg: Floats) -> Vector:
    windows = windows.at_least(2)
    return windows.vector(_line(windows, windows.samples.times_ms[windows.low])[0])


def _predict_linear(windows: Windows, arg: Floats) -> Vector:
    windows = windows.at_least(2)
    slope, there = _line(windows, windows.end_ms)
    return windows.vector(there + slope * arg[windows.cell % windows.shape[1]])


WindowFunction = Callable[[Windows, Floats], Vector]
"""Windows of fresh samples and the function's scalar argument at each time (zeros if it has none)."""

WINDOW_FUNCTIONS: Mapping[str, WindowFunction] = {
    "avg_over_time": _avg,
    "changes": _changes,
    "count_over_time": _count,
    "delta": lambda windows, arg: _extrapolated(windows, counter=False, per_second=False),
    "deriv": _deriv,
    "first_over_time": _first,
    "idelta": lambda windows, arg: _between_last_two(windows, counter=False, per_second=False),
    "increase": lambda windows, arg: _extrapolated(windows, counter=True, per_second=False),
    "irate": lambda windows, arg: _between_last_two(windows, counter=True, per_second=True),
    "last_over_time": _last,
    "mad_over_time": _mad,
    "max_over_time": _max,
    "min_over_time": _min,
    "predict_linear": _predict_linear,
    "present_over_time": _present,
    "quantile_over_time": _quantile,
    "rate": lambda windows, arg: _extrapolated(windows, counter=True, per_second=True),
    "resets": _resets,
    "stddev_over_time": _stddev,
    "stdvar_over_time": _stdvar,
    "sum_over_time": _sum,
    "timestamp": _timestamp,
    "ts_of_first_over_time": lambda windows, arg: windows.vector(windows.samples.times_ms[windows.low] / 1000),
    "ts_of_last_over_time": _timestamp,
    "ts_of_max_over_time": lambda windows, arg: _time_of(windows, np.less_equal),
    "ts_of_min_over_time": lambda windows, arg: _time_of(windows, np.greater_equal),
}
KEEPS_NAME = frozenset({"first_over_time", "last_over_time"})


def applied(function: str, samples: Samples, grid: Grid, width_ms: int, argument: Floats, budget: Budget) -> Vector:
    """``function`` (as in `loms.promql.source.Source.grid`) over all samples that lie in a window, as they are stored.

    ``argument`` is its scalar argument, [time].
    """
    if function not in ("last", "timestamp"):
        return WINDOW_FUNCTIONS[function](Windows.over(samples.fresh(), grid, width_ms, budget), argument)
    windows = Windows.over(samples, grid, width_ms, budget)
    alive = windows.only(~is_stale(samples.values[windows.high - 1]))
    return WINDOW_FUNCTIONS["timestamp" if function == "timestamp" else "last_over_time"](alive, argument)
