from __future__ import annotations

import math

import pytest

from loms.core.model import Finding

RUNNING, WAITING = "llm_engine_requests_running", "llm_engine_requests_waiting"
OUT, STEPS = "llm_engine_tokens_output_total", "llm_engine_iteration_tokens_count"


def load(tokens: float, running: float = 4, waiting: float = 0) -> dict[str, float]:
    return {OUT: tokens, STEPS: tokens / 4, RUNNING: running, WAITING: waiting}


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


def kinds(world, seconds, **config) -> list[str]:
    return [only(world.stall(t, **config)).kind for t in seconds]


# --- recordings of vLLM 0.32.0 whose engine core was stopped (SIGSTOP) while /health answered 200


def test_recorded_hang_under_load(world, recorded) -> None:
    before = recorded("before")
    world.good(95, {name: value - 20 if "tokens" in name else value for name, value in before.items()})
    world.good(100, before)  # the last progress
    for at in (102, 107, 112, 117, 122, 127):
        world.good(at, recorded("hang_2s" if at < 117 else "hang_17s"))
    world.good(132, recorded("hang_new_request"))  # the request that arrived meanwhile shows nowhere
    assert kinds(world, (101, 104)) == ["busy", "busy"]
    assert kinds(world, (107, 113)) == ["busy", "long_prefill"]
    stalled = only(world.stall(118))
    assert (stalled.kind, stalled.severity, stalled.value) == ("stalled", "critical", 17.0)
    assert stalled.summary == "no progress for 17 s while 4 requests run; /health may still say 200"
    assert only(world.stall(133)).value == 32.0
    world.good(137, recorded("resumed"))
    assert kinds(world, (138,)) == ["busy"]


def test_recorded_hang_while_idle(world, recorded) -> None:
    for at in (90, 95, 100):
        world.good(at, recorded("idle_before"))
    world.probe(96, 0.2, "ok")
    for at in (105, 110, 115, 120, 125):
        world.good(at, recorded("idle_hang_5s" if at < 120 else "idle_hang_20s"))
    assert kinds(world, (101, 112)) == ["idle", "idle"]
    world.probe(111, 8, "timeout")
    frozen = only(world.stall(121))
    assert (frozen.kind, frozen.severity) == ("stalled", "critical")
    assert frozen.summary.startswith("no progress for 24 s: a synthetic request for one token failed after 8 s")
    assert [e.value for e in frozen.evidence if e.expr.startswith("loms_probe_success")] == [0.0]
    world.good(130, recorded("idle_resumed"))
    assert kinds(world, (131,)) == ["idle"]


def test_recorded_idle_engine_without_probes_is_idle(world, recorded) -> None:
    for at in range(90, 200, 5):
        world.good(at, recorded("idle_before"))
    assert kinds(world, (92, 150, 199)) == ["idle"] * 3


# --- what must not be condemned


def test_a_prefill_of_several_seconds_is_not_a_stall(world) -> None:
    for at in range(100):
        world.good(at, load(1000 + (10 * at if at < 60 else 600 if at < 71 else 10 * at), running=1))
    seen = kinds(world, range(55, 85, 2))
    assert set(seen) == {"busy", "long_prefill"}
    assert seen[0] == seen[-1] == "busy"


