"""``loms up`` and ``loms server`` over a ClickHouse elsewhere: restarts, an outage, a kill, two servers that share."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.clickhouse import Place, place
from support.engine_server import EngineServer
from support.processes import Loms, Receiver, status, wait_until

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
EXPOSITION = TESTS / "data/vllm-0.32.0/loaded.txt"
RULES = {
    "groups": [
        {
            "name": f"group {number}",
            "interval": "1s",
            "rules": [{"alert": f"Always{number}", "expr": f"vector({number})"}],
        }
        for number in range(4)
    ]
}


@pytest.fixture(scope="module", params=[False, True], ids=["one-server", "two-shards"])
def clickhouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("clickhouse"), shards=request.param) as found:
        yield found


@pytest.fixture
def engine() -> Iterator[EngineServer]:
    with EngineServer(EXPOSITION, "0.32.0") as server:
        yield server


def settings(clickhouse: Place, folder: Path, **others: Any) -> dict[str, Any]:
    """A configuration with quick scrapes and four rules that always hold."""
    rules = folder / "always.yaml"
    rules.write_text(json.dumps(RULES))
    return {
        "store": clickhouse.settings(path=str(folder / "data"), flush_interval="500ms"),
        "scrape": {"interval": "1s", "timeout": "1s", "own_metrics": False, "discover": {"enabled": False}},
        "rules": {"files": [str(rules)], "builtin": False, "interval": "1s"},
        "receive": {"otlp_http_port": None, "otlp_grpc_port": None},
        **others,
    }


def open_incidents(loms: Loms) -> dict[str, str]:
    """Title → id."""
    return {one["title"]: one["id"] for one in loms.get("/api/incidents", state="open")["incidents"]}


def test_loms_collects_answers_and_goes_on_after_a_restart(
    clickhouse: Place, engine: EngineServer, tmp_path: Path
) -> None:
    up = f'up{{instance="{engine.instance}"}}'
    config = settings(clickhouse, tmp_path)
    config["scrape"]["jobs"] = [{"name": "engines", "targets": [engine.instance], "probe": False}]
    with Loms(tmp_path, [], config) as loms:
        wait_until(lambda: loms.value(up) == 1, 30, "a sample of the engine")
        wait_until(lambda: loms.value("count(llm_engine_requests_running)") == 1, 30, "a canonical series")
        wait_until(lambda: len(open_incidents(loms)) == 4, 30, "four incidents")
        before, scrapes = open_incidents(loms), loms.value(f"count_over_time({up}[5m])")
        assert loms.stop() == 0
        loms.start()
        wait_until(lambda: loms.value(f"count_over_time({up}[5m])") > scrapes, 30, "more samples")
        assert open_incidents(loms) == before
        assert loms.get("/api/status")["store"]["samples"] > 0


def test_samples_wait_while_the_server_is_away(engine: EngineServer, tmp_path: Path) -> None:
    up = f'up{{instance="{engine.instance}"}}'
    with place(tmp_path / "clickhouse") as clickhouse:
        config = settings(clickhouse, tmp_path)
        config["scrape"]["jobs"] = [{"name": "engines", "targets": [engine.instance], "probe": False}]
        with Loms(tmp_path, [], config) as loms:
            wait_until(lambda: loms.value(f"count_over_time({up}[5m])") >= 3, 30, "samples")
            clickhouse.server.stop()
            begun = engine.scrapes
            wait_until(lambda: engine.scrapes >= begun + 5, 30, "scrapes during the outage")
            wait_until(lambda: status(f"{loms.url}/readyz") == 503, 30, "a word about the outage")
            clickhouse.server.start()
            wait_until(lambda: status(f"{loms.url}/readyz") == 200, 60, "recovery")
            ended = engine.scrapes
            wait_until(lambda: loms.value(f"count_over_time({up}[5m])") > ended, 60, "all samples")
            found = loms.get("/api/v1/query", query=f"{up}[5m]")["data"]["result"][0]["values"]
            times = [time for time, _ in found]
            assert max(after - before for before, after in pairwise(times)) < 2.5


def test_what_was_acknowledged_survives_kill_9(engine: EngineServer, tmp_path: Path) -> None:
    with place(tmp_path / "clickhouse") as clickhouse:
        config = settings(clickhouse, tmp_path)
        config["scrape"]["jobs"] = [{"name": "engines", "targets": [engine.instance], "probe": False}]
        with Loms(tmp_path, [], config) as loms:
            wait_until(lambda: written(loms) > 1000, 30, "samples")
            acknowledged = written(loms)
            loms.kill()
            loms.start()
            assert loms.get("/api/status")["store"]["samples"] >= acknowledged


def written(loms: Loms) -> float:
    with urllib.request.urlopen(f"{loms.url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("loms_written_samples_total ")).split()[1])


def groups(loms: Loms) -> set[str]:
    return {rule["group"] for rule in loms.get("/api/rules")["rules"]}


def test_two_servers_divide_the_rules_and_share_the_incidents(clickhouse: Place, tmp_path: Path) -> None:
    with Receiver() as receiver:
        config = settings(clickhouse, tmp_path, alerting={"webhooks": [{"url": receiver.url}]})
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        with (
            Loms(folders[0], [], config, ("server", "--shard", "1/2")) as first,
            Loms(folders[1], [], config, ("server", "--shard", "2/2")) as second,
        ):
            assert groups(first) | groups(second) == {group["name"] for group in RULES["groups"]}
            assert 0 < len(groups(first)) < 4
            assert not groups(first) & groups(second)
            wait_until(lambda: len(open_incidents(first)) == 4, 30, "the incidents of both")
            wait_until(lambda: len(receiver.payloads) == 4, 30, "a message about each")
            incidents = open_incidents(second)
            assert incidents == open_incidents(first)
            for server in (first, second):  # each goes on with its own incidents and leaves the other's alone
                server.stop()
                server.start()
                wait_until(lambda: evaluated(server), 30, "an evaluation")  # noqa: B023 - waited for here
                assert open_incidents(first if server is second else second) == incidents
            assert open_incidents(first) == incidents
            told = sorted(alert["labels"]["alertname"] for payload in receiver.payloads for alert in payload["alerts"])
            assert told == ["Always0", "Always1", "Always2", "Always3"]
            assert first.value('count(ALERTS{alertstate="firing"})') == 4


def evaluated(loms: Loms) -> bool:
    rules = loms.get("/api/rules")["rules"]
    return all(rule["health"] == "ok" and rule["alerts"] for rule in rules)


def test_a_server_with_a_certificate_speaks_https_only(tmp_path: Path) -> None:
    data = TESTS / "data/tls"
    with place(tmp_path / "clickhouse") as clickhouse:
        config = settings(clickhouse, tmp_path)
        config["server"] = {
            "token": "let-me-in",
            "tls": {"cert_file": str(data / "server.pem"), "key_file": str(data / "server.key")},
        }
        trusting = ssl.create_default_context(cafile=str(data / "ca.pem"))
        trusting.check_hostname = False  # the certificate is for engine.test
        with Loms(tmp_path, [], config, ("server",), tls=trusting) as loms:
            assert loms.url.startswith("https://")
            assert status(f"{loms.url}/healthz", trusting) == 200
            assert status(f"{loms.url}/api/status", trusting) == 401
            assert status(f"{loms.url}/healthz".replace("https", "http")) == 0
            assert status(f"{loms.url}/healthz") == 0  # to one who does not know the authority
