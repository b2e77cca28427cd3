from __future__ import annotations

import pytest

from loms.alerting.incident import opened
from loms.alerting.notice import Told, assumed_told, message, next_told

HOUR = 3_600_000


@pytest.fixture
def incident(alert):
    """Of two firing alerts (x, y) and an ended one (z)."""

    def make(*states: str):
        alerts = [alert(rule, state=state) for rule, state in zip("xyz", states, strict=False)]
        return opened((("instance", "a:1"),), alerts, 0)

    return make


def told(incident, firing: str, resolved: str = "", at_ms: int = 0) -> Told:
    prints = dict(zip("xyz", (alert.fingerprint for alert in incident.alerts), strict=False))
    return Told(frozenset(prints[c] for c in firing), frozenset(prints[c] for c in resolved), at_ms)


@pytest.mark.parametrize(
    ("states", "before", "at_ms", "send_resolved", "due"),
    [
        (("firing",), None, 0, True, True),
        (("resolved",), None, 0, True, False),  # it was never told that it fired
        (("firing",), ("x",), 1, True, False),
        (("firing", "firing"), ("x",), 1, True, True),
        (("firing", "resolved"), ("xy",), 1, True, True),
        (("firing", "resolved"), ("xy",), 1, False, False),
        (("firing", "resolved"), ("x", "y"), 1, True, False),
        (("resolved", "resolved"), ("xy",), 1, True, True),
        (("resolved", "resolved"), ("", "xy"), 99 * HOUR, True, False),
        (("firing",), ("", "x"), 1, True, True),  # it fires again
        (("firing",), ("x",), 4 * HOUR - 1, True, False),
        (("firing",), ("x",), 4 * HOUR, True, True),
    ],
)
def test_when_somebody_is_told(incident, states, before, at_ms, send_resolved, due) -> None:
    now = incident(*states)
    known = told(now, *before) if before else None
    found = next_told(known, now, send_resolved=send_resolved, repeat_ms=4 * HOUR, at_ms=at_ms)
    assert (found is not None) is due
    if found:
        assert found.at_ms == at_ms


def rules_in(now, before, *, send_resolved: bool = True) -> str:
    text = message(before, now, receiver="r", send_resolved=send_resolved, external_url="http://l/")
    return "" if text is None else f"{text.status} " + "".join(alert.rule for alert in text.alerts)


def test_what_is_told(incident) -> None:
    now = incident("firing", "resolved", "resolved")
    assert rules_in(now, None) == "firing xyz"
    assert rules_in(now, told(now, "xy", "z")) == "firing xy"
    assert rules_in(now, told(now, "xy", "z"), send_resolved=False) == "firing x"
    over = incident("resolved", "resolved")
    assert rules_in(over, told(over, "x", "y")) == "resolved x"
    assert rules_in(over, told(over, "xy"), send_resolved=False) == ""


def test_the_message_links_to_the_incident(incident) -> None:
    now = incident("firing")
    text = message(None, now, receiver="r", send_resolved=True, external_url="http://l/")
    assert text.url == f"http://l/#/incidents/{now.id}"
    assert message(None, now, receiver="r", send_resolved=True, external_url="").url == ""


def test_after_a_restart_what_the_incident_says_counts_as_told(incident) -> None:
    now = incident("firing", "resolved")
    assert assumed_told(now) == told(now, "x", "y")
