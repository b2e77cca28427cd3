from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from loms.core.errors import QueryLimitError
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.parse import parse
from loms.promql.sides import Sides, selectors_of
from loms.promql.source import Budget, Limits, Samples
from loms.promql.syntax import Matchers


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as workers:
        yield workers


class Meeting(MemorySource):
    """Reading ``a`` and ``b`` ends only when both are being read; then the name is given away."""

    def __init__(self) -> None:
        super().__init__()
        self.together = threading.Barrier(2)
        times = np.arange(0, 600_000, 15_000)
        for name in ("a", "b", "c"):
            self.add((("__name__", name),), times, times / 1000)

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        if matchers[0].value in "ab":
            self.together.wait(30)
        return super().samples(matchers, start_ms, end_ms, budget)


@pytest.mark.parametrize(("expr", "value"), [("a + b", 120.0), ("(a + c) - b", 60.0), ("a - (c + b)", -60.0)])
def test_both_sides_of_an_operator_are_read_at_the_same_time(
    workers: ThreadPoolExecutor, expr: str, value: float
) -> None:
    assert Engine(Meeting(), workers=workers).instant(expr, 60_000).last.tolist() == [value]


@pytest.mark.parametrize("expr", ["a + a * 2", "a * (a - 1)", "a * 2 + 1"])
def test_what_both_sides_read_is_read_by_one_after_the_other(expr: str) -> None:
    alone = Meeting()
    alone.together = threading.Barrier(1)
    names: list[str] = []

    class Worker(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object) -> Future[Any]:
            names.append(expr)
            raise AssertionError(expr)

    with Worker(1) as unused:
        assert len(Engine(alone, workers=unused).instant(expr, 60_000).labels) == 1
    assert not names


def test_the_left_error_counts_and_the_right_side_has_ended(workers: ThreadPoolExecutor) -> None:
    ended: list[str] = []

    def left() -> None:
        raise ValueError("left")

    def right() -> None:
        ended.append("right")
        raise ValueError("right")

    with pytest.raises(ValueError, match="left"):
        Sides(workers).both(left, right)
    seen = len(ended)
    workers.submit(int).result(30)
    assert len(ended) == seen
    with pytest.raises(ValueError, match="right"):
        Sides(workers).both(lambda: 1, right)
    assert Sides(workers).both(lambda: 1, lambda: 2) == (1, 2)
    assert Sides().both(lambda: 1, lambda: 2) == (1, 2)


def test_a_limit_holds_for_both_sides_together(workers: ThreadPoolExecutor) -> None:
    source = Meeting()
    assert len(Engine(source, Limits(max_samples=1000), workers=workers).instant("a + b", 60_000).labels) == 1
    with pytest.raises(QueryLimitError):
        Engine(source, Limits(max_samples=8), workers=workers).instant("a + b", 60_000)


def test_selectors_of_a_node() -> None:
    expr = "sum(rate(a[5m])) / on(x) topk(scalar(b), max_over_time((c + -d)[1h:1m])) + 1 + sort(e)"
    names = {one.value for selector in selectors_of(parse(expr)) for one in selector.matchers}
    assert names == {"a", "b", "c", "d", "e"}
    assert selectors_of(parse("1 + 2")) == frozenset()
