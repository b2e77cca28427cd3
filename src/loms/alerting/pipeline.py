"""Evaluated alerts → incidents in the store, notifications in the outbox.

One call of `Pipeline.process` takes all alerts of the evaluator and runs the stages: *group* (which incident),
*dedup* (what is new about it, and who has not been told), *notify* (write the message, hand it to the delivery). The
call is about what is, not about what changed, so a lost one is made good by the next.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from loms.alerting.incident import advanced, group_of, opened
from loms.alerting.notice import Told, assumed_told, message, next_told
from loms.alerting.receiver import Receiver
from loms.alerting.state import Entry, State, entry_key
from loms.core import selfmetrics
from loms.core.errors import StoreError
from loms.core.model import Alert, Incident, Labels

REFRESH_MS = 15_000
"""How often values and evidence of an incident that is otherwise unchanged are written to the store."""
_READ_BACK = 10_000

_log = logging.getLogger("loms.alerting")


class Outbox(Protocol):
    """Sends entries that are already stored (`loms.alerting.delivery.Delivery`)."""

    def put(self, entries: Iterable[Entry], /) -> None: ...

    def waiting(self, receiver: str, /) -> Collection[str]:
        """Keys of the entries that the receiver has not taken yet."""
        ...


class Pipeline:
    """Keeps the open incidents and says who is to be told. Not thread-safe; one caller at a time."""

    def __init__(
        self,
        state: State,
        receivers: Sequence[Receiver],
        outbox: Outbox,
        *,
        group_by: Sequence[str] = ("instance",),
        reopen_within_seconds: float = 120.0,
        repeat_interval_seconds: float = 4 * 3600.0,
        external_url: str = "",
    ) -> None:
        self._state = state
        self._receivers = tuple(receivers)
        self._outbox = outbox
        self._group_by = tuple(group_by)
        self._reopen_ms = round(reopen_within_seconds * 1000)
        self._repeat_ms = round(repeat_interval_seconds * 1000)
        self._external_url = external_url
        self._incidents: dict[Labels, Incident] = {}
        """Open ones, and those resolved so recently that they may be opened again, by group."""
        self._told: dict[tuple[str, str], Told] = {}
        """(incident id, receiver) → what it was last told."""
        self._unsaved: dict[str, Incident] = {}
        """Incident id → what the store does not have yet."""
        self._pending: dict[str, Alert] = {}
        """The pending alerts that the store has, by fingerprint."""
        self._refreshed_ms = 0

    def restore(self, at_ms: int) -> list[Alert]:
        """Read incidents and alerts back; returns the pending and firing alerts, for the evaluator to go on with.

        Raises `StoreError`.
        """
        resolved = [
            incident
            for incident in self._state.incidents("resolved", _READ_BACK)
            if incident.resolved_at_ms is not None and at_ms - incident.resolved_at_ms <= self._reopen_ms
        ]
        for incident in (*resolved, *reversed(self._state.incidents("open", _READ_BACK))):
            self._incidents[incident.group] = incident
            for receiver in self._receivers:
                self._told[incident.id, receiver.name] = assumed_told(incident)
        selfmetrics.incidents_open.set(len(self.open_incidents()))
        self._pending = {alert.fingerprint: alert for alert in self._state.open_alerts() if alert.state == "pending"}
        firing = [alert for incident in self.open_incidents() for alert in incident.alerts if alert.state == "firing"]
        return [*firing, *self._pending.values()]

    def open_incidents(self) -> tuple[Incident, ...]:
        """Those open now, with the newest values; the oldest first."""
        found = [incident for incident in self._incidents.values() if incident.state == "open"]
        return tuple(sorted(found, key=lambda incident: incident.opened_at_ms))

    def process(self, alerts: Iterable[Alert], at_ms: int) -> list[Incident]:
        """Take in every pending and firing alert there is, and those resolved just now.

        What was firing and is not among them has ended. Returns the incidents that are new or changed.
        """
        firing: dict[Labels, dict[str, Alert]] = {}
        ended: dict[str, Alert] = {}
        pending: dict[str, Alert] = {}
        for alert in alerts:
            if alert.state == "firing":
                firing.setdefault(group_of(alert, self._group_by), {})[alert.fingerprint] = alert
            elif alert.state == "resolved":
                ended[alert.fingerprint] = alert
            else:
                pending[alert.fingerprint] = alert
        changed = [
            incident
            for group in dict.fromkeys((*firing, *self._incidents))
            if (incident := self._stage(group, firing.get(group, {}), ended, at_ms)) is not None
        ]
        told_about = self._notify(at_ms)
        self._save((*changed, *told_about), at_ms)
        self._save_pending(pending, at_ms)
        self._forget(at_ms)
        selfmetrics.incidents_open.set(len(self.open_incidents()))
        return changed

    def _stage(self, group: Labels, firing: dict[str, Alert], ended: dict[str, Alert], at_ms: int) -> Incident | None:
        """Bring one group's incident up to date; returns it if more than its values changed."""
        before = self._incidents.get(group)
        if before is not None and self._is_past(before, at_ms):
            before = None
        if before is None and not firing:
            return None
        now = opened(group, list(firing.values()), at_ms) if before is None else advanced(before, firing, ended, at_ms)
        self._incidents[group] = now
        if before is not None and now.updated_at_ms == before.updated_at_ms and now.state == before.state:
            return None
        _log.info("incident %s %s: %s", now.id, now.state, now.title)
        return now

    def _notify(self, at_ms: int) -> list[Incident]:
        """Write what is due to the outbox; returns the incidents that somebody is told about."""
        entries, told_about = [], []
        for group, incident in self._incidents.items():
            due = [entry for receiver in self._receivers for entry in self._due(receiver, incident, at_ms)]
            if due:
                # The time of a reminder must survive a restart as well (see `assumed_told`).
                told_about.append(replace(incident, updated_at_ms=at_ms))
                self._incidents[group] = told_about[-1]
                entries += due
        if entries:
            try:
                self._state.put_notifications(entries)
            except StoreError as error:
                _log.error("notifications go out without being stored: %s", error.message)
            self._outbox.put(entries)
        return told_about

    def _due(self, receiver: Receiver, incident: Incident, at_ms: int) -> Iterator[Entry]:
        key = (incident.id, receiver.name)
        before = self._told.get(key)
        now = next_told(before, incident, send_resolved=receiver.send_resolved, repeat_ms=self._repeat_ms, at_ms=at_ms)
        if now is None:
            return
        repeated = before is not None and (before.firing, before.resolved) == (now.firing, now.resolved)
        if repeated and any(f"/{incident.id}/" in key for key in self._outbox.waiting(receiver.name)):
            return  # the last message about it has not been taken yet
        self._told[key] = now
        content = message(
            before,
            incident,
            receiver=receiver.name,
            send_resolved=receiver.send_resolved,
            external_url=self._external_url,
        )
        if content is not None:
            payload = receiver.notifier.render(content)
            yield Entry(entry_key(at_ms, incident.id, receiver.name), payload, next_attempt_ms=at_ms)

    def _save(self, changed: Iterable[Incident], at_ms: int) -> None:
        """Store what changed, and now and then the values of what did not. What the store refuses is tried again."""
        self._unsaved.update((incident.id, incident) for incident in changed)
        refresh = abs(at_ms - self._refreshed_ms) >= REFRESH_MS
        if refresh:
            self._refreshed_ms = at_ms
        current = (i for i in self._incidents.values() if i.id in self._unsaved or (refresh and i.state == "open"))
        self._unsaved.update((incident.id, incident) for incident in current)
        rows = list(self._unsaved.values())
        if not rows:
            return
        try:
            self._state.put_alerts(alert for incident in rows for alert in incident.alerts)
            self._state.put_incidents(rows)
        except StoreError as error:
            _log.error("incidents cannot be stored: %s", error.message)
        else:
            self._unsaved.clear()

    def _save_pending(self, now: dict[str, Alert], at_ms: int) -> None:
        """Store alerts that began to be pending, and the end of those that are neither pending nor firing any more."""
        firing = {alert.fingerprint for incident in self.open_incidents() for alert in incident.alerts}
        begun = [alert for key, alert in now.items() if key not in self._pending]
        ended = [
            replace(alert, state="resolved", resolved_at_ms=at_ms)
            for key, alert in self._pending.items()
            if key not in now and key not in firing
        ]
        if begun or ended:
            try:
                self._state.put_alerts([*begun, *ended])
            except StoreError as error:
                _log.error("alerts cannot be stored: %s", error.message)
                return
        self._pending = now

    def _forget(self, at_ms: int) -> None:
        """Let go of incidents that can no longer be opened again and are stored."""
        for group, incident in list(self._incidents.items()):
            if self._is_past(incident, at_ms) and incident.id not in self._unsaved:
                del self._incidents[group]
        ids = {incident.id for incident in self._incidents.values()}
        self._told = {key: told for key, told in self._told.items() if key[0] in ids}

    def _is_past(self, incident: Incident, at_ms: int) -> bool:
        return incident.resolved_at_ms is not None and at_ms - incident.resolved_at_ms > self._reopen_ms
