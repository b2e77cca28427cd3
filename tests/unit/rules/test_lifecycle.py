from __future__ import annotations

from collections.abc import Sequence

import pytest

from loms.core.model import Alert, Labels, labels_of
from loms.rules.lifecycle import Lifecycle, Match, Observed, same_subject
from loms.rules.rule import Rule

A: Labels = (("instance", "a:1"),)
B: Labels = (("instance", "b:1"),)


def seen(
    *subjects: Labels, value: float = 1.0, unknown: Sequence[Labels] = (), healthy: Sequence[Labels] = ()
) -> Observed:
    return Observed([Match(labels, (), value) for labels in subjects], unknown, healthy)


def states(lifecycle: Lifecycle) -> list[str]:
    return [alert.state for alert in lifecycle.alerts]


def test_without_for_an_alert_fires_at_once() -> None:
    lifecycle = Lifecycle(Rule("R"))
    assert lifecycle.step(seen(A), 1000) == []
    (alert,) = lifecycle.alerts
    assert (alert.state, alert.active_at_ms, alert.fired_at_ms) == ("firing", 1000, 1000)


def test_pending_then_firing_then_resolved() -> None:
    lifecycle = Lifecycle(Rule("R", for_ms=10_000))
    told = [(lifecycle.step(seen(A, value=at), at), states(lifecycle)) for at in range(0, 15_000, 5000)]
    assert told == [([], ["pending"]), ([], ["pending"]), ([], ["firing"])]
    (firing,) = lifecycle.alerts
    assert (firing.active_at_ms, firing.fired_at_ms, firing.value) == (0, 10_000, 10_000)
    (resolved,) = lifecycle.step(seen(), 15_000)
    assert (resolved.state, resolved.resolved_at_ms, resolved.active_at_ms, resolved.fired_at_ms) == (
        "resolved",
        15_000,
        0,
        10_000,
    )
    assert lifecycle.alerts == ()
    assert lifecycle.step(seen(), 20_000) == []


def test_a_pending_alert_that_vanishes_leaves_nothing_and_starts_anew() -> None:
    lifecycle = Lifecycle(Rule("R", for_ms=10_000))
    lifecycle.step(seen(A), 0)
    assert lifecycle.step(seen(), 5000) == []
    lifecycle.step(seen(A), 10_000)
    assert (lifecycle.alerts[0].state, lifecycle.alerts[0].active_at_ms) == ("pending", 10_000)


def test_keep_firing_for_bridges_a_gap_and_then_ends() -> None:
    lifecycle = Lifecycle(Rule("R", keep_firing_for_ms=10_000))
    lifecycle.step(seen(A), 0)
    assert lifecycle.step(seen(), 5000) == []
    assert lifecycle.step(seen(A), 10_000) == []
    assert lifecycle.step(seen(), 15_000) == []
    assert lifecycle.step(seen(), 24_999) == []
    assert [a.resolved_at_ms for a in lifecycle.step(seen(), 25_000)] == [25_000]


def test_label_sets_live_apart() -> None:
    lifecycle = Lifecycle(Rule("R"))
    lifecycle.step(seen(A, B), 0)
    assert [a.labels for a in lifecycle.step(seen(B), 1000)] == [A]
    assert [a.labels for a in lifecycle.alerts] == [B]


@pytest.mark.parametrize("for_ms", [0, 60_000])
def test_not_knowing_changes_nothing(for_ms: int) -> None:
    lifecycle = Lifecycle(Rule("R", detector="stall", for_ms=for_ms))
    lifecycle.step(seen(A), 0)
    before = lifecycle.alerts
    assert lifecycle.step(seen(unknown=[labels_of({"instance": "a:1", "job": "j"})]), 90_000) == []
    assert lifecycle.alerts == before
    lifecycle.step(seen(healthy=[A]), 91_000)
    assert lifecycle.alerts == ()


def test_a_detectors_subject_that_loses_labels_keeps_its_alert() -> None:
    whole = labels_of({"instance": "a:1", "job": "j", "model": "m"})
    lifecycle = Lifecycle(Rule("R", detector="stall"))
    lifecycle.step(seen(whole), 0)
    assert lifecycle.step(seen(labels_of({"instance": "a:1", "job": "j"}), value=9), 1000) == []
    (alert,) = lifecycle.alerts
    assert (alert.labels, alert.value, alert.active_at_ms) == (whole, 9, 0)
    other = labels_of({"instance": "a:1", "job": "j", "model": "n"})
    assert [a.labels for a in lifecycle.step(seen(other), 2000)] == [whole]


def test_an_expressions_label_sets_are_taken_to_the_letter() -> None:
    lifecycle = Lifecycle(Rule("R", expr="x"))
    lifecycle.step(seen(labels_of({"instance": "a:1", "model": "m"})), 0)
    assert len(lifecycle.step(seen(A), 1000)) == 1


def firing(labels: Labels) -> Alert:
    return Alert("R", labels, (), "firing", 3.0, 500, fired_at_ms=700)


def test_a_restored_alert_outlasts_the_first_empty_evaluations() -> None:
    lifecycle = Lifecycle(Rule("R"))
    lifecycle.restore(firing(A), 60_000)
    assert lifecycle.step(seen(), 1000) == []
    assert lifecycle.step(seen(A), 2000) == []
    (alert,) = lifecycle.alerts
    assert (alert.active_at_ms, alert.fired_at_ms, alert.value) == (500, 700, 1.0)
    assert lifecycle.step(seen(), 59_000) == []
    assert [a.resolved_at_ms for a in lifecycle.step(seen(), 60_000)] == [60_000]


def test_a_restored_alert_ends_at_once_when_its_subject_is_seen_well() -> None:
    lifecycle = Lifecycle(Rule("R", detector="stall"))
    lifecycle.restore(firing(A), 60_000)
    assert len(lifecycle.step(seen(healthy=[A]), 1000)) == 1


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"instance": "a:1"}, {"instance": "a:1"}, True),
        ({"instance": "a:1", "job": "x"}, {"instance": "a:1", "model": "m"}, True),
        ({"instance": "a:1"}, {"instance": "b:1"}, False),
        ({"instance": "a:1", "signal": "ttft"}, {"instance": "a:1", "signal": "itl"}, False),
        ({"job": "x"}, {"job": "x"}, False),
        ({}, {}, False),
    ],
)
def test_same_subject(a: dict[str, str], b: dict[str, str], same: bool) -> None:
    assert same_subject(labels_of(a), labels_of(b)) is same
