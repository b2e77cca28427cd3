"""The OpenTelemetry SDK for Python sends its three signals over both transports into a running LOMS."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.metrics import Observation
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.processes import Loms, free_port, wait_until

from loms.core.clock import SystemClock
from loms.store.database import Database

pytestmark = pytest.mark.integration

TRANSPORTS = ("http", "grpc")


class Ports:
    def __init__(self) -> None:
        self.http, self.grpc = free_port(), free_port()

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"receive": {"otlp_http_port": self.http, "otlp_grpc_port": self.grpc}, **more}

    def exporter(self, signal: str, transport: str, **more: Any) -> Any:
        kinds = {
            ("traces", "http"): HttpSpans, ("metrics", "http"): HttpMetrics, ("logs", "http"): HttpLogs,
            ("traces", "grpc"): GrpcSpans, ("metrics", "grpc"): GrpcMetrics, ("logs", "grpc"): GrpcLogs,
        }  # fmt: skip
        if transport == "http":
            url = f"http://127.0.0.1:{self.http}/v1/{signal}"
            return kinds[signal, transport](endpoint=url, compression=Compression.Gzip, **more)
        return kinds[signal, transport](endpoint=f"http://127.0.0.1:{self.grpc}", insecure=True, **more)


def resource(transport: str) -> Resource:
    return Resource.create({"service.name": transport, "service.instance.id": f"{transport}:1", "cards": [1, 2]})


def send_spans(ports: Ports, transport: str) -> list[ReadableSpan]:
    sent: list[ReadableSpan] = []

    class Keeping(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            sent.append(span)
            super().on_end(span)

    provider = TracerProvider(resource=resource(transport))
    provider.add_span_processor(Keeping(ports.exporter("traces", transport)))
    tracer = provider.get_tracer("lib", "1.2")
    attributes = {"model": "llama", "tokens": 7, "temperature": 0.25, "stream": True, "stops": ["a", "b"]}
    with tracer.start_as_current_span("request", kind=trace.SpanKind.SERVER, attributes=attributes) as root:
        link = trace.Link(root.get_span_context(), {"why": "test"})
        with tracer.start_as_current_span("decode", links=[link]) as inner:
            inner.add_event("first token", {"at": 0.5})
            inner.set_status(trace.StatusCode.ERROR, "cancelled")
    provider.shutdown()
    return sent


def send_metrics(ports: Ports, transport: str, *, delta: bool) -> None:
    """The counter comes to 5 and the histograms to 3 values in two exports."""
    temporality = AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
    exporter = ports.exporter(
        "metrics", transport, preferred_temporality={Counter: temporality, Histogram: temporality}
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    exponential = View(instrument_name="app.exponential", aggregation=ExponentialBucketHistogramAggregation())
    name = f"{transport}-{'delta' if delta else 'cumulative'}"
    provider = MeterProvider([reader], Resource.create({"service.name": name}), views=[exponential])
    meter = provider.get_meter("lib")
    counter, running = meter.create_counter("app.requests", "{request}"), meter.create_up_down_counter("app.running")
    histogram = meter.create_histogram("gen_ai.server.time_to_first_token", "s", "Arrival to first token.")
    other = meter.create_histogram("app.exponential", "s")
    meter.create_observable_gauge("app.share", unit="1", callbacks=[lambda _: [Observation(0.75)]])
    for step, values in enumerate(((0.2, 0.2), (3.0,))):
        counter.add(2 + step, {"route": "/x"})
        running.add(1)
        for value in values:
            histogram.record(value)
            other.record(value)
        assert provider.force_flush()
    provider.shutdown()


def send_logs(ports: Ports, transport: str) -> None:
    provider = LoggerProvider(resource(transport))
    provider.add_log_record_processor(SimpleLogRecordProcessor(ports.exporter("logs", transport)))
    provider.get_logger("lib").emit(
        LogRecord(
            timestamp=SystemClock().now_ms() * 10**6,
            severity_text="WARN",
            severity_number=SeverityNumber.WARN,
            body={"text": "it is warm"},
            attributes={"rack": 7},
            event_name="warmth",
        )
    )
    provider.shutdown()


class Sent(NamedTuple):
    answers: dict[str, Any]
    database: Database
    spans: dict[str, list[ReadableSpan]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """Everything is sent and asked for; then the store as the stopped LOMS has left it."""
    folder, ports = tmp_path_factory.mktemp("otlp"), Ports()
    spans: dict[str, list[ReadableSpan]] = {}
    answers: dict[str, Any] = {}
    with Loms(folder, [], ports.settings()) as loms:
        for transport in TRANSPORTS:
            spans[transport] = send_spans(ports, transport)
            send_logs(ports, transport)
            for delta in (False, True):
                send_metrics(ports, transport, delta=delta)
        wait_until(
            lambda: len(loms.get("/api/v1/query", query="app_requests_total")["data"]["result"]) == 4, 30, "samples"
        )
        for expr in EXPECTED:
            answers[expr] = loms.get("/api/v1/query", query=expr)["data"]["result"]
        answers["metadata"] = loms.get("/api/v1/metadata")["data"]
    with Database.open(folder / "data", 1e9, SystemClock()) as database:
        yield Sent(answers, database, spans)


EXPECTED = {
    "app_requests_total": 5.0,
    "app_running": 2.0,
    "app_share_ratio": 0.75,
    "gen_ai_server_time_to_first_token_seconds_count": 3.0,
    "gen_ai_server_time_to_first_token_seconds_sum": 3.4,
    'gen_ai_server_time_to_first_token_seconds_bucket{le="5"}': 3.0,
    'gen_ai_server_time_to_first_token_seconds_bucket{le="0"}': 0.0,
    'app_exponential_seconds_bucket{le="1"}': 2.0,
    'app_exponential_seconds_bucket{le="4"}': 3.0,
    "app_exponential_seconds_count": 3.0,
}


@pytest.mark.parametrize("expr", EXPECTED)
def test_metrics_over_both_transports_in_both_temporalities(sent: Sent, expr: str) -> None:
    found = {row["metric"]["job"]: float(row["value"][1]) for row in sent.answers[expr]}
    assert found == pytest.approx(
        {f"{transport}-{kind}": EXPECTED[expr] for transport in TRANSPORTS for kind in ("delta", "cumulative")}
    )


def test_metadata(sent: Sent) -> None:
    metadata = sent.answers["metadata"]["gen_ai_server_time_to_first_token_seconds"]
    assert metadata == [{"type": "histogram", "help": "Arrival to first token.", "unit": "seconds"}]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_spans_read_back_equal(sent: Sent, transport: str) -> None:
    columns = sent.database.query_columns(
        "SELECT * FROM otel_traces WHERE ServiceName = {name:String} ORDER BY SpanName", {"name": transport}
    )
    rows = [
        dict(zip(columns, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)
    ]
    for row, span in zip(rows, sorted(sent.spans[transport], key=lambda span: span.name), strict=True):
        assert row["TraceId"] == f"{span.context.trace_id:032x}"
        assert row["SpanId"] == f"{span.context.span_id:016x}"
        assert row["ParentSpanId"] == (f"{span.parent.span_id:016x}" if span.parent else "")
        assert (row["SpanName"], row["SpanKind"]) == (span.name, span.kind.name.capitalize())
        assert row["Timestamp"].value == span.start_time
        assert row["Duration"] == span.end_time - span.start_time
        assert (row["ScopeName"], row["ScopeVersion"]) == ("lib", "1.2")
        assert (row["StatusCode"], row["StatusMessage"]) == (
            span.status.status_code.name.capitalize(), span.status.description or "",
        )  # fmt: skip
        assert dict(row["ResourceAttributes"])["cards"] == "[1,2]"
    decode, request = rows
    assert dict(request["SpanAttributes"]) == {
        "model": "llama", "tokens": "7", "temperature": "0.25", "stream": "true", "stops": '["a","b"]',
    }  # fmt: skip
    assert decode["Events.Name"] == ["first token"]
    assert decode["Events.Attributes"] == [[("at", "0.5")]]
    assert (decode["Links.SpanId"], decode["Links.Attributes"]) == ([request["SpanId"]], [[("why", "test")]])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_records_read_back_equal(sent: Sent, transport: str) -> None:
    columns = sent.database.query_columns(
        "SELECT * FROM otel_logs WHERE ServiceName = {name:String}", {"name": transport}
    )
    (row,) = (
        dict(zip(columns, one, strict=True)) for one in zip(*(c.to_pylist() for c in columns.values()), strict=True)
    )
    assert (row["Body"], row["SeverityText"], row["SeverityNumber"]) == ('{"text":"it is warm"}', "WARN", 13)
    assert dict(row["LogAttributes"])["rack"] == "7"
    assert (row["ScopeName"], row["EventName"]) == ("lib", "warmth")


def test_what_comes_in_is_forwarded_and_totals_go_on_after_kill_9(tmp_path: Path) -> None:
    """One LOMS sends on to two others' ports (HTTP, gRPC); deltas go on from where they stood before a kill."""
    for name in ("front", "back"):
        (tmp_path / name).mkdir()
    back_ports, front_ports = Ports(), Ports()
    forward = [
        {"url": f"http://127.0.0.1:{back_ports.http}", "name": "over-http", "signals": ["metrics", "logs"]},
        {"url": f"grpc://127.0.0.1:{back_ports.grpc}", "name": "over-grpc", "signals": ["traces"]},
    ]
    with (
        Loms(tmp_path / "front", [], front_ports.settings(otlp_forward=forward)) as front,
        Loms(tmp_path / "back", [], back_ports.settings()) as back,
    ):

        def total(loms: Loms) -> float:
            return loms.value("sum(app_requests_total)")

        send_metrics(front_ports, "http", delta=True)
        send_spans(front_ports, "http")
        wait_until(lambda: total(front) == 5 and total(back) == 5, 30, "the forwarding of metrics")
        front.kill()
        front.start()
        send_delta(front_ports, 4)
        wait_until(lambda: total(front) == 9 and total(back) == 9, 30, "totals that go on")

        wait_until(lambda: _written(back) == 2, 30, "the forwarding of spans")


