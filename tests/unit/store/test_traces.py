"""Searches over recorded spans of three engines, held against the recordings themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from support.otlp_spans import recorded, table

from loms.core.clock import SystemClock
from loms.core.errors import QueryError, QueryLimitError
from loms.core.model import SpanEvent, SpanLink
from loms.store.database import Database
from loms.store.trace_conditions import Condition
from loms.store.traces import TraceTables, full_id

Row = Mapping[str, Any]
NAMES = ("vllm-0.32.0", "sglang-0.5.23", "triton-2.51.0")
ROWS: Sequence[Row] = [row for name in NAMES for row in recorded(name)]
FIRST_MS = min(row["Timestamp"] for row in ROWS) // 1_000_000
LAST_MS = max(row["Timestamp"] for row in ROWS) // 1_000_000 + 1


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceTables]:
    with Database.open(tmp_path_factory.mktemp("store"), 1e9, SystemClock()) as database:
        for name in NAMES:
            database.insert_arrow("otel_traces", table(recorded(name)))
        yield TraceTables(database)


def ids_of(fits: Callable[[Row], bool]) -> set[str]:
    return {row["TraceId"] for row in ROWS if fits(row)}


def attributes(row: Row) -> dict[str, str]:
    return dict(row["SpanAttributes"])


TOKENS = "gen_ai.usage.completion_tokens"
CASES: list[tuple[list[Condition], Callable[[Row], bool]]] = [
    ([], lambda row: True),
    ([Condition("service", "=", "sglang")], lambda row: row["ServiceName"] == "sglang"),
    ([Condition("service", "!=", "sglang")], lambda row: row["ServiceName"] != "sglang"),
    ([Condition("service", "=~", "vllm.*|tri")], lambda row: row["ServiceName"].startswith("vllm")),
    ([Condition("name", "=", "llm_request")], lambda row: row["SpanName"] == "llm_request"),
    ([Condition("name", "!~", ".*e.*")], lambda row: "e" not in row["SpanName"]),
    ([Condition("status", "=", "Error")], lambda row: row["StatusCode"] == "Error"),
    ([Condition("status", "!=", "Error")], lambda row: row["StatusCode"] != "Error"),
    ([Condition("kind", "=", "Server")], lambda row: row["SpanKind"] == "Server"),
    ([Condition("duration", ">=", 10**9)], lambda row: row["Duration"] >= 10**9),
    ([Condition("attribute", "exists", key=TOKENS)], lambda row: TOKENS in attributes(row)),
    ([Condition("attribute", "=", "48", TOKENS)], lambda row: attributes(row).get(TOKENS) == "48"),
    ([Condition("attribute", "!=", "48", TOKENS)], lambda row: attributes(row).get(TOKENS, "48") != "48"),
    ([Condition("attribute", ">", 20, TOKENS)], lambda row: float(attributes(row).get(TOKENS, 0)) > 20),
    ([Condition("attribute", "=~", "4.", TOKENS)], lambda row: attributes(row).get(TOKENS, "")[:1] == "4"),
    (
        [Condition("attribute", "=", "python", "telemetry.sdk.language", "resource")],
        lambda row: ("telemetry.sdk.language", "python") in row["ResourceAttributes"],
    ),
    ([Condition("attribute", "exists", key="telemetry.sdk.language", scope="span")], lambda row: False),
    (
        [Condition("name", "=", "llm_request"), Condition("duration", ">", 10**9), Condition("kind", "=", "Server")],
        lambda row: row["SpanName"] == "llm_request" and row["Duration"] > 10**9,
    ),
    # Both hold within some traces, but never of one span.
    ([Condition("name", "=", "tokenize"), Condition("name", "=", "request_process")], lambda row: False),
]


@pytest.mark.parametrize(("conditions", "fits"), CASES)
def test_a_search_finds_what_the_recordings_hold(
    tables: TraceTables, conditions: list[Condition], fits: Callable[[Row], bool]
) -> None:
    found = tables.search(conditions, FIRST_MS, LAST_MS, limit=1000)
    assert {one.trace_id for one in found} == ids_of(fits)
    assert [one.start_ns for one in found] == sorted((one.start_ns for one in found), reverse=True)
    for one in found:
        spans = [row for row in ROWS if row["TraceId"] == one.trace_id]
        start = min(row["Timestamp"] for row in spans)
        root = min(spans, key=lambda row: (row["ParentSpanId"] != "", row["Timestamp"]))
        assert (one.spans, one.matched) == (len(spans), sum(map(fits, spans)))
        assert one.errors == sum(row["StatusCode"] == "Error" for row in spans)
        assert (one.start_ns, one.root_service) == (start, root["ServiceName"])
        assert one.root_name in {row["SpanName"] for row in spans if row["Timestamp"] == root["Timestamp"]}
        assert one.duration_ns == max(row["Timestamp"] + row["Duration"] for row in spans) - start
        assert set(one.services) == {row["ServiceName"] for row in spans}
        assert {match.span_id for match in one.matches} <= {row["SpanId"] for row in spans if fits(row)}


def test_whole_traces_are_found_by_their_duration(tables: TraceTables) -> None:
    def lasted(trace: str) -> int:
        spans = [row for row in ROWS if row["TraceId"] == trace]
        return int(max(row["Timestamp"] + row["Duration"] for row in spans) - min(row["Timestamp"] for row in spans))

    found = tables.search([Condition("trace_duration", ">=", 2 * 10**9)], FIRST_MS, LAST_MS, limit=1000)
    assert {one.trace_id for one in found} == {row["TraceId"] for row in ROWS if lasted(row["TraceId"]) >= 2 * 10**9}
    assert found


def test_the_newest_come_first_and_no_more_than_asked_for(tables: TraceTables) -> None:
    everything = tables.search([], FIRST_MS, LAST_MS, limit=1000)
    assert [one.trace_id for one in tables.search([], FIRST_MS, LAST_MS, limit=3)] == [
        one.trace_id for one in everything[:3]
    ]
    assert tables.search([], LAST_MS + 1, LAST_MS + 1000) == []


def test_a_trace_reads_back_as_it_was_sent(tables: TraceTables) -> None:
    for trace_id in sorted({row["TraceId"] for row in ROWS}):
        rows = sorted((r for r in ROWS if r["TraceId"] == trace_id), key=lambda r: (r["Timestamp"], r["SpanId"]))
        found = tables.trace(trace_id)
        assert not found.cut
        assert [span.span_id for span in found.spans] == [row["SpanId"] for row in rows]
        for span, row in zip(found.spans, rows, strict=True):
            assert (span.trace_id, span.parent_span_id, span.name) == (trace_id, row["ParentSpanId"], row["SpanName"])
            assert (span.kind, span.service, span.scope_name) == (row["SpanKind"], row["ServiceName"], row["ScopeName"])
            assert (span.start_ns, span.duration_ns) == (row["Timestamp"], row["Duration"])
            assert (span.status_code, span.status_message) == (row["StatusCode"], row["StatusMessage"])
            assert span.attributes == tuple(sorted(row["SpanAttributes"]))
            assert span.resource == tuple(sorted(row["ResourceAttributes"]))
            events = zip(row["Events.Timestamp"], row["Events.Name"], row["Events.Attributes"], strict=True)
            assert span.events == tuple(SpanEvent(at, name, tuple(sorted(own))) for at, name, own in events)
            links = zip(row["Links.TraceId"], row["Links.SpanId"], row["Links.TraceState"], strict=True)
            assert span.links == tuple(SpanLink(*link) for link in links)


def test_an_id_may_lack_its_leading_zeros(tables: TraceTables) -> None:
    assert tables.trace("ABC0").trace_id == full_id("abc0") == "0" * 28 + "abc0"
    assert len(tables.trace("abc0").spans) == 2
    assert tables.trace("123").spans == ()
    for wrong in ("", "xyz", "0" * 33, "' OR 1 --"):
        with pytest.raises(QueryError, match="is no trace id"):
            tables.trace(wrong)


DAY_NS = 86_400 * 10**9


@pytest.mark.parametrize(("at", "within_second_ns"), [*enumerate((999_000_000, 999_000_001, 999_500_000, 999_999_999))])
def test_a_span_is_found_wherever_it_lies_in_its_second(tables: TraceTables, at: int, within_second_ns: int) -> None:
    """The exporter's table of trace ids knows whole seconds, and a question knows milliseconds."""
    trace_id, second = f"a{within_second_ns:031x}", (ROWS[0]["Timestamp"] + DAY_NS) // 10**9 * 10**9
    second += at * 10 * 10**9
    early, late = second, second + within_second_ns
    own = {**ROWS[0], "TraceId": trace_id, "ParentSpanId": ""}
    rows = [{**own, "Timestamp": early}, {**own, "Timestamp": late, "SpanId": "e" * 16}]
    insert(tables, [*rows, {**rows[1], "TraceId": f"b{within_second_ns:031x}"}])
    assert [span.start_ns for span in tables.trace(trace_id).spans] == [early, late]
    assert [span.start_ns for span in tables.trace(trace_id.replace("a", "b", 1)).spans] == [late]
    at_ms = late // 1_000_000
    found = {one.trace_id[0]: one.spans for one in tables.search([], at_ms, at_ms)}
    assert found == {"a": 2, "b": 1}
    assert tables.search([], at_ms + 1, at_ms + 1) == []


