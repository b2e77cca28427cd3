"""A querier whose answers are written down, and rules from a few lines of YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from loms.core.errors import QueryError
from loms.core.model import Frame
from loms.rules.read import read_groups
from loms.rules.rule import Group

Vector = Sequence[tuple[Mapping[str, str], float]]


class Answers:
    """Expression → what an instant query gives, or an error. Also notes what was asked."""

    def __init__(self) -> None:
        self.vectors: dict[str, Vector | QueryError] = {}
        self.asked: list[tuple[str, int, int, int]] = []

    def instant(self, expr: str, at_ms: int) -> Frame:
        self.asked.append((expr, at_ms, at_ms, 0))
        answer = self.vectors.get(expr, ())
        if isinstance(answer, QueryError):
            raise answer
        values = np.array([[value] for _, value in answer], dtype=np.float64).reshape(-1, 1)
        return Frame(tuple(dict(labels) for labels, _ in answer), np.array([at_ms]), values)

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        """Each series' value is the time in seconds, so that a column shows when it is of."""
        self.asked.append((expr, start_ms, end_ms, step_ms))
        answer = self.vectors.get(expr, ())
        if isinstance(answer, QueryError):
            raise answer
        times = np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)
        values = np.array([times / 1000 for _ in answer], dtype=np.float64).reshape(len(answer), len(times))
        return Frame(tuple(dict(labels) for labels, _ in answer), times, values)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def rules() -> Callable[[str], tuple[Group, ...]]:
    """Groups from the rules of one group, written without their indentation."""

    def read(text: str, interval: str = "1s") -> tuple[Group, ...]:
        body = "\n".join(f"    {line}" for line in text.strip().splitlines())
        return read_groups(f"groups:\n- name: g\n  interval: {interval}\n  rules:\n{body}", "test.yaml")

    return read
