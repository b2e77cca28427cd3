"""Whatever comes and goes, and whenever LOMS restarts: what a receiver was told adds up to what is so."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from loms.alerting.notice import Message
from loms.alerting.pipeline import Pipeline
from loms.alerting.receiver import Receiver
from loms.alerting.state import Entry
from loms.core.model import Alert, Incident, labels_of

RULES, INSTANCES = ("Stalled", "Dead", "Slow"), ("a:1", "b:1")
PAIRS = [(rule, instance) for rule in RULES for instance in INSTANCES]
STEPS = st.lists(
    st.tuples(st.frozensets(st.sampled_from(PAIRS)), st.integers(1, 400), st.booleans()), min_size=1, max_size=25
)


class Memory:
    """State without a disk."""

    def __init__(self) -> None:
        self.saved: dict[str, Incident] = {}
        self.alerts: dict[str, Alert] = {}

    def put_alerts(self, alerts: Iterable[Alert]) -> None:
        self.alerts.update({alert.fingerprint: alert for alert in alerts})

    def put_incidents(self, incidents: Iterable[Incident]) -> None:
        self.saved.update({incident.id: incident for incident in incidents})

    def open_alerts(self) -> list[Alert]:
        return [alert for alert in self.alerts.values() if alert.state != "resolved"]

    def incidents(self, state: str = "all", limit: int = 100) -> list[Incident]:
        found = [incident for incident in self.saved.values() if state in ("all", incident.state)]
        return sorted(found, key=lambda incident: -incident.opened_at_ms)[:limit]

    def put_notifications(self, notifications: Iterable[Entry]) -> None:
        list(notifications)

    def pending_notifications(self) -> list[Entry]:
        return []


class Listener:
    """A receiver that believes what it is told; also the notifier that tells it."""

    def __init__(self) -> None:
        self.believes: set[tuple[str, str]] = set()
        self.messages = 0

    def render(self, message: Message) -> str:
        return json.dumps([[a.rule, dict(a.labels)["instance"], a.state] for a in message.alerts])

    def put(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.messages += 1
            for rule, instance, state in json.loads(entry.payload):
                (self.believes.add if state == "firing" else self.believes.discard)((rule, instance))

    def waiting(self, receiver: str) -> frozenset[str]:
        return frozenset()


def alert(rule: str, instance: str, since_ms: int) -> Alert:
    labels = labels_of({"alertname": rule, "instance": instance, "severity": "critical"})
    return Alert(rule, labels, (("summary", rule),), "firing", 1.0, since_ms, fired_at_ms=since_ms)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_what_was_told_adds_up_to_what_is_so(steps) -> None:
    state, listener = Memory(), Listener()
    receivers = [Receiver("r", "listener", listener)]  # type: ignore[arg-type]
    pipeline = Pipeline(state, receivers, listener)  # type: ignore[arg-type]
    at_ms, since, before = 0, dict[tuple[str, str], int](), frozenset[tuple[str, str]]()
    for firing, seconds, restart in steps:
        at_ms += seconds * 1000
        since = {pair: since.get(pair, at_ms) for pair in sorted(firing)}
        if restart:
            pipeline = Pipeline(state, receivers, listener)  # type: ignore[arg-type]
            restored = pipeline.restore(at_ms)
            assert {(a.rule, dict(a.labels)["instance"]) for a in restored} == before
        sent = listener.messages
        pipeline.process([alert(rule, instance, ms) for (rule, instance), ms in since.items()], at_ms)
        assert listener.believes == set(firing)
        assert listener.messages - sent <= len(INSTANCES)
        if firing == before:
            assert listener.messages == sent
        opened = {dict(incident.group)["instance"] for incident in pipeline.open_incidents()}
        assert opened == {instance for _, instance in firing}
        assert {i.id for i in state.incidents("open")} == {i.id for i in pipeline.open_incidents()}
        before = firing
