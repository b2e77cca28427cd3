"""What dashboards and rules cost: 20 queries to LOMS, Prometheus and VictoriaMetrics over the same samples, by HTTP.

Fifty instances with 500 series each, taken from a real vLLM's exposition, over six hours at 15 s (36 million samples):
counters and buckets grow with an activity of their own, gauges wander, a tenth of the instances restart. Prometheus
and VictoriaMetrics get them by remote write, LOMS by its store's inserts in the same portions; then they are asked in
turns. A range query (of five hours at most: the first hour only fills the windows) has the steps of a panel that is 720
points wide; an instant query is a rule's.

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
import re
import shutil
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import commit, free_port, machine, rss_mb, running

from loms.core.clock import SystemClock
from loms.core.model import Floats, Ids, Ints, Labels, Series, labels_of
from loms.ingest.exposition import ExpositionReader
from loms.store.database import Database
from loms.store.series import series_rows

TEXT = Path(__file__).parents[1] / "tests/data/vllm-0.32.0/loaded.txt"
INTERVAL_MS = 15_000
HOURS = 6
SERIES = 500
PORTION = 40
"""Scrapes that are sent at once: ten minutes."""
POINTS = 720


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
    Query("series per name", 'topk(10, count by (__name__) ({job="vllm"}))'),
)


# The samples


class Fleet:
    """The samples of all instances, in portions, the same at each pass. ``end_ms`` lies on a second."""

    def __init__(self, instances: int, end_ms: int) -> None:
        exposition = ExpositionReader().read(TEXT.read_bytes(), "text/plain; version=0.0.4")
        shape, kept = exposition.shape, [i for i, n in enumerate(exposition.shape.names) if "_created" not in n]
        kept = sorted((kept + [i for i in range(len(shape.names)) if i not in set(kept)])[:SERIES])
        self.base: Floats = exposition.values[kept]
        self.gauge = np.array([shape.types.get(shape.names[i]) == "gauge" for i in kept])
        self.still = np.array([bool(re.search(r"_created$|_info$|process_start", shape.names[i])) for i in kept])
        self.ratio = np.array([shape.names[i].endswith("_perc") for i in kept])
        self.instances = instances
        self.scrapes = HOURS * 3_600_000 // INTERVAL_MS
        self.end_ms = end_ms
        self.series: list[list[Series]] = []
        for number in range(instances):
            own = {"instance": f"10.0.{number // 250}.{number % 250}:8000", "job": "vllm"}
            model = f"model-{number % 4}"
            self.series.append(
                [
                    Series.of(
                        shape.names[i],
                        labels_of({k: model if k == "model_name" else v for k, v in shape.labels[i]} | own),
                    )
                    for i in kept
                ]
            )

    @property
    def samples(self) -> int:
        return self.scrapes * self.instances * SERIES

    def portions(self) -> Iterator[list[tuple[Ints, Floats]]]:
        """Per instance the times [scrape] and values [series, scrape] of one portion, in order of time."""
        random = np.random.default_rng(1)
        activity = np.cumsum(random.poisson(3.0, (self.instances, self.scrapes)) / 100.0, axis=1)
        for number in range(0, self.instances, 10):  # a restart
            at = int(random.integers(self.scrapes // 4, self.scrapes))
            activity[number, at:] -= activity[number, at]
        times = self.end_ms - 7_000 - INTERVAL_MS * np.arange(self.scrapes - 1, -1, -1)
        offsets = random.integers(-1_500, 1_500, self.instances) * 2 + 1  # odd: never on a window's edge
        for first in range(0, self.scrapes, PORTION):
            part = slice(first, first + PORTION)
            yield [
                (times[part] + offsets[number], self._values(activity[number, part], random))
                for number in range(self.instances)
            ]

    def _values(self, activity: Floats, random: np.random.Generator) -> Floats:
        counters = self.base[:, None] * activity[None, :]
        whole = self.base == np.floor(self.base)
        counters = np.where(whole[:, None], np.floor(counters), counters)
        wandering = np.floor(random.gamma(2.0, 4.0, (int(self.gauge.sum()), len(activity))))
        values = np.where(self.still[:, None], self.base[:, None], counters)
        values[self.gauge & ~self.still] = wandering[: (self.gauge & ~self.still).sum()]
        values[self.ratio] = random.random((int(self.ratio.sum()), len(activity)))
        return values


# Remote write, encoded here: a portion of an instance is one request


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def label_head(series: Series) -> bytes:
    pairs: Labels = labels_of((("__name__", series.name), *series.labels))
    return b"".join(field(1, field(1, k.encode()) + field(2, v.encode())) for k, v in pairs)


def write_request(heads: Sequence[bytes], times: Ints, values: Floats) -> bytes:
    """A snappy-compressed ``prometheus.WriteRequest``; each sample takes 18 bytes."""
    samples = np.zeros((*values.shape, 18), np.uint8)
    samples[..., :3] = (0x12, 16, 0x09)
    samples[..., 3:11] = np.ascontiguousarray(values).astype("<f8").view(np.uint8).reshape(*values.shape, 8)
    samples[..., 11] = 0x10
    for place in range(6):
        samples[..., 12 + place] = (times >> (7 * place)) & 127 | (128 if place < 5 else 0)
    size = values.shape[1] * 18
    rows = [
        bytes([0x0A]) + varint(len(head) + size) + head + row.tobytes()
        for head, row in zip(heads, samples, strict=True)
    ]
    body: bytes = pa.compress(b"".join(rows), codec="snappy", asbytes=True)
    return body


def send(fleet: Fleet, port: int) -> None:
    heads = [[label_head(one) for one in series] for series in fleet.series]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    headers["X-Prometheus-Remote-Write-Version"] = "0.1.0"
    for portion in fleet.portions():
        for own, (times, values) in zip(heads, portion, strict=True):
            connection.request("POST", "/api/v1/write", write_request(own, times, values), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status // 100 != 2:
                raise SystemExit(f"port {port} refuses samples: {answer.status} {said[:300]!r}")
    connection.close()


def store(fleet: Fleet, directory: Path) -> None:
    """The same portions into LOMS's tables."""
    ids: list[Ids] = [np.array([one.id for one in series], np.uint64) for series in fleet.series]
    with Database.open(directory, 15 * 86_400, SystemClock()) as database:
        for series in fleet.series:
            database.insert_arrow("series", series_rows(series, fleet.end_ms))
        for portion in fleet.portions():
            columns = {
                "series_id": np.concatenate(
                    [np.repeat(own, len(times)) for own, (times, _) in zip(ids, portion, strict=True)]
                ),
                "ts": np.concatenate([np.tile(times, SERIES) for times, _ in portion]).astype("datetime64[ms]"),
                "value": np.concatenate([values.ravel() for _, values in portion]),
            }
            database.insert_arrow("samples", pa.table(columns))


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
        if system != "loms":
            begun = time.monotonic()
            send(fleet, port)
            begun -= time.monotonic()
        yield process.pid, port, -begun


def compare(options: argparse.Namespace) -> dict[str, Any]:
    instances = options.instances or (4 if options.quick else 50)
    runs = options.runs or (5 if options.quick else 7)
    settle = options.settle if options.settle is not None else 2.0 if options.quick else 60.0
    fleet = Fleet(instances, int(time.time()) // 60 * 60_000)
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