def test_a_full_queue_served_slowly_is_busy(world) -> None:
    for at in range(0, 120, 2):
        world.good(at, load(100 + at // 6, running=8, waiting=60))  # one token every six seconds
    assert set(kinds(world, range(20, 120, 3))) <= {"busy", "long_prefill"}


def test_the_first_request_after_a_quiet_night_gets_the_whole_allowance(world) -> None:
    for at in range(0, 600, 5):
        world.good(at, load(5000, running=0))
    for at in range(600, 620, 5):
        world.good(at, load(5000, running=1))
    assert kinds(world, (596, 601, 606, 614, 616)) == ["idle", "busy", "busy", "busy", "stalled"]


def test_a_target_scraped_once_a_minute_may_show_no_progress_for_a_minute(world) -> None:
    for minute in range(5):
        world.good(60 * minute, load(100 * minute))
    assert set(kinds(world, (125, 160, 179, 239))) == {"busy"}


def test_a_restart_is_progress(world) -> None:
    for at in (0, 5, 10):
        world.good(at, load(900))
    world.bad(15, "refused")
    world.good(20, load(0, running=1))
    assert kinds(world, (21,)) == ["busy"]


def test_a_probe_that_was_answered_is_a_sign_of_life_where_tokens_are_counted_at_the_end(world) -> None:
    for at in range(0, 60, 5):
        world.good(at, load(900, running=1))
    world.probe(50, 1, "ok")
    assert kinds(world, (58,)) == ["busy"]


def test_a_probe_that_failed_for_another_reason_proves_nothing(world) -> None:
    for at in range(0, 60, 5):
        world.good(at, load(900, running=0))
    world.probe(30, 0.1, "http")
    assert kinds(world, (58,)) == ["idle"]


def test_progress_after_the_probe_was_sent_outweighs_its_timeout(world) -> None:
    for at in range(0, 60, 5):
        world.good(at, load(900 if at < 40 else 950, running=0))
    world.probe(35, 8, "timeout")
    assert kinds(world, (52,)) == ["idle"]


def test_a_verdict_that_the_prober_ended_no_longer_counts(world) -> None:
    for at in range(0, 60, 5):
        world.good(at, load(900, running=0))
    world.probe(30, 8, "timeout")
    assert kinds(world, (42,)) == ["stalled"]
    world.probe_outdated(45)
    assert kinds(world, (47,)) == ["idle"]


def test_the_newest_probe_decides(world) -> None:
    for at in range(0, 90, 5):
        world.good(at, load(900, running=0))
    world.probe(20, 8, "timeout")
    assert kinds(world, (36,)) == ["stalled"]
    world.probe(40, 1, "ok")
    assert kinds(world, (46,)) == ["idle"]


def test_refusals_by_the_api_server_are_no_progress(world) -> None:
    labels = {"job": "llm", "instance": "a:8000", "engine": "vllm", "model": "m", "deployment_zone": "z"}
    for at in range(0, 40, 5):
        world.good(at, load(100))
        for outcome in ("rejected", "success"):
            value = at if outcome == "rejected" else 7
            world.add(at, "llm_engine_requests_finished_total", {**labels, "outcome": outcome}, value)
    assert kinds(world, (36,)) == ["stalled"]


# --- the allowance


@pytest.mark.parametrize(
    ("prefill", "at", "expected"),
    [
        (4.0, 31, "busy"),
        (4.0, 36, "stalled"),  # 2 x 4 s is below the 15 s that everyone gets
        (20.0, 51, "long_prefill"),
        (20.0, 61, "stalled"),
        (500.0, 131, "long_prefill"),
        (500.0, 141, "stalled"),  # never more than 120 s
        (math.inf, 36, "stalled"),  # no bucket holds it: says nothing
    ],
)
def test_the_engines_own_prefill_times_raise_the_allowance(world, prefill, at, expected) -> None:
    for t in range(0, 150, 5):
        world.good(t, load(10 * min(t, 20)))
    assert only(world.stall(at, prefill={"a:8000": prefill})).kind == expected


# --- scrapes that fail


def test_refused_twice_is_dead_and_once_is_not(world) -> None:
    for at in (0, 5, 10):
        world.good(at, load(10 * at))
    world.bad(15, "refused")
    assert kinds(world, (16,)) == ["busy"]  # as of the last good scrape
    world.bad(20, "refused")
    dead = only(world.stall(21))
    assert (dead.kind, dead.severity, dead.value) == ("dead", "critical", 11.0)
    assert dict(dead.labels)["model"] == "m"


def test_a_frozen_process_that_answers_no_scrape_is_stalled(world) -> None:
    for at in (0, 5, 10):
        world.good(at, load(10 * at))
    for at in (15, 20, 25, 30):
        world.bad(at, "timeout")
    assert kinds(world, (17, 24)) == ["busy", "unknown"]
    frozen = only(world.stall(26))
    assert (frozen.kind, frozen.value) == ("stalled", 15.0)
    world.good(35, load(150))
    assert kinds(world, (36,)) == ["busy"]


def test_one_slow_scrape_condemns_nobody_however_seldom_it_is_scraped(world) -> None:
    for at in range(0, 300, 30):
        world.good(at, load(10 * at))
    world.bad(300, "timeout")
    assert kinds(world, (305, 315, 329)) == ["busy", "busy", "busy"]
    world.bad(330, "timeout")
    assert kinds(world, (331,)) == ["stalled"]


def test_time_in_which_nothing_was_tried_does_not_count(world) -> None:
    """The host slept, or LOMS did."""
    for at in range(0, 62, 2):
        world.good(at, load(10 * at))
    world.bad(62, "timeout")
    world.bad(64, "timeout")
    assert kinds(world, (76, 90)) == ["unknown", "unknown"]


@pytest.mark.parametrize("reason", ["late", "incomplete", "connect_timeout", "dns", "unreachable"])
def test_timeouts_that_do_not_tell_of_the_engine(world, reason) -> None:
    for at in range(60):
        world.good(at, load(10 * at))
    for at in range(60, 100):
        world.bad(at, reason)
    assert set(kinds(world, range(62, 100, 3))) == {"unknown"}


def test_timeouts_on_both_sides_of_our_own_lateness_are_not_one_after_the_other(world) -> None:
    for at in range(60):
        world.good(at, load(10 * at))
    for at in range(60, 100, 5):
        world.bad(at, "timeout" if at % 10 else "late")
    assert set(kinds(world, range(66, 100, 3))) == {"unknown"}


def test_a_frozen_process_whose_queue_of_connections_is_full_is_stalled(world) -> None:
    """The kernel accepts a handful of connections for it, then none."""
    for at in range(60):
        world.good(at, load(10 * at))
    for at in range(60, 100):
        world.bad(at, "timeout" if at < 66 else "connect_timeout")
    assert kinds(world, (70, 76)) == ["unknown", "stalled"]


def test_connections_that_cannot_be_made_for_very_long_are_a_stall(world) -> None:
    for at in range(0, 60, 5):
        world.good(at, load(10 * at))
    for at in range(60, 200, 5):
        world.bad(at, "connect_timeout")
    assert kinds(world, (170, 177)) == ["unknown", "stalled"]


@pytest.mark.parametrize("reason", ["refused", "timeout"])
def test_every_second_scrape_failing_does_not_hide_the_others(world, reason) -> None:
    """Scraped each second over a grid of two: it must not see now the good ones, now the failed ones."""
    for at in range(120):
        if at % 2:
            world.bad(at, reason)
        else:
            world.good(at, load(10 * min(at, 90), running=2))
    assert set(kinds(world, (60.4, 63.4, 66.4, 69.4, 72.9, 75.9))) == {"busy"}
    assert set(kinds(world, (107.4, 110.4, 113.4, 116.9))) == {"stalled"}


def test_a_moment_without_load_between_two_columns_is_seen_by_every_grid(world) -> None:
    for at in range(0, 78, 2):
        world.good(at, load(900))
    world.good(78.2, load(900, running=0))
    for at in (79, 80, 82, 84, 86, 88, 90):
        world.good(at, load(900))
    assert kinds(world, (77.5,)) == ["stalled"]
    assert set(kinds(world, (79.3, 80.2, 80.5, 82.5, 83.1))) == {"busy"}
    assert set(kinds(world, (86.5, 87.2, 88.9, 89.3))) == {"long_prefill"}


def test_what_moves_while_a_probe_holds_the_counters_back_is_progress(world) -> None:
    progress = "loms_engine_progress_total"
    for at in range(40):
        world.good(at, {RUNNING: 3, progress: 10 * at, **({OUT: 10 * at} if at < 10 else {})})
    assert kinds(world, (39.5,)) == ["busy"]
    for at in range(40, 60):  # frozen, then the probe is given up and what was held back shows
        world.good(at, {RUNNING: 3, progress: 390, OUT: 100 if at < 50 else 390})
    assert kinds(world, (50.5, 55.5)) == ["long_prefill", "stalled"]


def test_requests_that_come_to_an_engine_found_frozen_do_not_buy_it_time(world) -> None:
    for at in range(60):
        world.good(at, load(900, running=0, waiting=3 if at >= 35 else 0))
    world.probe(20, 8, "timeout")
    assert kinds(world, (34.5, 36, 42)) == ["stalled"] * 3
    world.probe(35, 8, "timeout")
    assert kinds(world, (44, 50, 57)) == ["stalled"] * 3


def test_requests_that_come_while_the_probe_waits_get_their_allowance(world) -> None:
    for at in range(60):
        world.good(at, load(900, running=0 if at < 21 else 1))
    world.probe(20, 8, "timeout")
    assert kinds(world, (28.5, 30, 38)) == ["long_prefill", "long_prefill", "stalled"]


@pytest.mark.parametrize("reason", ["http", "malformed", "too_large", "tls"])
def test_an_answer_that_cannot_be_read_says_nothing(world, reason) -> None:
    for at in (0, 5, 10):
        world.good(at, load(10 * at))
    for at in range(15, 60, 5):
        world.bad(at, reason)
    assert kinds(world, (58,)) == ["unknown"]


def test_a_target_that_never_answered_is_unknown(world) -> None:
    for at in range(0, 60, 5):
        world.bad(at, "refused")
    finding = only(world.stall(58))
    assert (finding.kind, finding.severity) == ("unknown", "none")
    assert finding.labels == (("instance", "a:8000"), ("job", "llm"))


def test_a_dead_engine_stays_dead_when_its_metrics_have_left_the_window(world) -> None:
    world.good(0, load(10))
    world.probe(0, 0.1, "ok")
    for at in range(5, 400, 5):
        world.bad(at, "refused")
        world.add(at, "loms_probe_success", dict(only(world.stall(1)).labels), 0)
    dead = only(world.stall(399))
    assert dead.kind == "dead"
    assert dict(dead.labels)["engine"] == "vllm"


# --- missing data


def test_when_scraping_stops_nothing_is_known(world) -> None:
    for at in range(0, 30, 5):
        world.good(at, load(900))
    assert kinds(world, (40,)) == ["stalled"]  # of the data up to 25 s
    assert kinds(world, (70, 150)) == ["unknown", "unknown"]


def test_after_a_gap_in_the_data_old_flat_values_do_not_count(world) -> None:
    world.good(0, load(900))
    world.good(200, load(2000))
    assert kinds(world, (201,)) == ["busy"]


def test_no_data_no_findings(world) -> None:
    assert world.stall(100) == []


def test_a_target_that_is_no_engine_is_left_alone(world) -> None:
    for at in (0, 5, 10):
        world.add(at, "up", {"job": "node", "instance": "n:9100"}, 1)
    assert world.stall(11) == []


def test_metrics_that_vanish_from_a_good_scrape(world) -> None:
    world.good(0, load(900))
    for name in load(0):
        world.add(5, name, dict(only(world.stall(1)).labels), None)
    for at in (5, 10, 15):  # what is pushed may come ten seconds after its scrape
        world.good(at, {})
    finding = only(world.stall(16))
    assert (finding.kind, finding.summary) == ("unknown", "it answers, but none of the metrics that show progress")


# --- several at once


def test_one_frozen_rank_does_not_hide_behind_the_others(world) -> None:
    labels = {"job": "llm", "instance": "a:8000", "engine": "vllm", "model": "m"}
    for at in range(0, 40, 5):
        world.good(at, load(100 * at), {**labels, "engine_index": "0"})
        world.good(at, load(100 * min(at, 10)), {**labels, "engine_index": "1"})
    finding = only(world.stall(36))
    assert finding.kind == "stalled"
    assert finding.summary.endswith("(rank 1)")
    assert "engine_index" not in dict(finding.labels)


def test_an_answer_of_one_rank_does_not_speak_for_another(world) -> None:
    labels = {"job": "llm", "instance": "a:8000", "engine": "vllm", "model": "m"}
    for at in range(0, 60, 5):
        world.good(at, load(100, running=0), {**labels, "engine_index": "0"})
        world.good(at, load(100), {**labels, "engine_index": "1"})
    world.probe(50, 0.2, "ok", labels)
    assert kinds(world, (56,)) == ["stalled"]


def test_engines_are_judged_apart(world) -> None:
    for i in range(3):
        labels = {"job": "llm", "instance": f"h{i}:8000", "engine": "vllm", "model": "m"}
        for at in range(0, 40, 5):
            world.good(at, load(100 * at if i != 1 else 7), labels)
    found = {dict(f.labels)["instance"]: f.kind for f in world.stall(36)}
    assert found == {"h0:8000": "busy", "h1:8000": "stalled", "h2:8000": "busy"}


def test_a_model_named_later_replaces_the_nameless_engine(world) -> None:
    nameless = {"job": "llm", "instance": "a:8000", "engine": "vllm"}
    world.good(0, load(1, running=0), nameless)
    for name in load(0):
        world.add(5, name, nameless, None)
    for at in (5, 10):
        world.good(at, load(1, running=0), {**nameless, "model": "m"})
    assert dict(only(world.stall(11)).labels)["model"] == "m"


def test_evidence_says_what_was_seen_and_draws_it(world) -> None:
    for at in range(0, 40, 5):
        world.good(at, load(min(10 * at, 100), running=1, waiting=3))
    finding = only(world.stall(36))
    texts = [e.text for e in finding.evidence]
    assert texts[:3] == ["last progress at 1970-01-01T00:00:10.000Z", "1 request runs", "3 requests wait"]
    assert finding.evidence[0].value == 10.0
    assert all('instance="a:8000", job="llm"' in e.expr for e in finding.evidence)


def test_what_began_before_the_window_is_given_as_a_lower_bound(world) -> None:
    for at in range(0, 900, 5):
        world.good(at, load(20.0 * min(at, 300)))
    shown = only(world.stall(400))
    assert shown.summary.startswith("no progress for 100 s while")
    assert shown.evidence[0].text == "last progress at 1970-01-01T00:05:00.000Z"
    frozen = only(world.stall(900))
    assert frozen.kind == "stalled"
    assert frozen.summary.startswith("no progress for at least 2 min 5")  # of the 180 s looked at
    assert frozen.evidence[0].text == "no counter has moved since 1970-01-01T00:12:00.000Z at the latest"


def test_a_silence_longer_than_the_window_is_given_as_a_lower_bound(world) -> None:
    for at in range(0, 600, 5):
        if at < 100:
            world.good(at, load(20.0 * at))
        else:
            world.bad(at, "timeout")
    assert only(world.stall(150)).summary == "no scrape has been answered for 55 s"
    world.probe(590, 8, "timeout")
    assert only(world.stall(599)).summary == "no scrape has been answered for at least 3 min 0 s"
