from __future__ import annotations

HOUR = 3600


def test_an_alert_opens_an_incident_and_its_end_resolves_it(world, state, alert) -> None:
    assert world.at(10, alert(state="pending")) == []
    assert world.pipeline.open_incidents() == ()
    assert world.at(13, alert(since=13)) == ["firing [Stalled:firing]"]
    (incident,) = world.pipeline.open_incidents()
    assert (incident.group, incident.title, incident.severity) == ((("instance", "a:1"),), "a:1 stalled", "critical")
    assert state.incidents("open") == [incident]
    assert world.at(16, alert(since=13)) == []
    assert world.at(19, alert(since=13, state="resolved", resolved=19)) == ["resolved [Stalled:resolved]"]
    assert world.pipeline.open_incidents() == ()
    (saved,) = state.incidents("resolved")
    assert (saved.id, saved.resolved_at_ms) == (incident.id, 19_000)
    assert {a.state for a in state.alerts.values()} == {"resolved"}


def test_alerts_of_one_instance_share_an_incident(world, alert) -> None:
    assert world.at(0, alert("Slow", severity="warning")) == ["firing [Slow:firing]"]
    assert world.at(3, alert("Slow", severity="warning"), alert("Dead", since=3)) == [
        "firing [Dead:firing Slow:firing]"
    ]
    assert world.at(6, alert("Dead", since=3)) == ["firing [Dead:firing Slow:resolved]"]
    assert len(world.pipeline.open_incidents()) == 1
    assert world.at(9) == ["resolved [Dead:resolved]"]


def test_instances_have_incidents_of_their_own(world, alert) -> None:
    assert len(world.at(0, alert(), alert(instance="b:1"))) == 2
    assert [dict(i.group)["instance"] for i in world.pipeline.open_incidents()] == ["a:1", "b:1"]


def test_from_one_fault_to_the_next_without_a_break(world, alert) -> None:
    world.at(0, alert("Stalled"))
    told = world.at(3, alert("Stalled", state="resolved", resolved=3), alert("Dead", since=3))
    assert told == ["firing [Dead:firing Stalled:resolved]"]
    assert len(world.pipeline.open_incidents()) == 1


def test_soon_after_its_end_it_is_the_same_incident(world, state, alert) -> None:
    world.at(0, alert())
    world.at(10)
    assert world.at(120, alert(since=120)) == ["firing [Stalled:firing]"]
    assert len(state.saved) == 1
    assert [i.state for i in state.incidents()] == ["open"]
    assert world.at(130) == ["resolved [Stalled:resolved]"]


def test_later_it_is_a_new_one(world, state, alert) -> None:
    world.at(0, alert())
    world.at(10)
    assert world.at(131, alert(since=131)) == ["firing [Stalled:firing]"]
    assert sorted(i.state for i in state.incidents()) == ["open", "resolved"]


def test_reminders_come_at_the_interval_and_not_before(world, alert) -> None:
    world.at(0, alert())
    assert [t for t in range(60, 9 * HOUR, 60) if world.at(t, alert())] == [4 * HOUR, 8 * HOUR]


def test_no_reminder_while_the_last_message_is_not_taken(world, alert) -> None:
    world.at(0, alert())
    (incident,) = world.pipeline.open_incidents()
    world.held = {f"0000000000000/{incident.id}/r"}
    assert world.at(4 * HOUR, alert()) == []
    world.held = set()
    assert len(world.at(4 * HOUR + 1, alert())) == 1


def test_a_receiver_that_wants_no_endings(new_world, state, alert) -> None:
    world = new_world(state, send_resolved=False)
    assert world.at(0, alert("x"), alert("y")) == ["firing [x:firing y:firing]"]
    assert world.at(1, alert("x")) == []
    assert world.at(2) == []
    assert world.at(3, alert("x", since=3)) == ["firing [x:firing]"]


def test_the_outbox_is_written_before_the_incident(world, state, alert) -> None:
    """Else a crash in between would leave an incident that nobody was told about."""
    order = []
    put_notifications, put_incidents = state.put_notifications, state.put_incidents
    state.put_notifications = lambda rows: order.append("outbox") or put_notifications(rows)
    state.put_incidents = lambda rows: order.append("incident") or put_incidents(rows)
    world.at(0, alert())
    assert order == ["outbox", "incident"]


