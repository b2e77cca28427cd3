"""The frames that detectors ask for, each asked of the store no more often than its grid moves on."""

from __future__ import annotations

import numpy as np

from loms.core.model import Bools, Floats, Frame, Ints, Labels, Querier, labels_of
from loms.detect.detector import Input

LONG_STEP_MS = 30_000
"""From this step on a frame is kept, and only its new columns are asked for."""
_UNSETTLED = 2
"""Newest columns that are asked for again, because samples of their time may have been on their way."""


class Inputs:
    """Frames by input.

    A short step is asked for anew at each moment. A long one, an hour in minutes for instance, lies on multiples of
    its step, and what was read stays: an hour of `rate` over 10,000 series is then one or two columns a minute.
    """

    def __init__(self, querier: Querier) -> None:
        self._querier = querier
        self._kept: dict[Input, tuple[int, Frame]] = {}
        """Input → (number of the grid's step, frame)."""

    def frame(self, wanted: Input, at_ms: int) -> Frame:
        """The frame of ``wanted`` up to ``at_ms``. Raises what the querier raises, and then forgets nothing."""
        step_ms, window_ms = round(wanted.step_seconds * 1000), round(wanted.window_seconds * 1000)
        tick = at_ms // step_ms
        before = self._kept.get(wanted)
        asked_seldom = window_ms == 0 or step_ms >= LONG_STEP_MS
        if before and before[0] == tick and (asked_seldom or before[1].times_ms[-1] == at_ms):
            return before[1]
        if window_ms == 0:
            frame = self._querier.instant(wanted.expr, at_ms)
        elif step_ms < LONG_STEP_MS:
            frame = self._querier.range(wanted.expr, at_ms - window_ms, at_ms, step_ms)
        else:
            frame = self._extended(wanted, before[1] if before else None, tick * step_ms, window_ms, step_ms)
        self._kept[wanted] = tick, frame
        return frame

    def _extended(self, wanted: Input, before: Frame | None, end_ms: int, window_ms: int, step_ms: int) -> Frame:
        start_ms = end_ms - window_ms // step_ms * step_ms
        if before is None or not start_ms < before.times_ms[-1] <= end_ms:
            return self._querier.range(wanted.expr, start_ms, end_ms, step_ms)
        known_ms = max(start_ms, int(before.times_ms[-1]) - (_UNSETTLED - 1) * step_ms)
        return _joined(before, self._querier.range(wanted.expr, known_ms, end_ms, step_ms), start_ms)


def _joined(old: Frame, new: Frame, start_ms: int) -> Frame:
    """Columns of ``old`` from ``start_ms`` on that precede ``new``, then ``new``; rows without any value left out."""
    kept = (old.times_ms >= start_ms) & (old.times_ms < new.times_ms[0])
    times: Ints = np.concatenate((old.times_ms[kept], new.times_ms))
    keys: list[Labels] = [labels_of(row) for row in (*old.labels, *new.labels)]
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    values: Floats = np.full((len(index), len(times)), np.nan)
    split = int(kept.sum())
    if old.labels:
        values[[index[key] for key in keys[: len(old.labels)]], :split] = old.values[:, kept]
    if new.labels:
        values[[index[key] for key in keys[len(old.labels) :]], split:] = new.values
    filled: Bools = ~np.all(np.isnan(values), axis=1)
    labels = tuple(dict(key) for key, there in zip(index, filled.tolist(), strict=True) if there)
    return Frame(labels, times, values[filled])
