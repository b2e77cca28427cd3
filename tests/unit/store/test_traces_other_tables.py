"""Tables that are not quite LOMS's own: filled twice, made by an older Collector, or of another kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.otlp_spans import SCHEMA, recorded, table

from loms.core.clock import SystemClock
from loms.core.errors import StoreError
from loms.store.database import Database
from loms.store.trace_conditions import Condition
from loms.store.traces import TraceTables

SPAN_OF_TIME = (1_795_900_000_000, 1_796_000_000_000)


def test_spans_that_were_sent_twice_count_once(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, SystemClock()) as database:
        for _ in range(2):
            database.insert_arrow("otel_traces", table(recorded("vllm-0.32.0")))
        tables = TraceTables(database)
        assert len(tables.trace("abc0").spans) == 2
        (found,) = [one for one in tables.search([], *SPAN_OF_TIME, limit=1000) if one.trace_id.endswith("abc0")]
        assert (found.spans, found.matched) == (2, 2)


OLD = """
CREATE TABLE otel_traces (
    Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String, TraceState String,
    SpanName LowCardinality(String), SpanKind LowCardinality(String), ServiceName LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String), SpanAttributes Map(LowCardinality(String), String),
    Duration Int64, StatusCode LowCardinality(String), StatusMessage String,
    Events Nested(Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)),
    Links Nested(TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String))
) ENGINE = MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toUnixTimestamp(Timestamp))"""
OLD_TIMES = """
CREATE TABLE otel_traces_trace_id_ts (TraceId String, Start DateTime, End DateTime)
ENGINE = MergeTree PARTITION BY toDate(Start) ORDER BY (TraceId, Start)"""
OLD_VIEW = """
CREATE MATERIALIZED VIEW otel_traces_trace_id_ts_mv TO otel_traces_trace_id_ts AS
SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End FROM otel_traces WHERE TraceId != '' GROUP BY TraceId"""


@pytest.mark.parametrize("with_times", [True, False])
def test_tables_of_an_older_collector_are_read(tmp_path: Path, with_times: bool) -> None:
    """Its columns: no scope, a signed duration, and the kinds and statuses spelled in capitals."""
    with Database.open(tmp_path, 1e9, SystemClock()) as database:
        for name in ("otel_traces_trace_id_ts_mv", "otel_traces_trace_id_ts", "otel_traces"):
            database.command(f"DROP TABLE {name}")
        for statement in (OLD, *((OLD_TIMES, OLD_VIEW) if with_times else ())):
            database.command(statement)
        rows = [
            {**row, "SpanKind": f"SPAN_KIND_{row['SpanKind'].upper()}", "StatusCode": "STATUS_CODE_ERROR"}
            for row in recorded("sglang-0.5.23")
        ]
        newer = ("ScopeName", "ScopeVersion")
        database.insert_arrow("otel_traces", table(rows).drop_columns([*newer]))
        tables = TraceTables(database)
        asked = [Condition("kind", "=", "Internal"), Condition("status", "=", "Error")]
        found = tables.search(asked, *SPAN_OF_TIME, limit=1000)
        assert {one.trace_id for one in found} == {row["TraceId"] for row in rows}
        assert all(one.errors == one.spans for one in found)
        span = tables.trace(found[0].trace_id).spans[0]
        assert (span.kind, span.status_code, span.scope_name) == ("Internal", "Error", "")
        assert sum(len(tables.trace(one.trace_id).spans) for one in found) == len(rows)


def test_tables_of_another_kind_are_refused(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, SystemClock()) as database:
        database.command("DROP TABLE otel_traces_trace_id_ts_mv")
        database.command("DROP TABLE otel_traces")
        with pytest.raises(StoreError, match="otel_traces has no column"):
            TraceTables(database).trace("1")
        columns = ", ".join(f"`{name}` String" for name in SCHEMA.names if name != "SpanAttributes")
        database.command(f"CREATE TABLE otel_traces ({columns}, SpanAttributes JSON) ENGINE = Memory")
        with pytest.raises(StoreError, match="the attributes in otel_traces are JSON") as caught:
            TraceTables(database).trace("1")
        assert "json: false" in caught.value.hint
