"""How much OTLP one core takes: spans, points and histograms per second of CPU, in protobuf and JSON, HTTP and gRPC.

A ``loms up`` of its own receives requests encoded beforehand; what counts is the CPU time of its whole process
(decoding, storing, merging, answering), so that a figure says what one core takes. Spans have 12 attributes (half of
them GenAI's), every second one an event; points have 4 attributes and 20,000 series; histograms have 14 bounds.

``--quick`` takes under a minute; ``--json`` prints one JSON object; ``--profile FILE`` decodes spans and points in this
process instead and writes where the time goes (pstats).
"""

from __future__ import annotations

import argparse
import cProfile
import gzip
import http.client
import json
import os
import platform
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.core.clock import SystemClock
from loms.ingest.otlp.bodies import parsed
from loms.ingest.otlp.limits import Limits, Refusals
from loms.ingest.otlp.metrics import MetricTranslator
from loms.ingest.otlp.rows import span_rows

SPANS, POINTS, SERIES, HISTOGRAMS = 512, 2000, 20_000, 500
BOUNDS = [0.005 * 2**i for i in range(14)]
TICKS = os.sysconf("SC_CLK_TCK")
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"string_value": value}}


RESOURCE = {"attributes": [text(f"resource.{i}", f"value-{i}") for i in range(6)] + [text("service.name", "bench")]}


def spans(rng: random.Random) -> ExportTraceServiceRequest:
    now = time.time_ns()

    def one(i: int) -> dict[str, Any]:
        attributes = [text(f"http.attribute.{j}", f"some value {rng.randrange(50)}") for j in range(6)]
        attributes += [text("gen_ai.request.model", "llama"), text("gen_ai.request.id", f"{rng.getrandbits(64):x}")]
        attributes += [{"key": f"gen_ai.usage.{j}", "value": {"int_value": rng.randrange(5000)}} for j in range(2)]
        attributes += [{"key": f"gen_ai.latency.{j}", "value": {"double_value": rng.random()}} for j in range(2)]
        event = {"time_unix_nano": now, "name": "first token", "attributes": [text("a", "b")]}
        return {
            "trace_id": rng.randbytes(16), "span_id": rng.randbytes(8), "parent_span_id": rng.randbytes(8),
            "name": f"operation {i % 20}", "kind": 2, "start_time_unix_nano": now - rng.randrange(10**9),
            "end_time_unix_nano": now, "attributes": attributes, "events": [event] if i % 2 else [],
        }  # fmt: skip

    scoped = {"scope": {"name": "bench"}, "spans": [one(i) for i in range(SPANS)]}
    return ExportTraceServiceRequest(resource_spans=[{"resource": RESOURCE, "scope_spans": [scoped]}])


def points(turn: int, kind: str) -> ExportMetricsServiceRequest:
    """The ``turn``-th request of a sender whose series take several."""
    count = POINTS if kind == "points" else HISTOGRAMS
    rounds, place = divmod(turn * count, SERIES if kind == "points" else 4 * HISTOGRAMS)
    at = time.time_ns() // 10**9 * 10**9 - 600 * 10**9 + rounds * 10**9

    def one(i: int) -> dict[str, Any]:
        attributes = [text("http.route", f"/r/{i // 100}"), text("method", "POST"), text("shard", str(i % 100))]
        times = {"time_unix_nano": at, "start_time_unix_nano": 1, "attributes": [*attributes, text("status", "200")]}
        if kind == "points":
            return {**times, "as_double": float(rounds * i)}
        return {**times, "count": 105, "sum": 3.5, "explicit_bounds": BOUNDS, "bucket_counts": list(range(15))}

    data = {"aggregation_temporality": 2, "data_points": [one(place + i) for i in range(count)]}
    field = "sum" if kind == "points" else "histogram"
    metric = {
        "name": f"bench.{kind}",
        "unit": "s",
        field: {**data, **({"is_monotonic": True} if field == "sum" else {})},
    }
    scoped = {"scope": {"name": "bench"}, "metrics": [metric]}
    return ExportMetricsServiceRequest(resource_metrics=[{"resource": RESOURCE, "scope_metrics": [scoped]}])


def in_json(message: Message) -> bytes:
    """OTLP's JSON: proto3's, but for the ids."""
    fields = json_format.MessageToDict(message)
    for group in fields.get("resourceSpans", ()):
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            span.update(
                (key, f"{random.getrandbits(bits):0{bits // 4}x}") for key, bits in (("traceId", 128), ("spanId", 64))
            )
            span.pop("parentSpanId", None)
    return json.dumps(fields).encode()


