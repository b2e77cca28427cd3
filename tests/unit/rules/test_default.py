"""The built-in rules, evaluated every three seconds by the real PromQL engine over a scraped world in memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, SampleBatch, labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.rules.evaluate import Evaluator
from loms.rules.read import load_groups

START = 10_000  # seconds
Value = Callable[[np.ndarray], np.ndarray]
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class World:
    """Engines that are scraped every five seconds, and what the rules make of them."""

    def __init__(self, seconds: int, *, history: int = 300) -> None:
        self.source = MemorySource()
        self.scrapes = np.arange(START - history, START + seconds + 1, 5)
        self.seconds = seconds
        self.names: dict[int, tuple[tuple[str, str], ...]] = {}

    def add(self, name: str, labels: Mapping[str, str], times: np.ndarray, values: np.ndarray) -> None:
        found = tuple(sorted({**labels, "__name__": name}.items()))
        self.source.add(found, (times * 1000).astype(np.int64), values.astype(np.float64))

    def engine(self, instance: str, *, up: Value | None = None, reason: str = "refused", **series: Value) -> None:
        """``up`` says at which seconds from the start scrapes succeed; the rest are functions of the seconds too."""
        at = self.scrapes - START
        target = {"job": "llm", "instance": instance}
        good = np.ones(len(at), dtype=bool) if up is None else up(at)
        self.add("up", target, self.scrapes, good)
        if not good.all():
            failed = np.where(good, STALE_NAN, 1.0)
            self.add("loms_scrape_failed", {**target, "reason": reason}, self.scrapes, failed)
        labels = {**target, "engine": "vllm", "model": "m", "deployment_zone": "z"}
        for name, value in series.items():
            metric, _, bound = name.partition("__le")
            found = {**labels, "le": bound.replace("_", ".") or "+Inf"} if "__le" in name else labels
            self.add(metric, found, self.scrapes, np.where(good, value(at), STALE_NAN))

    def probes(self, instance: str, *, at: list[float], ok: list[bool]) -> None:
        labels = {"job": "llm", "instance": instance, "engine": "vllm", "model": "m", "deployment_zone": "z"}
        times = START + np.array(at)
        self.add("loms_probe_success", labels, times, np.array(ok))
        self.add("loms_probe_duration_seconds", labels, times, np.where(ok, 0.1, 8.0))

    def sink(self, batch: SampleBatch) -> None:
        for series in batch.series:
            self.names[series.id] = labels_of({"__name__": series.name, **dict(series.labels)})
        for number, at_ms, value in zip(batch.series_ids, batch.timestamps_ms, batch.values, strict=True):
            self.source.add(self.names[int(number)], np.array([at_ms]), np.array([value]))

    def story(self) -> list[tuple[int, str, str, str]]:
        """(second, rule, instance, what became of it) of every alert that fired."""
        evaluator = Evaluator(Engine(self.source), load_groups(()), ManualClock(), self.sink)
        told: list[tuple[int, str, str, str]] = []
        before: dict[tuple[str, str], str] = {}
        for second in range(0, self.seconds + 1, 3):
            results = evaluator.evaluate((START + second) * 1000)
            assert [r.error for r in results if r.error] == []
            now = {(a.rule, dict(a.labels)["instance"]): a.state for a in evaluator.alerts()}
            told += [(second, *key, "fired") for key, s in now.items() if s == "firing" and before.get(key) != s]
            told += [(second, *key, "ended") for key, s in before.items() if s == "firing" and key not in now]
            before = now
        self.evaluator = evaluator
        return told


def steadily(per_second: float) -> Value:
    return lambda at: np.round(per_second * (at + 5000))


def constant(value: float) -> Value:
    return lambda at: np.full(len(at), value)


def frozen(value: Value, since: float, until: float) -> Value:
    """Stands still in between and goes on where it stopped."""
    return lambda at: value(np.where(at < since, at, np.where(at < until, since, at - (until - since))))


BUSY = {
    "llm_engine_tokens_output_total": steadily(40),
    "llm_engine_iteration_tokens_count": steadily(10),
    "llm_engine_requests_running": constant(4),
    "llm_engine_requests_waiting": constant(9),
}
IDLE = {**BUSY, **{name: constant(0) for name in ("llm_engine_requests_running", "llm_engine_requests_waiting")}}
IDLE |= {"llm_engine_tokens_output_total": constant(7), "llm_engine_iteration_tokens_count": constant(7)}


def latencies(family: str, seconds: Value, per_second: float = 2) -> dict[str, Value]:
    """A cumulative histogram of requests that all take as long as ``seconds`` says at the time."""

    def counted(bound: float) -> Value:
        def total(at: np.ndarray) -> np.ndarray:
            fine = np.arange(at[0] - 5, at[-1] + 1)
            inside = np.cumsum(per_second * (seconds(fine) <= bound))
            return np.interp(at, fine, inside)

        return total

    found = {f"{family}_bucket__le{str(b).replace('.', '_')}": counted(b) for b in BUCKETS}
    return {**found, f"{family}_bucket__le": counted(np.inf), f"{family}_count": counted(np.inf)}


def test_a_healthy_fleet_is_quiet() -> None:
    world = World(900, history=3900)
    ttft = latencies("gen_ai_server_time_to_first_token_seconds", constant(0.2))
    e2e = latencies("gen_ai_server_request_duration_seconds", constant(9.0))
    world.engine("busy:1", **BUSY, **ttft, **e2e, llm_engine_kv_cache_utilization_ratio=constant(0.8))
    world.engine("idle:1", **IDLE)
    world.probes("idle:1", at=list(range(-15, 900, 15)), ok=[True] * 61)
    assert world.story() == []
    assert {i: f.kind for i, f in world.evaluator.states().items()} == {"busy:1": "busy", "idle:1": "idle"}


def test_a_freeze_under_load_is_one_alert_within_half_a_minute() -> None:
    world = World(240)
    world.engine("a:1", **{k: frozen(v, 100, 160) for k, v in BUSY.items()})
    world.engine("b:1", **BUSY)
    fired, ended = world.story()
    assert fired[1:] == ("EngineStalled", "a:1", "fired")
    assert 110 <= fired[0] <= 130
    assert ended[1:] == ("EngineStalled", "a:1", "ended")
    assert 160 <= ended[0] <= 170


def test_a_freeze_while_idle_is_found_by_its_probe() -> None:
    world = World(200)
    world.engine("a:1", **IDLE)
    world.probes("a:1", at=[82.1, 97.1, 120.0, 135.0, 150.0, 160.1], ok=[True, True, False, False, False, True])
    assert [(rule, what) for _, rule, _, what in world.story()] == [
        ("EngineStalled", "fired"),
        ("EngineStalled", "ended"),
    ]


def test_a_dead_engine_is_one_alert_however_long_it_lasts() -> None:
    world = World(1200)
    world.engine("a:1", up=lambda at: (at < 100) | (at >= 1000), **BUSY)
    fired, ended = world.story()
    assert fired[1:] == ("EngineDead", "a:1", "fired")
    assert 110 <= fired[0] <= 130
    assert ended[1:] == ("EngineDead", "a:1", "ended")
    assert 1000 <= ended[0] <= 1010


def test_the_state_of_a_dead_engine_outlasts_its_metrics() -> None:
    world = World(600)
    world.engine("a:1", up=lambda at: at < 100, **BUSY)
    world.story()
    assert world.evaluator.states()["a:1"].kind == "dead"
    assert START + 100 <= world.evaluator.states_since_ms()["a:1"] / 1000 <= START + 110


def test_a_frozen_process_is_one_alert() -> None:
    world = World(300)
    world.engine("a:1", up=lambda at: (at < 100) | (at >= 200), reason="timeout", **BUSY)
    fired, ended = world.story()
    assert fired[1:] == ("EngineStalled", "a:1", "fired")
    assert 110 <= fired[0] <= 130
    assert 200 <= ended[0] <= 210


def test_a_short_restart_alarms_nobody() -> None:
    world = World(200)
    world.engine("a:1", up=lambda at: (at < 100) | (at >= 110), **BUSY)
    assert world.story() == []


@pytest.mark.parametrize("reason", ["refused", "http"])
def test_a_target_that_never_worked_is_reported_once(reason) -> None:
    world = World(300)
    world.engine("a:1", up=lambda at: at > 1e9, reason=reason)
    assert [(rule, what) for _, rule, _, what in world.story()] == [("TargetDown", "fired")]


def test_latency_far_above_its_hour() -> None:
    world = World(1500, history=3900)
    slow = latencies("gen_ai_server_request_duration_seconds", lambda at: np.where((at > 300) & (at < 900), 4.0, 0.8))
    world.engine("a:1", **BUSY, **slow)
    fired, ended = world.story()
    assert fired[1:] == ("LatencyHigh", "a:1", "fired")
    assert 420 <= fired[0] <= 510
    assert 1000 <= ended[0] <= 1140


def test_a_full_kv_cache() -> None:
    world = World(600)
    full = {"llm_engine_kv_cache_utilization_ratio": lambda at: np.where((at > 100) & (at < 400), 0.93, 0.5)}
    world.engine("a:1", **BUSY, **full)
    assert [(rule, what) for _, rule, _, what in world.story()] == [
        ("KVCacheNearlyFull", "fired"),
        ("KVCacheNearlyFull", "ended"),
    ]


def test_a_stalled_engine_with_a_full_kv_cache_is_one_alert() -> None:
    world = World(600)
    series = {**BUSY, "llm_engine_kv_cache_utilization_ratio": lambda at: np.where(at < 100, 0.5, 0.95)}
    world.engine("a:1", **{k: frozen(v, 110, 9999) for k, v in series.items()})
    assert [(rule, what) for _, rule, _, what in world.story()] == [("EngineStalled", "fired")]


def test_every_alert_says_what_to_do() -> None:
    root = Path(__file__).parents[3]
    for group in load_groups(()):
        for rule in group.rules:
            annotations = {key: template.text for key, template in rule.annotations}
            assert set(annotations) == {"summary", "description", "next_step", "runbook"}
            assert len(annotations["next_step"]) > 80
            file, _, anchor = annotations["runbook"].partition("#")
            headings = [line.lstrip("# ").lower() for line in (root / file).read_text().splitlines() if line[:1] == "#"]
            assert anchor in headings, rule.name
            assert dict(rule.labels)["severity"].text in ("warning", "critical")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
def test_prometheus_understands_the_expressions(tmp_path: Path) -> None:
    """Rules with an expression are Prometheus rules to the letter."""
    text = (Path(__file__).parents[3] / "src/loms/rules/default.yaml").read_text()
    groups = [{**g, "rules": [r for r in g["rules"] if "expr" in r]} for g in yaml.safe_load(text)["groups"]]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    done = subprocess.run(["promtool", "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
