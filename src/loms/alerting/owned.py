"""One server's share of a state that several keep in the same store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

from loms.alerting.state import Notification, State, incident_of
from loms.core.model import Alert, Incident


class SharedState(State, Protocol):
    """A state that can also be asked for one incident."""

    def incident(self, incident_id: str, /) -> Incident | None: ...


class OwnState:
    """A `loms.alerting.state.State` that reads what ``owns`` says is this server's, and writes everything.

    An incident is whose its first alert is; an entry of the outbox, whose its incident is. An incident that is not
    there (any more) is None to ``owns``.
    """

    def __init__(self, state: SharedState, owns: Callable[[Alert | None], bool]) -> None:
        self._state = state
        self._owns = owns

    def put_alerts(self, alerts: Iterable[Alert]) -> None:
        self._state.put_alerts(alerts)

    def open_alerts(self) -> Sequence[Alert]:
        return [alert for alert in self._state.open_alerts() if self._owns(alert)]

    def put_incidents(self, incidents: Iterable[Incident]) -> None:
        self._state.put_incidents(incidents)

    def incidents(self, state: Literal["open", "resolved", "all"] = "all", limit: int = 100) -> Sequence[Incident]:
        """Of the ``limit`` opened last by all servers, this one's."""
        return [incident for incident in self._state.incidents(state, limit) if self._mine(incident)]

    def put_notifications(self, notifications: Iterable[Any]) -> None:
        self._state.put_notifications(notifications)

    def pending_notifications(self) -> Sequence[Notification]:
        pending = self._state.pending_notifications()
        mine = {key: self._mine(self._state.incident(key)) for key in {incident_of(one.key) for one in pending}}
        return [one for one in pending if mine[incident_of(one.key)]]

    def _mine(self, incident: Incident | None) -> bool:
        return self._owns(incident.alerts[0] if incident and incident.alerts else None)