@pytest.mark.parametrize("lasted", [2**63 - 1, 2**63, 2**64 - 1])
def test_durations_that_64_bits_cannot_hold_are_cut(tables: TraceTables, lasted: int) -> None:
    """A Collector writes whatever the end of a span minus its start is. The last moment is one of the year 2262."""
    start = ROWS[0]["Timestamp"] + 2 * DAY_NS + lasted % 1000 * 10**9
    row = {**ROWS[0], "TraceId": f"c{lasted:031x}", "Timestamp": start, "Duration": lasted}
    insert(tables, [row])
    (span,) = tables.trace(row["TraceId"]).spans
    assert span.duration_ns == 2**63 - 1 - start
    asked = [Condition("duration", ">=", 10**18), Condition("trace_duration", ">=", 10**18)]
    (found,) = tables.search(asked, start // 1_000_000, start // 1_000_000)
    assert (found.duration_ns, found.matches[0].duration_ns) == (span.duration_ns, span.duration_ns)


def insert(tables: TraceTables, rows: list[dict[str, Any]]) -> None:
    tables._database.insert_arrow("otel_traces", table(rows))  # type: ignore[attr-defined]


def test_a_long_trace_is_cut(tables: TraceTables) -> None:
    longest = max({row["TraceId"] for row in ROWS}, key=lambda one: sum(row["TraceId"] == one for row in ROWS))
    found = tables.trace(longest, most_spans=10)
    assert (len(found.spans), found.cut) == (10, True)


def test_what_there_is_to_search_by(tables: TraceTables) -> None:
    span = (FIRST_MS, LAST_MS)
    assert tables.services(*span) == ["sglang", "triton-lab", "vllm-lab"]
    names = {(row["SpanName"], row["SpanKind"]) for row in ROWS if row["ServiceName"] == "vllm-lab"}
    assert tables.operations("vllm-lab", *span) == sorted(names)
    assert tables.operations("vllm-lab", *span, kind="Server") == [("llm_request", "Server")]
    assert tables.tags("span", *span) == sorted({key for row in ROWS for key in attributes(row)})
    values = sorted({attributes(row)[TOKENS] for row in ROWS if TOKENS in attributes(row)})
    assert tables.tag_values(Condition("attribute", "exists", key=TOKENS), *span) == values
    assert tables.tag_values(Condition("name", "exists"), *span) == sorted({row["SpanName"] for row in ROWS})
    assert tables.tag_values(Condition("duration", "exists"), *span) == []


def test_a_question_that_is_too_large_is_refused(tables: TraceTables) -> None:
    class Small:
        """The same database with next to no room for an answer."""

        def query_columns(self, sql: str, parameters: Any = None, settings: Any = None) -> Any:
            few = {**settings, "max_rows_to_read": 10} if settings else settings
            return tables._database.query_columns(sql, parameters, few)

    with pytest.raises(QueryLimitError):
        TraceTables(Small()).search([], FIRST_MS, LAST_MS)
    for condition in (Condition("duration", "=~", "x"), Condition("name", ">", "x")):
        with pytest.raises(QueryError, match="cannot be compared"):
            tables.search([condition], FIRST_MS, LAST_MS)
