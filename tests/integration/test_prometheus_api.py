"""LOMS's Prometheus API beside Prometheus itself (Debian's 2.42), both scraping the same target.

The target's samples carry timestamps, so that both hold the very same samples; queries keep off the edges of windows,
where Prometheus 2 and 3 differ.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from integration.promql_compare import prometheus
from support.grafana import Grafana, Reply, shape_faults
from support.http_host import TEXT, Host
from support.processes import Loms, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's prometheus is not installed to compare with"),
]

EVERY_SECONDS = 3
RULES = """
groups:
  - name: own
    interval: 1s
    rules:
      - {alert: Up, expr: 'up{job="app"}==1', labels: {severity: page}, annotations: {summary: "{{ $value }} is up"}}
      - {alert: Huge, expr: app_depth > 1000, for: 1m, labels: {severity: page}}
"""
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
rule_files: [RULES]
scrape_configs:
  - job_name: app
    static_configs: [{targets: [TARGET], labels: {deployment_zone: local, rack: r1}}]
"""
NEW_IN_3 = frozenset({"droppedTargetCounts", "hostname", "serverTime", "GOMEMLIMIT", "samplesRead", "infos"})
"""Keys that Prometheus 3 has and 2.42 has not."""
CANCELED = 'loms_query_failures_total{type="canceled"}'


def exposition(_: str) -> tuple[str, bytes]:
    """Values that depend on nothing but their time, which is one in every three seconds."""
    at = int(time.time()) // EVERY_SECONDS * EVERY_SECONDS
    lines = ["# HELP app_requests_total Requests.", "# TYPE app_requests_total counter"]
    lines += [f'app_requests_total{{code="{code}"}} {at % 10_000 * factor} {at}000' for code, factor in CODES.items()]
    lines += ["# HELP app_depth Depth \\\\ of the queue.", "# TYPE app_depth gauge", f"app_depth {at // 3 % 7} {at}000"]
    lines += ["# TYPE app_wait_seconds histogram"]
    lines += [f'app_wait_seconds_bucket{{le="{le}"}} {at % 10_000 * n} {at}000' for n, le in enumerate(BOUNDS, 1)]
    lines += [f"app_wait_seconds_sum {at % 10_000 * 2} {at}000", f"app_wait_seconds_count {at % 10_000 * 3} {at}000"]
    return TEXT, "".join(f"{line}\n" for line in lines).encode()


CODES = {"200": 3, "500": 1}
BOUNDS = ("0.1", "1", "+Inf")


@dataclass(frozen=True)
class World:
    loms: Loms
    prometheus: str
    start: float
    """The first sample that both have."""
    end: float
    """Half way between two samples that both have."""


def get(url: str, path: str, parameters: list[tuple[str, str]]) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"{url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("api")
    (folder / "rules.yaml").write_text(RULES)
    with Host(exposition) as target:
        config = CONFIG.replace("RULES", str(folder / "rules.yaml")).replace("TARGET", f'"{target.instance}"')
        settings = {
            "scrape": {
                "interval": 1,
                "timeout": 1,
                "own_metrics": False,
                "discover": {"enabled": False},
                "jobs": [{"name": "app", "targets": [target.instance], "labels": {"rack": "r1"}, "probe": False}],
            },
            "rules": {"builtin": False, "files": [str(folder / "rules.yaml")]},
        }
        with prometheus(folder, config) as url, Loms(folder, [], settings) as loms:

            def held(base: str) -> set[float]:
                data = get(base, "api/v1/query", [("query", "app_depth[2m]")])[1]["data"]["result"]
                return {float(at) for at, _ in data[0]["values"]} if data else set()

            def both() -> list[float]:
                return sorted(held(url) & held(loms.url))

            wait_until(lambda: len(both()) >= 6, 90, "scraping by both")
            firing = [("query", 'ALERTS{alertstate="firing"}')]
            for base in (url, loms.url):
                wait_until(lambda base=base: get(base, "api/v1/query", firing)[1]["data"]["result"], 30, "an alert")
            yield World(loms, url, both()[0], both()[-1] + EVERY_SECONDS / 2)


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_grafana_gets_the_same_from_both(world: World, method: Literal["GET", "POST"]) -> None:
    now, expr = world.end, "sum by (code) (rate(app_requests_total[7s]))"
    theirs, ours = (
        Grafana(f"{url}/", method).everything(expr, "app_requests_total", "code", now, step=3)
        for url in (world.prometheus, world.loms.url)
    )
    assert list(theirs) == list(ours)
    assert {name: reply.status for name, reply in ours.items()} == dict.fromkeys(ours, 200)
    faults = [fault for name in ours for fault in shape_faults(theirs[name].body, ours[name].body, NEW_IN_3, name)]
    assert faults == []
    same = ("health", "exemplars", "panel exemplars", "labels of", "values of", "label_values")
    for name in (*same, "query_result", "alertmanagers"):
        assert _sorted(ours[name]) == _sorted(theirs[name]), name
    for name in ("series of", "series"):
        assert _sorted(ours[name]) == _sorted(theirs[name]), name
    for name in ("range", "instant"):
        found = [{k: v for k, v in _points(one[name]).items() if k[1] >= world.start + 7} for one in (ours, theirs)]
        assert found[0] == pytest.approx(found[1])
        assert found[0]
    assert ours["escaped"].body["data"] == ["200", "500"]
    described = {name: ours["metadata"].body["data"][name] for name in ("app_requests_total", "app_depth")}
    assert described == {name: theirs["metadata"].body["data"][name] for name in described}


