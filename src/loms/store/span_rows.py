"""Rows of ``otel_traces`` → spans. Columns that came later are filled where a table does not have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from loms.core.model import Labels, Span, SpanEvent, SpanLink
from loms.store.trace_conditions import DURATION_NS, FORMER

NEEDED = frozenset(
    {
        *("Timestamp", "TraceId", "SpanId", "ParentSpanId", "SpanName", "SpanKind", "ServiceName", "Duration"),
        *("ResourceAttributes", "SpanAttributes", "StatusCode", "StatusMessage"),
    }
)
"""Columns that every form of ``otel_traces`` has."""
_OPTIONAL: Mapping[str, str] = {
    "TraceState": "''",
    "ScopeName": "''",
    "ScopeVersion": "''",
    "Events.Timestamp": "emptyArrayDateTime()",
    "Events.Name": "emptyArrayString()",
    "Events.Attributes": "[]",
    "Links.TraceId": "emptyArrayString()",
    "Links.SpanId": "emptyArrayString()",
    "Links.TraceState": "emptyArrayString()",
    "Links.Attributes": "[]",
}
"""Column → what stands for it in a table without it."""


def span_columns(there: Collection[str]) -> str:
    """What is selected, for a table that has the columns ``there``."""

    def column(name: str) -> str:
        return f"`{name}`" if name in there else _OPTIONAL[name]

    named = {
        "trace": "TraceId",
        "span": "SpanId",
        "parent": "ParentSpanId",
        "name": "SpanName",
        "kind": "SpanKind",
        "service": "ServiceName",
        "start_ns": "toUnixTimestamp64Nano(Timestamp)",
        "duration_ns": DURATION_NS,
        "status": "StatusCode",
        "message": "StatusMessage",
        "state": column("TraceState"),
        "resource": "ResourceAttributes",
        "scope": column("ScopeName"),
        "scope_version": column("ScopeVersion"),
        "attributes": "SpanAttributes",
        "event_ns": f"arrayMap(t -> toUnixTimestamp64Nano(toDateTime64(t, 9)), {column('Events.Timestamp')})",
        "event_name": column("Events.Name"),
        "event_attributes": column("Events.Attributes"),
        "link_trace": column("Links.TraceId"),
        "link_span": column("Links.SpanId"),
        "link_state": column("Links.TraceState"),
        "link_attributes": column("Links.Attributes"),
    }
    return ", ".join(f"{expression} AS {name}" for name, expression in named.items())


def span_of(row: Mapping[str, Any]) -> Span:
    """The span in a row of `span_columns`."""
    events = zip(row["event_ns"], row["event_name"], row["event_attributes"], strict=True)
    links = zip(row["link_trace"], row["link_span"], row["link_state"], row["link_attributes"], strict=True)
    return Span(
        trace_id=row["trace"],
        span_id=row["span"],
        parent_span_id=row["parent"],
        name=row["name"],
        kind=_word(row["kind"], FORMER["kind"]) or "Unspecified",
        service=row["service"],
        start_ns=row["start_ns"],
        duration_ns=row["duration_ns"],
        status_code=_word(row["status"], FORMER["status"]) or "Unset",
        status_message=row["message"],
        trace_state=row["state"],
        resource=_labels(row["resource"]),
        scope_name=row["scope"],
        scope_version=row["scope_version"],
        attributes=_labels(row["attributes"]),
        events=tuple(SpanEvent(at, name, _labels(own)) for at, name, own in events),
        links=tuple(SpanLink(trace, span, state, _labels(own)) for trace, span, state, own in links),
    )


def _word(text: str, prefix: str) -> str:
    return text.removeprefix(prefix).capitalize() if text.startswith(prefix) else text


def _labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    """Attributes may be empty texts, which labels may not."""
    return tuple(sorted(dict(pairs).items()))
