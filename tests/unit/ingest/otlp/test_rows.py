"""Spans and records → the exporter's columns: recordings of real engines, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.ingest.otlp.bodies import parsed
from loms.ingest.otlp.limits import Limits, Refusals
from loms.ingest.otlp.rows import log_rows, span_rows

SPANS = Path(__file__).parents[3] / "data/spans"
IDS = {"trace_id": b"\x01" * 16, "span_id": b"\x02" * 8}


@pytest.mark.parametrize("engine", ["vllm-0.32.0", "sglang-0.5.23", "triton-2.51.0"])
def test_recordings_of_real_engines(engine: str) -> None:
    """Ids, names, times and texts are taken from the recorded JSON itself."""
    seen = 0
    for line in (SPANS / f"{engine}.jsonl").read_bytes().splitlines():
        rows = span_rows(parsed("traces", line, as_json=True), Limits(), Refusals())
        spans = [
            (group["resource"], scope["scope"], span)
            for group in json.loads(line)["resourceSpans"]
            for scope in group["scopeSpans"]
            for span in scope["spans"]
        ]
        assert rows is not None
        for row, (resource, scope, span) in zip(rows.to_pylist(), spans, strict=True):
            seen += 1
            assert row["TraceId"] == span["traceId"]
            assert row["SpanId"] == span["spanId"]
            assert row["ParentSpanId"] == span.get("parentSpanId", "")
            assert row["SpanName"] == span["name"]
            start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            assert (row["Timestamp"].value, row["Duration"]) == (start, end - start)
            texts = dict(_texts(resource))
            assert dict(row["ResourceAttributes"]) == texts
            assert row["ServiceName"] == texts["service.name"]
            assert row["ScopeName"] == scope["name"]
            assert [key for key, _ in row["SpanAttributes"]] == [one["key"] for one in span.get("attributes", ())]
            for (_, text), (_, recorded) in zip(row["SpanAttributes"], _texts(span), strict=True):
                assert text == recorded or float(text) == float(recorded)
            assert row["Events.Name"] == [event["name"] for event in span.get("events", ())]
            assert [at.value for at in row["Events.Timestamp"]] == [
                int(event["timeUnixNano"]) for event in span.get("events", ())
            ]
            assert row["Links.SpanId"] == [link["spanId"] for link in span.get("links", ())]
    assert seen > 10


def _texts(item: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["key"], str(next(iter(one["value"].values())))) for one in item.get("attributes", ())]


def spans(*spans: dict[str, Any]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": list(spans)}]}])


@pytest.mark.parametrize(
    ("span", "says"),
    [
        ({"trace_id": b"", "span_id": b"\x02" * 8}, "spans have no valid trace id and span id"),
        ({"trace_id": b"\x00" * 16, "span_id": b"\x02" * 8}, "spans have no valid trace id and span id"),
        ({"trace_id": b"\x01" * 15, "span_id": b"\x02" * 8}, "spans have no valid trace id and span id"),
        ({"trace_id": b"\x01" * 16, "span_id": b"\x02" * 9}, "spans have no valid trace id and span id"),
        ({**IDS, "start_time_unix_nano": 9}, "spans began before what is kept, or in the future"),
        ({**IDS, "start_time_unix_nano": 2**64 - 1}, "spans began before what is kept, or in the future"),
        ({**IDS, "attributes": [{"key": str(i)} for i in range(4)]}, "spans have more than 3 attributes"),
    ],
)
def test_spans_that_cannot_be_are_refused_one_by_one(span: dict[str, Any], says: str) -> None:
    refusals = Refusals()
    good = {**IDS, "start_time_unix_nano": 15}
    rows = span_rows(spans({"start_time_unix_nano": 15, **span}, good), Limits(3, 9, 10, 20), refusals)
    assert rows is not None
    assert len(rows) == 1
    assert str(refusals) == f"1 {says}"


def test_odd_numbers() -> None:
    odd = {
        **IDS, "start_time_unix_nano": 15, "end_time_unix_nano": 3, "kind": 77, "status": {"code": 2, "message": "no"},
        "parent_span_id": b"\x00" * 8, "events": [{"time_unix_nano": 2**64 - 1}],
    }  # fmt: skip
    rows = span_rows(spans(odd), Limits(), Refusals())
    assert rows is not None
    (row,) = rows.to_pylist()
    assert (row["Duration"], row["SpanKind"], row["StatusCode"], row["StatusMessage"]) == (0, "", "Error", "no")
    assert row["ParentSpanId"] == ""
    assert row["Events.Timestamp"][0].value == 2**63 - 1


@pytest.mark.parametrize("end", [2**63 - 1, 2**63, 10**18 + 2**63, 2**64 - 1])
def test_a_span_ends_within_what_64_bits_hold(end: int) -> None:
    rows = span_rows(spans({**IDS, "start_time_unix_nano": 10**18, "end_time_unix_nano": end}), Limits(), Refusals())
    assert rows is not None
    assert rows.column("Duration").to_pylist() == [2**63 - 1 - 10**18]


def test_nothing_gives_no_rows() -> None:
    assert span_rows(spans(), Limits(), Refusals()) is None
    assert log_rows(ExportLogsServiceRequest(), Limits(), Refusals(), 5) is None


def test_a_record_has_its_own_time_or_when_it_was_seen_or_when_it_came() -> None:
    records = [{"time_unix_nano": 11, "observed_time_unix_nano": 12}, {"observed_time_unix_nano": 12}, {}]
    request = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": records}]}])
    rows = log_rows(request, Limits(), Refusals(), 13)
    assert rows is not None
    assert [at.value for at in rows.column("Timestamp").to_pylist()] == [11, 12, 13]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"time_unix_nano": 5}, "records are older than what is kept, or of the future"),
        ({"trace_id": b"\x01"}, "records have a trace id or span id of the wrong length"),
        ({"attributes": [{"key": str(i)} for i in range(4)]}, "records have more than 3 attributes"),
    ],
)
def test_records_that_cannot_be(record: dict[str, Any], says: str) -> None:
    refusals = Refusals()
    records = [{"time_unix_nano": 15, **record}, {"time_unix_nano": 15}]
    request = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": records}]}])
    rows = log_rows(request, Limits(3, 9, 10, 20), refusals, 13)
    assert rows is not None
    assert len(rows) == 1
    assert str(refusals) == f"1 {says}"
