"""What dashboards and rules cost: 20 queries to LOMS, Prometheus and VictoriaMetrics over the same samples, by HTTP.

Fifty instances with 500 series each, taken from a real vLLM's exposition, over six hours at 15 s (36 million samples):
counters and buckets grow with an activity of their own, gauges wander, a tenth of the instances restart. Prometheus
and VictoriaMetrics get them by remote write, LOMS by its store's inserts in the same portions, but for the newest
21 minutes: these come by remote write, each scrape by itself, so that LOMS has them in memory as it has what it
collects (`query.recent`); the canonical series that it makes of what is pushed are not asked for. The times end a few
minutes ahead, so that they are the newest still when they are asked for. Then the systems are asked in turns. A range
query (of five hours at most: the first hour only fills the windows) has the steps of a panel that is 720 points wide;
an instant query is a rule's.

Reported per query are the median times and LOMS's share of Prometheus's and VictoriaMetrics's, and per system the
bytes on disk a sample and the memory before and after the queries. All must answer all queries with equally many
series, and LOMS and Prometheus with the same values (window edges are kept free of samples).

``--quick`` takes under a minute with fewer instances; ``--json`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import INTERVAL_MS, LIVE, SERIES, Fleet, send, store
from measuring import commit, free_port, machine, rss_mb, running

from loms.core.clock import SystemClock
from loms.store.database import Database

POINTS = 720
AHEAD_MS = 300_000
"""How far the newest samples lie ahead: what loading all systems takes, and less than LOMS refuses."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked; a range query covers the last ``hours``."""

    name: str
    expr: str
    hours: float | None = None
    """None: an instant query at the end."""


TTFT = "vllm:time_to_first_token_seconds_bucket"
E2E = "vllm:e2e_request_latency_seconds"
HITS, ASKED = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
ZONED = 'label_replace(vllm:num_requests_running, "zone", "$1", "instance", "(.*):.*")'
QUERIES = (
    Query("rate by instance", "sum by (instance) (rate(vllm:generation_tokens_total[5m]))", 5),
    Query("sum by model", "sum by (model_name) (rate(vllm:prompt_tokens_total[5m]))", 5),
    Query("p99 over all", f"histogram_quantile(0.99, sum by (le) (rate({TTFT}[5m])))", 5),
    Query("p50 by model", f"histogram_quantile(0.5, sum by (le, model_name) (rate({TTFT}[5m])))", 1),
    Query("p99 by instance", f"histogram_quantile(0.99, sum by (le, instance) (rate({TTFT}[5m])))", 5),
    Query("mean latency", f"sum(rate({E2E}_sum[5m])) / sum(rate({E2E}_count[5m]))", 5),
    Query("cache hit ratio", f"sum by (model_name) (rate({HITS}[5m])) / sum by (model_name) (rate({ASKED}[5m]))", 5),
    Query("KV cache use", "vllm:kv_cache_usage_perc", 5),
    Query("KV cache use, now", "vllm:kv_cache_usage_perc", 0.25),
    Query("most loaded", "topk(5, vllm:kv_cache_usage_perc)", 1),
    Query("peak of the queue", "max by (model_name) (max_over_time(vllm:num_requests_waiting[10m]))", 5),
    Query("all buckets by name", 'sum by (__name__) ({__name__=~"vllm:.*_seconds_bucket"})', 1),
    Query("requests by end", "sum by (finished_reason) (increase(vllm:request_success_total[1h]))", 5),
    Query("subquery", "max_over_time(sum(rate(vllm:generation_tokens_total[2m]))[29m59s:1m])", 1),
    Query(
        "joined labels",
        f"sum by (zone) (rate(vllm:generation_tokens_total[5m]) * on (instance) group_left (zone) {ZONED})",
        1,
    ),
    Query("rule: KV cache full", "max by (instance) (vllm:kv_cache_usage_perc) > 0.95"),
    Query("rule: slow answers", f"histogram_quantile(0.99, sum by (le, instance) (rate({TTFT}[5m]))) > 10"),
    Query("rule: no progress", "rate(vllm:generation_tokens_total[1m]) == 0 and vllm:num_requests_running > 0"),
    Query("rule: absent", 'absent(vllm:num_requests_running{model_name="model-9"})'),
    Query("series per name", 'topk(10, count by (__name__) ({job="vllm",__name__!~"(gen_ai|llm|loms)_.*"}))'),
)


# The systems


