"""Incidents of hours that a simulated engine went through, found in what a Prometheus would have kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.simulated_history import Scrape, scrapes, write_openmetrics

from loms.agent.replay import Replayed, replay
from loms.core.errors import LomsError
from loms.ingest.dump import read_dump
from loms.promql.engine import Engine
from loms.promql.recent import RecentSource
from loms.rules.read import load_groups, read_groups

START = 1_800_000_000_000
MINUTE = 60_000


def replayed(
    folder: Path, run: Sequence[Scrape], start: int, end: int, *, rules: str = "", step_ms: int = 0
) -> tuple[Replayed, list[float]]:
    write_openmetrics(folder / "dump.om", START, [((("instance", "e:8000"), ("job", "llm")), run)])
    with (folder / "dump.om").open() as lines:
        dump = read_dump(lines, "dump.om")
    source, shares = RecentSource(), list[float]()
    for labels, (times, values) in dump.series.items():
        source.append(labels, times, values)
    groups = read_groups(rules, "rules.yaml") if rules else load_groups(())
    found = replay(
        Engine(source), dump.metadata, groups, START + start, START + end, step_ms=step_ms, progress=shares.append
    )
    return found, shares


def test_a_hang_is_found_and_when_it_ended(tmp_path: Path) -> None:
    run = list(scrapes(30 * 60, rate=0.5, hang=(900, 1000), interval=5))
    found, shares = replayed(tmp_path, run, 5 * MINUTE, 30 * MINUTE)
    (incident,) = found.incidents
    assert incident.title == "e:8000 is stalled"
    assert 15 <= (incident.opened_at_ms - START) / 1000 - 900 <= 5 + 15 + 5 + 2
    assert incident.resolved_at_ms is not None
    assert 0 <= (incident.resolved_at_ms - START) / 1000 - 1000 <= 10
    assert found.engines == (("vllm", "e:8000"),)
    assert found.interval_ms == pytest.approx(5000, rel=0.02)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert any("synthetic requests" in note for note in found.notes)


def test_what_goes_on_at_the_end_stays_open(tmp_path: Path) -> None:
    run = list(scrapes(20 * 60, gone=(900, 9999)))
    found, _ = replayed(tmp_path, run, 5 * MINUTE, 20 * MINUTE)
    (incident,) = found.incidents
    assert (incident.title, incident.state) == ("e:8000 is dead", "open")
    assert [alert.rule for alert in incident.alerts] == ["EngineDead"]  # TargetDown keeps silent beside it


def test_rules_over_raw_names_are_evaluated_too(tmp_path: Path) -> None:
    text = 'groups: [{name: g, rules: [{alert: Busy, expr: "vllm:num_requests_running > 0", for: 1m}]}]'
    run = list(scrapes(20 * 60, rate=3.0))
    found, _ = replayed(tmp_path, run, 5 * MINUTE, 20 * MINUTE, rules=text, step_ms=60_000)
    assert {alert.rule for incident in found.incidents for alert in incident.alerts} == {"Busy"}
    assert found.evaluations == 16


def test_coarse_scrapes_are_said(tmp_path: Path) -> None:
    run = list(scrapes(60 * 60, interval=120))
    found, _ = replayed(tmp_path, run, 30 * MINUTE, 60 * MINUTE)
    assert "LatencyHigh looks at 1m at a time, and scrapes every 2m are too far apart for that." in found.notes


def test_nothing_of_an_engine_is_one_sentence(tmp_path: Path) -> None:
    run = list(scrapes(60))
    with pytest.raises(LomsError, match="no series of a known engine between") as caught:
        replayed(tmp_path, run, 10 * 24 * 60 * MINUTE, 10 * 24 * 60 * MINUTE + MINUTE)
    assert "vllm:" in caught.value.hint


def test_time_without_samples_is_passed_over(tmp_path: Path) -> None:
    """Two half hours ten days apart, looked for in 400 days."""
    day = 24 * 3600
    first = list(scrapes(30 * 60, rate=0.5, hang=(900, 1000)))
    second = [(10 * day + at, one) for at, one in scrapes(30 * 60, rate=0.5, hang=(900, 1000), seed=1)]
    found, shares = replayed(tmp_path, [*first, *second], -389 * day * 1000, 11 * day * 1000)
    assert [incident.title for incident in found.incidents] == ["e:8000 is stalled"] * 2
    for incident, after in zip(found.incidents, (0, 10 * day), strict=True):
        assert 15 <= (incident.opened_at_ms - START) / 1000 - after - 900 <= 50
        assert incident.resolved_at_ms is not None
        assert 0 <= (incident.resolved_at_ms - START) / 1000 - after - 1000 <= 30
    assert 2 * 120 <= found.evaluations <= 2 * 4 * 3 * 3600 // 15  # of four groups, an hour and a half and what settles
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 10
