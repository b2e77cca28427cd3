from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from loms.core.clock import ManualClock
from loms.core.errors import QueryCancelledError, QueryLimitError, QueryTimeoutError
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.source import Budget, Cancel, Capacity, Limits, Samples, TurnError
from loms.promql.syntax import Matchers


class Watched(MemorySource):
    """Samples in memory; reading them first does what the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read: Callable[[], object] = lambda: None
        times = np.arange(0, 600_000, 15_000)
        for name in ("a", "b", "c"):
            self.add((("__name__", name),), times, times / 1000)

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        self.on_read()
        return super().samples(matchers, start_ms, end_ms, budget)


def test_a_cancelled_query_raises_at_its_next_step() -> None:
    source, cancel = Watched(), Cancel()
    source.on_read = cancel.cancel
    for expr in ("a + b + c", "stddev_over_time(a[5m])", "sum(a)"):
        with pytest.raises(QueryCancelledError, match=r"^query was canceled in expression evaluation$"):
            Engine(source).query_range(expr, 0, 500_000, 15_000, cancel)
    assert QueryCancelledError.kind == "canceled"


def test_a_query_cancelled_before_it_begins_reads_nothing() -> None:
    source, cancel, read = Watched(), Cancel(), []
    source.on_read = lambda: read.append(1)
    cancel.cancel()
    for expr in ("a", "a[5m]"):
        with pytest.raises(QueryCancelledError):
            Engine(source).query(expr, 0, cancel)
    assert not read


def test_cancelling_asks_again_until_what_runs_has_ended() -> None:
    cancel, asked, enough = Cancel(), [], threading.Event()

    def end() -> None:
        asked.append(1)
        if len(asked) == 3:
            enough.set()

    def run() -> None:
        with cancel.ending(end):
            begun.set()
            enough.wait(30)

    begun, worker = threading.Event(), threading.Thread(target=run)
    worker.start()
    begun.wait(30)
    cancel.cancel()
    worker.join(30)
    assert len(asked) >= 3
    with pytest.raises(QueryCancelledError), cancel.ending(end):
        pass


def test_time_ends_a_query_between_its_parts() -> None:
    clock, source = ManualClock(), Watched()
    source.on_read = lambda: clock.advance(20)
    with pytest.raises(QueryTimeoutError, match=r"^query timed out in expression evaluation$"):
        Engine(source, Limits(timeout_seconds=30), clock).query("a + b + c", 0)


def test_samples_that_would_be_too_many() -> None:
    with pytest.raises(
        QueryLimitError, match=r"^query processing would load too many samples into memory in query execution$"
    ):
        Engine(Watched(), Limits(max_samples=38)).query("a[10m]", 600_000)


def test_large_queries_take_turns_and_light_ones_do_not_wait() -> None:
    capacity, clock = Capacity(light_samples=10), ManualClock()
    limits = Limits(max_samples=100, timeout_seconds=30)
    entered, turns = threading.Event(), []

    def second() -> None:
        with Budget(limits, clock, capacity=capacity) as budget:
            entered.set()
            budget.take_samples(11)
            turns.append("second")

    with Budget(limits, clock, capacity=capacity) as first:
        first.take_samples(50)
        waiting = threading.Thread(target=second)
        waiting.start()
        entered.wait(30)
        with Budget(limits, clock, capacity=capacity) as light:
            light.take_samples(10)
        turns.append("first")
    waiting.join(30)
    assert turns == ["first", "second"]


def test_a_query_may_leave_instead_of_waiting_and_wait_before_it_begins() -> None:
    capacity, clock = Capacity(light_samples=10), ManualClock()
    leaving, first, late = Cancel(), Cancel(), Cancel()
    leaving.turn, late.turn, late.waited_seconds = "leave", "first", 31.0
    with Budget(Limits(), clock, first, capacity) as one:
        one.take_samples(11)
        with Budget(Limits(), clock, leaving, capacity) as other:
            other.take_samples(10)
            with pytest.raises(TurnError):
                other.take_samples(1)
        with pytest.raises(QueryTimeoutError), Budget(Limits(), clock, late, capacity):
            pass
    assert (first.large, leaving.large, late.large) == (True, False, False)
    late.waited_seconds = 0.0
    with (
        Budget(Limits(), clock, late, capacity),
        pytest.raises(TurnError),
        Budget(Limits(), clock, leaving, capacity) as o,
    ):
        o.take_samples(11)


def test_waiting_for_a_turn_ends_with_the_query() -> None:
    capacity, clock, cancel = Capacity(light_samples=10), ManualClock(), Cancel()
    limits = Limits(timeout_seconds=30)
    with Budget(limits, clock, capacity=capacity) as first:
        first.take_samples(11)
        with Budget(limits, clock, cancel, capacity) as second:
            cancel.cancel()
            with pytest.raises(QueryCancelledError):
                second.take_samples(11)
        with Budget(limits, clock, capacity=capacity) as third:
            clock.advance(31)
            with pytest.raises(QueryTimeoutError):
                third.take_samples(11)
    with Budget(limits, clock, capacity=capacity) as fourth:
        fourth.take_samples(11)
