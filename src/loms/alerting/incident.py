"""Incidents: alerts that belong together, as one thing to look at. Pure functions from one form to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loms.core.model import SEVERITIES, Alert, Incident, Labels, Severity


def group_of(alert: Alert, group_by: Sequence[str]) -> Labels:
    """The labels that bring this alert together with others: those named in ``group_by``.

    An alert that has none of them is grouped by its rule, so that it does not join whatever else lacks them.
    """
    labels = dict(alert.labels)
    found = tuple((name, labels[name]) for name in sorted(group_by) if name in labels)
    return found or (("alertname", alert.rule),)


def severity_of(alert: Alert) -> Severity:
    """The alert's ``severity`` label; a word that LOMS does not know counts as a warning."""
    named = dict(alert.labels).get("severity", "")
    return named if named in SEVERITIES else "warning"


def opened(group: Labels, alerts: Sequence[Alert], at_ms: int) -> Incident:
    """A new incident of these firing alerts. Its id sorts by time, and is another one for another rule's alert."""
    worst = _worst(alerts)
    digest = hashlib.blake2b(f"{group} {worst.fingerprint}".encode(), digest_size=3).hexdigest()
    return Incident(
        id=f"{at_ms:x}-{digest}",
        group=group,
        title=_title(worst),
        severity=severity_of(worst),
        opened_at_ms=at_ms,
        updated_at_ms=at_ms,
        resolved_at_ms=None,
        alerts=tuple(alerts),
    )


def advanced(incident: Incident, firing: Mapping[str, Alert], ended: Mapping[str, Alert], at_ms: int) -> Incident:
    """The incident after an evaluation in which, of its group, ``firing`` fires (by fingerprint).

    An alert that is neither in ``firing`` nor in ``ended`` has ended too, without a word (its rule is gone). The
    incident is resolved when no alert fires, and open again when one does. Its severity is the highest it has had, its
    title that of an alert which brought it there, if possible of one that still fires. ``updated_at_ms`` moves when an
    alert comes, ends or comes back, not when only its value does.
    """
    alerts = []
    for alert in incident.alerts:
        now = firing.get(alert.fingerprint)
        if now is None and alert.state == "firing":
            now = ended.get(alert.fingerprint) or replace(alert, state="resolved", resolved_at_ms=at_ms)
        alerts.append(now or alert)
    known = {alert.fingerprint for alert in incident.alerts}
    alerts += [alert for fingerprint, alert in firing.items() if fingerprint not in known]
    if _outline(alerts) == _outline(incident.alerts):
        return replace(incident, alerts=tuple(alerts))
    title, severity = incident.title, incident.severity
    if firing:
        worst = _worst(list(firing.values()))
        as_bad = SEVERITIES.index(severity_of(worst)) - SEVERITIES.index(severity)
        if as_bad > 0 or (as_bad == 0 and title not in map(_title, firing.values())):
            title, severity = _title(worst), severity_of(worst)
    return replace(
        incident,
        title=title,
        severity=severity,
        updated_at_ms=at_ms,
        resolved_at_ms=None if firing else at_ms,
        alerts=tuple(alerts),
    )


def _outline(alerts: Sequence[Alert]) -> list[tuple[str, str, int]]:
    """What of the alerts makes an incident a different one."""
    return [(alert.fingerprint, alert.state, alert.active_at_ms) for alert in alerts]


def _worst(alerts: Sequence[Alert]) -> Alert:
    """The most severe alert, of several the one that became active first."""
    return min(alerts, key=lambda alert: (-SEVERITIES.index(severity_of(alert)), alert.active_at_ms, alert.rule))


def _title(alert: Alert) -> str:
    return dict(alert.annotations).get("summary") or alert.rule
