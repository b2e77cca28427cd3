"""Whether the process behind a target has begun anew."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from loms.core.model import Floats, Ints, Shape
from loms.ingest.merging import Key

_START_TIME = "process_start_time_seconds"


class Lifetime:
    """Its start time tells; where a target has none, counters that fall do."""

    def __init__(self) -> None:
        self.started = math.nan
        """NaN for a target that does not say."""
        self.counted = 0.0
        """Sum of the watched counters."""
        self._start = -1
        self._counters: Ints = np.empty(0, np.intp)
        self._keys: list[Key] = []
        self._last: Floats = np.empty(0)

    def turn_to(self, shape: Shape, counters: Ints) -> None:
        """From the next exposition on watch these positions of ``shape``."""
        before = dict(zip(self._keys, self._last.tolist(), strict=True))
        self._start = next((i for i, name in enumerate(shape.names) if name == _START_TIME), -1)
        self._counters = counters
        self._keys = [(shape.names[i], shape.labels[i]) for i in counters]
        self._last = np.array([before.get(key, math.nan) for key in self._keys])

    def restarted(self, values: Floats, pooled: Iterable[bool]) -> bool:
        """Whether it has, since the last call. ``pooled`` says of counters that are not watched which have fallen; they
        must be all of them where there is nothing else to go by."""
        now = values[self._counters]
        fell = bool((now < self._last).any())  # not for NaN, which was not known before
        self._last = now
        self.counted = float(np.nansum(now))
        started, self.started = self.started, float(values[self._start]) if self._start >= 0 else math.nan
        if self._start >= 0:
            return abs(self.started - started) > 0
        if len(now):
            return fell
        all_of = list(pooled)
        return bool(all_of) and all(all_of)
