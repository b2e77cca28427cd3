"""The query API of Jaeger, as Grafana's Jaeger data source asks it; its URL there is ``http://loms:8090/jaeger``.

Source: jaeger, cmd/query/app (http_handler.go, query_parser.go) and model/json/model.go. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.core.model import Labels, Span
from loms.server.traces.times import asked_time, durations, moment_of_us
from loms.server.traces.traceql import KINDS, STATUSES
from loms.store.trace_conditions import Condition
from loms.store.traces import MOST_TRACES, Trace, TraceTables

_LISTED_MS = 2 * 86_400_000
"""Services and operations are those of the last two days."""
_MOST_WHOLE = 200
"""Traces that one search gives with all their spans."""


def router(tables: TraceTables, clock: Clock) -> APIRouter:
    """Routes under ``/jaeger/api``."""
    api = APIRouter(prefix="/jaeger/api", tags=["jaeger"])

    def lately() -> tuple[int, int]:
        return clock.now_ms() - _LISTED_MS, clock.now_ms() + 60_000

    @api.get("/services")
    def services() -> JSONResponse:
        return _listed(tables.services(*lately()))

    @api.get("/services/{service}/operations")
    def operations_of(service: str) -> JSONResponse:
        return _listed(list(dict.fromkeys(name for name, _ in tables.operations(service, *lately()))))

    @api.get("/operations")
    def operations(service: str = "", span_kind: Annotated[str, Query(alias="spanKind")] = "") -> JSONResponse:
        if not service:
            return _failed(400, "parameter 'service' is required")
        kind = KINDS.get(span_kind.lower(), span_kind)
        found = tables.operations(service, *lately(), kind=kind)
        return _listed([{"name": name, "spanKind": kind.lower()} for name, kind in found])

    @api.get("/traces")
    def search(
        service: str = "",
        operation: str = "",
        tags: str = "",
        tag: Annotated[list[str] | None, Query()] = None,
        min_duration: Annotated[str, Query(alias="minDuration")] = "",
        max_duration: Annotated[str, Query(alias="maxDuration")] = "",
        start: str = "",
        end: str = "",
        limit: int = 20,
        trace_ids: Annotated[list[str] | None, Query(alias="traceID")] = None,
    ) -> JSONResponse:
        """Whole traces; ``lookback`` is for the page that asks, which also sends ``start`` and ``end``."""
        if trace_ids:
            return _answered(lambda: [tables.trace(one) for one in trace_ids[:_MOST_WHOLE]])
        if not service:
            return _failed(400, "parameter 'service' is required")

        def find() -> list[Trace]:
            conditions = [
                Condition("service", "=", service),
                *([Condition("name", "=", operation)] if operation and operation != "all" else []),
                *_tags(tags, tag or ()),
                *durations("duration", ("minDuration", min_duration), ("maxDuration", max_duration)),
            ]
            span = asked_time(clock, moment_of_us("start", start), moment_of_us("end", end))
            most = max(1, min(limit, _MOST_WHOLE, MOST_TRACES))
            found = tables.search(conditions, *span, limit=most, examples=1)
            return [tables.trace(one.trace_id) for one in found]

        return _answered(find)

    @api.get("/traces/{trace_id}")
    def trace(trace_id: str) -> JSONResponse:
        def one() -> list[Trace]:
            return [tables.trace(trace_id)]

        return _answered(one, missing=True)

    return api


def _answered(find: Callable[[], list[Trace]], *, missing: bool = False) -> JSONResponse:
    """The traces; what was asked wrongly is a 400, and a trace that is not there a 404 if that is an error."""
    try:
        found = [trace for trace in find() if trace.spans]
    except QueryError as error:
        if error.kind != "bad_data":
            raise
        return _failed(400, error.message)
    if missing and not found:
        return _failed(404, "trace not found")
    return _listed([trace_json(trace) for trace in found], total=0)


def _listed(data: Sequence[Any], total: int | None = None) -> JSONResponse:
    count = len(data) if total is None else total
    return JSONResponse({"data": data, "total": count, "limit": 0, "offset": 0, "errors": None})


def _failed(code: int, text: str) -> JSONResponse:
    errors = [{"code": code, "msg": text}]
    return JSONResponse({"data": None, "total": 0, "limit": 0, "offset": 0, "errors": errors}, code)


def _tags(text: str, pairs: Iterable[str]) -> Iterable[Condition]:
    """``tags``: a JSON object of texts; ``tag``: ``key:value``. Raises `QueryError`."""
    wanted: dict[str, Any] = {}
    if text:
        try:
            wanted = json.loads(text)
        except ValueError:
            wanted = {"": None}
        if not isinstance(wanted, dict) or not all(isinstance(one, str) for one in wanted.values()):
            raise QueryError("malformed 'tags' parameter, expecting a JSON object of strings")
    for pair in pairs:
        key, colon, value = pair.partition(":")
        if not colon:
            raise QueryError("malformed 'tag' parameter, expecting key:value")
        wanted[key] = value
    for key, value in wanted.items():
        yield _tag(key, value)


def _tag(key: str, value: str) -> Condition:
    """Some of Jaeger's tags stand in columns of their own here."""
    if key == "error":
        return Condition("status", "=" if value == "true" else "!=", "Error")
    if key == "span.kind" and value.lower() in KINDS:
        return Condition("kind", "=", KINDS[value.lower()])
    if key == "otel.status_code" and value.lower() in STATUSES:
        return Condition("status", "=", STATUSES[value.lower()])
    return Condition("attribute", "=", value, key)


