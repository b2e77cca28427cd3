"""Targets, metadata and state of the process, over a real store in a temporary directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from loms.collect.scrape import TargetStatus
from loms.core import config
from loms.core.clock import ManualClock
from loms.core.metadata import metadata_of
from loms.core.model import Labels, Shape, labels_of
from loms.server.api import Collected
from loms.server.app import build
from loms.server.runtime import Server

NOW = 1_800_000_000_000
UP = TargetStatus(
    job="engines",
    instance="127.0.0.1:8000",
    url="http://127.0.0.1:8000/metrics?key=1",
    engine="vllm",
    up=True,
    health="up",
    last_error="2 samples repeat a series",
    last_scrape_ms=NOW,
    duration_seconds=0.25,
    samples=10,
    interval_seconds=5.0,
    discovered_by="static",
    timeout_seconds=4.0,
    labels=labels_of({"job": "engines", "instance": "127.0.0.1:8000", "rack": "r1"}),
)
NEVER = replace(UP, job="other", up=False, health="unknown", last_error="", last_scrape_ms=None, duration_seconds=None)
EXPOSED: list[tuple[Labels, Shape]] = [
    (UP.labels, Shape(("a", "b"), ((), ()), {"a": "gauge", "b": "counter"}, {"a": "Of a."})),
    (labels_of({"job": "other"}), Shape(("a",), ((),), {"a": "untyped"})),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("status")
    settings = {
        "LOMS__STORE__PATH": str(folder),
        "LOMS__SERVER__EXTERNAL_URL": "https://monitor.example/loms",
        "LOMS__ALERTING__WEBHOOKS": "[{url: 'https://hooks.example/services/secret', bearer_token: hidden}]",
    }
    with Server(config.load(None, settings), ManualClock(now_ms=NOW), "http://127.0.0.1:8090") as server:
        server.metadata.note([*metadata_of(EXPOSED[0][1])])
        collected = Collected(targets=lambda: [UP, NEVER], exposed=lambda: EXPOSED)
        yield TestClient(build(server, collected), base_url="http://127.0.0.1:8090")


def data(client: TestClient, path: str, **parameters: str) -> Any:
    got = client.get(f"/api/v1/{path}", params=parameters)
    assert got.status_code == 200, got.text
    return got.json()["data"]


def test_targets(client: TestClient) -> None:
    found = data(client, "targets")
    assert (found["droppedTargets"], found["droppedTargetCounts"]) == ([], {"engines": 0, "other": 0})
    up, never = found["activeTargets"]
    assert up == {
        "discoveredLabels": {
            "__address__": "127.0.0.1:8000",
            "__metrics_path__": "/metrics",
            "__scheme__": "http",
            "__scrape_interval__": "5s",
            "__scrape_timeout__": "4s",
            "job": "engines",
            "rack": "r1",
        },
        "labels": {"job": "engines", "instance": "127.0.0.1:8000", "rack": "r1"},
        "scrapePool": "engines",
        "scrapeUrl": "http://127.0.0.1:8000/metrics?key=1",
        "globalUrl": "http://monitor.example:8000/metrics?key=1",
        "lastError": "",
        "lastScrape": "2027-01-15T08:00:00.000Z",
        "lastScrapeDuration": 0.25,
        "health": "up",
        "scrapeInterval": "5s",
        "scrapeTimeout": "4s",
    }
    assert (never["lastScrape"], never["lastScrapeDuration"]) == ("0001-01-01T00:00:00Z", 0)
    assert len(data(client, "targets", scrapePool="other")["activeTargets"]) == 1
    assert data(client, "targets", state="dropped")["activeTargets"] == []
    assert data(client, "scrape_pools") == {"scrapePools": ["engines", "other"]}


def test_metadata_of_targets(client: TestClient) -> None:
    assert [(one["target"]["job"], one["metric"], one["type"]) for one in data(client, "targets/metadata")] == [
        ("engines", "a", "gauge"),
        ("engines", "b", "counter"),
        ("other", "a", "unknown"),
    ]
    only = data(client, "targets/metadata", match_target='{job=~"eng.*",rack!="x"}', metric="a")
    assert only == [{"target": dict(UP.labels), "type": "gauge", "help": "Of a.", "unit": ""}]
    assert len(data(client, "targets/metadata", limit="2")) == 2


def test_metadata_of_families(client: TestClient) -> None:
    of_a = [{"type": "gauge", "help": "Of a.", "unit": ""}]
    assert data(client, "metadata") == {"a": of_a, "b": [{"type": "counter", "help": "", "unit": ""}]}
    assert data(client, "metadata", metric="a") == {"a": of_a}
    assert data(client, "metadata", limit="1", limit_per_metric="1") == {"a": of_a}
    for name in ("limit", "limit_per_metric"):
        assert client.get(f"/api/v1/metadata?{name}=x").json()["error"] == f"{name} must be a number"


def test_the_state_of_the_process(client: TestClient) -> None:
    assert data(client, "status/buildinfo")["version"].startswith("3.")
    assert "features" not in data(client, "status/buildinfo")  # Grafana takes a server with some for Mimir
    assert data(client, "status/flags")["query.lookback-delta"] == "5m"
    assert data(client, "status/runtimeinfo")["storageRetention"] == "15d"
    assert data(client, "status/walreplay") == {"min": 0, "max": 0, "current": 0}
    assert data(client, "status/tsdb")["headStats"].keys() == {
        "numSeries", "numLabelPairs", "chunkCount", "minTime", "maxTime",
    }  # fmt: skip
    for limit, text in (("0", "limit must be a positive number"), ("10001", "limit must not exceed 10000")):
        assert client.get(f"/api/v1/status/tsdb?limit={limit}").json()["error"] == text


def test_the_configuration_keeps_its_secrets(client: TestClient) -> None:
    text = data(client, "status/config")["yaml"]
    assert "https://hooks.example/***" in text
    assert "secret" not in text
    assert "hidden" not in text


def test_health_and_readiness(client: TestClient) -> None:
    for method in ("GET", "HEAD"):
        assert client.request(method, "/-/healthy").status_code == 200
        assert client.request(method, "/-/ready").status_code == 503  # no rule has been evaluated yet


def test_other_origins_are_promised_nothing(client: TestClient) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/api/v1/query", headers=headers)
    assert answer.status_code == 204
    read = client.get("/api/v1/status/buildinfo", headers=headers)
    assert not [name for one in (answer, read) for name in one.headers if name.startswith("access-control")]


def test_large_answers_are_compressed(client: TestClient) -> None:
    answer = client.get("/api/v1/status/config", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
