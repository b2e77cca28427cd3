"""What it costs to receive remote write: LOMS beside Prometheus and VictoriaMetrics, the same requests to each.

10,000 series of ten labels, one sample of each every 15 s, in requests of 2,000 samples (1.0 and 2.0; Debian's
Prometheus and VictoriaMetrics know 1.0 only). All requests are made before the clock runs. CPU time is that of the
receiving process, from the first request until a query finds all samples. Beside it: what decoding alone costs, and
encoding the same samples for sending.

``--quick`` takes under a minute; ``--json`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import commit, cpu_seconds, free_port, machine, rss_mb, running

from loms.core.model import Series, labels_of
from loms.forward.remote_write_encode import Wire, encode, encode_2
from loms.ingest.remote_write import Decoder

SERIES, REQUEST, STEP_MS = 10_000, 2_000, 15_000
TYPES = {"1.0": "application/x-protobuf", "2.0": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
Messages = list[bytes]


def series() -> list[Series]:
    return [
        Series.of(
            f"http_request_duration_seconds_{('bucket', 'sum', 'count')[i % 3]}",
            labels_of(
                {
                    "handler": f"/api/v1/query{i % 17}",
                    "instance": f"10.0.{i % 200}.1:9090",
                    "job": "frontend",
                    "le": str(i % 31 / 8),
                    "method": "GET",
                    "namespace": "production",
                    "pod": f"frontend-7d9f-{i}",
                    "service": "frontend",
                    "zone": "eu-central-1a",
                }
            ),
        )
        for i in range(SERIES)
    ]


def messages(rounds: int, write: Callable[..., bytes]) -> tuple[Messages, float]:
    """Oldest first, the newest a minute old; and the µs that a sample took to encode."""
    wires = [Wire(one) for one in series()]
    start_ms = time.time_ns() // 1_000_000 - 60_000 - rounds * STEP_MS
    rng = np.random.default_rng(1)
    values = rng.integers(0, 100, SERIES).astype(float)
    values[: SERIES // 3] = 0.0  # a third stands still at 0
    found: Messages = []
    spent = 0.0
    for turn in range(rounds):
        values[SERIES // 3 :] += rng.integers(1, 20, SERIES - SERIES // 3) / 4
        times = np.full(REQUEST, start_ms + turn * STEP_MS)
        for first in range(0, SERIES, REQUEST):
            before = time.process_time()
            found.append(write(wires[first : first + REQUEST], values[first : first + REQUEST], times))
            spent += time.process_time() - before
    return found, spent / (rounds * SERIES) * 1e6


def fastest(decode: Callable[[bytes], object], some: Messages) -> float:
    """µs per sample, of three runs the best, after a first one that meets the series."""
    for message in some[: SERIES // REQUEST]:
        decode(message)
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        for message in some:
            decode(message)
        best = min(best, time.process_time() - before)
    return best / (len(some) * REQUEST) * 1e6


def post(port: int, version: str, some: Messages) -> float:
    """Send all over one connection; the wall time. Fails on any answer but 2xx."""
    headers = {"Content-Encoding": "snappy", "Content-Type": TYPES[version]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    bodies = [pa.compress(message, codec="snappy", asbytes=True) for message in some]
    before = time.perf_counter()
    for body in bodies:
        while True:
            connection.request("POST", "/api/v1/write", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status < 300:
                break
            if answer.status != 503:
                sys.exit(f"answered {answer.status}: {text[:200]!r}")
            time.sleep(0.2)
    return time.perf_counter() - before


def counted(port: int, samples: int) -> None:
    """Wait until a query finds all samples."""
    query = urllib.parse.urlencode({"query": 'sum(count_over_time({job="frontend"}[100d]))', "time": time.time()})
    url = f"http://127.0.0.1:{port}/api/v1/query?{query}"
    for _ in range(300):
        with urllib.request.urlopen(url, timeout=120) as answer:
            result = json.load(answer)["data"]["result"]
        if result and float(result[0]["value"][1]) == samples:
            return
        time.sleep(0.5)
    sys.exit(f"{url}: {result} is not {samples}")


def commands(directory: Path, port: int) -> dict[str, list[str]]:
    loms = {
        "server": {"port": port},
        "store": {"path": str(directory / "loms")},
        "scrape": {"own_metrics": False, "discover": {"enabled": False}},
        "receive": {"otlp_http_port": None, "otlp_grpc_port": None},
        "rules": {"builtin": False},
        "query": {"max_samples": 10**9},
    }
    (directory / "loms.yaml").write_text(json.dumps(loms))
    (directory / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    return {
        "loms": [sys.executable, "-m", "loms", "up", "--config", str(directory / "loms.yaml")],
        "prometheus": [
            *("prometheus", "--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{port}"),
            *(f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'prometheus'}"),
        ],
        "victoriametrics": [
            *("victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={directory / 'vm'}"),
            *("-retentionPeriod=1", "-search.latencyOffset=0s"),
        ],
    }


def receive(name: str, version: str, some: Messages) -> dict[str, Any]:
    """One receiver, started for this and ended after it."""
    samples = len(some) * REQUEST
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        with running(commands(Path(folder), port)[name], Path(folder)) as process:
            ready = {"loms": "/healthz", "prometheus": "/-/ready", "victoriametrics": "/health"}[name]
            wait_for(f"http://127.0.0.1:{port}{ready}")
            time.sleep(2)  # what belongs to the start
            before = cpu_seconds(process.pid)
            wall = post(port, version, some)
            accepted = cpu_seconds(process.pid) - before
            counted(port, samples)
            stored = cpu_seconds(process.pid) - before
            memory = rss_mb(process.pid)
    return {
        "version": version,
        "cpu_seconds_per_million": round(stored / samples * 1e6, 3),
        "cpu_seconds_per_million_until_the_last_answer": round(accepted / samples * 1e6, 3),
        "samples_per_second": round(samples / wall),
        "rss_mb": round(memory),
    }


def wait_for(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{url} does not answer")


def compare(rounds: int) -> dict[str, Any]:
    first, encoding = messages(rounds, encode)
    second, encoding_2 = messages(rounds, encode_2)
    decoder = Decoder()
    report: dict[str, Any] = {
        "machine": machine(),
        "commit": commit(),
        "samples": len(first) * REQUEST,
        "decode_us_per_sample": {
            "loms 1.0": round(fastest(decoder.decode, first[:50]), 2),
            "loms 2.0": round(fastest(decoder.decode_2, second[:50]), 2),
        },
        "encode_us_per_sample": {"loms 1.0": round(encoding, 2), "loms 2.0": round(encoding_2, 2)},
        "receive": {},
    }
    for name, version, some in (
        ("loms", "1.0", first),
        ("loms", "2.0", second),
        ("prometheus", "1.0", first),
        ("victoriametrics", "1.0", first),
    ):
        report["receive"][f"{name} {version}"] = receive(name, version, some)
    return report


def show(report: dict[str, Any]) -> None:
    print(f"{report['samples']:,} samples, {report['machine']}, commit {report['commit']}")
    for what in ("decode_us_per_sample", "encode_us_per_sample"):
        print(f"{what}: " + ", ".join(f"{name} {value}" for name, value in report[what].items()))
    for name, row in report["receive"].items():
        print(f"{name:<22} {row['cpu_seconds_per_million']:>7} CPU-s per million, {row['rss_mb']} MB")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    report = compare(60 if options.quick else 400)
    print(json.dumps(report)) if options.json else show(report)


if __name__ == "__main__":
    main()
