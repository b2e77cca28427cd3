from __future__ import annotations

import pytest

from loms.core.clock import ManualClock
from loms.core.errors import QueryError
from loms.rules.evaluate import Evaluator
from loms.rules.read import load_groups, read_groups
from loms.rules.replay import LOOKBACK_MS, evaluations, expressions_of, paced, reach, too_coarse

TWO = """
groups:
  - name: quick
    interval: 5s
    rules: [{alert: A, expr: "a > 1"}]
  - name: slow
    interval: 20s
    rules: [{alert: B, expr: "b > 1", for: 30s}]
"""


def test_the_reach_is_what_the_rules_look_at() -> None:
    text = """
groups:
  - name: g
    rules:
      - {alert: A, expr: 'rate(a_total[10m] offset 1h) > 0 and on () max_over_time(deriv(b[5m])[30m:1m]) > 0'}
      - {alert: B, expr: '{__name__=~"c|d.*", job="x"} > 1'}
"""
    looks = reach(read_groups(text, "x.yaml"))
    minutes = max(10 + 60, 5 + 30)
    assert looks.window_ms == LOOKBACK_MS + minutes * 60_000
    wanted = [name for name in ("a_total", "b", "c", "d", "dd", "cc", "a", "") if looks.wants(name)]
    assert wanted == ["a_total", "b", "c", "d", "dd"]


def test_the_built_in_rules_reach_back_little_more_than_an_hour() -> None:
    looks = reach(load_groups(()))
    assert 3_600_000 < looks.window_ms <= 3_600_000 + 120_000 + LOOKBACK_MS
    assert looks.wants("ALERTS")
    assert looks.wants("llm_engine_requests_running")
    assert not looks.wants("vllm:num_requests_running")


def test_windows_that_scrapes_do_not_fill() -> None:
    expressions = [each for group in load_groups(()) for rule in group.rules for each in expressions_of(rule)]
    assert too_coarse(expressions, 15_000) == {}
    assert too_coarse(expressions, 30_000) == {}
    assert too_coarse(expressions, 45_000) == {"LatencyHigh": 60_000}
    assert too_coarse(expressions, 120_000)["EngineStalled"] == 180_000


def test_groups_are_evaluated_at_their_intervals_in_virtual_time(answers: object) -> None:
    answers.vectors = {"a > 1": [({"i": "x"}, 2.0)], "b > 1": [({"i": "y"}, 3.0)]}  # type: ignore[attr-defined]
    clock = ManualClock(1_000_000)
    evaluator = Evaluator(answers, read_groups(TWO, "x.yaml"), clock)  # type: ignore[arg-type]
    found = list(evaluations(evaluator, clock, 1_040_000))
    assert [one.at_ms - 1_000_000 for one in found] == list(range(0, 40_001, 5000))
    states = [{alert.rule: alert.state for alert in one.alerts} for one in found]
    assert states[0] == {"A": "firing", "B": "pending"}
    assert states[7] == {"A": "firing", "B": "pending"}
    assert states[8] == {"A": "firing", "B": "firing"}
    asked = [at for expr, at, _, _ in answers.asked if expr == "b > 1"]  # type: ignore[attr-defined]
    assert asked == [1_000_000, 1_020_000, 1_040_000]
    assert list(evaluations(evaluator, clock, 1_042_000)) == []
    assert [one.at_ms for one in evaluations(evaluator, clock, 1_045_000)] == [1_045_000]


def test_what_ends_and_what_fails_is_told(answers: object) -> None:
    answers.vectors = {"a > 1": [({}, 2.0)]}  # type: ignore[attr-defined]
    clock = ManualClock(0)
    evaluator = Evaluator(answers, read_groups(TWO, "x.yaml"), clock)  # type: ignore[arg-type]
    (first,) = evaluations(evaluator, clock, 0)
    answers.vectors = {"b > 1": QueryError("no")}  # type: ignore[attr-defined]
    *_, last = evaluations(evaluator, clock, 20_000)
    assert [alert.state for alert in first.alerts] == ["firing"]
    assert last.errors == ("B: no",)
    assert last.alerts == ()


@pytest.mark.parametrize(("least", "intervals"), [(0, [5000, 20_000]), (15_000, [15_000, 20_000])])
def test_groups_can_be_slowed_down(least: int, intervals: list[int]) -> None:
    assert [group.interval_ms for group in paced(read_groups(TWO, "x.yaml"), least)] == intervals