class Loms:
    """``loms up`` without anything else to do."""

    def __init__(self, folder: Path) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        config = {
            "server": {"port": self.port},
            "store": {"path": str(folder)},
            "receive": {"otlp_http_port": None, "otlp_grpc_port": self.grpc_port},
            "scrape": {"discover": {"enabled": False}, "own_metrics": False},
            "rules": {"builtin": False},
        }
        file = folder / "loms.yaml"
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "loms", "up", "--config", str(file)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.grpc_port)).close()
                return
            except OSError:
                time.sleep(0.1)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def posted(loms: Loms, signal: str, bodies: list[bytes], headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", loms.port)
    for body in bodies:
        while True:
            connection.request("POST", f"/v1/{signal}", body, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status == 200:
                break
            assert answer.status == 429, said
            time.sleep(0.2)
    connection.close()


def called(loms: Loms, bodies: list[bytes]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{loms.grpc_port}") as channel:
        export = channel.unary_unary(EXPORT)
        for body in bodies:
            export(body, timeout=60)


def cases(quick: bool) -> Iterator[tuple[str, str, list[bytes], dict[str, str], int]]:
    """Name, signal (grpc for gRPC), bodies, headers, items in each body."""
    rng = random.Random(7)
    protobuf, as_json = {"Content-Type": "application/x-protobuf"}, {"Content-Type": "application/json"}
    count = 40 if quick else 300
    requests = [spans(rng) for _ in range(count)]
    binary = [request.SerializeToString() for request in requests]
    yield "spans, protobuf", "traces", binary, protobuf, SPANS
    yield (
        "spans, protobuf, gzip",
        "traces",
        [gzip.compress(body, 6) for body in binary],
        {**protobuf, "Content-Encoding": "gzip"},
        SPANS,
    )
    yield "spans, gRPC", "grpc", binary, {}, SPANS
    yield "spans, JSON", "traces", [in_json(request) for request in requests[: count // 2]], as_json, SPANS
    series = [points(turn, "points") for turn in range(count)]
    yield "points, protobuf", "metrics", [request.SerializeToString() for request in series], protobuf, POINTS
    again = [points(turn + 2 * count, "points") for turn in range(count // 2)]
    yield "points, JSON", "metrics", [in_json(request) for request in again], as_json, POINTS
    histograms = [points(turn, "histograms") for turn in range(count)]
    yield (
        "histograms, protobuf",
        "metrics",
        [request.SerializeToString() for request in histograms],
        protobuf,
        HISTOGRAMS,
    )


def measured(loms: Loms, signal: str, bodies: list[bytes], headers: dict[str, str], items: int) -> dict[str, float]:
    first, rest = bodies[: len(bodies) // 4], bodies[len(bodies) // 4 :]
    send = (lambda some: called(loms, some)) if signal == "grpc" else (lambda some: posted(loms, signal, some, headers))
    send(first)  # series and parts are known from then on
    time.sleep(2.0)
    cpu, wall = loms.cpu_seconds(), time.perf_counter()
    send(rest)
    wall = time.perf_counter() - wall
    time.sleep(2.0)  # what was queued is written
    cpu = loms.cpu_seconds() - cpu
    total = len(rest) * items
    return {
        "per_core_second": total / cpu,
        "per_wall_second": total / wall,
        "bytes_per_item": sum(map(len, rest)) / total,
        "cpu_seconds": cpu,
    }


def profile(path: str) -> None:
    rng = random.Random(7)
    traces = [spans(rng).SerializeToString() for _ in range(60)]
    metrics = [points(turn, "points").SerializeToString() for turn in range(60)]
    translator, profiler = MetricTranslator(SystemClock()), cProfile.Profile()
    profiler.enable()
    for body in traces:
        span_rows(parsed("traces", body), Limits(), Refusals())
    for body in metrics:
        translator.translate(parsed("metrics", body), Limits()).batch()
    profiler.disable()
    profiler.dump_stats(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", metavar="FILE")
    options = parser.parse_args()
    if options.profile:
        profile(options.profile)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        loms = Loms(Path(folder))
        try:
            for name, signal, bodies, headers, items in cases(options.quick):
                results[name] = measured(loms, signal, bodies, headers, items)
                if not options.json:
                    found = results[name]
                    print(
                        f"{name:24} {found['per_core_second']:10,.0f}/s of one core"
                        f" {found['per_wall_second']:10,.0f}/s sent {found['bytes_per_item']:6.0f} bytes each"
                    )
            results["peak_bytes"] = loms.peak_bytes()
        finally:
            loms.close()
    results["machine"] = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    print(
        json.dumps(results) if options.json else f"peak {results['peak_bytes'] / 2**20:.0f} MiB; {results['machine']}"
    )


if __name__ == "__main__":
    main()
