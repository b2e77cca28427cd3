from __future__ import annotations

from pathlib import Path

from loms.alerting.incident import opened
from loms.alerting.owned import OwnState
from loms.alerting.state import Entry, entry_key
from loms.core.clock import ManualClock
from loms.core.model import Alert
from loms.store.database import Database
from loms.store.state import State

NOW = 1_700_000_000_000


def alert(rule: str) -> Alert:
    return Alert(rule, (("alertname", rule), ("severity", "warning")), (), "firing", 1.0, NOW)


def is_mine(found: Alert | None) -> bool:
    return found is not None and found.rule.startswith("Mine")


def is_other(found: Alert | None) -> bool:
    return not is_mine(found)


def test_each_server_goes_on_with_its_own(tmp_path: Path) -> None:
    mine, other = alert("Mine"), alert("Other")
    incidents = [opened((("alertname", one.rule),), [one], NOW) for one in (mine, other)]
    keys = [entry_key(NOW, incident.id, "hook") for incident in incidents]
    lost = entry_key(NOW, "an-incident-that-is-gone", "hook")
    with Database.open(tmp_path, 1e9, ManualClock(NOW)) as database:
        state = State(database, ManualClock(NOW))
        first, second = OwnState(state, is_other), OwnState(state, is_mine)
        second.put_alerts([mine, other])
        second.put_incidents(incidents)
        second.put_notifications([Entry(key, "text") for key in (*keys, lost)])
        assert second.open_alerts() == [mine]
        assert first.open_alerts() == [other]
        assert second.incidents("open") == [incidents[0]]
        assert first.incidents("all") == [incidents[1]]
        assert first.incidents("resolved") == []
        assert [one.key for one in second.pending_notifications()] == [keys[0]]
        assert {one.key for one in first.pending_notifications()} == {keys[1], lost}


def test_two_servers_incidents_of_one_group_and_time_are_two() -> None:
    group = (("instance", "a:1"),)
    assert opened(group, [alert("Mine")], NOW).id != opened(group, [alert("Other")], NOW).id
