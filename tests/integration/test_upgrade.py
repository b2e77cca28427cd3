"""An engine is upgraded under a running ``loms up``: what was lost is told, and the canonical series go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.engine_server import EngineServer
from support.processes import Loms, Receiver, wait_until

pytestmark = pytest.mark.integration

WRITTEN = Path(__file__).parents[1] / "data" / "written"
OLD, NEW = WRITTEN / "vllm-0.9.0.txt", WRITTEN / "vllm-0.12.0.txt"
RENAMED = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}
"""From vLLM's history: new names in 0.9.2 and 0.10.2, old ones hidden in 0.11 and 0.12."""
CONTINUED = (
    "llm_engine_inter_token_latency_seconds_count",
    "llm_engine_inter_token_latency_seconds_sum",
    "llm_engine_prefix_cache_lookup_tokens_total",
    "llm_engine_prefix_cache_hit_tokens_total",
    "llm_engine_tokens_output_total",
    "gen_ai_server_time_to_first_token_seconds_count",
)
RULES = """
groups:
  - name: cache
    rules:
      - alert: CacheFull
        expr: max(vllm:gpu_cache_usage_perc) > 0.9
"""
DASHBOARD = """
{"title": "Serving", "panels": [{"id": 1, "type": "timeseries", "title": "Token gap",
 "targets": [{"refId": "A", "expr": "rate(vllm:time_per_output_token_seconds_sum[5m])"}]}]}
"""


class Scene:
    """One engine, one LOMS, one receiver."""

    def __init__(self, folder: Path, engine: EngineServer, receiver: Receiver) -> None:
        (folder / "cache.yaml").write_text(RULES)
        (folder / "serving.json").write_text(DASHBOARD)
        self.engine, self.receiver = engine, receiver
        used_by = {"rules": [str(folder / "cache.yaml")], "grafana": [str(folder / "serving.json")]}
        job = {"name": "engines", "targets": [engine.instance], "interval": "1s", "probe": False}
        self.loms = Loms(
            folder,
            [],
            {
                "scrape": {"discover": {"enabled": False}, "jobs": [job]},
                "contracts": {"grace": "5s", "used_by": used_by},
                "alerting": {"webhooks": [{"url": receiver.url}]},
            },
        )

    def lost(self) -> dict[str, dict[str, Any]]:
        """Metric → the alert that says it is lost, of the open incidents."""
        incidents = self.loms.get("/api/incidents", state="open")["incidents"]
        alerts = [a for i in incidents for a in i["alerts"] if a["rule"] == "MetricLost" and a["state"] == "firing"]
        return {alert["labels"]["metric"]: alert for alert in alerts}

    def history(self, name: str) -> dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]:
        """Every sample of a canonical metric in the last ten minutes, by labels."""
        data = self.loms.get("/api/v1/query", query=f'{name}{{instance="{self.engine.instance}"}}[10m]')["data"]
        return {
            tuple(sorted(row["metric"].items())): [(float(t), float(v)) for t, v in row["values"]]
            for row in data["result"]
        }

    def scrapes(self, count: int) -> None:
        """Wait for so many further scrapes to be stored."""
        goal = self.engine.scrapes + count
        wait_until(lambda: self.engine.scrapes >= goal, 60, f"{count} scrapes")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with EngineServer(OLD, "0.9.0") as engine, Receiver() as receiver:
        scene = Scene(tmp_path, engine, receiver)
        with scene.loms:
            wait_until(lambda: scene.loms.engine(engine.instance).get("version") == "0.9.0", 60, "the version")
            scene.scrapes(8)
            yield scene


def test_renamed_metrics_are_told_and_canonical_series_go_on_without_a_jump(scene: Scene) -> None:
    assert scene.lost() == {}
    scene.engine.upgrade(NEW, "0.12.0")
    wait_until(lambda: scene.lost().keys() >= RENAMED.keys(), 60, "an incident about the renamed metrics")
    lost = scene.lost()
    for old, new in RENAMED.items():
        labels = lost[old]["labels"]
        assert labels["successor"] == new
        assert (labels["version_before"], labels["version"]) == ("0.9.0", "0.12.0")
    assert "cache / alert CacheFull (cache.yaml)" in lost["vllm:gpu_cache_usage_perc"]["labels"]["used_by"]
    assert "Token gap" in lost["vllm:time_per_output_token_seconds"]["annotations"]["description"]
    wait_until(
        lambda: any("kv_cache_usage_perc" in str(message) for message in scene.receiver.payloads), 60, "the webhook"
    )

    scene.scrapes(5)
    for name in CONTINUED:
        histories = scene.history(name)
        assert len(histories) == 1, f"{name}: another identity after the upgrade: {list(histories)}"
        values = [value for _, value in next(iter(histories.values()))]
        steps = [later - earlier for earlier, later in pairwise(values)]
        # Every scrape adds the same; two may fall into one step where the timer was late. What grew between the last
        # scrape of the old source and the first of the new one is not known.
        unit = sorted(steps)[len(steps) // 2]
        assert len(values) >= 12
        assert all(0 <= step < unit * 3.01 for step in steps), f"{name}: {steps}"
        assert sum(step < unit * 0.99 for step in steps) <= 1, f"{name}: {steps}"
    kv = scene.history("llm_engine_kv_cache_utilization_ratio")
    assert len(kv) == 1
    assert {value for _, value in next(iter(kv.values()))} == {0.42}


def test_what_was_lost_is_still_missed_after_a_restart_of_loms_and_not_after_a_rollback(scene: Scene) -> None:
    scene.engine.upgrade(NEW, "0.12.0", restarted=True)
    wait_until(lambda: scene.lost().keys() >= RENAMED.keys(), 60, "an incident about the renamed metrics")
    before = {incident["id"] for incident in scene.loms.get("/api/incidents", state="open")["incidents"]}

    scene.loms.kill()
    scene.loms.start()
    scene.scrapes(12)
    assert scene.lost().keys() >= RENAMED.keys()
    assert {incident["id"] for incident in scene.loms.get("/api/incidents", state="open")["incidents"]} == before

    scene.engine.upgrade(OLD, "0.9.0", restarted=True)
    wait_until(lambda: not scene.lost().keys() & RENAMED.keys(), 90, "the end of the incident")

    for name in CONTINUED:
        histories = scene.history(name)
        assert len(histories) == 1
        values = [value for _, value in next(iter(histories.values()))]
        falls = sum(later < earlier for earlier, later in pairwise(values))
        assert falls == 2, f"{name} begins anew twice, with the engine's two restarts: {values}"
        assert not any(math.isnan(value) for value in values)


def test_a_restart_of_the_same_version_loses_nothing(scene: Scene) -> None:
    """Metrics that wait for a first request are not there yet."""
    idle = scene.engine
    idle.upgrade(OLD, "0.9.0", restarted=True)
    scene.scrapes(15)
    assert scene.lost() == {}
