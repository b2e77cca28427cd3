"""Spans and log records → rows of the Collector exporter's tables (``otel_traces``, ``otel_logs``), column by column.

Each column is a list that grows row by row and becomes an Arrow array at the end, because that is what costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from loms.core.errors import PayloadError
from loms.ingest.otlp.limits import Limits, Refusals
from loms.ingest.otlp.values import Pairs, pairs_of, text_of

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")

_TIME = pa.timestamp("ns")
_LAST_NS = 2**63 - 1


class _Maps:
    """A column of maps."""

    def __init__(self) -> None:
        self._pairs: Pairs = []
        self._ends: list[int] = [0]

    def add(self, pairs: Pairs) -> None:
        self._pairs += pairs
        self._ends.append(len(self._pairs))

    def array(self) -> pa.Array[Any]:
        keys, values = (_strings([pair[place] for pair in self._pairs]) for place in (0, 1))
        return pa.MapArray.from_arrays(pa.array(self._ends, pa.int32()), keys, values)


class _Spread:
    """What groups of rows share (their resource, their scope): kept once a group, and spread over its rows.

    It may become ``most`` bytes by that.
    """

    def __init__(self, most: int, *columns: str) -> None:
        self._columns = columns
        self._most = most
        self._room = most
        self._size = 0
        self._values: list[tuple[str, ...]] = []
        self._maps = _Maps()
        self._rows: list[int] = []

    def begin(self, pairs: Pairs, *values: str) -> None:
        self._maps.add(pairs)
        self._values.append(values)
        self._size = sum(len(text) for pair in pairs for text in pair) + sum(map(len, values))

    def fill(self, rows: int) -> None:
        """The rows up to the ``rows``-th belong to the group that began last. Raises `PayloadError` beyond ``most``."""
        self._room -= self._size * (rows - len(self._rows))
        if self._room < 0:
            raise PayloadError(
                f"the attributes of resources and scopes have more than {self._most} bytes once each row has them"
                " (receive.decompressed)",
                status=413,
                hint="send fewer at once",
            )
        self._rows += [len(self._values) - 1] * (rows - len(self._rows))

    def arrays(self) -> dict[str, pa.Array[Any]]:
        """The maps under the first name, then the values."""
        spread = pa.array(self._rows, pa.int64())
        texts = zip(*self._values, strict=True) if self._values else [()] * (len(self._columns) - 1)
        whole = [self._maps.array(), *(_strings(text) for text in texts)]
        return {name: array.take(spread) for name, array in zip(self._columns, whole, strict=True)}


def _strings(values: Sequence[str]) -> pa.Array[Any]:
    return pa.array(values, pa.string())


def _times(values: Sequence[int]) -> pa.Array[Any]:
    return pa.array(values, pa.int64()).view(_TIME)


def _lists(ends: Sequence[int], values: pa.Array[Any]) -> pa.Array[Any]:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def _service(resource: Pairs) -> str:
    return next((value for key, value in resource if key == "service.name"), "")


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else ""


def span_rows(request: Any, limits: Limits, refusals: Refusals) -> pa.Table | None:
    """Rows of ``otel_traces`` from an ``ExportTraceServiceRequest``; None when there are none.

    Refused are spans without ids, with more attributes than ``limits`` allows, or outside its times. An end beyond what
    64 bits of nanoseconds hold (the year 2262) becomes that.
    """
    starts: list[int] = []
    durations: list[int] = []
    ids: list[str] = []
    span_ids: list[str] = []
    parents: list[str] = []
    states: list[str] = []
    names: list[str] = []
    kinds: list[str] = []
    codes: list[str] = []
    messages: list[str] = []
    attributes = _Maps()
    events, links = _Events(), _Links()
    resources = _Spread(limits.expanded, "ResourceAttributes", "ServiceName")
    scopes = _Spread(limits.expanded, "_", "ScopeName", "ScopeVersion")
    for group in request.resource_spans:
        resource = pairs_of(group.resource.attributes)
        resources.begin(resource, _service(resource))
        for scope in group.scope_spans:
            scopes.begin([], scope.scope.name, scope.scope.version)
            for span in scope.spans:
                start = span.start_time_unix_nano
                trace_id, span_id, own = span.trace_id, span.span_id, span.attributes
                if not limits.oldest_ns <= start <= limits.newest_ns:
                    refusals.add("spans began before what is kept, or in the future")
                    continue
                if len(trace_id) != 16 or len(span_id) != 8 or not any(trace_id) or not any(span_id):
                    refusals.add("spans have no valid trace id and span id")
                    continue
                if len(own) > limits.attributes:
                    refusals.add(f"spans have more than {limits.attributes} attributes")
                    continue
                starts.append(start)
                durations.append(max(0, min(span.end_time_unix_nano, _LAST_NS) - start))
                ids.append(trace_id.hex())
                span_ids.append(span_id.hex())
                parents.append(_hex(span.parent_span_id))
                states.append(span.trace_state)
                names.append(span.name)
                kinds.append(_named(KINDS, span.kind))
                status = span.status
                codes.append(_named(STATUSES, status.code))
                messages.append(status.message)
                attributes.add(pairs_of(own))
                events.add(span.events)
                links.add(span.links)
            scopes.fill(len(starts))
        resources.fill(len(starts))
    if not starts:
        return None
    shared = resources.arrays() | scopes.arrays()
    return pa.table(
        {
            "Timestamp": _times(starts),
            "TraceId": _strings(ids),
            "SpanId": _strings(span_ids),
            "ParentSpanId": _strings(parents),
            "TraceState": _strings(states),
            "SpanName": _strings(names),
            "SpanKind": _strings(kinds),
            "ServiceName": shared["ServiceName"],
            "ResourceAttributes": shared["ResourceAttributes"],
            "ScopeName": shared["ScopeName"],
            "ScopeVersion": shared["ScopeVersion"],
            "SpanAttributes": attributes.array(),
            "Duration": pa.array(durations, pa.uint64()),
            "StatusCode": _strings(codes),
            "StatusMessage": _strings(messages),
            **events.arrays(),
            **links.arrays(),
        }
    )


def _hex(value: bytes) -> str:
    """An id; one that is all zeros is none."""
    return value.hex() if any(value) else ""


class _Events:
    def __init__(self) -> None:
        self._ends = [0]
        self._times: list[int] = []
        self._names: list[str] = []
        self._attributes = _Maps()

    def add(self, events: Any) -> None:
        for event in events:
            self._times.append(min(event.time_unix_nano, _LAST_NS))
            self._names.append(event.name)
            self._attributes.add(pairs_of(event.attributes))
        self._ends.append(len(self._times))

    def arrays(self) -> dict[str, pa.Array[Any]]:
        return {
            "Events.Timestamp": _lists(self._ends, _times(self._times)),
            "Events.Name": _lists(self._ends, _strings(self._names)),
            "Events.Attributes": _lists(self._ends, self._attributes.array()),
        }


class _Links:
    def __init__(self) -> None:
        self._ends = [0]
        self._ids: list[str] = []
        self._span_ids: list[str] = []
        self._states: list[str] = []
        self._attributes = _Maps()

    def add(self, links: Any) -> None:
        for link in links:
            self._ids.append(_hex(link.trace_id))
            self._span_ids.append(_hex(link.span_id))
            self._states.append(link.trace_state)
            self._attributes.add(pairs_of(link.attributes))
        self._ends.append(len(self._ids))

    def arrays(self) -> dict[str, pa.Array[Any]]:
        return {
            "Links.TraceId": _lists(self._ends, _strings(self._ids)),
            "Links.SpanId": _lists(self._ends, _strings(self._span_ids)),
            "Links.TraceState": _lists(self._ends, _strings(self._states)),
            "Links.Attributes": _lists(self._ends, self._attributes.array()),
        }


def log_rows(request: Any, limits: Limits, refusals: Refusals, now_ns: int) -> pa.Table | None:
    """Rows of ``otel_logs`` from an ``ExportLogsServiceRequest``; None when there are none.

    A record without a time has the time at which it was observed, else ``now_ns``. Refused are records with ids of
    the wrong length, with more attributes than ``limits`` allows, or outside its times.
    """
    times: list[int] = []
    ids: list[str] = []
    span_ids: list[str] = []
    flags: list[int] = []
    severities: list[str] = []
    numbers: list[int] = []
    bodies: list[str] = []
    names: list[str] = []
    attributes = _Maps()
    resources = _Spread(limits.expanded, "ResourceAttributes", "ServiceName", "ResourceSchemaUrl")
    scopes = _Spread(limits.expanded, "ScopeAttributes", "ScopeName", "ScopeVersion", "ScopeSchemaUrl")
    for group in request.resource_logs:
        resource = pairs_of(group.resource.attributes)
        resources.begin(resource, _service(resource), group.schema_url)
        for scoped in group.scope_logs:
            scope = scoped.scope
            scopes.begin(pairs_of(scope.attributes), scope.name, scope.version, scoped.schema_url)
            for record in scoped.log_records:
                time = record.time_unix_nano or record.observed_time_unix_nano or now_ns
                if not limits.oldest_ns <= time <= limits.newest_ns:
                    refusals.add("records are older than what is kept, or of the future")
                    continue
                if len(record.trace_id) not in (0, 16) or len(record.span_id) not in (0, 8):
                    refusals.add("records have a trace id or span id of the wrong length")
                    continue
                if len(record.attributes) > limits.attributes:
                    refusals.add(f"records have more than {limits.attributes} attributes")
                    continue
                times.append(time)
                ids.append(_hex(record.trace_id))
                span_ids.append(_hex(record.span_id))
                flags.append(record.flags & 0xFF)
                severities.append(record.severity_text)
                numbers.append(record.severity_number & 0xFF)
                bodies.append(text_of(record.body))
                names.append(record.event_name)
                attributes.add(pairs_of(record.attributes))
            scopes.fill(len(times))
        resources.fill(len(times))
    if not times:
        return None
    return pa.table(
        {
            "Timestamp": _times(times),
            "TraceId": _strings(ids),
            "SpanId": _strings(span_ids),
            "TraceFlags": pa.array(flags, pa.uint8()),
            "SeverityText": _strings(severities),
            "SeverityNumber": pa.array(numbers, pa.uint8()),
            "Body": _strings(bodies),
            "LogAttributes": attributes.array(),
            "EventName": _strings(names),
            **resources.arrays(),
            **scopes.arrays(),
        }
    )
