"""State in memory, a notifier that notes what it sends, alerts in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from loms.alerting.delivery import Delivery
from loms.alerting.notice import Message
from loms.alerting.pipeline import Pipeline
from loms.alerting.receiver import Receiver
from loms.alerting.state import Entry, Notification
from loms.core.errors import StoreError
from loms.core.model import Alert, Incident, labels_of


class MemoryState:
    """A `loms.alerting.state.State` that forgets what the real one forgets, and refuses when told to."""

    def __init__(self) -> None:
        self.alerts: dict[str, Alert] = {}
        self.saved: dict[str, Incident] = {}
        self.outbox: dict[str, Notification] = {}
        self.writes = 0
        self.refuses = False

    def _write(self) -> None:
        if self.refuses:
            raise StoreError("the disk is full")
        self.writes += 1

    def put_alerts(self, alerts: Iterable[Alert]) -> None:
        self._write()
        self.alerts.update({alert.fingerprint: alert for alert in alerts})

    def open_alerts(self) -> list[Alert]:
        return [alert for alert in self.alerts.values() if alert.state != "resolved"]

    def put_incidents(self, incidents: Iterable[Incident]) -> None:
        self._write()
        self.saved.update({incident.id: incident for incident in incidents})

    def incidents(self, state: str = "all", limit: int = 100) -> list[Incident]:
        found = [incident for incident in self.saved.values() if state in ("all", incident.state)]
        return sorted(found, key=lambda incident: -incident.opened_at_ms)[:limit]

    def put_notifications(self, notifications: Iterable[Notification]) -> None:
        self._write()
        for one in notifications:
            payload = one.payload if one.state == "pending" else ""
            self.outbox[one.key] = Entry(one.key, payload, one.attempts, one.next_attempt_ms, one.state)

    def pending_notifications(self) -> list[Notification]:
        return [one for one in self.outbox.values() if one.state == "pending"]


class Notes:
    """A notifier whose text is the message in short, and whose answers are given in advance."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.answers: list[Exception | None] = []

    def render(self, message: Message) -> str:
        alerts = " ".join(f"{alert.rule}:{alert.state}" for alert in message.alerts)
        return f"{message.status} [{alerts}]"

    async def send(self, payload: str) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.sent.append(payload)


class World:
    """A pipeline with one receiver over memory, and an outbox that is emptied at once."""

    def __init__(self, state: MemoryState, *, send_resolved: bool = True, **settings: float) -> None:
        self.state = state
        self.told: list[str] = []
        self.held: set[str] = set()
        self.receiver = Receiver("r", "notes", Notes(), send_resolved)
        self.pipeline = Pipeline(state, [self.receiver], self, external_url="http://loms", **settings)

    def put(self, entries: Iterable[Entry]) -> None:
        self.told += [entry.payload for entry in entries]

    def waiting(self, receiver: str) -> set[str]:
        return self.held

    def at(self, seconds: float, *alerts: Alert) -> list[str]:
        """Process, and return what was sent by that."""
        before = len(self.told)
        self.pipeline.process(alerts, round(seconds * 1000))
        return self.told[before:]


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


@pytest.fixture
def world(state: MemoryState) -> World:
    return World(state)


@pytest.fixture
def new_world() -> Callable[..., World]:
    return World


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def alert() -> Callable[..., Alert]:
    def make(
        rule: str = "Stalled",
        instance: str = "a:1",
        *,
        state: str = "firing",
        severity: str = "critical",
        since: float = 0,
        summary: str = "",
        value: float = 1.0,
        resolved: float | None = None,
        **labels: str,
    ) -> Alert:
        found = labels_of({"alertname": rule, "instance": instance, "severity": severity, **labels})
        ms = round(since * 1000)
        return Alert(
            rule=rule,
            labels=found,
            annotations=labels_of({"summary": summary or f"{instance} {rule.lower()}"}),
            state=state,  # type: ignore[arg-type]
            value=value,
            active_at_ms=ms,
            fired_at_ms=None if state == "pending" else ms,
            resolved_at_ms=None if resolved is None else round(resolved * 1000),
        )

    return make


@pytest.fixture
def delivery_of(state: MemoryState) -> Callable[..., Delivery]:
    def make(*receivers: Receiver, **settings: object) -> Delivery:
        return Delivery(state, receivers, **settings)  # type: ignore[arg-type]

    return make
