"""``loms up`` as a person runs it: simulated engines, a fault, an incident, a webhook, a restart, the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes import Loms, Receiver, post, wait_until

from loms.lab.fleet import Fleet
from loms.lab.load import Lengths, LoadGenerator, LoadProfile

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class World:
    loms: Loms
    fleet: Fleet
    receiver: Receiver

    def instance(self, number: int) -> str:
        return self.fleet.urls[number].removeprefix("http://")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Fleet(3) as fleet, Receiver() as receiver:
        instances = [url.removeprefix("http://") for url in fleet.urls]
        settings = {"scrape": {"interval": "2s", "timeout": "2s"}, "alerting": {"webhooks": [{"url": receiver.url}]}}
        with Loms(tmp_path_factory.mktemp("loms"), [], {
            **settings,
            "scrape": {
                **settings["scrape"],
                "discover": {"enabled": False},
                "jobs": [{"name": "engines", "targets": instances, "labels": {"team": "serving"}}],
            },
        }) as loms:  # fmt: skip
            for instance in instances:
                wait_until(lambda i=instance: loms.engine(i).get("state") == "idle", 60, f"a verdict on {instance}")
            yield World(loms, fleet, receiver)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loms", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "140", **environment},
        check=False,
    )


def test_users_requests_are_counted_exactly_and_probes_are_not(world: World) -> None:
    """The engine rests long enough to be probed; afterwards LOMS has counted what the client did, and nothing else."""
    instance, url = world.instance(0), world.fleet.urls[0]
    wait_until(
        lambda: world.loms.value(f'loms_probe_requests_total{{instance="{instance}",outcome="ok"}}') >= 1, 60, "a probe"
    )
    profile = LoadProfile(rate=8, seconds=4, prompt_words=Lengths(100), output_tokens=Lengths(30))
    report = asyncio.run(LoadGenerator(url, world.fleet.engines[0].model, profile).run())
    assert {record.outcome for record in report.records} == {"ok"}
    expected = {
        "llm_engine_requests_finished_total": len(report.records),
        "llm_engine_tokens_input_total": sum(record.prompt_tokens for record in report.records),
        "llm_engine_tokens_output_total": sum(record.completion_tokens for record in report.records),
        "gen_ai_server_request_duration_seconds_count": len(report.records),
        "gen_ai_server_time_to_first_token_seconds_count": len(report.records),
    }

    def counted() -> bool:
        return all(world.loms.value(f'sum({name}{{instance="{instance}"}})') == n for name, n in expected.items())

    wait_until(counted, 30, f"counting {expected}")
    raw = world.loms.value(f'sum(vllm:request_success_total{{instance="{instance}"}})')
    assert raw > len(report.records), "the engine itself counts the probes"


def test_a_hang_with_green_health_is_an_incident_with_evidence_and_resolves(world: World) -> None:
    victim, others = world.instance(1), [world.instance(0), world.instance(2)]
    load = LoadProfile(rate=4, seconds=6, output_tokens=Lengths(60), timeout_seconds=120)
    generator = LoadGenerator(world.fleet.urls[1], world.fleet.engines[1].model, load)

    async def drive_and_hang() -> None:
        task = asyncio.create_task(generator.run())
        await asyncio.sleep(3)
        await asyncio.to_thread(post, f"{world.fleet.urls[1]}/lab/faults", {"fault": "hang", "seconds": 40})
        await task  # the hang ends by itself, and then every request is answered

    begun = time.monotonic()
    asyncio.run(drive_and_hang())
    assert time.monotonic() - begun > 35
    incidents = world.loms.incidents(victim)
    assert len(incidents) == 1
    (alert,) = incidents[0]["alerts"]
    assert alert["rule"] == "EngineStalled"
    assert alert["severity"] == "critical"
    assert "no progress for" in alert["annotations"]["finding"]
    assert alert["annotations"]["next_step"]
    assert any("last progress at" in fact["text"] and fact["expr"] for fact in alert["evidence"])
    wait_until(lambda: world.loms.incidents(victim, "resolved"), 60, "resolving")
    wait_until(lambda: world.receiver.alerts("resolved", victim), 30, "the webhook about the end")
    (firing,) = world.receiver.alerts("firing", victim)
    assert firing["labels"]["alertname"] == "EngineStalled"
    assert firing["labels"]["team"] == "serving", "a job's labels are there to route by"
    for other in others:
        assert world.loms.incidents(other) == []


def test_an_open_incident_survives_kill_9_and_nobody_is_told_twice(world: World) -> None:
    victim = world.instance(2)
    post(f"{world.fleet.urls[2]}/lab/faults", {"fault": "hang"})  # while idle: only the probe can tell
    wait_until(lambda: world.loms.incidents(victim, "open"), 60, "the incident")
    wait_until(lambda: world.receiver.alerts("firing", victim), 30, "the webhook")
    (before,) = world.loms.incidents(victim, "open")
    assert world.loms.value(f'llm_engine_requests_running{{instance="{victim}"}}') == 0
    world.loms.kill()
    world.loms.start()
    (after,) = world.loms.incidents(victim, "open")
    assert (after["id"], after["opened_at_ms"]) == (before["id"], before["opened_at_ms"])
    wait_until(lambda: world.loms.engine(victim).get("state") == "stalled", 60, "the verdict after the restart")
    request = f"{world.fleet.urls[2]}/lab/faults"
    subprocess.run(["curl", "-sf", "-X", "DELETE", request], check=True, timeout=10)
    wait_until(lambda: world.loms.incidents(victim, "resolved"), 60, "resolving")
    wait_until(lambda: world.receiver.alerts("resolved", victim), 30, "the webhook about the end")
    assert len(world.receiver.alerts("firing", victim)) == 1


def test_it_scrapes_itself(world: World) -> None:
    wait_until(lambda: world.loms.value("loms_written_samples_total") > 1000, 30, "its own metrics")
    assert world.loms.value('sum(rate(process_cpu_seconds_total{job="loms"}[1m]))') >= 0


def test_the_terminal_says_the_same(world: World) -> None:
    top = json.loads(run("top", "--json", "--url", world.loms.url).stdout)
    assert {engine["instance"] for engine in top["engines"]} == {world.instance(n) for n in range(3)}
    assert all(engine["simulated"] and engine["version"] == "0.32.0" for engine in top["engines"])
    table = run("top", "--once", "--url", world.loms.url).stdout
    assert all(world.instance(n) in table for n in range(3))

    assert re.search(r"\b3$", run("query", 'count(up{job="engines"} == 1)', "--url", world.loms.url).stdout.strip())
    drawn = run("query", 'sum(up{job="engines"})', "--since", "1m", "--url", world.loms.url).stdout
    assert "█" in drawn

    listed = run("incidents", "--url", world.loms.url).stdout
    assert "is stalled" in listed
    found = json.loads(run("incidents", "--json", "--url", world.loms.url).stdout)["incidents"]
    under_load = found[-1]
    shown = run("incidents", under_load["id"], LOMS_URL=world.loms.url).stdout
    assert "last progress at" in shown
    assert "next:" in shown


def test_a_wrong_query_is_one_sentence_and_exit_code_4(world: World) -> None:
    wrong = run("query", "sum(", "--url", world.loms.url)
    assert wrong.returncode == 4
    assert wrong.stderr.startswith("loms: bad_data: ")
    assert "Traceback" not in wrong.stderr


def test_a_second_process_on_the_same_data_is_refused(world: World) -> None:
    second = run("up", "--config", str(world.loms.config), "--port", "0")
    assert second.returncode == 5
    assert f"in use by process {world.loms.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_one_sentence(world: World, tmp_path: Path) -> None:
    second = run("up", "--port", str(world.loms.port), "--data", str(tmp_path))
    assert second.returncode == 1
    assert f"cannot listen on 127.0.0.1:{world.loms.port}" in second.stderr


def test_sigterm_ends_it_cleanly_with_everything_written(world: World) -> None:
    before = world.loms.value("count(up)")
    stopped_ms = time.time() * 1000
    assert world.loms.stop() == 0
    world.loms.start()
    assert before == 4
    newest = world.loms.get("/api/v1/query", query="max(timestamp(up))", time=str(stopped_ms / 1000))
    assert stopped_ms / 1000 - float(newest["data"]["result"][0]["value"][1]) < 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scrape:\n  jobz: []\n", "loms.yaml:2: unknown key 'scrape.jobz'; did you mean 'jobs'?"),
        ("rules:\n  files: [nowhere.yaml]\n", "rules.files: nowhere.yaml does not exist"),
        ("scrape:\n  jobs: [{name: a, targets: ['http://x:1']}]\n", "target 'http://x:1' is not host:port"),
    ],
)
def test_a_broken_configuration_ends_it_with_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "loms.yaml"
    config.write_text(text)
    for command in (("up", "--config", str(config), "--port", "0"), ("config", "check", str(config))):
        answer = run(*command)
        assert answer.returncode == 2
        assert message in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_broken_rule_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("groups:\n- name: g\n  rules:\n  - alert: A\n    expr: sum(\n")
    config = tmp_path / "loms.yaml"
    config.write_text(f"rules:\n  files: ['{tmp_path}/r.yaml']\n")
    answer = run("config", "check", str(config))
    assert answer.returncode == 2
    assert "r.yaml:5: " in answer.stderr


def test_what_config_show_prints_can_be_read_back(tmp_path: Path) -> None:
    shown = run("config", "show")
    (tmp_path / "loms.yaml").write_text(shown.stdout)
    checked = run("config", "check", str(tmp_path / "loms.yaml"))
    assert checked.returncode == 0, checked.stderr