def send_delta(ports: Ports, more: int) -> None:
    """Adds to the series that `send_metrics` began."""
    now = SystemClock().now_ms() * 10**6
    attributes = [{"key": "route", "value": {"string_value": "/x"}}]
    point = {"time_unix_nano": now, "start_time_unix_nano": now - 1, "as_int": more, "attributes": attributes}
    added = {"aggregation_temporality": 1, "is_monotonic": True, "data_points": [point]}
    scoped = {"scope": {"name": "lib"}, "metrics": [{"name": "app.requests", "unit": "{request}", "sum": added}]}
    resource = {"attributes": [{"key": "service.name", "value": {"string_value": "http-delta"}}]}
    request = ExportMetricsServiceRequest(resource_metrics=[{"resource": resource, "scope_metrics": [scoped]}])
    url, headers = f"http://127.0.0.1:{ports.http}/v1/metrics", {"Content-Type": "application/x-protobuf"}
    with urllib.request.urlopen(urllib.request.Request(url, request.SerializeToString(), headers), timeout=20):
        pass


def test_many_senders_at_once_lose_nothing(tmp_path: Path) -> None:
    ports = Ports()
    with Loms(tmp_path, [], ports.settings()) as loms:
        threads = [threading.Thread(target=send_spans, args=(ports, TRANSPORTS[i % 2])) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: _written(loms) == 16, 30, "the writing of spans")


def _written(loms: Loms) -> float:
    """Spans that the store has acknowledged."""
    with urllib.request.urlopen(f"{loms.url}/metrics", timeout=20) as answer:
        lines = str(answer.read().decode()).splitlines()
    name = 'loms_telemetry_written_rows_total{table="otel_traces"} '
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)
