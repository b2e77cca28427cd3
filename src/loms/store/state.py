"""What must survive a restart beside the samples: alerts, incidents, and notifications on their way.

Every write appends a new version of a key and is on the disk when the call returns; the newest version counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from loms.core.clock import Clock
from loms.core.model import Alert, Incident
from loms.store.codec import decode_alert, decode_incident, encode_alert, encode_incident
from loms.store.database import Database

_TIME = pa.timestamp("ms")
_ALL = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Notification:
    """An entry of the outbox. ``payload`` is the sender's own text; it is kept only while ``state`` is pending."""

    key: str
    payload: str
    attempts: int
    next_attempt_ms: int
    state: Literal["pending", "sent", "dropped"] = "pending"


class State:
    """Alerts, incidents and the outbox in ``database``. Safe to call from several threads.

    Every method raises `loms.core.errors.StoreError` when the store refuses.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        newest = database.query_columns(
            "SELECT max(version) AS version FROM (SELECT version FROM alerts UNION ALL SELECT version FROM incidents"
            " UNION ALL SELECT version FROM notifications)"
        )
        self._version: int = newest["version"][0].as_py()

    def put_alerts(self, alerts: Iterable[Alert]) -> None:
        """Store the present form of each alert; of several with one fingerprint the last counts."""
        rows = list(alerts)
        self._put(
            "alerts",
            {
                "fingerprint": [alert.fingerprint for alert in rows],
                "state": [alert.state for alert in rows],
                "rule": [alert.rule for alert in rows],
                "active_at": pa.array([alert.active_at_ms for alert in rows], _TIME),
                "payload": [encode_alert(alert) for alert in rows],
            },
        )

    def open_alerts(self) -> list[Alert]:
        """Alerts whose newest form is pending or firing, the oldest first."""
        texts = self._payloads(
            "alerts", "fingerprint", "state != 'resolved'", "active_at, fingerprint", {"limit": _ALL}
        )
        return [decode_alert(text) for text in texts]

    def put_incidents(self, incidents: Iterable[Incident]) -> None:
        """Store the present form of each incident; of several with one id the last counts."""
        rows = list(incidents)
        self._put(
            "incidents",
            {
                "id": [incident.id for incident in rows],
                "state": [incident.state for incident in rows],
                "severity": [incident.severity for incident in rows],
                "opened_at": pa.array([incident.opened_at_ms for incident in rows], _TIME),
                "updated_at": pa.array([incident.updated_at_ms for incident in rows], _TIME),
                "resolved_at": pa.array([incident.resolved_at_ms for incident in rows], _TIME),
                "payload": [encode_incident(incident) for incident in rows],
            },
        )

    def incidents(self, state: Literal["open", "resolved", "all"] = "all", limit: int = 100) -> list[Incident]:
        """The ``limit`` incidents opened last, the newest first."""
        texts = self._payloads(
            "incidents",
            "id",
            "{state:String} IN ('all', state)",
            "opened_at DESC, id",
            {"state": state, "limit": limit},
        )
        return [decode_incident(text) for text in texts]

    def incident(self, incident_id: str) -> Incident | None:
        texts = self._payloads("incidents", "id", "id = {id:String}", "id", {"id": incident_id, "limit": 1})
        return decode_incident(texts[0]) if texts else None

    def put_notifications(self, notifications: Iterable[Notification]) -> None:
        """Store the present form of each outbox entry; of several with one key the last counts."""
        rows = list(notifications)
        self._put(
            "notifications",
            {
                "key": [one.key for one in rows],
                "state": [one.state for one in rows],
                "attempts": [one.attempts for one in rows],
                "next_attempt": pa.array([one.next_attempt_ms for one in rows], _TIME),
                "payload": [one.payload if one.state == "pending" else "" for one in rows],
            },
        )

    def pending_notifications(self) -> list[Notification]:
        """Entries still to be delivered, the most urgent first."""
        columns = self._database.query_columns(
            "SELECT key, payload, attempts, toUnixTimestamp64Milli(next_attempt) AS next_attempt_ms"
            " FROM notifications FINAL WHERE state = 'pending' ORDER BY next_attempt, key"
        )
        return [Notification(*row) for row in zip(*(column.to_pylist() for column in columns.values()), strict=True)]

    def _put(self, table: str, columns: dict[str, Any]) -> None:
        """Append rows, each with a higher version than any before, even if the clock went back."""
        count = len(columns["payload"])
        if not count:
            return
        with self._lock:
            first = max(self._version + 1, self._clock.now_ms() * 1000)
            self._version = first + count - 1
            versions = pa.array(range(first, first + count), pa.uint64())
            self._database.insert_arrow(table, pa.table({"version": versions, **columns}))

    def _payloads(
        self, table: str, key: str, condition: str, order: str, parameters: dict[str, str | int]
    ) -> list[Any]:
        """Payloads of the newest versions that fulfil ``condition``: of all rows only the narrow columns are read."""
        newest = f"{key}, version FROM {table} FINAL WHERE {condition} ORDER BY {order} LIMIT {{limit:UInt32}}"
        columns = self._database.query_columns(
            f"SELECT payload FROM {table} WHERE ({key}, version) IN (SELECT {newest}) ORDER BY {order}",  # noqa: S608 - fixed texts
            parameters,
        )
        payloads: list[Any] = columns["payload"].to_pylist()
        return payloads
