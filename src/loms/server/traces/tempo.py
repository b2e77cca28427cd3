"""The API of Tempo, as Grafana's Tempo data source asks it; its URL there is ``http://loms:8090/tempo``.

Source: "Tempo HTTP API" in its documentation, and tempo, pkg/tempopb/tempo.proto. As there, the JSON form of a trace
has ids in base64 (that of protobuf messages), and a search gives them in hexadecimal.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status, TracesData

from loms import __version__
from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.core.model import Labels, Span
from loms.server.traces.times import asked_time, durations, moment_ms
from loms.server.traces.traceql import INTRINSICS, KINDS, STATUSES, field_of, parse_traceql
from loms.store.trace_conditions import Condition, Scope
from loms.store.traces import MOST_TRACES, Trace, TraceSummary, TraceTables

SPOKEN = "2.6.0"
"""The Tempo whose API this is; Grafana switches features by it."""
_PROTOBUF = "application/protobuf"
_KINDS, _CODES = dict(SpanMessage.SpanKind.items()), dict(Status.StatusCode.items())
_T = TypeVar("_T")


def router(tables: TraceTables, clock: Clock) -> APIRouter:
    """Routes under ``/tempo``."""
    api = APIRouter(prefix="/tempo", tags=["tempo"])

    def span_of_time(start: str, end: str) -> tuple[int, int]:
        """Milliseconds from Unix seconds; the last hour where they are not given, or 0."""
        return _asked(lambda: asked_time(clock, moment_ms("start", start) or None, moment_ms("end", end) or None))

    @api.get("/api/echo")
    def echo() -> Response:
        return PlainTextResponse("echo")

    @api.get("/ready")
    def ready() -> Response:
        return PlainTextResponse("ready\n")

    @api.get("/api/status/buildinfo")
    def buildinfo() -> dict[str, str]:
        names = ("revision", "branch", "buildUser", "buildDate", "goVersion")
        return {"version": SPOKEN, **dict.fromkeys(names, ""), "branch": f"loms-{__version__}"}

    @api.get("/api/traces/{trace_id}")
    def trace(trace_id: str, accept: Annotated[str, Header()] = "") -> Response:
        message = traces_data(_trace(tables, trace_id).spans)
        if _PROTOBUF in accept:
            return Response(message.SerializeToString(), media_type=_PROTOBUF)
        return JSONResponse({"batches": MessageToDict(message).get("resourceSpans", [])})

    @api.get("/api/v2/traces/{trace_id}")
    def trace_v2(trace_id: str, accept: Annotated[str, Header()] = "") -> Response:
        found = _trace(tables, trace_id)
        message, cut = traces_data(found.spans), "the trace has more spans than are shown" if found.cut else ""
        if _PROTOBUF in accept:
            body = message.SerializeToString()
            body = b"\x0a" + _varint(len(body)) + body  # TraceByIDResponse.trace
            body += b"\x18\x01\x22" + _varint(len(cut)) + cut.encode() if cut else b""  # .status, .message
            return Response(body, media_type=_PROTOBUF)
        partial = {"status": "PARTIAL", "message": cut} if cut else {}
        return JSONResponse({"trace": MessageToDict(message), "metrics": {}, **partial})

    @api.get("/api/search")
    def search(
        q: str = "",
        tags: str = "",
        min_duration: Annotated[str, Query(alias="minDuration")] = "",
        max_duration: Annotated[str, Query(alias="maxDuration")] = "",
        limit: int = Query(20, ge=0),
        spss: int = Query(3, ge=0),
        start: str = "",
        end: str = "",
    ) -> Response:
        """``q`` is TraceQL; without it, ``tags`` in logfmt and durations of whole traces."""
        conditions = _asked(lambda: parse_traceql(q) if q else list(_logfmt(tags)))
        least, most = ("minDuration", min_duration), ("maxDuration", max_duration)
        conditions += _asked(lambda: list(durations("trace_duration", least, most)))
        limits = {"limit": min(limit, MOST_TRACES) or 20, "examples": min(spss or 100, 100)}
        found = _asked(lambda: tables.search(conditions, *span_of_time(start, end), **limits))
        spans = sum(one.spans for one in found)
        done = {"inspectedTraces": len(found), "inspectedSpans": str(spans), "totalJobs": 1, "completedJobs": 1}
        return JSONResponse({"traces": [_summary_json(one) for one in found], "metrics": done})

    _add_tags(api, tables, span_of_time)
    return api


def _add_tags(api: APIRouter, tables: TraceTables, span_of_time: Callable[[str, str], tuple[int, int]]) -> None:
    """The routes that say what there is to search by."""

    @api.get("/api/search/tags")
    def tags(scope: str = "", start: str = "", end: str = "") -> Response:
        span = span_of_time(start, end)
        found = {name for one in _scopes(scope) for name in tables.tags(one, *span)}
        own = INTRINSICS if scope in ("", "none", "intrinsic") else ()
        return JSONResponse({"tagNames": sorted(found | set(own)), "metrics": {}})

    @api.get("/api/v2/search/tags")
    def tags_v2(scope: str = "", start: str = "", end: str = "") -> Response:
        span = span_of_time(start, end)
        scopes: list[dict[str, Any]] = [{"name": one, "tags": tables.tags(one, *span)} for one in _scopes(scope)]
        if scope in ("", "none", "intrinsic"):
            scopes.append({"name": "intrinsic", "tags": list(INTRINSICS)})
        return JSONResponse({"scopes": scopes, "metrics": {}})

    @api.get("/api/search/tag/{tag:path}/values")
    def values(tag: str, start: str = "", end: str = "") -> Response:
        found = _values(tables, tag, span_of_time(start, end))
        return JSONResponse({"tagValues": [value for _, value in found], "metrics": {}})

    @api.get("/api/v2/search/tag/{tag:path}/values")
    def values_v2(tag: str, start: str = "", end: str = "") -> Response:
        found = _values(tables, tag, span_of_time(start, end))
        return JSONResponse({"tagValues": [{"type": kind, "value": value} for kind, value in found], "metrics": {}})


def _asked(ask: Callable[[], _T]) -> _T:
    """What was asked wrongly is a 400."""
    try:
        return ask()
    except QueryError as error:
        if error.kind != "bad_data":
            raise
        raise HTTPException(400, error.message) from None


def _trace(tables: TraceTables, trace_id: str) -> Trace:
    found = _asked(lambda: tables.trace(trace_id))
    if not found.spans:
        raise HTTPException(404, f"trace {found.trace_id} is not found")
    return found


def _scopes(scope: str) -> tuple[Scope, ...]:
    known: dict[str, tuple[Scope, ...]] = {"span": ("span",), "resource": ("resource",), "intrinsic": ()}
    if scope in ("", "none"):
        return ("resource", "span")
    if scope not in known:
        raise HTTPException(400, f"scope {scope!r} is none of span, resource, intrinsic")
    return known[scope]


def _values(tables: TraceTables, tag: str, span: tuple[int, int]) -> list[tuple[str, str]]:
    """(type, value) of everything that a tag is; a name without a scope is an attribute of either."""
    if tag in ("status", "span:status"):
        return [("keyword", one) for one in STATUSES]
    if tag in ("kind", "span:kind"):
        return [("keyword", one) for one in KINDS]
    scoped = tag.startswith(("span.", "resource.", ".")) or tag in INTRINSICS or ":" in tag
    wanted = _asked(lambda: field_of(tag if scoped else f".{tag}"))
    return [("string", one) for one in tables.tag_values(wanted, *span)]


def _logfmt(text: str) -> Iterable[Condition]:
    """``service.name=api http.status="500"``. Raises `QueryError`."""
    try:
        pairs = [pair.partition("=") for pair in shlex.split(text)]
    except ValueError as error:
        raise QueryError(f"tags {text[:200]!r} is not logfmt: {error}") from None
    for key, equals, value in pairs:
        if not key or not equals:
            raise QueryError(f"tags {text[:200]!r} is not logfmt: write key=value")
        if key == "status" and value in STATUSES:
            yield Condition("status", "=", STATUSES[value])
        elif key == "name":
            yield Condition("name", "=", value)
        else:
            known = field_of(f".{key}")
            yield Condition(known.field, "=", value, known.key)


def _summary_json(one: TraceSummary) -> dict[str, Any]:
    spans = [
        {
            "spanID": match.span_id,
            "name": match.name,
            "startTimeUnixNano": str(match.start_ns),
            "durationNanos": str(match.duration_ns),
            "attributes": [],
        }
        for match in one.matches
    ]
    spanset = {"spans": spans, "matched": one.matched}
    return {
        "traceID": one.trace_id.lstrip("0") or "0",
        "rootServiceName": one.root_service,
        "rootTraceName": one.root_name,
        "startTimeUnixNano": str(one.start_ns),
        "durationMs": one.duration_ns // 1_000_000,
        "spanSet": spanset,
        "spanSets": [spanset],
        "serviceStats": {
            name: {"spanCount": part.spans, **({"errorCount": part.errors} if part.errors else {})}
            for name, part in one.services.items()
        },
    }


def traces_data(spans: Iterable[Span]) -> TracesData:
    """Spans as OTLP: one resource and one scope each, in the order of their first span. Attributes are texts."""
    data = TracesData()
    resources: dict[Labels, Any] = {}
    scopes: dict[tuple[Labels, str, str], Any] = {}
    for span in spans:
        key = (span.resource, span.scope_name, span.scope_version)
        if span.resource not in resources:
            resources[span.resource] = data.resource_spans.add()
            _put(resources[span.resource].resource.attributes, span.resource)
        if key not in scopes:
            scopes[key] = resources[span.resource].scope_spans.add()
            scopes[key].scope.name, scopes[key].scope.version = span.scope_name, span.scope_version
        _fill(scopes[key].spans.add(), span)
    return data


def _fill(message: Any, span: Span) -> None:
    message.trace_id, message.span_id = bytes.fromhex(span.trace_id), _bytes(span.span_id)
    message.parent_span_id, message.trace_state, message.name = (
        _bytes(span.parent_span_id),
        span.trace_state,
        span.name,
    )
    message.kind = _KINDS.get(f"SPAN_KIND_{span.kind.upper()}", 0)
    message.start_time_unix_nano = span.start_ns
    message.end_time_unix_nano = span.start_ns + span.duration_ns
    message.status.code = _CODES.get(f"STATUS_CODE_{span.status_code.upper()}", 0)
    message.status.message = span.status_message
    _put(message.attributes, span.attributes)
    for event in span.events:
        _put(message.events.add(time_unix_nano=event.time_ns, name=event.name).attributes, event.attributes)
    for link in span.links:
        made = message.links.add(
            trace_id=_bytes(link.trace_id), span_id=_bytes(link.span_id), trace_state=link.trace_state
        )
        _put(made.attributes, link.attributes)


def _put(attributes: Any, pairs: Labels) -> None:
    for key, value in pairs:
        attributes.add(key=key).value.string_value = value


def _bytes(text: str) -> bytes:
    """An id; what is none in the tables of a Collector is left out."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
