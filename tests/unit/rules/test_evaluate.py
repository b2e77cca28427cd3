from __future__ import annotations

import pytest

from loms.core.clock import ManualClock
from loms.core.errors import QueryError, QueryTimeoutError
from loms.core.model import SampleBatch, is_stale
from loms.rules.evaluate import Evaluator

A, B = {"__name__": "m", "instance": "a:1"}, {"__name__": "m", "instance": "b:1"}
RULE = """
- alert: High
  expr: m > 1
  for: 2s
  labels: {severity: critical, where: "at {{ $labels.instance }}"}
  annotations: {summary: "{{ $labels.instance }} has {{ $value | humanize }}"}
"""


def test_an_expression_becomes_alerts_with_labels_and_annotations(answers, rules) -> None:
    evaluator = Evaluator(answers, rules(RULE), ManualClock())
    answers.vectors["m > 1"] = [(A, 2500.0)]
    (result,) = evaluator.evaluate(1000)
    (alert,) = result.alerts
    assert alert.labels == (
        ("alertname", "High"),
        ("instance", "a:1"),
        ("severity", "critical"),
        ("where", "at a:1"),
    )
    assert alert.annotations == (("summary", "a:1 has 2.5k"),)
    assert (alert.rule, alert.state, alert.value, alert.expr) == ("High", "pending", 2500.0, "m > 1")
    evaluator.evaluate(2000)
    evaluator.evaluate(3000)
    assert [a.state for a in evaluator.alerts()] == ["firing"]
    answers.vectors["m > 1"] = []
    (result,) = evaluator.evaluate(4000)
    assert [a.state for a in result.alerts] == ["resolved"]
    assert evaluator.alerts() == []


def test_an_unnamed_severity_is_warning(answers, rules) -> None:
    answers.vectors["m"] = [(A, 1.0)]
    evaluator = Evaluator(answers, rules("- {alert: X, expr: m}"), ManualClock())
    (result,) = evaluator.evaluate(0)
    assert dict(result.alerts[0].labels)["severity"] == "warning"


def test_a_failing_rule_keeps_its_alerts_and_leaves_others_alone(answers, rules) -> None:
    evaluator = Evaluator(answers, rules("- {alert: X, expr: m}\n- {alert: Y, expr: n}"), ManualClock())
    answers.vectors = {"m": [(A, 1.0)], "n": [(B, 1.0)]}
    evaluator.evaluate(0)
    answers.vectors["m"] = QueryTimeoutError("it took too long")
    answers.vectors["n"] = []
    x, y = evaluator.evaluate(1000)
    assert (x.error, [a.state for a in x.alerts]) == ("it took too long", ["firing"])
    assert (y.error, [a.state for a in y.alerts]) == ("", ["resolved"])
    assert [r.error for r in evaluator.results()] == ["it took too long", ""]
    answers.vectors["m"] = [(A, 1.0)]
    x, _ = evaluator.evaluate(2000)
    assert (x.error, x.alerts[0].active_at_ms) == ("", 0)


def test_two_results_that_become_one_are_an_error(answers, rules) -> None:
    evaluator = Evaluator(answers, rules("- {alert: X, expr: m, labels: {instance: same}}"), ManualClock())
    answers.vectors["m"] = [(A, 1.0), (B, 1.0)]
    (result,) = evaluator.evaluate(0)
    assert result.error == "two results have the same labels once the rule's own are applied"
    assert result.alerts == ()


def test_an_unexpected_failure_is_contained(answers, rules) -> None:
    class Broken:
        def instant(self, expr, at_ms):
            raise ZeroDivisionError

        range = instant

    (result,) = Evaluator(Broken(), rules("- {alert: X, expr: m}"), ManualClock()).evaluate(0)
    assert result.error == "failed unexpectedly; the log has the details"


def test_groups_are_evaluated_when_due_and_on_their_grid(answers, rules) -> None:
    evaluator = Evaluator(answers, rules("- {alert: X, expr: m}", interval="10s"), ManualClock())
    assert evaluator.next_due_ms() == 0
    evaluated = [at for at in range(1000, 45_000, 1000) if evaluator.evaluate(at)]
    assert evaluated == [1000, 11_000, 21_000, 31_000, 41_000]
    assert evaluator.next_due_ms() == 51_000
    assert evaluator.evaluate(50_600)  # a loop that wakes a little early
    assert evaluator.next_due_ms() == 61_000
    assert evaluator.evaluate(95_000)  # late: the evaluations between are left out
    assert evaluator.next_due_ms() == 101_000


