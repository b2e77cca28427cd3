"""What alerting keeps outside the process, as it sees it. `loms.store.state.State` is made to fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from loms.core.model import Alert, Incident


class Notification(Protocol):
    """An entry of the outbox: a text on its way to one receiver."""

    @property
    def key(self) -> str: ...

    @property
    def payload(self) -> str: ...

    @property
    def attempts(self) -> int: ...

    @property
    def next_attempt_ms(self) -> int: ...

    @property
    def state(self) -> Literal["pending", "sent", "dropped"]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """An outbox entry as alerting writes it."""

    key: str
    """Time, incident and receiver (`entry_key`): entries sorted by key are in the order of their making."""
    payload: str
    attempts: int = 0
    next_attempt_ms: int = 0
    state: Literal["pending", "sent", "dropped"] = "pending"


def entry_key(at_ms: int, incident_id: str, receiver: str) -> str:
    """
    >>> entry_key(1_700_000_000_000, "i1", "webhook")
    '1700000000000/i1/webhook'
    """
    return f"{at_ms:013d}/{incident_id}/{receiver}"


def receiver_of(key: str) -> str:
    """The receiver in an `entry_key`."""
    return key.split("/", 2)[2]


def incident_of(key: str) -> str:
    """The incident's id in an `entry_key`."""
    return key.split("/", 2)[1]


class State(Protocol):
    """Keeps the newest form of each alert, incident and outbox entry.

    A write is on the disk when the call returns. Called from several threads. Raises
    `loms.core.errors.StoreError`.
    """

    def put_alerts(self, alerts: Iterable[Alert], /) -> None: ...

    def open_alerts(self) -> Sequence[Alert]:
        """Those that are pending or firing."""
        ...

    def put_incidents(self, incidents: Iterable[Incident], /) -> None: ...

    def incidents(self, state: Literal["open", "resolved", "all"] = "all", limit: int = 100) -> Sequence[Incident]:
        """The ``limit`` incidents opened last, the newest first."""
        ...

    def put_notifications(self, notifications: Iterable[Any], /) -> None:
        """Takes anything with the attributes of `Notification`."""
        ...

    def pending_notifications(self) -> Sequence[Notification]: ...
