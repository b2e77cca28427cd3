"""The whole HTTP application over a real store in a temporary directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from loms.core import config
from loms.core.clock import ManualClock
from loms.core.model import SampleBatch, Series, labels_of
from loms.server.api import Collected
from loms.server.app import build
from loms.server.runtime import READY_SECONDS, Server

Make = Callable[..., TestClient]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    servers: list[Server] = []

    def client(clock: ManualClock | None = None, host: str = "127.0.0.1:8090", **environ: str) -> TestClient:
        settings = config.load(None, {"LOMS__STORE__PATH": str(tmp_path), **environ})
        servers.append(Server(settings, clock or ManualClock(now_ms=1_800_000_000_000), "http://127.0.0.1:8090"))
        app = build(servers[-1], Collected())
        app.state.server = servers[-1]
        return TestClient(app, base_url=f"http://{host}")

    yield client
    for server in servers:
        server.__exit__()


def test_what_is_there_without_any_target(make: Make) -> None:
    client = make()
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/api/engines").json() == []
    assert client.get("/api/incidents").json() == {"incidents": [], "trouble": "rules have not been evaluated yet"}
    assert client.get("/api/targets").json() == {"targets": [], "problems": []}
    assert {rule["health"] for rule in client.get("/api/rules").json()["rules"]} == {"unknown"}
    status = client.get("/api/status").json()
    assert status["store"]["samples"] == 0
    assert 8000 in status["discovery"]["ports"]
    assert "loms_build_info" in client.get("/metrics").text
    assert "<title>" in client.get("/").text


def test_ready_means_that_rules_are_evaluated_now(make: Make) -> None:
    clock = ManualClock(now_ms=1_800_000_000_000)
    client = make(clock)
    assert client.get("/readyz").status_code == 503
    client.app.state.server._step(clock.now_ms())  # type: ignore[attr-defined]
    assert client.get("/readyz").status_code == 200
    client.app.state.server.writer.trouble = "the disk is full"  # type: ignore[attr-defined]
    assert client.get("/readyz").text == "new samples cannot be stored: the disk is full\n"
    client.app.state.server.writer.trouble = ""  # type: ignore[attr-defined]
    clock.advance(READY_SECONDS + 1)
    assert client.get("/readyz").status_code == 503


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/api/incidents/nope", 404, "not_found"),
        ("/api/incidents?limit=0", 400, "bad_data"),
        ("/api/incidents?state=odd", 400, "bad_data"),
        ("/api/nothing", 404, "not_found"),
        ("/api/series/top?by=odd", 400, "bad_data"),
        ("/api/series/top?since=3600", 400, "bad_data"),
        ("/api/series/top?since=inf", 400, "bad_data"),
        ("/api/series/top?since=nan", 400, "bad_data"),
    ],
)
def test_errors_have_one_form(make: Make, path: str, status: int, kind: str) -> None:
    answer = make().get(path)
    assert (answer.status_code, answer.json()["errorType"]) == (status, kind)


def test_the_largest_metrics_labels_and_targets(make: Make) -> None:
    client = make()
    writer = client.app.state.server.writer  # type: ignore[attr-defined]
    one = Series.of("up", labels_of({"job": "j", "instance": "h:1"}))
    writer(SampleBatch(np.array([one.id], np.uint64), np.array([1_800_000_000_000]), np.ones(1), (one,)))
    assert writer.flush()
    total = {"since_seconds": 87_000.0, "series": 1, "stored": 1, "groups": 1}
    assert client.get("/api/series/top").json() == {
        "by": "metric", **total, "rows": [{"name": "up", "series": 1, "share": 1.0}],
    }  # fmt: skip
    assert client.get("/api/series/top?by=target").json()["rows"] == [
        {"name": "h:1", "series": 1, "share": 1.0, "job": "j", "added": 0}
    ]


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090"])
def test_loopback_names_are_served_without_a_token(make: Make, host: str) -> None:
    assert make(host=host).get("/api/engines").status_code == 200


def test_another_name_that_points_here_is_refused_without_a_token(make: Make) -> None:
    assert make(host="evil.example:8090").get("/api/engines").status_code == 400


def test_behind_a_token_the_page_keeps_it_as_a_cookie(make: Make) -> None:
    client = make(host="monitor.example", LOMS__SERVER__TOKEN="right")
    assert client.get("/api/engines").status_code == 401
    assert client.get("/?token=right", follow_redirects=False).status_code == 307
    assert client.get("/api/engines").status_code == 200


def test_without_a_gate_no_cookie_is_set(make: Make) -> None:
    assert "set-cookie" not in make().get("/?token=x", follow_redirects=False).headers


@pytest.mark.parametrize("path", ["/", "/web/index.html", "/api/engines"])
def test_browsers_are_told_to_load_nothing_from_elsewhere(make: Make, path: str) -> None:
    headers = make().get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"


def test_a_source_that_does_not_answer_is_said(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(now_ms=1_800_000_000_000)
    client = make(clock, LOMS__SOURCE__TYPE="prometheus", LOMS__SOURCE__URL="http://127.0.0.1:1")
    server = client.app.state.server  # type: ignore[attr-defined]
    text = "rules cannot see what the source has: nothing answers at http://127.0.0.1:1: "
    with caplog.at_level("INFO", "loms.server"):
        for _ in range(3):
            server._step(clock.now_ms())
            clock.advance(60)
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz").text.startswith(text)
    assert client.get("/api/incidents").json()["trouble"].startswith(text)
    assert [record.getMessage().startswith(text) for record in caplog.records if record.name == "loms.server"] == [True]
