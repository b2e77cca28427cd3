"""Alerts and incidents as JSON text and back, exactly: the value read equals the value written.

Floats that JSON lacks are the strings NaN, +Inf and -Inf, as in Prometheus's API. Labels are objects.
"""

from __future__ import annotations

import json
import math
from typing import Any

from loms.core.model import Alert, Evidence, Incident, Labels


def encode_alert(alert: Alert) -> str:
    return _text(_alert(alert))


def decode_alert(text: str) -> Alert:
    return _read_alert(json.loads(text))


def encode_incident(incident: Incident) -> str:
    """``incident`` with its alerts, evidence included."""
    return _text(
        {
            "id": incident.id,
            "group": dict(incident.group),
            "title": incident.title,
            "severity": incident.severity,
            "opened_at_ms": incident.opened_at_ms,
            "updated_at_ms": incident.updated_at_ms,
            "resolved_at_ms": incident.resolved_at_ms,
            "alerts": [_alert(alert) for alert in incident.alerts],
        }
    )


def decode_incident(text: str) -> Incident:
    """The incident; its alerts are a tuple."""
    fields = json.loads(text)
    return Incident(
        **{
            **fields,
            "group": _read_labels(fields["group"]),
            "alerts": tuple(_read_alert(alert) for alert in fields["alerts"]),
        }
    )


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "rule": alert.rule,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "state": alert.state,
        "value": _number(alert.value),
        "active_at_ms": alert.active_at_ms,
        "fired_at_ms": alert.fired_at_ms,
        "resolved_at_ms": alert.resolved_at_ms,
        "evidence": [
            {"text": one.text, "expr": one.expr, "value": _number(one.value), "unit": one.unit}
            for one in alert.evidence
        ],
        "expr": alert.expr,
    }


def _read_alert(fields: dict[str, Any]) -> Alert:
    return Alert(
        **{
            **fields,
            "labels": _read_labels(fields["labels"]),
            "annotations": _read_labels(fields["annotations"]),
            "value": float(fields["value"]),
            "evidence": tuple(
                Evidence(**{**one, "value": None if one["value"] is None else float(one["value"])})
                for one in fields["evidence"]
            ),
        }
    )


def _read_labels(fields: dict[str, str]) -> Labels:
    return tuple(fields.items())


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
