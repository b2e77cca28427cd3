"""When a receiver is told what: Alertmanager's rules of deduplication, and the message that follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from loms.core.model import Alert, Incident


@dataclass(frozen=True, slots=True)
class Told:
    """What one receiver was last told about one incident."""

    firing: frozenset[str]
    """Fingerprints."""
    resolved: frozenset[str]
    at_ms: int


@dataclass(frozen=True, slots=True)
class Message:
    """What a notifier puts into its own form."""

    receiver: str
    incident: Incident
    alerts: tuple[Alert, ...]
    """Those that fire, and those that ended since the last message; by job, instance, labels."""
    external_url: str
    """Where LOMS's page is, without a slash at the end; empty when unknown."""

    @property
    def status(self) -> str:
        return "firing" if any(alert.state == "firing" for alert in self.alerts) else "resolved"

    @property
    def url(self) -> str:
        """The incident on LOMS's page."""
        return f"{self.external_url}/#/incidents/{self.incident.id}" if self.external_url else ""


def assumed_told(incident: Incident) -> Told:
    """What every receiver was told about an incident read back from the store.

    Notifications are written before the incident that they tell of, so what the stored incident says was told, at the
    latest at its last update.
    """
    return _now(incident, incident.updated_at_ms)


def next_told(
    before: Told | None, incident: Incident, *, send_resolved: bool, repeat_ms: int, at_ms: int
) -> Told | None:
    """What a receiver should know now, or None when it need not be told anything.

    The conditions are those of Alertmanager's deduplication stage: something new fires; nothing fires any more;
    something ended (where endings are wanted); or the last message is ``repeat_ms`` old while something fires.
    """
    now = _now(incident, at_ms)
    if before is None:
        return now if now.firing else None
    if not now.firing <= before.firing:
        return now
    if not now.firing:
        return now if before.firing else None
    if send_resolved and not now.resolved <= before.resolved:
        return now
    return now if at_ms - before.at_ms >= repeat_ms else None


def message(
    before: Told | None, incident: Incident, *, receiver: str, send_resolved: bool, external_url: str
) -> Message | None:
    """The message that takes a receiver from ``before`` to the present; None when there is nothing in it to send."""
    known = before.resolved if before else frozenset[str]()
    alerts = [
        alert
        for alert in incident.alerts
        if alert.state == "firing" or (send_resolved and alert.fingerprint not in known)
    ]
    if not alerts:
        return None
    return Message(receiver, incident, tuple(sorted(alerts, key=_order)), external_url.rstrip("/"))


def _now(incident: Incident, at_ms: int) -> Told:
    by_state = {
        state: frozenset(alert.fingerprint for alert in incident.alerts if alert.state == state)
        for state in ("firing", "resolved")
    }
    return Told(by_state["firing"], by_state["resolved"], at_ms)


def _order(alert: Alert) -> tuple[str, str, object]:
    labels = dict(alert.labels)
    return labels.get("job", ""), labels.get("instance", ""), alert.labels