def test_alerts_are_written_as_series_and_ended(answers, rules) -> None:
    written: list[SampleBatch] = []
    evaluator = Evaluator(answers, rules("- {alert: X, expr: m, for: 1s}"), ManualClock(), written.append)
    evaluator.evaluate(0)
    assert written == []
    answers.vectors["m"] = [(A, 5.0)]
    evaluator.evaluate(1000)
    evaluator.evaluate(2000)
    answers.vectors["m"] = []
    evaluator.evaluate(3000)
    evaluator.evaluate(4000)
    pending, change, end = written
    (series,) = pending.series
    labels = {"alertname": "X", "alertstate": "pending", "instance": "a:1", "severity": "warning"}
    assert (series.name, dict(series.labels)) == ("ALERTS", labels)
    assert (pending.values.tolist(), pending.timestamps_ms.tolist()) == ([1.0], [1000])
    assert dict(change.series[0].labels)["alertstate"] == "firing"
    assert (change.values[0], is_stale(change.values).tolist()) == (1.0, [False, True])
    assert change.series_ids[1] == series.id
    assert (is_stale(end.values).tolist(), end.series) == ([True], ())


def test_alerts_from_before_a_restart_go_on(answers, rules) -> None:
    before = Evaluator(answers, rules(RULE), ManualClock())
    answers.vectors["m > 1"] = [(A, 2.0), (B, 2.0)]
    for at in (0, 1000, 2000):
        before.evaluate(at)
    firing = before.alerts()

    after = Evaluator(answers, rules(RULE), ManualClock())
    answers.vectors["m > 1"] = []
    after.restore(firing, 10_000)
    assert [a.state for a in after.evaluate(10_000)[0].alerts] == ["firing", "firing"]
    answers.vectors["m > 1"] = [(A, 3.0)]
    after.evaluate(11_000)
    assert [(a.active_at_ms, a.fired_at_ms) for a in after.alerts()] == [(0, 2000)] * 2
    (result,) = after.evaluate(71_000)
    assert [(dict(a.labels)["instance"], a.state) for a in result.alerts] == [("a:1", "firing"), ("b:1", "resolved")]


def test_alerts_of_rules_that_no_longer_exist_are_not_restored(answers, rules) -> None:
    before = Evaluator(answers, rules("- {alert: X, expr: m}"), ManualClock())
    answers.vectors["m"] = [(A, 2.0)]
    before.evaluate(0)
    for text in ("- {alert: Z, expr: m}", "- {alert: X, expr: m, labels: {severity: critical}}"):
        after = Evaluator(answers, rules(text), ManualClock())
        after.restore(before.alerts(), 0)
        assert after.alerts() == []


def test_a_detector_whose_query_fails_fails_its_rules(answers, rules) -> None:
    text = "- {alert: X, detector: stall, kinds: [stalled]}\n- {alert: Y, detector: stall, kinds: [dead]}"
    answers.vectors["timestamp(up)"] = QueryError("no")
    evaluator = Evaluator(answers, rules(text), ManualClock())
    assert [r.error for r in evaluator.evaluate(1_000_000)] == ["no", "no"]
    assert sum(expr == "timestamp(up)" for expr, *_ in answers.asked) == 1


@pytest.mark.parametrize("interval", ["1s", "3s"])
def test_no_data_no_alerts(answers, rules, interval) -> None:
    evaluator = Evaluator(
        answers, rules("- {alert: X, detector: stall}\n- {alert: Y, expr: m}", interval), ManualClock()
    )
    assert [r.alerts for r in evaluator.evaluate(1_000_000)] == [(), ()]
    assert evaluator.states() == {}


def test_a_clock_that_is_set_back_does_not_put_the_rules_to_sleep(answers, rules) -> None:
    evaluator = Evaluator(answers, rules("- alert: A\n  expr: up == 0"), ManualClock())
    assert len(evaluator.evaluate(10_000_000)) == 1
    assert len(evaluator.evaluate(6_400_000)) == 1
    assert evaluator.evaluate(6_400_500) == []
    assert len(evaluator.evaluate(6_401_000)) == 1
