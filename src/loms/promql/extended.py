"""``anchored`` and ``smoothed`` selectors: windows that know the samples just outside them.

An anchored window begins with the last sample before it; a smoothed one has the values at its edges interpolated
(Prometheus's proposal PROM-52, experimental there too).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loms.core.model import Bools, Floats, Ints
from loms.promql.source import Budget, Samples
from loms.promql.values import EvaluationError, Grid, Vector
from loms.promql.windows import WINDOW_FUNCTIONS, Windows

_ANCHORED = ("changes", "delta", "increase", "rate", "resets")
_SMOOTHED = ("delta", "increase", "rate")


def check(function: str, extension: str) -> None:
    """Raises `EvaluationError` for functions that have no meaning over such windows."""
    safe = _ANCHORED if extension == "anchored" else _SMOOTHED
    if function not in safe:
        raise EvaluationError(f"{extension} modifier can only be used with: {', '.join(safe)} - not with {function}")


def reach(grid: Grid, extension: str, lookback_ms: int) -> Grid:
    """The grid whose windows, longer by the look-back on each side that matters, hold all samples needed."""
    return grid.shifted(-lookback_ms) if extension == "smoothed" else grid


def applied(
    function: str, extension: str, samples: Samples, ends: Grid, range_ms: int, lookback_ms: int, budget: Budget
) -> Vector:
    """A function over the extended windows that end at ``ends``."""
    smoothed = extension == "smoothed"
    width = range_ms + lookback_ms * (2 if smoothed else 1)
    windows = Windows.over(samples, reach(ends, extension, lookback_ms), width, budget)
    windows = replace(windows, width_ms=range_ms, end_ms=windows.end_ms - (lookback_ms if smoothed else 0))
    times, start, end = samples.times_ms, windows.end_ms - range_ms, windows.end_ms
    first = np.maximum(windows.low, _after(windows, start, "right") - 1)
    last = np.minimum(windows.high - 1, _after(windows, end, "left")) if smoothed else windows.high - 1
    valid = times[last] > start
    if smoothed:
        valid &= times[first] <= end
    windows, first, last = (
        replace(windows.only(valid), low=first[valid], high=last[valid] + 1),
        first[valid],
        last[valid],
    )
    if function in ("changes", "resets"):
        return WINDOW_FUNCTIONS[function](windows, np.zeros(len(ends)))
    increase = _increase(windows, smoothed, counter=function != "delta")
    return windows.vector(increase / (range_ms / 1000) if function == "rate" else increase)


def _after(windows: Windows, at_ms: Ints, side: str) -> Ints:
    """Of each window, the first sample after a time (``right``) or at and after it (``left``)."""
    low, high, times = windows.low.copy(), windows.high.copy(), windows.samples.times_ms
    while (low < high).any():  # a binary search in all windows at once
        middle = (low + high) // 2
        probe = times[np.minimum(middle, len(times) - 1)]
        before = (low < high) & ((probe <= at_ms) if side == "right" else (probe < at_ms))
        high = np.where((low < high) & ~before, middle, high)
        low = np.where(before, middle + 1, low)
    return low


def _between(samples: Samples, left: Ints, at_ms: Ints, counter: bool) -> Floats:
    """The value at a time between sample ``left`` and the one after it."""
    right = np.minimum(left + 1, len(samples.values) - 1)
    before, after = samples.values[left], samples.values[right]
    before = np.where(counter & (after < before), 0.0, before)
    share = (at_ms - samples.times_ms[left]) / (samples.times_ms[right] - samples.times_ms[left])
    value: Floats = before + (after - before) * share
    return value


def _increase(windows: Windows, smoothed: bool, counter: bool) -> Floats:
    samples, first, last = windows.samples, windows.low, windows.high - 1
    times, values = samples.times_ms, samples.values
    start, end = windows.end_ms - windows.width_ms, windows.end_ms
    left, right = values[first], values[last]
    if smoothed:
        left = np.where(times[first] < start, _between(samples, first, start, counter), left)
        before = np.maximum(last - 1, 0)
        right = np.where((times[last] > end) & (last > first), _between(samples, before, end, counter), right)
    increase: Floats = right - left
    if not counter:
        return increase
    inner, outer = first + (times[first] <= start), last - (times[last] >= end)
    for window in range(len(first)):
        chain = np.concatenate(([left[window]], values[inner[window] : outer[window] + 1], [right[window]]))
        increase[window] += chain[:-1][chain[1:] < chain[:-1]].sum()
    return increase


def interpolated(samples: Samples, ends: Grid, lookback_ms: int, budget: Budget) -> Vector:
    """A smoothed instant selector: between two samples the line between them, after the last one its value."""
    windows = Windows.over(samples, ends.shifted(-lookback_ms), 2 * lookback_ms, budget)
    at = windows.end_ms - lookback_ms
    following = _after(windows, at, "left")
    there = following < windows.high
    exact: Bools = there & (samples.times_ms[np.minimum(following, len(samples.times_ms) - 1)] == at)
    keep = exact | (following > windows.low)
    before = np.maximum(following - 1, 0)
    values = np.where(there, _between(samples, before, at, counter=False), samples.values[before])
    values = np.where(exact, samples.values[np.minimum(following, len(samples.values) - 1)], values)
    return windows.only(keep).vector(values[keep])