def _sorted(reply: Reply) -> Any:
    """An answer whose rows have no order of their own."""
    data = reply.body["data"]
    if isinstance(data, dict) and "result" in data:
        rows = data["result"]
        return sorted(rows, key=json.dumps) if data["resultType"] == "vector" else rows
    return sorted(data, key=json.dumps) if isinstance(data, list) else data


def _points(reply: Reply) -> dict[tuple[str, float], float]:
    rows = reply.body["data"]["result"]
    points = [(row["metric"]["code"], row.get("values") or [row["value"]]) for row in rows]
    return {(code, at): float(value) for code, pairs in points for at, value in pairs}


def test_rules_and_alerts_tell_the_same(world: World) -> None:
    def told(url: str) -> list[Any]:
        (group,) = get(url, "api/v1/rules", [("rule_group[]", "own")])[1]["data"]["groups"]
        alerts = get(url, "api/v1/alerts", [])[1]["data"]["alerts"]
        varying = ("evaluationTime", "lastEvaluation", "activeAt")

        def fixed(one: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in one.items() if key not in varying}

        rules = [{**fixed(rule), "alerts": [fixed(alert) for alert in rule["alerts"]]} for rule in group["rules"]]
        return [{**fixed(group), "rules": rules}, [fixed(alert) for alert in alerts]]

    assert told(world.loms.url) == told(world.prometheus)


def test_targets_tell_the_same(world: World) -> None:
    def told(url: str) -> Any:
        (row,) = get(url, "api/v1/targets", [("state", "active")])[1]["data"]["activeTargets"]
        return {
            key: value for key, value in row.items() if key not in ("lastScrape", "lastScrapeDuration", "globalUrl")
        }

    assert told(world.loms.url) == told(world.prometheus)


WRONG: tuple[tuple[str, list[tuple[str, str]]], ...] = (
    ("query", []),
    ("query", [("query", "sum(")]),
    ("query", [("query", "up == ")]),
    ("query", [("query", 'x{a="b"')]),
    ("query", [("query", "rate(up)")]),
    ("query", [("query", "nothing(up)")]),
    ("query", [("query", "up bar")]),
    ("query", [("query", "up"), ("time", "noon")]),
    ("query", [("query", "up"), ("timeout", "soon")]),
    ("query_range", [("query", "up"), ("start", "1"), ("end", "x"), ("step", "1")]),
    ("query_range", [("query", "up"), ("start", "2"), ("end", "1"), ("step", "1")]),
    ("query_range", [("query", "up"), ("start", "1"), ("end", "2"), ("step", "0")]),
    ("query_range", [("query", "up"), ("start", "1"), ("end", "2"), ("step", "fast")]),
    ("query_range", [("query", "up"), ("start", "1"), ("end", "1e6"), ("step", "1")]),
    ("query_exemplars", [("query", "sum(")]),
    ("query_exemplars", [("query", "up"), ("start", "5"), ("end", "4")]),
    ("format_query", [("query", "sum(")]),
    ("series", []),
    ("series", [("match[]", "up{")]),
    ("series", [("match[]", '{a=~".*"}')]),
    ("series", [("match[]", "up"), ("start", "x")]),
    ("labels", [("match[]", "up{")]),
    ("labels", [("end", "x")]),
    ("label/job/values", [("match[]", "{}")]),
    ("metadata", [("limit", "x")]),
    ("targets/metadata", [("limit", "x")]),
    ("rules", [("type", "odd")]),
)


def test_mistakes_are_refused_in_prometheus_words(world: World) -> None:
    def refusal(url: str, path: str, asked: list[tuple[str, str]]) -> Any:
        status, body = get(url, f"api/v1/{path}", asked)
        error = body.get("error", "").replace("Invalid time value", "invalid time value")  # as in Prometheus 3
        return status, body["status"], body.get("errorType"), error

    found = [[refusal(url, path, asked) for url in (world.loms.url, world.prometheus)] for path, asked in WRONG]
    assert [(ours, theirs) for ours, theirs in found if ours != theirs] == []