def trace_json(trace: Trace) -> dict[str, Any]:
    """A trace as Jaeger's page reads it; each resource is a process."""
    processes: dict[tuple[str, Labels], str] = {}
    for span in trace.spans:
        processes.setdefault((span.service, span.resource), f"p{len(processes) + 1}")
    return {
        "traceID": trace.trace_id,
        "spans": [_span_json(span, processes[span.service, span.resource]) for span in trace.spans],
        "processes": {
            name: {
                "serviceName": service,
                "tags": [_text_tag(key, value) for key, value in resource if key != "service.name"],
            }
            for (service, resource), name in processes.items()
        },
        "warnings": ["this trace has more spans than are shown"] if trace.cut else None,
    }


def _span_json(span: Span, process: str) -> dict[str, Any]:
    parents = [("CHILD_OF", span.trace_id, span.parent_span_id)] if span.parent_span_id else []
    references = chain(parents, (("FOLLOWS_FROM", link.trace_id, link.span_id) for link in span.links))
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": [{"refType": kind, "traceID": trace, "spanID": one} for kind, trace, one in references],
        "startTime": span.start_ns // 1000,
        "duration": span.duration_ns // 1000,
        "tags": list(_span_tags(span)),
        "logs": [
            {
                "timestamp": event.time_ns // 1000,
                "fields": [_text_tag("event", event.name), *(_text_tag(*pair) for pair in event.attributes)],
            }
            for event in span.events
        ],
        "processID": process,
        "warnings": None,
    }


def _span_tags(span: Span) -> Iterable[dict[str, Any]]:
    """Attributes, and what OpenTelemetry's mapping to Jaeger makes of the rest of a span."""
    yield from (_text_tag(key, value) for key, value in span.attributes)
    if span.scope_name:
        yield _text_tag("otel.scope.name", span.scope_name)
    if span.scope_version:
        yield _text_tag("otel.scope.version", span.scope_version)
    if span.kind != "Unspecified":
        yield _text_tag("span.kind", span.kind.lower())
    if span.status_code != "Unset":
        yield _text_tag("otel.status_code", span.status_code.upper())
    if span.status_code == "Error":
        yield {"key": "error", "type": "bool", "value": True}
    if span.status_message:
        yield _text_tag("otel.status_description", span.status_message)
    if span.trace_state:
        yield _text_tag("w3c.tracestate", span.trace_state)


def _text_tag(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "type": "string", "value": value}
