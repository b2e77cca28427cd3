"""What is sent by OTLP is what is stored, field by field; and no body, however broken, does more than be refused.

Random payloads go through the real decoders, protobuf and JSON, into the real embedded store.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.core.clock import ManualClock, SystemClock
from loms.core.model import SampleBatch
from loms.core.settings import Receive
from loms.ingest.otlp.limits import SIGNALS, Limits, Signal
from loms.ingest.otlp.metrics import MetricTranslator
from loms.server.otlp.receiver import OtlpReceiver
from loms.store.arrivals import Accepted, Arrivals
from loms.store.database import Database
from loms.store.telemetry import TelemetryWriter
from loms.store.writer import Writer

NOW_MS = SystemClock().now_ms()
"""The store expires by its own clock."""
NOW_NS = NOW_MS * 1_000_000
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@dataclass
class Running:
    database: Database
    writer: Writer
    telemetry: TelemetryWriter
    receiver: OtlpReceiver

    def stored(self, table: str, columns: str = "*") -> list[dict[str, Any]]:
        """All rows, after which the table is empty."""
        assert self.writer.flush()
        assert self.telemetry.flush()
        assert self.telemetry.trouble == ""
        found = self.database.query_columns(f"SELECT {columns} FROM {table}")
        self.database.command(f"TRUNCATE TABLE {table}")
        rows = zip(*(column.to_pylist() for column in found.values()), strict=True)
        return [dict(zip(found, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    clock = ManualClock(NOW_MS)
    with Database.open(tmp_path_factory.mktemp("store"), 30 * 86_400.0, clock) as database:
        writer, telemetry = Writer(database, clock, flush_seconds=3600), TelemetryWriter(database, flush_seconds=3600)
        receiver = OtlpReceiver(
            Receive(keep_prompts=True),
            clock,
            Arrivals(writer, database, clock),
            telemetry,
            lambda metadata: None,
            bounds_ms=writer.bounds_ms,
            last_values=database.last_values,
        )
        yield Running(database, writer, telemetry, receiver)
        telemetry.close()
        writer.close()


# Values: what protobuf takes, what JSON has for it, and what it means


words = st.text(st.characters(codec="utf-8"), max_size=10)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
floats = st.floats(allow_nan=False, allow_infinity=False)


@dataclass(frozen=True)
class Value:
    proto: dict[str, Any]
    json: dict[str, Any]
    meaning: Any
    text: str | None = None
    """Where there is no doubt about it; else the stored text must be JSON of ``meaning``."""


def _float(value: float) -> Value:
    return Value({"double_value": value}, {"doubleValue": value}, value)


def _bytes(value: bytes) -> Value:
    text = base64.b64encode(value).decode()
    return Value({"bytes_value": value}, {"bytesValue": text}, text, text)


def _list(values: list[Value]) -> Value:
    return Value(
        {"array_value": {"values": [one.proto for one in values]}},
        {"arrayValue": {"values": [one.json for one in values]}},
        [one.meaning for one in values],
    )


def _map(values: dict[str, Value]) -> Value:
    return Value(
        {"kvlist_value": {"values": [{"key": key, "value": one.proto} for key, one in values.items()]}},
        {"kvlistValue": {"values": [{"key": key, "value": one.json} for key, one in values.items()]}},
        {key: one.meaning for key, one in values.items()},
    )


scalars = st.one_of(
    words.map(lambda text: Value({"string_value": text}, {"stringValue": text}, text, text)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: Value({"int_value": n}, {"intValue": str(n)}, n, str(n))),
    st.booleans().map(lambda b: Value({"bool_value": b}, {"boolValue": b}, b, json.dumps(b))),
    floats.map(_float),
    st.binary(max_size=8).map(_bytes),
    st.just(Value({}, {}, None, "")),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(_list) | st.dictionaries(words, inner, max_size=3).map(_map),
    max_leaves=8,
)
attributes = st.dictionaries(keys, values, max_size=4)


def proto(of: dict[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value.proto} for key, value in of.items()]


def in_json(of: dict[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value.json} for key, value in of.items()]


def same(stored: list[tuple[str, str]], sent: dict[str, Value]) -> bool:
    return [key for key, _ in stored] == list(sent) and all(
        spelled(text, value) for (_, text), value in zip(stored, sent.values(), strict=True)
    )


def spelled(text: str, value: Value) -> bool:
    if value.text is not None:
        return text == value.text
    return bool(json.loads(text) == value.meaning)


# Spans and records


ids = st.binary(min_size=8, max_size=8).filter(any)
trace_ids = st.binary(min_size=16, max_size=16).filter(any)
moments = st.integers(NOW_NS - 6 * 86_400 * 10**9, NOW_NS + 600 * 10**9)
events = st.lists(st.tuples(st.integers(0, 2**63 - 1), words, attributes), max_size=2)
links = st.lists(st.tuples(trace_ids, ids, words, attributes), max_size=2)
spans = st.fixed_dictionaries(
    {
        "trace_id": trace_ids, "span_id": ids, "parent": st.none() | ids, "state": words, "name": words,
        "kind": st.integers(0, 5), "start": moments, "duration": st.integers(0, 2**62), "status": st.integers(0, 2),
        "message": words, "attributes": attributes, "events": events, "links": links,
    }
)  # fmt: skip
groups = st.tuples(attributes, words, words, st.lists(spans, max_size=3))
KINDS = ["Unspecified", "Internal", "Server", "Client", "Producer", "Consumer"]


def span_proto(span: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": span["trace_id"], "span_id": span["span_id"], "parent_span_id": span["parent"] or b"",
        "trace_state": span["state"], "name": span["name"], "kind": span["kind"], "start_time_unix_nano": span["start"],
        "end_time_unix_nano": span["start"] + span["duration"], "attributes": proto(span["attributes"]),
        "status": {"code": span["status"], "message": span["message"]},
        "events": [{"time_unix_nano": at, "name": name, "attributes": proto(of)} for at, name, of in span["events"]],
        "links": [
            {"trace_id": trace, "span_id": one, "trace_state": state, "attributes": proto(of)}
            for trace, one, state, of in span["links"]
        ],
    }  # fmt: skip


def span_json(span: dict[str, Any]) -> dict[str, Any]:
    return {
        "traceId": span["trace_id"].hex(), "spanId": span["span_id"].hex().upper(),
        "parentSpanId": (span["parent"] or b"").hex(), "traceState": span["state"], "name": span["name"],
        "kind": span["kind"], "startTimeUnixNano": str(span["start"]),
        "endTimeUnixNano": span["start"] + span["duration"], "attributes": in_json(span["attributes"]),
        "status": {"code": span["status"], "message": span["message"]},
        "events": [
            {"timeUnixNano": str(at), "name": name, "attributes": in_json(of)} for at, name, of in span["events"]
        ],
        "links": [
            {"traceId": trace.hex(), "spanId": one.hex(), "traceState": state, "attributes": in_json(of)}
            for trace, one, state, of in span["links"]
        ],
    }  # fmt: skip


@settings(SLOW, max_examples=60)
@given(sent=st.lists(groups, max_size=3), as_json=st.booleans())
def test_spans_read_back_as_they_were_sent(running: Running, sent: list[Any], as_json: bool) -> None:
    if as_json:
        resource_spans = [
            {
                "resource": {"attributes": in_json(resource)},
                "scopeSpans": [
                    {"scope": {"name": name, "version": version}, "spans": [span_json(span) for span in spans]}
                ],
            }
            for resource, name, version, spans in sent
        ]
        body = json.dumps({"resourceSpans": resource_spans}).encode()
    else:
        body = ExportTraceServiceRequest(
            resource_spans=[
                {
                    "resource": {"attributes": proto(resource)},
                    "scope_spans": [
                        {"scope": {"name": name, "version": version}, "spans": [span_proto(s) for s in spans]}
                    ],
                }
                for resource, name, version, spans in sent
            ]
        ).SerializeToString()
    answer = running.receiver.take("traces", body, as_json=as_json)
    assert (answer.http, answer.message.ByteSize()) == (200, 0)
    stored = running.stored("otel_traces")
    expected = [(resource, name, version, span) for resource, name, version, spans in sent for span in spans]
    assert len(stored) == len(expected)
    by_ids: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in stored:
        by_ids.setdefault((row["TraceId"], row["SpanId"]), []).append(row)
    for resource, name, version, span in expected:
        candidates = by_ids[(span["trace_id"].hex(), span["span_id"].hex())]
        matching = next((row for row in candidates if is_span(row, resource, name, version, span)), None)
        assert matching is not None, (candidates, span)
        candidates.remove(matching)


def is_span(row: dict[str, Any], resource: dict[str, Value], name: str, version: str, span: dict[str, Any]) -> bool:
    service = resource.get("service.name")
    return (
        row["Timestamp"].value == span["start"]
        and row["Duration"] == span["duration"]
        and row["ParentSpanId"] == (span["parent"] or b"").hex()
        and (row["TraceState"], row["SpanName"], row["StatusMessage"]) == (span["state"], span["name"], span["message"])
        and (row["SpanKind"], row["StatusCode"]) == (KINDS[span["kind"]], ["Unset", "Ok", "Error"][span["status"]])
        and (row["ScopeName"], row["ScopeVersion"]) == (name, version)
        and (service is None or spelled(row["ServiceName"], service))
        and same(row["ResourceAttributes"], resource)
        and same(row["SpanAttributes"], span["attributes"])
        and [at.value for at in row["Events.Timestamp"]] == [at for at, _, _ in span["events"]]
        and row["Events.Name"] == [event for _, event, _ in span["events"]]
        and all(same(got, of) for got, (_, _, of) in zip(row["Events.Attributes"], span["events"], strict=True))
        and row["Links.TraceId"] == [trace.hex() for trace, _, _, _ in span["links"]]
        and row["Links.SpanId"] == [one.hex() for _, one, _, _ in span["links"]]
        and row["Links.TraceState"] == [state for _, _, state, _ in span["links"]]
        and all(same(got, of) for got, (_, _, _, of) in zip(row["Links.Attributes"], span["links"], strict=True))
    )


records = st.fixed_dictionaries(
    {
        "time": moments, "trace_id": st.just(b"") | trace_ids, "span_id": st.just(b"") | ids,
        "flags": st.integers(0, 255),
        "severity": words, "number": st.integers(0, 24), "body": values, "attributes": attributes, "event": words,
    }
)  # fmt: skip


@settings(SLOW, max_examples=60)
@given(record=records, resource=attributes, scope=attributes, urls=st.tuples(words, words), as_json=st.booleans())
def test_records_read_back_as_they_were_sent(
    running: Running,
    record: dict[str, Any],
    resource: dict[str, Value],
    scope: dict[str, Value],
    urls: tuple[str, str],
    as_json: bool,
) -> None:
    if as_json:
        one = {
            "timeUnixNano": str(record["time"]), "traceId": record["trace_id"].hex(), "spanId": record["span_id"].hex(),
            "flags": record["flags"], "severityText": record["severity"], "severityNumber": record["number"],
            "body": record["body"].json, "attributes": in_json(record["attributes"]), "eventName": record["event"],
        }  # fmt: skip
        scoped = {"scope": {"name": "n", "attributes": in_json(scope)}, "schemaUrl": urls[1], "logRecords": [one]}
        group = {"resource": {"attributes": in_json(resource)}, "schemaUrl": urls[0], "scopeLogs": [scoped]}
        body = json.dumps({"resourceLogs": [group]}).encode()
    else:
        two = {
            "time_unix_nano": record["time"], "trace_id": record["trace_id"], "span_id": record["span_id"],
            "flags": record["flags"], "severity_text": record["severity"], "severity_number": record["number"],
            "body": record["body"].proto, "attributes": proto(record["attributes"]), "event_name": record["event"],
        }  # fmt: skip
        scoped = {"scope": {"name": "n", "attributes": proto(scope)}, "schema_url": urls[1], "log_records": [two]}
        group = {"resource": {"attributes": proto(resource)}, "schema_url": urls[0], "scope_logs": [scoped]}
        body = ExportLogsServiceRequest(resource_logs=[group]).SerializeToString()
    assert running.receiver.take("logs", body, as_json=as_json).http == 200
    (row,) = running.stored("otel_logs")
    assert row["Timestamp"].value == record["time"]
    assert (row["TraceId"], row["SpanId"]) == (record["trace_id"].hex(), record["span_id"].hex())
    assert (row["TraceFlags"], row["SeverityNumber"]) == (record["flags"], record["number"])
    assert (row["SeverityText"], row["EventName"]) == (record["severity"], record["event"])
    assert (row["ResourceSchemaUrl"], row["ScopeSchemaUrl"], row["ScopeName"]) == (*urls, "n")
    assert spelled(row["Body"], record["body"])
    assert same(row["ResourceAttributes"], resource)
    assert same(row["ScopeAttributes"], scope)
    assert same(row["LogAttributes"], record["attributes"])


# Metrics


numbers = st.floats(width=64) | st.integers(-(2**63), 2**63 - 1)
TURNS = itertools.count()
"""Every example has series of its own: what is stored of one is known from then on."""
points = st.dictionaries(st.integers(0, 500), numbers, min_size=1, max_size=5)


@settings(SLOW, max_examples=40)
@given(series=st.dictionaries(words, points, min_size=1, max_size=3))
def test_points_read_back_as_they_were_sent(running: Running, series: dict[str, dict[int, Any]]) -> None:
    turn = next(TURNS)

    def point(label: str, second: int, value: float) -> dict[str, Any]:
        number = {"as_int": value} if isinstance(value, int) else {"as_double": value}
        attribute = {"key": "a", "value": {"string_value": label}}
        return {"time_unix_nano": NOW_NS + second * 10**9, "attributes": [attribute], **number}

    sent = [point(label, second, value) for label, values in series.items() for second, value in values.items()]
    metric = {"name": f"m.{turn}", "gauge": {"data_points": sent}}
    resource = {"attributes": [{"key": "service.instance.id", "value": {"string_value": str(turn)}}]}
    group = {"resource": resource, "scope_metrics": [{"metrics": [metric]}]}
    body = ExportMetricsServiceRequest(resource_metrics=[group]).SerializeToString()
    running.stored("samples")
    running.stored("series")
    for _ in range(2):  # sent again, it is stored once
        assert running.receiver.take("metrics", body).http == 200
    rows = running.stored("samples", "series_id, toUnixTimestamp64Milli(ts) AS t, reinterpretAsUInt64(value) AS bits")
    found = running.stored("series", "id, name, labels")
    labels = {row["id"]: dict(row["labels"]).get("a", "") for row in found}
    assert {row["name"] for row in found} == {f"m_{turn}"}
    assert Counter((labels[row["series_id"]], row["t"], row["bits"]) for row in rows) == Counter(
        (label, NOW_MS + second * 1000, struct.unpack("<Q", struct.pack("<d", value))[0])
        for label, values in series.items()
        for second, value in values.items()
    )


increments = st.dictionaries(st.integers(1, 50), st.integers(0, 1000), min_size=1, max_size=20)


@settings(SLOW, max_examples=100)
@given(increments=increments, data=st.data())
def test_deltas_in_any_order_and_repeated_come_to_their_sum(increments: dict[int, int], data: st.DataObject) -> None:
    sent = data.draw(
        st.permutations([*increments, *data.draw(st.lists(st.sampled_from(sorted(increments)), max_size=8))])
    )
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(sent), max_size=len(sent)))
    translator = MetricTranslator(ManualClock(NOW_MS))
    place, shown = 0, {}
    for size in [*sizes, 1]:
        some = [(second, increments[second]) for second in sent[place : place + size]] or [(99, 0)]
        place += size
        points = [{"time_unix_nano": NOW_NS + at * 10**9, "as_int": value} for at, value in some]
        metric = {"name": "c", "sum": {"aggregation_temporality": 1, "is_monotonic": True, "data_points": points}}
        samples = translator.translate(
            ExportMetricsServiceRequest(resource_metrics=[{"scope_metrics": [{"metrics": [metric]}]}]), Limits()
        )
        for ms, value in zip(samples.times, samples.values, strict=True):
            assert ms not in shown, "what was told of a moment is not told again"
            shown[ms] = value
        if place >= len(sent) and some == [(99, 0)]:
            break
    ordered = [shown[ms] for ms in sorted(shown)]
    assert ordered == sorted(ordered)
    assert math.isclose(max(shown.values()), sum(increments.values()))


# Hostile bodies


def seed_of(signal: Signal) -> bytes:
    attribute = [{"key": "k", "value": {"array_value": {"values": [{"int_value": 5}, {"string_value": "v"}]}}}]
    if signal == "traces":
        span = {
            "trace_id": b"\x01" * 16, "span_id": b"\x02" * 8, "start_time_unix_nano": NOW_NS, "attributes": attribute,
            "events": [{"time_unix_nano": NOW_NS, "name": "e", "attributes": attribute}], "links": [{"span_id": b"x"}],
        }  # fmt: skip
        return ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": [span] * 3}]}]).SerializeToString()
    if signal == "logs":
        record = {
            "time_unix_nano": NOW_NS,
            "body": attribute[0]["value"],
            "attributes": attribute,
            "severity_number": 9,
        }
        return ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": [record]}]}]).SerializeToString()
    times = {"time_unix_nano": NOW_NS, "start_time_unix_nano": NOW_NS - 10**10, "attributes": attribute}
    buckets = {"offset": 3, "bucket_counts": [1, 2, 3]}
    metrics = [
        {"name": "g", "gauge": {"data_points": [{**times, "as_double": 1.5}]}},
        {"name": "s", "sum": {"aggregation_temporality": 1, "data_points": [{**times, "as_int": 1}]}},
        {"name": "h", "histogram": {"aggregation_temporality": 2, "data_points": [
            {**times, "count": 3, "sum": 2.0, "bucket_counts": [1, 2], "explicit_bounds": [0.5]}]}},
        {"name": "e", "exponential_histogram": {"aggregation_temporality": 1, "data_points": [
            {**times, "count": 6, "scale": 2, "positive": buckets, "negative": buckets, "zero_count": 1}]}},
        {"name": "q", "summary": {"data_points": [{**times, "count": 1, "quantile_values": [{"quantile": 0.5}]}]}},
    ]  # fmt: skip
    resource = {"attributes": [{"key": "service.name", "value": {"string_value": "s"}}, *attribute]}
    group = {"resource": resource, "scope_metrics": [{"metrics": metrics}]}
    return ExportMetricsServiceRequest(resource_metrics=[group]).SerializeToString()


def mutated(draw: st.DrawFn, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        how = draw(st.sampled_from(["flip", "byte", "cut", "insert", "repeat"]))
        if how == "cut":
            del changed[at : at + draw(st.integers(1, 40))]
        elif how == "insert":
            changed[at:at] = draw(st.binary(max_size=10))
        elif how == "repeat":
            changed[at:at] = changed[at : at + 30] * draw(st.integers(1, 20))
        elif changed:
            changed[at] = changed[at] ^ (1 << draw(st.integers(0, 7))) if how == "flip" else draw(st.integers(0, 255))
    return bytes(changed)


@st.composite
def broken(draw: st.DrawFn) -> tuple[Signal, bytes]:
    signal = draw(st.sampled_from(SIGNALS))
    return signal, draw(st.just(seed_of(signal)).flatmap(lambda body: st.composite(mutated)(body)))


class Taking:
    """Takes samples as the store does, without one."""

    def accept(self, batch: SampleBatch, /) -> Accepted:
        assert len(batch.series_ids) == len(batch.timestamps_ms) == len(batch.values)
        assert set(batch.series_ids.tolist()) <= {one.id for one in batch.series}
        return Accepted(accepted=len(batch))


@settings(SLOW, max_examples=600)
@given(sent=broken())
def test_a_broken_body_is_taken_or_refused_and_harms_nothing(running: Running, sent: tuple[Signal, bytes]) -> None:
    signal, body = sent
    receiver = OtlpReceiver(
        Receive(),
        ManualClock(NOW_MS),
        Taking(),
        running.telemetry,
        lambda metadata: None,
        bounds_ms=running.writer.bounds_ms,
        last_values=lambda ids, since_ms: {},
    )
    answer = receiver.take(signal, body)
    assert answer.http in (200, 400, 413)


def test_what_was_taken_of_broken_bodies_is_written(running: Running) -> None:
    assert running.telemetry.flush()
    assert running.telemetry.trouble == ""


json_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=10,
)


@settings(SLOW, max_examples=200)
@given(signal=st.sampled_from(SIGNALS), data=st.data())
def test_json_of_any_shape_is_taken_or_refused(running: Running, signal: Signal, data: st.DataObject) -> None:
    request = {
        "traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest, "metrics": ExportMetricsServiceRequest,
    }[signal].FromString(seed_of(signal))  # fmt: skip
    fields = json_format.MessageToDict(request)
    spot: Any = fields
    while True:
        key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
        deeper = spot[key]
        if not isinstance(deeper, (dict, list)) or not deeper or data.draw(st.integers(0, 5)) == 0:
            spot[key] = data.draw(json_values)
            break
        spot = deeper
    body = json.dumps(fields).encode()
    assert running.receiver.take(signal, body, as_json=True).http in (200, 400)
