"""Spans of OTLP's JSON form, put into the store's tables by hand: what reads them is tested against this, not against
what LOMS itself receives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

RECORDED = Path(__file__).parents[1] / "data" / "spans"
_KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
_STATUS = ("Unset", "Ok", "Error")
_MAP = pa.map_(pa.string(), pa.string())
_NS = pa.timestamp("ns")
SCHEMA = pa.schema(
    [
        ("Timestamp", _NS),
        *((name, pa.string()) for name in ("TraceId", "SpanId", "ParentSpanId", "TraceState", "SpanName", "SpanKind")),
        ("ServiceName", pa.string()),
        ("ResourceAttributes", _MAP),
        ("ScopeName", pa.string()),
        ("ScopeVersion", pa.string()),
        ("SpanAttributes", _MAP),
        ("Duration", pa.uint64()),
        ("StatusCode", pa.string()),
        ("StatusMessage", pa.string()),
        ("Events.Timestamp", pa.list_(_NS)),
        ("Events.Name", pa.list_(pa.string())),
        ("Events.Attributes", pa.list_(_MAP)),
        ("Links.TraceId", pa.list_(pa.string())),
        ("Links.SpanId", pa.list_(pa.string())),
        ("Links.TraceState", pa.list_(pa.string())),
        ("Links.Attributes", pa.list_(_MAP)),
    ]
)


def recorded(name: str) -> list[dict[str, Any]]:
    """Rows of ``tests/data/spans/<name>.jsonl``."""
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    return [row for line in lines for row in rows(json.loads(line))]


def rows(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each span of an OTLP request."""
    for each in body["resourceSpans"]:
        resource = _attributes(each.get("resource", {}))
        for part in each["scopeSpans"]:
            for span in part["spans"]:
                yield _row(span, resource, part.get("scope", {}))


def table(found: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(found, SCHEMA)


def _row(span: Mapping[str, Any], resource: list[tuple[str, str]], scope: Mapping[str, Any]) -> dict[str, Any]:
    events, links, status = span.get("events", []), span.get("links", []), span.get("status") or {}
    start = int(span["startTimeUnixNano"])
    return {
        "Timestamp": start,
        "TraceId": span["traceId"],
        "SpanId": span["spanId"],
        "ParentSpanId": span.get("parentSpanId", ""),
        "TraceState": span.get("traceState", ""),
        "SpanName": span["name"],
        "SpanKind": _word(span.get("kind", 0), "SPAN_KIND_", _KINDS),
        "ServiceName": dict(resource).get("service.name", ""),
        "ResourceAttributes": resource,
        "ScopeName": scope.get("name", ""),
        "ScopeVersion": scope.get("version", ""),
        "SpanAttributes": _attributes(span),
        "Duration": int(span["endTimeUnixNano"]) - start,
        "StatusCode": _word(status.get("code", 0), "STATUS_CODE_", _STATUS),
        "StatusMessage": status.get("message", ""),
        "Events.Timestamp": [int(event["timeUnixNano"]) for event in events],
        "Events.Name": [event["name"] for event in events],
        "Events.Attributes": [_attributes(event) for event in events],
        "Links.TraceId": [link["traceId"] for link in links],
        "Links.SpanId": [link["spanId"] for link in links],
        "Links.TraceState": [link.get("traceState", "") for link in links],
        "Links.Attributes": [_attributes(link) for link in links],
    }


def _word(value: int | str, prefix: str, words: tuple[str, ...]) -> str:
    return words[value] if isinstance(value, int) else value.removeprefix(prefix).capitalize()


def _attributes(holder: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(one["key"], _text(one["value"])) for one in holder.get("attributes", [])]


def _text(value: Mapping[str, Any]) -> str:
    ((kind, content),) = value.items()
    return content if kind == "stringValue" else json.dumps(content).strip('"')