def test_queries_are_formatted_alike(world: World) -> None:
    texts = (
        'sum by(a,b)(rate(x{b="1",a=~"2"}[5m] offset 1m))/on(a)group_left(c) y',
        "(1+2)*x @ 5",
        "-x+3 > bool 2",
        "x @ start() offset -90m",
        "topk without(b)(3, max_over_time(x[5m:1m]))",
        'histogram_quantile(0.9, sum by (le, instance, deployment_zone) (rate(app_wait_seconds_bucket{a="b"}[5m])))>1',
        'count_values("v", {__name__=~"a.+"}) unless on(a) absent(x)',
        "(2 ^ 3) ^ x ^ -y % 2",
        "max_over_time((rate(app_requests_total[5m]) / x)[1w:5m])",
    )
    long = "app_requests_total_of_every_kind_in_the_last_while"
    laid_out = (
        f"({long} + {long} + {long}) * 2",
        f"-({long} + {long})",
        f"sum by (a) ({long}) / on (a) {long} > {long}",
    )
    for text in (*texts, *laid_out):
        asked = [("query", text)]
        ours, theirs = (get(url, "api/v1/format_query", asked) for url in (world.loms.url, world.prometheus))
        assert ours == theirs


def promtool(*arguments: str) -> str:
    ran = subprocess.run(["promtool", "query", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_promtool_prints_the_same(world: World) -> None:
    end, start = f"{world.end:.3f}", f"{world.end - 12:.3f}"
    commands: tuple[Callable[[str], list[str]], ...] = (
        lambda url: ["instant", f"--time={end}", url, "sort(sum by (code) (app_requests_total))"],
        lambda url: ["instant", "--format=json", f"--time={end}", url, "app_depth"],
        lambda url: ["instant", f"--time={end}", url, "app_depth[12s]"],
        lambda url: ["range", f"--start={start}", f"--end={end}", "--step=3s", url, "app_depth * 2"],
        lambda url: ["series", "--match=app_requests_total", url],
        lambda url: ["series", "--match=app_depth", "--match=app_wait_seconds_sum", f"--start={start}", url],
        lambda url: ["labels", url, "le"],
        lambda url: ["labels", url, "code"],
    )
    for command in commands:
        ours, theirs = (sorted(promtool(*command(url)).splitlines()) for url in (world.loms.url, world.prometheus))
        assert ours == theirs
        assert any(ours)


def test_prometheus_reads_loms_and_scrapes_its_federation(world: World, tmp_path: Path) -> None:
    host = world.loms.url.removeprefix("http://")
    config = f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
remote_read: [{{url: "{world.loms.url}/api/v1/read", read_recent: true}}]
scrape_configs:
  - job_name: federate
    honor_labels: true
    metrics_path: /federate
    params: {{"match[]": ['{{__name__=~"app_.+"}}']}}
    static_configs: [{{targets: ["{host}"]}}]
"""
    with prometheus(tmp_path, config) as reader:
        asked = [("query", "sum by (code) (increase(app_requests_total[12s]))"), ("time", f"{world.end:.3f}")]
        # What it has not seen itself (it started after that time) it has read from LOMS.
        ours, theirs = (_sorted(Reply(*get(url, "api/v1/query", asked))) for url in (reader, world.prometheus))
        assert ours == theirs
        assert len(ours) == len(CODES)
        up = [("query", 'up{job="federate"} == 1 and on() scrape_samples_scraped{job="federate"} > 5')]
        wait_until(lambda: get(reader, "api/v1/query", up)[1]["data"]["result"], 30, "scraping the federation")


def test_a_query_whose_client_goes_away_is_ended(world: World) -> None:
    def canceled() -> float:
        with urllib.request.urlopen(f"{world.loms.url}/metrics", timeout=20) as response:
            lines = response.read().decode().splitlines()
        counts = [line.rpartition(" ")[2] for line in lines if line.startswith(CANCELED)]
        return float(counts[0]) if counts else 0.0

    before = canceled()
    expr = urllib.parse.quote("max_over_time(sum_over_time(vector(time())[1h:1s])[10m:1s])")
    asked = f"GET /api/v1/query?query={expr} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    def ask_and_leave() -> bool:
        with socket.create_connection(("127.0.0.1", world.loms.port)) as connection:
            connection.sendall(asked.encode())
        return canceled() > before

    wait_until(ask_and_leave, 60, "a canceled query")
    assert get(world.loms.url, "api/v1/query", [("query", "1")])[0] == 200


def test_behind_a_token_grafana_needs_it(tmp_path: Path) -> None:
    with Loms(tmp_path, [], {"server": {"token": "right"}, "scrape": {"jobs": []}}) as loms:
        found = Grafana(loms.url, token="right").save_and_test()
        assert {name: reply.status for name, reply in found.items()} == {"health": 200, "kind": 200}
        assert found["health"].body["data"] == {"resultType": "scalar", "result": [4, "2"]}
        refused = Grafana(loms.url).save_and_test()
        assert {reply.status for reply in refused.values()} == {401}
