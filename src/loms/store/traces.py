"""Traces, read back from the tables of the OpenTelemetry Collector's ClickHouse exporter.

Both generations of these tables are read, LOMS's own and those that a Collector made: only columns that all of them
have are named, and `TraceTables` asks ``system.columns`` once whether the rest is there.

Source of the columns: opentelemetry-collector-contrib, exporter/clickhouseexporter.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loms.core.errors import QueryError, QueryTimeoutError, StoreError
from loms.core.model import Span
from loms.store.span_rows import NEEDED, span_columns, span_of
from loms.store.trace_conditions import COLUMNS, DURATION_NS, MAPS, Condition, Scope, Statement, ordering

MOST_TRACES = 1000
"""That one search gives."""
MOST_SPANS = 50_000
"""Of one trace."""
MOST_NAMES = 10_000
"""Services, operations, attributes or their values."""
_LIMITS: Mapping[str, float | str] = {
    "max_execution_time": 20,
    "max_result_rows": 2_000_000,
    "max_rows_to_read": 200_000_000,
}
_SAMPLED: Mapping[str, float | str] = {
    "max_execution_time": 10,
    "max_rows_to_read": 5_000_000,
    "read_overflow_mode": "'break'",
}
"""For lists of what there is: what five million spans show is enough."""

_END_NS = f"toUnixTimestamp64Nano(Timestamp) + {DURATION_NS}"
_WAIT_SECONDS = 20.0
_ID = re.compile(r"[0-9a-fA-F]{1,32}")


@dataclass(frozen=True, slots=True)
class Match:
    """A span that a search found."""

    span_id: str
    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class ServicePart:
    """What one service has in a trace."""

    spans: int
    errors: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One trace in a list."""

    trace_id: str
    root_service: str
    """Of the span without a parent, else of the earliest one."""
    root_name: str
    start_ns: int
    duration_ns: int
    """From the first start to the last end."""
    services: Mapping[str, ServicePart]
    matched: int
    """Spans that fulfil all conditions."""
    matches: tuple[Match, ...] = ()
    """A few of them."""

    @property
    def spans(self) -> int:
        return sum(part.spans for part in self.services.values())

    @property
    def errors(self) -> int:
        return sum(part.errors for part in self.services.values())


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one trace by their start."""

    trace_id: str
    spans: tuple[Span, ...]
    cut: bool
    """There are more than were read."""


class Columns(Protocol):
    """What is needed of a database."""

    def query_columns(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]: ...


class TraceTables:
    """Reads spans; safe to call from several threads as its database is. One statement runs at a time, so that slow
    questions about traces do not hold up rules and dashboards.

    Everything raises `StoreError` where the tables are not there or of another kind, `QueryTimeoutError` and
    `QueryLimitError` where a question is too large, and `QueryError` where it cannot be asked.
    """

    def __init__(self, database: Columns) -> None:
        self._database = database
        self._columns: dict[str, str] = {}
        self._has_times = False
        self._turn = threading.Lock()

    def search(
        self, conditions: Iterable[Condition], start_ms: int, end_ms: int, *, limit: int = 20, examples: int = 3
    ) -> list[TraceSummary]:
        """Traces that have a span, begun between the two times, which fulfils all conditions; the newest first."""
        wanted, conditions = Statement(), tuple(conditions)
        wanted.between(start_ms, end_ms)
        for condition in conditions:
            wanted.require(condition)
        having = self._whole_traces(wanted, conditions, start_ms, end_ms)
        found = self._rows(
            _select(
                "TraceId AS id",
                f"{wanted.where}{having} AND TraceId != ''",
                f"GROUP BY id ORDER BY min(Timestamp) DESC, id LIMIT {max(1, min(int(limit), MOST_TRACES))}",
            ),
            wanted.parameters,
        )
        ids = [row["id"] for row in found]
        matched, whole = self._matches(wanted, ids, examples), self._summaries(ids)
        summaries = [_summary(one, whole[one], *matched[one]) for one in ids if one in whole and one in matched]
        return sorted(summaries, key=lambda one: (-one.start_ns, one.trace_id))

    def trace(self, trace_id: str, *, most_spans: int = MOST_SPANS) -> Trace:
        """One trace; no spans when it is not there. Raises `QueryError` for what is no trace id."""
        known, wanted = full_id(trace_id), Statement()
        wanted.parts.append(f"TraceId = {wanted.bind(known)}")
        if not self._narrow(wanted, [known]):
            return Trace(known, (), False)
        rows = self._rows(
            _select(span_columns(self._columns), wanted.where, f"ORDER BY start_ns, span LIMIT {most_spans + 1}"),
            wanted.parameters,
        )
        # A sender that did not hear our answer sends its spans again.
        spans = {(row["span"], row["name"], row["kind"], row["start_ns"]): row for row in rows}
        return Trace(known, tuple(map(span_of, [*spans.values()][:most_spans])), len(rows) > most_spans)

    def services(self, start_ms: int, end_ms: int) -> list[str]:
        """Names of the services that have spans then."""
        return self._names("ServiceName", (), start_ms, end_ms)

    def operations(self, service: str, start_ms: int, end_ms: int, kind: str = "") -> list[tuple[str, str]]:
        """Name and kind of the spans of a service (empty: of all)."""
        wanted = Statement()
        wanted.between(start_ms, end_ms)
        for name, value in (("service", service), ("kind", kind)):
            if value:
                wanted.require(Condition("service" if name == "service" else "kind", "=", value))
        rows = self._rows(
            _select(
                "DISTINCT SpanName AS name, SpanKind AS kind", wanted.where, f"ORDER BY name, kind LIMIT {MOST_NAMES}"
            ),
            wanted.parameters,
            _SAMPLED,
        )
        return [(row["name"], row["kind"]) for row in rows]

    def tags(self, scope: Scope, start_ms: int, end_ms: int) -> list[str]:
        """Names of attributes."""
        found: set[str] = set()
        for column in MAPS[scope]:
            found.update(self._names(f"arrayJoin(mapKeys({column}))", (), start_ms, end_ms))
        return sorted(found)

    def tag_values(self, condition: Condition, start_ms: int, end_ms: int) -> list[str]:
        """Values of what ``condition`` names by its field, key and scope; its op and value do not count."""
        if condition.field in COLUMNS:
            return self._names(COLUMNS[condition.field], (), start_ms, end_ms)
        if condition.field != "attribute":
            return []
        found: set[str] = set()
        for column in MAPS[condition.scope]:
            found.update(self._names(f"{column}[{{key:String}}]", (("key", condition.key),), start_ms, end_ms))
        return sorted(found)

    def _names(self, expression: str, parameters: Iterable[tuple[str, str]], start_ms: int, end_ms: int) -> list[str]:
        wanted = Statement(parameters=dict(parameters))
        wanted.between(start_ms, end_ms)
        rows = self._rows(
            _select(
                f"DISTINCT {expression} AS one", f"{wanted.where} AND one != ''", f"ORDER BY one LIMIT {MOST_NAMES}"
            ),
            wanted.parameters,
            _SAMPLED,
        )
        return [row["one"] for row in rows]

    def _whole_traces(self, wanted: Statement, conditions: Sequence[Condition], start_ms: int, end_ms: int) -> str:
        """The condition on the duration of whole traces, which looks at the spans of the same time alone."""
        parts = [
            f"lasted {ordering(one)} {wanted.bind(int(one.value), 'Int64')}"
            for one in conditions
            if one.field == "trace_duration"
        ]
        if not parts:
            return ""
        within = Statement(parameters=wanted.parameters)
        within.between(start_ms, end_ms)
        lasting = f"TraceId, max({_END_NS}) - min(toUnixTimestamp64Nano(Timestamp)) AS lasted"
        grouped = _select(lasting, within.where, f"GROUP BY TraceId HAVING {' AND '.join(parts)}")
        return f" AND TraceId GLOBAL IN (SELECT TraceId FROM ({grouped}))"  # noqa: S608 (parts of our own)

    def _matches(self, wanted: Statement, ids: Sequence[str], examples: int) -> dict[str, tuple[int, list[Match]]]:
        """Trace id → how many of its spans fulfil the conditions, and a few of them."""
        if not ids:
            return {}
        wanted.parts.append(f"TraceId IN {wanted.bind(list(ids), 'Array(String)')}")
        self._narrow(wanted, ids)
        one = f"(SpanId, SpanName, toUnixTimestamp64Nano(Timestamp), {DURATION_NS})"
        rows = self._rows(
            _select(
                "TraceId AS id, uniqExact(SpanId, SpanName, Timestamp) AS matched,"
                f" groupUniqArray({int(examples)})({one}) AS examples",
                wanted.where,
                "GROUP BY id",
            ),
            wanted.parameters,
        )
        return {row["id"]: (row["matched"], [_match(each) for each in row["examples"]]) for row in rows}

    def _summaries(self, ids: Sequence[str]) -> dict[str, list[Mapping[str, Any]]]:
        """Trace id → one row for each of its services."""
        wanted = Statement()
        wanted.parts.append(f"TraceId IN {wanted.bind(list(ids), 'Array(String)')}")
        if not ids or not self._narrow(wanted, ids):
            return {}
        rows = self._rows(
            _select(
                "TraceId AS id, ServiceName AS service, uniqExact(SpanId, SpanName, Timestamp) AS spans,"
                " uniqExactIf(SpanId, SpanName, Timestamp, StatusCode IN ('Error', 'STATUS_CODE_ERROR')) AS errors,"
                " toUnixTimestamp64Nano(min(Timestamp)) AS start,"
                f" max({_END_NS}) AS end,"
                " argMin((ParentSpanId != '', toUnixTimestamp64Nano(Timestamp), SpanName),"
                " (ParentSpanId != '', Timestamp)) AS root",
                wanted.where,
                "GROUP BY id, service ORDER BY id, service",
            ),
            wanted.parameters,
        )
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["id"], []).append(row)
        return found

    def _narrow(self, wanted: Statement, ids: Sequence[str]) -> bool:
        """Add the time in which these traces lie; False when there is none of them."""
        self._look()
        if not self._has_times:
            return True
        place = wanted.bind(list(ids), "Array(String)")
        (row,) = self._rows(
            _select(
                "count() AS known, toUnixTimestamp(min(Start)) AS first, toUnixTimestamp(max(End)) AS last",
                f"TraceId IN {place}",
                table="otel_traces_trace_id_ts",
            ),
            wanted.parameters,
        )
        wanted.between(int(row["first"]) * 1000, int(row["last"]) * 1000 + 999)
        return bool(row["known"])

    def _look(self) -> None:
        """Ask once which columns there are."""
        if self._columns:
            return
        columns = self._database.query_columns(
            "SELECT table, name, type FROM system.columns WHERE database = currentDatabase()"
            " AND table IN ('otel_traces', 'otel_traces_trace_id_ts')"
        )
        rows = list(zip(*(columns[name].to_pylist() for name in ("table", "name", "type")), strict=True))
        found = {name: kind for table, name, kind in rows if table == "otel_traces"}
        if missing := sorted(NEEDED - found.keys()):
            raise StoreError(f"the table otel_traces has no column {missing[0]}", hint="is it the Collector's?")
        if not found["SpanAttributes"].startswith("Map("):
            raise StoreError(
                f"the attributes in otel_traces are {found['SpanAttributes']}, and LOMS reads maps",
                hint="set json: false in the Collector's ClickHouse exporter",
            )
        self._has_times = any(table == "otel_traces_trace_id_ts" for table, _, _ in rows)
        self._columns = found

    def _rows(
        self, sql: str, parameters: Mapping[str, Any], limits: Mapping[str, float | str] = _LIMITS
    ) -> list[dict[str, Any]]:
        self._look()
        if not self._turn.acquire(timeout=_WAIT_SECONDS):
            raise QueryTimeoutError(
                f"the question waited {_WAIT_SECONDS:g} s for others about traces", hint="ask again, or for less time"
            )
        try:
            columns = self._database.query_columns(sql, parameters, limits)
        finally:
            self._turn.release()
        names = list(columns)
        values = (columns[name].to_pylist() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def full_id(trace_id: str) -> str:
    """32 lower-case hex digits from at most as many; leading zeros may be left out. Raises `QueryError`.

    >>> full_id("ABC0")
    '0000000000000000000000000000abc0'
    """
    if not _ID.fullmatch(trace_id):
        raise QueryError(f"{trace_id[:80]!r} is no trace id: it has up to 32 hexadecimal digits")
    return trace_id.lower().zfill(32)


def _select(what: str, where: str, rest: str = "", table: str = "otel_traces") -> str:
    """A statement of parts that hold places for what callers wrote, and nothing of it."""
    return f"SELECT {what} FROM {table} WHERE {where} {rest}"  # noqa: S608


def _match(row: Any) -> Match:
    return Match(*(row.values() if isinstance(row, dict) else row))


def _summary(trace_id: str, rows: Sequence[Mapping[str, Any]], matched: int, matches: Iterable[Match]) -> TraceSummary:
    roots = [
        (*(row["root"].values() if isinstance(row["root"], dict) else row["root"]), row["service"]) for row in rows
    ]
    _, _, name, service = min(roots)
    start = min(row["start"] for row in rows)
    return TraceSummary(
        trace_id=trace_id,
        root_service=service,
        root_name=name,
        start_ns=start,
        duration_ns=max(row["end"] for row in rows) - start,
        services={row["service"]: ServicePart(row["spans"], row["errors"]) for row in rows},
        matched=matched,
        matches=tuple(sorted(matches, key=lambda match: match.start_ns)),
    )
