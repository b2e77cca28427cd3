"""OTLP's JSON by its specification: hex ids, numbers as text or not, enums by number or name, the unknown ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loms.core.errors import PayloadError
from loms.ingest.otlp.json_form import message_of


def span_of(**fields: Any) -> Span:
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}).encode()
    return message_of(ExportTraceServiceRequest, body).resource_spans[0].scope_spans[0].spans[0]


def test_the_example_of_the_specification() -> None:
    span = span_of(
        traceId="5B8EFFF798038103D269B633813FC60C",
        spanId="EEE19B7EC3C1B174",
        parentSpanId="eee19b7ec3c1b173",
        name="I'm a server span",
        startTimeUnixNano="1544712660000000000",
        endTimeUnixNano=1544712661000000000,
        kind=2,
        attributes=[{"key": "my.span.attr", "value": {"stringValue": "some value"}}],
    )
    assert span == Span(
        trace_id=bytes.fromhex("5b8efff798038103d269b633813fc60c"),
        span_id=bytes.fromhex("eee19b7ec3c1b174"),
        parent_span_id=bytes.fromhex("eee19b7ec3c1b173"),
        name="I'm a server span",
        start_time_unix_nano=1544712660000000000,
        end_time_unix_nano=1544712661000000000,
        kind=Span.SPAN_KIND_SERVER,
        attributes=[{"key": "my.span.attr", "value": {"string_value": "some value"}}],
    )


def test_spellings_that_proto3_allows() -> None:
    span = span_of(
        trace_id="", kind="SPAN_KIND_CLIENT", unknown={"deep": [1]}, parentSpanId=None, droppedAttributesCount=3.0,
        attributes=[
            {"key": "d", "value": {"doubleValue": "NaN"}},
            {"key": "i", "value": {"intValue": "-5"}},
            {"key": "b", "value": {"bytesValue": "_-8="}},
            {"key": "s", "value": {"stringValue": ""}},
        ],
    )  # fmt: skip
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert span.dropped_attributes_count == 3
    values = {one.key: one.value for one in span.attributes}
    assert values["d"].double_value != values["d"].double_value
    assert values["i"].int_value == -5
    assert values["b"].bytes_value == b"\xff\xef"
    assert values["s"].WhichOneof("value") == "string_value"


def test_points_have_a_value_of_one_kind_or_the_other() -> None:
    body = b"""{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","gauge":{"dataPoints":[
        {"asInt":"7","timeUnixNano":"1"},{"asDouble":0,"timeUnixNano":"1"},{"asDouble":1e400}]}}]}]}]}"""
    points = (
        message_of(ExportMetricsServiceRequest, body).resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    )
    assert [(point.WhichOneof("value"), point.as_int or point.as_double) for point in points] == [
        ("as_int", 7), ("as_double", 0.0), ("as_double", float("inf")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"traceId": "xy"}, "resourceSpans.scopeSpans.spans.traceId: hex digits are wanted"),
        ({"traceId": 5}, "spans.traceId: a string is wanted"),
        ({"name": ["a"]}, "spans.name: a string is wanted"),
        ({"startTimeUnixNano": "-1"}, "spans.startTimeUnixNano: an integer from 0 to"),
        ({"startTimeUnixNano": "1" * 30}, "an integer from 0 to"),
        ({"startTimeUnixNano": 1.5}, "an integer from 0 to"),
        ({"startTimeUnixNano": True}, "an integer from 0 to"),
        ({"kind": "SPAN_KIND_ODD"}, "spans.kind: an integer"),
        ({"attributes": {"a": 1}}, "spans.attributes: an array is wanted"),
        ({"attributes": [1]}, "spans.attributes: an object is wanted"),
        ({"attributes": [{"value": {"boolValue": 1}}]}, "attributes.value.boolValue: true or false is wanted"),
        ({"attributes": [{"value": {"doubleValue": "x"}}]}, "doubleValue: a number is wanted"),
        ({"attributes": [{"value": {"bytesValue": "!"}}]}, "bytesValue: base64 is wanted"),
        ({"name": "\ud800"}, "ExportTraceServiceRequest"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PayloadError) as caught:
        span_of(**fields)
    assert says in caught.value.message
    assert caught.value.status == 400


def nested(depth: int) -> bytes:
    value = '{"arrayValue":{"values":[' * depth + "]}}" * depth
    return b'{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":%b}]}}]}' % value.encode()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"7", b"{", b'"\xff"', b"\xff\xfe", nested(60), nested(100_000), b"[" * 10**5]
)
def test_no_request_and_depths_that_protobuf_refuses_too(body: bytes) -> None:
    with pytest.raises(PayloadError):
        message_of(ExportTraceServiceRequest, body)


def test_depths_that_occur_are_read() -> None:
    value = message_of(ExportTraceServiceRequest, nested(20)).resource_spans[0].resource.attributes[0].value
    for _ in range(19):
        (value,) = value.array_value.values
    assert not value.array_value.values


def test_a_body_of_very_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(PayloadError) as caught:
        message_of(ExportTraceServiceRequest, b'{"resourceSpans":[' + b"{}," * 500_000 + b"{}]}")
    assert caught.value.status == 413


def test_what_is_wrong_with_the_whole_is_said_plainly() -> None:
    with pytest.raises(PayloadError) as caught:
        message_of(ExportTraceServiceRequest, b"[]")
    assert caught.value.message == "the JSON is no ExportTraceServiceRequest: an object is wanted"
