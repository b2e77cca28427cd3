from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.core.model import Alert, Evidence, Incident
from loms.store.database import Database
from loms.store.state import Notification, State

T0 = 1_790_000_000_000
ALERT = Alert(
    rule="EngineStalled",
    labels=(("alertname", "EngineStalled"), ("instance", "a:8000"), ("severity", "critical")),
    annotations=(("summary", "no progress for 12 s – “frozen”"),),
    state="firing",
    value=12.5,
    active_at_ms=T0,
    fired_at_ms=T0 + 5000,
    evidence=(Evidence("3 requests run", "llm_engine_requests_running", 3.0, "requests"), Evidence("no value")),
    expr="x > 1",
)
INCIDENT = Incident("i1", (("instance", "a:8000"),), "a:8000 stalled", "critical", T0, T0 + 5000, None, (ALERT,))


@pytest.fixture
def state(database: Database) -> State:
    return State(database, ManualClock(T0))


def other(alert: Alert, instance: str, **changes: object) -> Alert:
    return replace(alert, labels=(("instance", instance),), **changes)  # type: ignore[arg-type]


def test_nothing_is_stored_at_first(state: State) -> None:
    assert state.open_alerts() == []
    assert state.incidents() == []
    assert state.incident("i1") is None
    assert state.pending_notifications() == []


def test_alerts_come_back_until_they_are_resolved(state: State) -> None:
    second = other(ALERT, "b", state="pending", fired_at_ms=None, active_at_ms=T0 - 1)
    state.put_alerts([ALERT, second])
    assert state.open_alerts() == [second, ALERT]
    state.put_alerts([replace(second, state="firing", fired_at_ms=T0 + 7)])
    assert state.open_alerts() == [replace(second, state="firing", fired_at_ms=T0 + 7), ALERT]
    state.put_alerts([replace(ALERT, state="resolved", resolved_at_ms=T0 + 9)])
    assert [alert.labels for alert in state.open_alerts()] == [second.labels]


def test_of_several_forms_in_one_call_the_last_counts(state: State) -> None:
    state.put_alerts([replace(ALERT, value=float(i)) for i in range(10)])
    assert [alert.value for alert in state.open_alerts()] == [9.0]


def test_the_newest_form_counts_though_the_clock_stands_or_goes_back(database: Database) -> None:
    for at, title in ((T0, "first"), (T0, "second"), (T0 - 86_400_000, "third")):
        State(database, ManualClock(at)).put_incidents([replace(INCIDENT, title=title)])
        database.command("OPTIMIZE TABLE incidents FINAL")
    assert [incident.title for incident in State(database, ManualClock(0)).incidents()] == ["third"]


def test_incidents_are_listed_by_state_newest_first(state: State) -> None:
    opened = [replace(INCIDENT, id=f"i{n}", opened_at_ms=T0 + n) for n in range(6)]
    state.put_incidents(opened)
    state.put_incidents([replace(opened[n], resolved_at_ms=T0 + 99) for n in (1, 4)])
    assert [incident.id for incident in state.incidents()] == ["i5", "i4", "i3", "i2", "i1", "i0"]
    assert [incident.id for incident in state.incidents("open")] == ["i5", "i3", "i2", "i0"]
    assert [incident.id for incident in state.incidents("resolved")] == ["i4", "i1"]
    assert [incident.id for incident in state.incidents("open", limit=2)] == ["i5", "i3"]
    assert state.incidents("resolved")[0] == replace(opened[4], resolved_at_ms=T0 + 99)


def test_an_incident_is_found_by_its_id(state: State) -> None:
    odd = replace(INCIDENT, id="it's \\ odd\n")
    state.put_incidents([INCIDENT, odd])
    assert state.incident("i1") == INCIDENT
    assert state.incident(odd.id) == odd
    assert state.incident("i2") is None


def test_notifications_wait_until_they_are_sent_or_dropped(state: State, database: Database) -> None:
    first = Notification("a", '{"x": "é"}', 0, T0 + 50)
    second = Notification("b", "text\n", 0, T0)
    state.put_notifications([first, second])
    assert state.pending_notifications() == [second, first]
    state.put_notifications([replace(second, attempts=1, next_attempt_ms=T0 + 99)])
    assert state.pending_notifications() == [first, replace(second, attempts=1, next_attempt_ms=T0 + 99)]
    state.put_notifications([replace(first, state="sent"), replace(second, state="dropped", attempts=9)])
    assert state.pending_notifications() == []
    database.command("OPTIMIZE TABLE notifications FINAL")
    assert database.query_columns("SELECT sum(length(payload)) AS n FROM notifications")["n"].to_pylist() == [0]


def test_all_of_it_survives_a_restart(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, ManualClock(T0)) as database:
        state = State(database, ManualClock(T0))
        state.put_alerts([ALERT])
        state.put_incidents([INCIDENT])
        state.put_notifications([Notification("a", "x", 0, T0)])
    with Database.open(tmp_path, 1e9, ManualClock(T0)) as database:
        state = State(database, ManualClock(T0))
        assert state.open_alerts() == [ALERT]
        assert state.incidents("open") == [INCIDENT]
        assert [one.key for one in state.pending_notifications()] == ["a"]


def test_threads_may_write_at_once(state: State) -> None:
    def write(name: str) -> None:
        for n in range(5):
            state.put_alerts([other(ALERT, name, value=float(n))])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [alert.value for alert in state.open_alerts()] == [4.0] * 4


def test_payloads_are_plain_json_for_readers_by_sql(state: State, database: Database) -> None:
    state.put_alerts([replace(ALERT, value=float("nan"))])
    payload = database.query_columns("SELECT payload FROM alerts")["payload"][0].as_py()
    fields = json.loads(payload, parse_constant=pytest.fail)
    assert fields["value"] == "NaN"
    assert fields["labels"]["instance"] == "a:8000"


def test_a_closed_store_is_one_sentence(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, ManualClock(T0)) as database:
        state = State(database, ManualClock(T0))
    with pytest.raises(StoreError):
        state.put_alerts([ALERT])
    with pytest.raises(StoreError):
        state.open_alerts()


def test_empty_writes_do_nothing(state: State, database: Database) -> None:
    state.put_alerts([])
    state.put_incidents(iter(()))
    state.put_notifications([])
    assert database.query_columns("SELECT count() AS n FROM alerts")["n"].to_pylist() == [0]
