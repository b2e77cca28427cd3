from __future__ import annotations

from dataclasses import replace

import pytest

from loms.alerting.incident import advanced, group_of, opened, severity_of

GROUP = (("instance", "a:1"),)


def by_fingerprint(*alerts):
    return {alert.fingerprint: alert for alert in alerts}


def test_grouping(alert) -> None:
    assert group_of(alert(), ("instance",)) == (("instance", "a:1"),)
    assert group_of(alert(job="llm"), ("job", "instance")) == (("instance", "a:1"), ("job", "llm"))
    lonely = replace(alert(), labels=(("alertname", "Stalled"),))
    assert group_of(lonely, ("instance",)) == (("alertname", "Stalled"),)


@pytest.mark.parametrize(("named", "expected"), [("critical", "critical"), ("info", "info"), ("page", "warning")])
def test_severity(alert, named, expected) -> None:
    assert severity_of(alert(severity=named)) == expected


def test_an_incident_is_named_after_its_worst_and_first_alert(alert) -> None:
    slow = alert("Slow", severity="warning", since=1)
    first, second = alert("Dead", since=3, summary="a:1 is dead"), alert("Stalled", since=5)
    incident = opened(GROUP, [slow, second, first], 9000)
    assert (incident.title, incident.severity, incident.opened_at_ms) == ("a:1 is dead", "critical", 9000)
    assert incident.state == "open"
    assert opened(GROUP, [replace(slow, annotations=())], 9000).title == "Slow"


def test_ids_sort_by_time_and_differ_by_group(alert) -> None:
    first = opened(GROUP, [alert()], 1_700_000_000_000)
    later = opened(GROUP, [alert()], 1_700_000_000_001)
    other = opened((("instance", "b:1"),), [alert()], 1_700_000_000_000)
    assert first.id < later.id
    assert len({first.id, later.id, other.id}) == 3


def test_only_a_value_changes(alert) -> None:
    incident = opened(GROUP, [alert(value=1)], 1000)
    now = advanced(incident, by_fingerprint(alert(value=2)), {}, 5000)
    assert (now.alerts[0].value, now.updated_at_ms, now.state) == (2, 1000, "open")


def test_an_alert_joins_and_makes_it_worse(alert) -> None:
    slow = alert("Slow", severity="warning", summary="slow")
    incident = opened(GROUP, [slow], 1000)
    dead = alert("Dead", since=4, summary="dead")
    now = advanced(incident, by_fingerprint(slow, dead), {}, 5000)
    assert (now.title, now.severity, now.updated_at_ms, len(now.alerts)) == ("dead", "critical", 5000, 2)
    calmer = advanced(now, by_fingerprint(slow), by_fingerprint(), 6000)
    assert (calmer.title, calmer.severity, calmer.state) == ("dead", "critical", "open")
    assert [(a.rule, a.state) for a in calmer.alerts] == [("Slow", "firing"), ("Dead", "resolved")]


def test_its_title_follows_from_one_fault_to_the_next(alert) -> None:
    stalled, dead = alert("Stalled", summary="stalled"), alert("Dead", since=4, summary="dead")
    incident = opened(GROUP, [stalled], 1000)
    both = advanced(incident, by_fingerprint(stalled, dead), {}, 5000)
    assert both.title == "stalled"
    assert advanced(both, by_fingerprint(dead), {}, 6000).title == "dead"
    over = advanced(incident, {}, {}, 5000)
    assert over.title == "stalled"
    assert advanced(over, by_fingerprint(dead), {}, 6000).title == "dead"


def test_it_resolves_with_its_last_alert(alert) -> None:
    incident = opened(GROUP, [alert()], 1000)
    ended = alert(state="resolved", resolved=4)
    now = advanced(incident, {}, by_fingerprint(ended), 5000)
    assert (now.state, now.resolved_at_ms, now.alerts[0].resolved_at_ms) == ("resolved", 5000, 4000)
    unannounced = advanced(incident, {}, {}, 5000)
    assert (unannounced.state, unannounced.alerts[0].resolved_at_ms) == ("resolved", 5000)
    assert advanced(now, {}, {}, 9000) == now


def test_it_opens_again_with_the_same_alert(alert) -> None:
    incident = advanced(opened(GROUP, [alert()], 1000), {}, {}, 5000)
    again = advanced(incident, by_fingerprint(alert(since=7)), {}, 8000)
    assert (again.id, again.state, again.opened_at_ms, again.updated_at_ms) == (incident.id, "open", 1000, 8000)
    assert [(a.state, a.active_at_ms) for a in again.alerts] == [("firing", 7000)]