def commands(directory: Path, port: int) -> dict[str, list[str]]:
    listen = f"127.0.0.1:{port}"
    data, empty = directory / "data", directory / "none.yml"
    empty.write_text("")
    loms = {
        "server": {"port": port},
        "store": {"path": str(data)},
        "scrape": {"discover": {"enabled": False}, "own_metrics": False},
        "rules": {"builtin": False},
    }
    (directory / "loms.yaml").write_text(json.dumps(loms))
    prometheus = ["--web.enable-remote-write-receiver", f"--storage.tsdb.path={data}"]
    victoria = [f"-storageDataPath={data}", "-retentionPeriod=1", "-search.disableCache"]
    return {
        "loms": [sys.executable, "-m", "loms", "up", "--config", str(directory / "loms.yaml")],
        "prometheus": ["prometheus", f"--config.file={empty}", f"--web.listen-address={listen}", *prometheus],
        "victoriametrics": ["victoria-metrics", f"-httpListenAddr={listen}", *victoria],
    }


class Api:
    """The query API on one connection that stays open, as a dashboard's proxy has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str, **parameters: str) -> tuple[float, bytes]:
        """Seconds until the whole answer was there, and the answer."""
        target = f"{path}?{urllib.parse.urlencode(parameters)}"
        begun = time.perf_counter()
        self._connection.request("GET", target)
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - begun
        if answer.status != 200:
            raise SystemExit(f"{target}: {answer.status} {body[:500]!r}")
        return seconds, body

    def ask(self, query: Query, end_ms: int) -> tuple[float, bytes]:
        if query.hours is None:
            return self.get("/api/v1/query", query=query.expr, time=f"{end_ms / 1000}")
        span = round(query.hours * 3600)
        step = max(INTERVAL_MS // 1000, math.ceil(span / POINTS))
        times = {"start": f"{end_ms / 1000 - span}", "end": f"{end_ms / 1000}", "step": str(step)}
        return self.get("/api/v1/query_range", query=query.expr, **times)

    def ready(self, process: Any) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                self.get("/api/v1/query", query="1")
                return
            except (OSError, http.client.HTTPException, SystemExit):
                self._connection.close()
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{process.args!r} does not answer") from None
                time.sleep(0.2)


def points(body: bytes) -> dict[tuple[tuple[str, str], ...], dict[float, float]]:
    found = {}
    for one in json.loads(body)["data"]["result"]:
        labels = tuple(sorted(one["metric"].items()))
        found[labels] = {t: float(v) for t, v in one.get("values") or [one["value"]]}
    return found


def difference(ours: bytes, theirs: bytes) -> float:
    """The greatest relative difference of two answers; infinite when they have other series or other points."""
    mine, other = points(ours), points(theirs)
    if mine.keys() != other.keys():
        return math.inf
    worst = 0.0
    for labels, row in mine.items():
        if row.keys() != other[labels].keys():
            return math.inf
        for at, value in row.items():
            want = other[labels][at]
            if value != want and not (math.isnan(value) and math.isnan(want)):
                worst = max(worst, abs(value - want) / max(abs(want), 1e-9))
    return worst


def size(system: str, directory: Path) -> int:
    """Bytes on disk; of LOMS without the parts that are merged already and go a few minutes later."""
    if system == "loms":
        with Database.open(directory, 15 * 86_400, SystemClock()) as database:
            return database.figures().bytes_on_disk
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@contextmanager
def loaded(system: str, fleet: Fleet, directory: Path) -> Iterator[tuple[int, int, float]]:
    """The system with all samples: its process, its port, and the seconds that loading took."""
    port = free_port()
    command, begun = commands(directory, port)[system], time.monotonic()
    if system == "loms":
        store(fleet, directory / "data")
    begun -= time.monotonic()
    with running(command, directory) as process:
        Api(port).ready(process)
        begun += time.monotonic()
        send(fleet, port, live=system == "loms")
        yield process.pid, port, time.monotonic() - begun


def compare(options: argparse.Namespace) -> dict[str, Any]:
    instances = options.instances or (4 if options.quick else 50)
    runs = options.runs or (5 if options.quick else 7)
    settle = options.settle if options.settle is not None else 2.0 if options.quick else 60.0
    fleet = Fleet(instances, int(time.time()) // 60 * 60_000 + AHEAD_MS)
    results: dict[str, Any] = {}
    answers: dict[str, dict[str, bytes]] = {}
    with tempfile.TemporaryDirectory(prefix="loms-query-") as name:
        folders = {system: Path(name, system) for system in options.only}
        with ExitStack() as stack:
            ports, pids = {}, {}
            for system, directory in folders.items():
                directory.mkdir()
                if not shutil.which(commands(directory, 1)[system][0]):
                    results[system] = {"unavailable": "not installed"}
                    continue
                print(f"{system}: {fleet.samples:,} samples", file=sys.stderr)
                pids[system], ports[system], seconds = stack.enter_context(loaded(system, fleet, directory))
                results[system] = {"load_seconds": round(seconds, 1)}
            time.sleep(settle)  # merges and compactions
            for system, pid in pids.items():
                results[system]["rss_mb_before"] = round(rss_mb(pid))
            times, answers = asked(ports, fleet.end_ms, runs)
            for system, pid in pids.items():
                results[system] |= {"rss_mb": round(rss_mb(pid)), "ms": times[system]}
        for system in pids:
            results[system]["bytes_per_sample"] = round(size(system, folders[system] / "data") / fleet.samples, 2)
    return {
        **results,
        "compared": ratios(results, answers),
        "setting": {"instances": instances, "series": instances * SERIES, "samples": fleet.samples, "runs": runs}
        | {"live_in_loms": LIVE * instances * SERIES}
        | {"load_average": [round(load, 2) for load in os.getloadavg()]},
        "machine": machine(),
        "commit": commit(),
    }


def asked(
    ports: dict[str, int], end_ms: int, runs: int
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, bytes]]]:
    """Per system and query the median milliseconds and the answer. The systems take turns at each run."""
    apis = {system: Api(port) for system, port in ports.items()}
    times: dict[str, dict[str, float]] = {system: {} for system in ports}
    answers: dict[str, dict[str, bytes]] = {system: {} for system in ports}
    for query in QUERIES:
        seconds: dict[str, list[float]] = {system: [] for system in ports}
        for run in range(runs + 1):
            for system, api in apis.items():
                spent, answers[system][query.name] = api.ask(query, end_ms)
                if run:  # the first one fills caches
                    seconds[system].append(spent)
        for system, spent_each in seconds.items():
            times[system][query.name] = round(statistics.median(spent_each) * 1000, 2)
    return times, answers


def ratios(results: dict[str, Any], answers: dict[str, dict[str, bytes]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    ours = results.get("loms", {}).get("ms")
    for peer in ("prometheus", "victoriametrics"):
        theirs = results.get(peer, {}).get("ms")
        if not ours or not theirs:
            continue
        ratio = {name: round(ours[name] / theirs[name], 3) for name in ours}
        found[peer] = {
            "ratio": ratio,
            "median_ratio": round(statistics.median(ratio.values()), 3),
            "worst_ratio": max(ratio.values()),
            "difference": {name: difference(answers["loms"][name], answers[peer][name]) for name in ours},
        }
    return found


def show(results: dict[str, Any]) -> None:
    systems = [name for name in ("loms", "prometheus", "victoriametrics") if "ms" in results.get(name, {})]
    peers = results["compared"]
    print(
        f"{'ms (median)':22}" + "".join(f"{name:>17}" for name in systems) + "".join(f"{'÷ ' + p:>19}" for p in peers)
    )
    for query in QUERIES:
        row = "".join(f"{results[name]['ms'][query.name]:17,.2f}" for name in systems)
        print(f"{query.name:22}{row}" + "".join(f"{peers[p]['ratio'][query.name]:19.2f}" for p in peers))
    for what in ("median_ratio", "worst_ratio"):
        print(f"{what:22}{'':{17 * len(systems)}}" + "".join(f"{peers[p][what]:19.2f}" for p in peers))
    for what in ("bytes_per_sample", "rss_mb_before", "rss_mb", "load_seconds"):
        print(f"{what:22}" + "".join(f"{results[name][what]:17,}" for name in systems))
    for peer, found in peers.items():
        worst = {name: value for name, value in found["difference"].items() if value > 1e-9}
        print(f"answers that differ from {peer}'s by more than 1e-9: {worst or 'none'}")
    print(f"{results['setting']}\n{results['machine']}, commit {results['commit']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="4 instances instead of 50")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--instances", type=int)
    parser.add_argument("--runs", type=int, help="measured runs per query, after one that is not")
    parser.add_argument("--settle", type=float, help="seconds between loading and asking")
    parser.add_argument("--only", nargs="+", default=["loms", "prometheus", "victoriametrics"])
    options = parser.parse_args()
    results = compare(options)
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
