"""What the engine needs from whoever keeps the samples, and the limits it reads under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loms.core.clock import Clock
from loms.core.errors import QueryLimitError, QueryTimeoutError
from loms.core.model import Floats, Ints, Labels, is_stale
from loms.promql.syntax import Matchers
from loms.promql.values import Grid, Vector


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one query and the constants of evaluation, Prometheus's defaults."""

    max_series: int = 200_000
    """Series that one selector may match."""
    max_samples: int = 50_000_000
    """Samples and grid points that one query may load."""
    max_points: int = 11_000
    """Evaluation times of one range query."""
    timeout_seconds: float = 30.0
    lookback_ms: int = 300_000
    subquery_step_ms: int = 60_000
    """Step of a subquery that names none."""


class Budget:
    """What one query has left of its limits."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._deadline = clock.monotonic() + limits.timeout_seconds
        self._samples = 0

    def remaining_seconds(self) -> float:
        """Time left, above 0. Raises `QueryTimeoutError` when there is none."""
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise QueryTimeoutError(f"query timed out after {self.limits.timeout_seconds:g} s in expression evaluation")
        return left

    def remaining_samples(self) -> int:
        return self.limits.max_samples - self._samples

    def take_samples(self, count: int) -> None:
        """Raises `QueryLimitError` when the query would have more samples in memory than it may."""
        self._samples += count
        if self._samples > self.limits.max_samples:
            raise QueryLimitError(
                "query processing would load too many samples into memory in query execution",
                hint=f"the limit is {self.limits.max_samples}; narrow the selector, the range or the resolution",
            )

    def check_series(self, count: int) -> None:
        """Raises `QueryLimitError` when a selector matches more series than it may."""
        if count > self.limits.max_series:
            raise QueryLimitError(
                f"a selector of the query matches more than {self.limits.max_series} series",
                hint="add label matchers to the selector",
            )


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw samples of several series: those of series ``i`` are ``offsets[i]`` to ``offsets[i + 1]``, by time."""

    labels: tuple[Labels, ...]
    offsets: Ints
    times_ms: Ints
    values: Floats

    def fresh(self) -> Samples:
        """Without staleness markers."""
        keep = ~is_stale(self.values)
        if keep.all():
            return self
        kept = np.concatenate(([0], np.cumsum(keep)))
        return Samples(self.labels, kept[self.offsets], self.times_ms[keep], self.values[keep])


class Source(Protocol):
    """Reads series and samples; safe to call from several threads. Windows are (start, end], as in Prometheus 3."""

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        """Labels (with ``__name__``) of the series that match; given times, of those with samples in [start, end]."""
        ...

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        """All samples after ``start_ms`` up to ``end_ms``, staleness markers among them."""
        ...

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        """``function`` over the window before each time of ``grid``, or None if this source leaves it to the engine.

        ``function`` is a PromQL function of one range vector (``arg``: the second argument of ``predict_linear``),
        or ``last`` (the newest sample, nothing if that is a staleness marker) or ``timestamp`` (the same sample's
        time in seconds). The labels keep ``__name__``.
        """
        ...
