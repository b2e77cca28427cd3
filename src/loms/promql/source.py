"""What the engine needs from whoever keeps the samples, and the limits it reads under."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from loms.core.clock import Clock
from loms.core.errors import QueryCancelledError, QueryLimitError, QueryTimeoutError
from loms.core.model import Bools, Floats, Ints, Labels, is_stale
from loms.promql.syntax import Aggregation, Matchers
from loms.promql.values import Grid, Vector

_PAUSE_SECONDS = 0.05
_TRIES = 100
"""So often, and as long apart, a cancelled query is looked for in the database."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one query and the constants of evaluation, Prometheus's defaults."""

    max_series: int = 200_000
    """Series that one selector may match."""
    max_samples: int = 20_000_000
    """Samples and grid points that one query may load."""
    max_points: int = 11_000
    """Evaluation times of one range query."""
    timeout_seconds: float = 30.0
    lookback_ms: int = 300_000
    subquery_step_ms: int = 60_000
    """Step of a subquery that names none."""
    delayed_names: bool = False
    """Metric names go at the end of a query only (Prometheus's experimental "delayed name removal")."""


class TurnError(Exception):
    """A query turned out large while another large one is at work: it is to be run again when that one is done."""


class Cancel:
    """Ends a query from another thread; once cancelled, for good."""

    turn: Literal["wait", "leave", "first"] = "wait"
    """What a query that turns out large does while another large one is at work: it waits where it is, or leaves by
    `TurnError`. With ``first`` it waits before it begins."""
    large: bool = False
    """Whether the query was a large one, as `Capacity` counts it."""
    waited_seconds: float = 0.0
    """How long the query had to wait before it was begun, which counts towards its time."""

    def __init__(self) -> None:
        self._cancelled = False
        self._ends: dict[object, Callable[[], None]] = {}
        self._changed = threading.Condition()

    def cancel(self) -> None:
        """The query raises `QueryCancelledError` when it next looks; what it has the database do is ended there.

        Waits for the database, so this is nothing for an event loop. Calling again does nothing.
        """
        with self._changed:
            self._cancelled = True
            tries = _TRIES
            while self._ends and (tries := tries - 1):  # a statement that had not quite begun is not found at once
                ends = tuple(self._ends.values())
                self._changed.release()
                try:
                    for end in ends:
                        end()
                finally:
                    self._changed.acquire()
                self._changed.wait(_PAUSE_SECONDS)

    def check(self) -> None:
        """Raises `QueryCancelledError` when the query is cancelled."""
        if self._cancelled:
            raise QueryCancelledError("query was canceled in expression evaluation")

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `cancel` also calls ``end``. Raises `QueryCancelledError` when it came before."""
        key = object()
        with self._changed:
            self.check()
            self._ends[key] = end
        try:
            yield
        finally:
            with self._changed:
                del self._ends[key]
                self._changed.notify_all()


class Capacity:
    """Room for the samples of all queries of a process: large ones take turns.

    A query may load ``light_samples`` at once. One that needs more waits until none of the others that did is left,
    so that memory is bounded by one query's limit and as many light queries as run at a time.
    """

    def __init__(self, light_samples: int = 2_000_000) -> None:
        self.light_samples = light_samples
        self._turn = threading.Lock()

    def enter(self, budget: Budget) -> None:
        """Wait for a large query's turn; `leave` ends it.

        Raises what `Budget.remaining_seconds` raises, and `TurnError` at once for a query that does not wait here.
        """
        if budget.cancel.turn == "leave":
            if not self._turn.acquire(blocking=False):
                raise TurnError
            return
        while not self._turn.acquire(timeout=min(budget.remaining_seconds(), _PAUSE_SECONDS)):
            pass

    def leave(self) -> None:
        self._turn.release()


class Budget:
    """What one query has left of its limits; a context manager, within which it may use what is shared."""

    def __init__(
        self, limits: Limits, clock: Clock, cancel: Cancel | None = None, capacity: Capacity | None = None
    ) -> None:
        self.limits = limits
        self.cancel = cancel or Cancel()
        self._capacity = capacity or Capacity()
        self._large = False
        self._counting = threading.Lock()
        self._clock = clock
        self._deadline = clock.monotonic() + limits.timeout_seconds - self.cancel.waited_seconds
        self._samples = 0

    def __enter__(self) -> Budget:
        self.remaining_seconds()
        if self.cancel.turn == "first":
            self._enter()
        return self

    def _enter(self) -> None:
        self._capacity.enter(self)
        self._large = self.cancel.large = True

    def __exit__(self, *_: object) -> None:
        if self._large:
            self._large = False
            self._capacity.leave()

    def remaining_seconds(self) -> float:
        """Time left, above 0. Raises `QueryTimeoutError` when there is none, `QueryCancelledError` when cancelled."""
        self.cancel.check()
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise self.timed_out()
        return left

    def timed_out(self) -> QueryTimeoutError:
        """Prometheus's words for the end of a query's time."""
        hint = f"a query may take {self.limits.timeout_seconds:g} s; narrow the selector, the range or the resolution"
        return QueryTimeoutError("query timed out in expression evaluation", hint=hint)

    def too_large(self) -> QueryLimitError:
        """Prometheus's words for a query that needs too much memory."""
        hint = f"the limit is {self.limits.max_samples} samples; narrow the selector, the range or the resolution"
        text = "query processing would load too many samples into memory in query execution"
        return QueryLimitError(text, hint=hint)

    def remaining_samples(self) -> int:
        return self.limits.max_samples - self._samples

    def take_samples(self, count: int) -> None:
        """Raises `QueryLimitError` when the query would have more samples in memory than it may."""
        with self._counting:
            self._samples += count
            if self._samples > self.limits.max_samples:
                raise self.too_large()
            if self._samples > self._capacity.light_samples and not self._large:
                self._enter()

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
    unnamed: Bools | None = None
    """As in `Vector`."""

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

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        """The aggregation over what `grid` gives, or None if this source leaves it to the engine.

        The labels are those of the groups.
        """
        ...
