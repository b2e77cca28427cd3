"""Alerts and incidents are read back equal to what was written, whatever texts and numbers they hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.core.model import SEVERITIES, Alert, Evidence, Incident, labels_of
from loms.store.codec import decode_alert, decode_incident, encode_alert, encode_incident

times = st.integers(min_value=-(2**62), max_value=2**62)
labels = st.dictionaries(st.text(max_size=8), st.text(min_size=1, max_size=8), max_size=4).map(labels_of)
numbers = st.floats()
evidence = st.builds(Evidence, st.text(), st.text(max_size=20), st.none() | numbers, st.text(max_size=5))
alerts = st.builds(
    Alert,
    rule=st.text(),
    labels=labels,
    annotations=labels,
    state=st.sampled_from(("pending", "firing", "resolved")),
    value=numbers,
    active_at_ms=times,
    fired_at_ms=st.none() | times,
    resolved_at_ms=st.none() | times,
    evidence=st.lists(evidence, max_size=3).map(tuple),
    expr=st.text(max_size=20),
)
incidents = st.builds(
    Incident,
    id=st.text(max_size=10),
    group=labels,
    title=st.text(),
    severity=st.sampled_from(SEVERITIES),
    opened_at_ms=times,
    updated_at_ms=times,
    resolved_at_ms=st.none() | times,
    alerts=st.lists(alerts, max_size=3).map(tuple),
)


def spelled(value: object) -> str:
    """Like ==, but NaN equals NaN, and -0.0 is not 0.0."""
    return repr(value)


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


@given(alerts)
def test_alerts(alert: Alert) -> None:
    text = encode_alert(alert)
    strict(text)
    assert spelled(decode_alert(text)) == spelled(alert)
    assert decode_alert(text).fingerprint == alert.fingerprint


@given(incidents)
def test_incidents(incident: Incident) -> None:
    text = encode_incident(incident)
    strict(text)
    assert spelled(decode_incident(text)) == spelled(incident)


def test_the_three_numbers_that_json_lacks() -> None:
    alert = Alert(
        "r", (), (), "firing", math.nan, 0, evidence=(Evidence("", value=math.inf), Evidence("", value=-math.inf))
    )
    fields = strict(encode_alert(alert))
    assert [fields["value"], *(one["value"] for one in fields["evidence"])] == ["NaN", "+Inf", "-Inf"]
