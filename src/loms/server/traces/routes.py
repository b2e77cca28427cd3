"""LOMS's own trace API: search, one trace as a tree, and what there is to search by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import JSONResponse, Response

from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.core.model import Span
from loms.server.traces.times import asked_time, durations, moment_ms
from loms.server.traces.traceql import STATUSES, expression, field_of
from loms.store.trace_conditions import Condition, Op
from loms.store.traces import MOST_TRACES, Trace, TraceSummary, TraceTables

DEEPEST = 200
"""Levels of a tree; what lies deeper stands on the last one."""
_ATTRIBUTE = re.compile(r"([^=!<>~]+)(=~|!~|!=|>=|<=|=|>|<)(.*)", re.DOTALL)
_SCOPES = ("span.", "resource.", ".")


@dataclass(slots=True)
class Branch:
    """A span with the spans that name it as their parent, by start."""

    span: Span
    level: int = 1
    """That of its span: 1 for a top, and more than where it stands for what lies too deep."""
    children: list[Branch] = field(default_factory=list)


def grown(spans: Sequence[Span], deepest: int = DEEPEST) -> list[Branch]:
    """The tree of a trace: roots first, then spans whose parent is not there, then what goes round in circles.

    Every span stands in it once.
    """
    branches = [Branch(span) for span in spans]
    by_id: dict[str, Branch] = {}
    for branch in branches:
        by_id.setdefault(branch.span.span_id, branch)
    children: dict[int, list[Branch]] = {}
    tops = []
    for branch in branches:
        parent = by_id.get(branch.span.parent_span_id) if branch.span.parent_span_id else None
        if parent is None or parent is branch:
            tops.append(branch)
        else:
            children.setdefault(id(parent), []).append(branch)
    tops.sort(key=lambda branch: (bool(branch.span.parent_span_id), branch.span.start_ns))
    known, placed = set(map(id, tops)), set[int]()
    for top in [*tops, *branches]:
        if id(top) not in placed:
            if id(top) not in known:
                tops.append(top)
            _hang(top, children, placed, deepest)
    return tops


def _hang(top: Branch, children: dict[int, list[Branch]], placed: set[int], deepest: int) -> None:
    """Spans come one after the other as they are read from the top down, so that what lies too deep keeps its order."""
    placed.add(id(top))
    rows: list[tuple[Branch, Branch | None]] = [(top, None)]
    """A branch, and the one that it hangs on."""
    while rows:
        branch, holder = rows.pop()
        if holder:
            holder.children.append(branch)
        below = branch if holder is None or branch.level < deepest else holder
        for child in reversed(children.get(id(branch), ())):
            if id(child) not in placed:
                placed.add(id(child))
                child.level = branch.level + 1
                rows.append((child, below))


def router(tables: TraceTables, clock: Clock) -> APIRouter:
    """Routes under ``/api/traces``. They return what is already JSON: a large trace is written by the thread of its
    request, and by ``json``, which does not mind how deep a tree is."""
    api = APIRouter(prefix="/api/traces", tags=["traces"])

    @api.get("")
    def search(
        service: str = "",
        name: str = "",
        attribute: Annotated[list[str] | None, Query()] = None,
        status: str = "",
        min_duration: str = "",
        max_duration: str = "",
        since: str = "1h",
        start: str = "",
        end: str = "",
        limit: int = Query(20, ge=1, le=MOST_TRACES),
    ) -> Response:
        """Traces with a span that fulfils all that is asked, the newest first.

        ``attribute``: ``key``, ``key=value``, ``key!=value``, ``key=~regex``, ``key>1``; a key with ``span.`` or
        ``resource.`` before it is looked for there only. Durations are those of the span.
        """
        try:
            conditions = [
                *_texts(service=service, name=name),
                *map(attribute_condition, attribute or ()),
                *([_status(status)] if status else []),
                *durations("duration", ("min_duration", min_duration), ("max_duration", max_duration)),
            ]
            span = asked_time(clock, moment_ms("start", start), moment_ms("end", end), since)
        except QueryError as error:
            raise HTTPException(400, error.message) from None
        found = tables.search(conditions, *span, limit=limit)
        return JSONResponse({"traces": [summary_json(one) for one in found]})

    @api.get("/services")
    def services(since: str = "1h", start: str = "", end: str = "") -> Response:
        """Services that have spans."""
        try:
            span = asked_time(clock, moment_ms("start", start), moment_ms("end", end), since)
        except QueryError as error:
            raise HTTPException(400, error.message) from None
        return JSONResponse({"services": tables.services(*span)})

    @api.get("/{trace_id}")
    def trace(trace_id: str) -> Response:
        """One trace as a tree. ``cut`` says that it has more spans than are shown."""
        try:
            found = tables.trace(trace_id)
        except QueryError as error:
            raise HTTPException(400, error.message) from None
        if not found.spans:
            raise HTTPException(404, f"there is no trace {found.trace_id}")
        return JSONResponse(trace_json(found))

    return api


def attribute_condition(text: str) -> Condition:
    """``key``, or a key with a comparison and a value. Raises `QueryError`."""
    match = _ATTRIBUTE.fullmatch(text.strip())
    key, op, value = match.groups() if match else (text.strip(), "exists", "")
    key = key.rstrip()
    if key[:1] in "=!<>~":
        raise QueryError(f"{text!r} names no attribute")
    known = field_of(key if key.startswith(_SCOPES) else f".{key}")
    comparison: Op = next(one for one in _OPS if one == op)
    number: str | float = value
    if comparison in ("=~", "!~"):
        expression(value)
    elif comparison in (">", ">=", "<", "<="):
        try:
            number = float(value)
        except ValueError:
            raise QueryError(f"{text!r}: {value!r} is no number") from None
    return Condition(known.field, comparison, number, known.key, known.scope)


_OPS: tuple[Op, ...] = ("=", "!=", "=~", "!~", ">", ">=", "<", "<=", "exists")


def _texts(service: str, name: str) -> Iterable[Condition]:
    if service:
        yield Condition("service", "=", service)
    if name:
        yield Condition("name", "=", name)


def _status(status: str) -> Condition:
    if status.lower() not in STATUSES:
        raise QueryError(f"status {status!r} is none of {', '.join(STATUSES)}")
    return Condition("status", "=", STATUSES[status.lower()])


def summary_json(one: TraceSummary) -> dict[str, Any]:
    return {
        "trace_id": one.trace_id,
        "root_service": one.root_service,
        "root_name": one.root_name,
        "start_ms": one.start_ns / 1e6,
        "duration_ms": one.duration_ns / 1e6,
        "spans": one.spans,
        "errors": one.errors,
        "matched": one.matched,
        "services": {name: {"spans": part.spans, "errors": part.errors} for name, part in one.services.items()},
    }


def trace_json(found: Trace) -> dict[str, Any]:
    start = min(span.start_ns for span in found.spans)
    end = max(span.start_ns + span.duration_ns for span in found.spans)
    return {
        "trace_id": found.trace_id,
        "start_ms": start / 1e6,
        "duration_ms": (end - start) / 1e6,
        "spans": len(found.spans),
        "errors": sum(span.status_code == "Error" for span in found.spans),
        "services": sorted({span.service for span in found.spans}),
        "cut": found.cut,
        "roots": _branches_json(grown(found.spans), start),
    }


def _branches_json(tops: Sequence[Branch], trace_start_ns: int) -> list[dict[str, Any]]:
    roots: list[dict[str, Any]] = []
    rows = [(top, roots) for top in reversed(tops)]
    while rows:
        branch, place = rows.pop()
        children: list[dict[str, Any]] = []
        place.append(_span_json(branch.span, trace_start_ns) | {"level": branch.level, "children": children})
        rows += [(child, children) for child in reversed(branch.children)]
    return roots


def _span_json(span: Span, trace_start_ns: int) -> dict[str, Any]:
    return {
        "span_id": span.span_id,
        "parent_span_id": span.parent_span_id,
        "name": span.name,
        "service": span.service,
        "kind": span.kind,
        "offset_ms": (span.start_ns - trace_start_ns) / 1e6,
        "duration_ms": span.duration_ns / 1e6,
        "status": span.status_code,
        "status_message": span.status_message,
        "attributes": dict(span.attributes),
        "resource": dict(span.resource),
        "scope": {"name": span.scope_name, "version": span.scope_version},
        "events": [
            {
                "name": event.name,
                "offset_ms": (event.time_ns - trace_start_ns) / 1e6,
                "attributes": dict(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {"trace_id": link.trace_id, "span_id": link.span_id, "attributes": dict(link.attributes)}
            for link in span.links
        ],
    }