# --- restarts


def test_after_a_restart_nothing_is_told_twice(world, new_world, state, alert) -> None:
    world.at(0, alert())
    after = new_world(state)
    assert after.pipeline.restore(60_000) == [alert()]
    assert after.at(60, alert()) == []
    assert after.at(70, alert(state="resolved", resolved=70)) == ["resolved [Stalled:resolved]"]
    assert len(state.saved) == 1


def test_reminders_keep_their_time_over_restarts(world, new_world, state, alert) -> None:
    world.at(0, alert())
    world.at(4 * HOUR, alert())
    after = new_world(state)
    after.pipeline.restore(5 * HOUR * 1000)
    assert [h for h in range(5, 10) if after.at(h * HOUR, alert())] == [8]


def test_what_ended_while_loms_was_away_is_resolved(world, new_world, state, alert) -> None:
    world.at(0, alert())
    after = new_world(state)
    after.pipeline.restore(1000_000)
    assert after.at(1000) == ["resolved [Stalled:resolved]"]
    assert state.incidents("open") == []


def test_a_resolved_incident_may_be_opened_again_after_a_restart(world, new_world, state, alert) -> None:
    world.at(0, alert())
    world.at(10)
    after = new_world(state)
    assert after.pipeline.restore(60_000) == []
    assert after.at(60, alert(since=60)) == ["firing [Stalled:firing]"]
    assert len(state.saved) == 1
    much_later = new_world(state)
    much_later.pipeline.restore(1000_000)
    assert much_later.at(1000) == ["resolved [Stalled:resolved]"]


def test_a_changed_grouping_ends_the_old_incident_and_opens_a_new_one(world, new_world, state, alert) -> None:
    world.at(0, alert())
    after = new_world(state, group_by=("alertname",))
    after.pipeline.restore(1000)
    after.at(1, alert())
    assert sorted((i.state, i.group) for i in state.incidents()) == [
        ("open", (("alertname", "Stalled"),)),
        ("resolved", (("instance", "a:1"),)),
    ]


# --- the store


def test_values_are_written_now_and_then_and_without_changes_nothing_is(world, state, alert) -> None:
    world.at(20, alert(value=1))
    writes = state.writes
    world.at(23, alert(value=4))
    assert state.writes == writes
    assert world.pipeline.open_incidents()[0].alerts[0].value == 4
    world.at(36, alert(value=17))
    assert state.incidents("open")[0].alerts[0].value == 17
    world.at(39)
    writes = state.writes
    world.at(600)
    assert state.writes == writes


def test_a_store_that_refuses_loses_nothing(world, state, alert) -> None:
    state.refuses = True
    assert world.at(0, alert()) == ["firing [Stalled:firing]"]
    assert world.at(3, alert()) == []
    state.refuses = False
    world.at(6, alert())
    assert [i.opened_at_ms for i in state.incidents("open")] == [0]
    state.refuses = True
    world.at(9)
    world.at(500)
    state.refuses = False
    world.at(503)
    assert [i.resolved_at_ms for i in state.incidents("resolved")] == [9000]


def test_a_pending_alert_keeps_its_beginning_over_a_restart_and_is_forgotten_when_it_ends(
    world, new_world, state, alert
) -> None:
    world.at(10, alert(since=10, state="pending"))
    (restored,) = new_world(state).pipeline.restore(20_000)
    assert (restored.state, restored.active_at_ms) == ("pending", 10_000)
    world.at(30)
    assert new_world(state).pipeline.restore(40_000) == []


def test_an_end_that_the_store_refused_is_written_later_although_a_new_incident_began(world, state, alert) -> None:
    world.at(0, alert())
    state.refuses = True
    world.at(10)
    world.at(200, alert(since=200))  # too late to be the same incident
    state.refuses = False
    world.at(203, alert(since=200))
    assert sorted(i.state for i in state.incidents()) == ["open", "resolved"]
