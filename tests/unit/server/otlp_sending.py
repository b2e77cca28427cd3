"""A receiver, over a real store or one that only counts, and small requests for it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.core import config
from loms.core.clock import ManualClock, SystemClock
from loms.core.model import SampleBatch
from loms.core.settings import Receive
from loms.server.otlp.receiver import OtlpReceiver
from loms.server.runtime import Server
from loms.store.arrivals import Accepted


class Kept:
    """Stands where the store is: everything is taken, or nothing while it is ``full``."""

    def __init__(self) -> None:
        self.full = False
        self.samples = 0
        self.rows: list[tuple[str, pa.Table]] = []

    def accept(self, batch: SampleBatch, /) -> Accepted:
        if self.full:
            return Accepted(full=True)
        self.samples += len(batch)
        return Accepted(accepted=len(batch))

    def offer(self, table: str, rows: pa.Table, /) -> bool:
        if not self.full:
            self.rows.append((table, rows))
        return not self.full

    def count(self, signal: str) -> int:
        return (
            self.samples
            if signal == "metrics"
            else sum(len(rows) for name, rows in self.rows if name == TABLES[signal])
        )


def receiving(kept: Kept, **settings: Any) -> OtlpReceiver:
    return OtlpReceiver(
        Receive.model_validate(settings),
        ManualClock(now_ms=NOW_MS),
        kept,
        kept,
        lambda metadata: None,
        bounds_ms=lambda: (NOW_MS - 86_400_000, NOW_MS + 600_000),
        last_values=lambda ids, since_ms: {},
    )


NOW_MS = SystemClock().now_ms() // 1000 * 1000
"""The store expires by its own clock."""
NOW_NS = NOW_MS * 1_000_000


@contextmanager
def running(path: Path, **environ: str) -> Iterator[Server]:
    settings = config.load(None, {"LOMS__STORE__PATH": str(path), **environ})
    with Server(settings, ManualClock(now_ms=NOW_MS), "http://127.0.0.1:8090") as server:
        yield server


def metrics(*values: float, at_ns: int = NOW_NS) -> ExportMetricsServiceRequest:
    points = [{"time_unix_nano": at_ns + i * 10**9, "as_double": value} for i, value in enumerate(values)]
    metric = {"name": "g", "unit": "s", "description": "What it is.", "gauge": {"data_points": points}}
    return ExportMetricsServiceRequest(resource_metrics=[{"scope_metrics": [{"metrics": [metric]}]}])


def traces(*spans: dict[str, Any]) -> ExportTraceServiceRequest:
    filled = [
        {"trace_id": b"\x01" * 16, "span_id": bytes([i + 1]) * 8, "start_time_unix_nano": NOW_NS, "name": "s", **span}
        for i, span in enumerate(spans)
    ]
    return ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": filled}]}])


def logs(*records: dict[str, Any]) -> ExportLogsServiceRequest:
    filled = [{"time_unix_nano": NOW_NS, **record} for record in records]
    return ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": filled}]}])


REQUESTS = {"metrics": metrics(1.0), "traces": traces({}), "logs": logs({"body": {"string_value": "hello"}})}
TABLES = {"metrics": "samples", "traces": "otel_traces", "logs": "otel_logs"}


def rows(server: Server, signal: str) -> int:
    """How many samples, spans or records are stored."""
    assert server.writer.flush()
    assert server.telemetry.flush()
    columns = server.database.query_columns(f"SELECT count() AS n FROM {TABLES[signal]}")
    return int(columns["n"][0].as_py())


def zstd(body: bytes) -> bytes:
    packed: bytes = pa.compress(body, codec="zstd", asbytes=True)
    return packed


ENCODINGS = {"": bytes, "identity": bytes, "gzip": gzip.compress, "zstd": zstd, "GZip": gzip.compress}
