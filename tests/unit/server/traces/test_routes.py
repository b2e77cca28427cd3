"""The three trace APIs over recorded spans. Their forms are those of Jaeger's and Tempo's documentation and source."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from starlette.testclient import TestClient
from support.otlp_spans import RECORDED, recorded, table

from loms.core.clock import ManualClock, SystemClock
from loms.core.model import Span
from loms.server.traces import jaeger as traces_jaeger
from loms.server.traces import routes as traces
from loms.server.traces import tempo as traces_tempo
from loms.server.traces.routes import DEEPEST, attribute_condition, grown
from loms.store.database import Database
from loms.store.trace_conditions import Condition
from loms.store.traces import TraceTables

NAMES = ("vllm-0.32.0", "sglang-0.5.23", "triton-2.51.0")
ROWS = [row for name in NAMES for row in recorded(name)]
NOW_MS = max(row["Timestamp"] for row in ROWS) // 1_000_000 + 60_000
LATER_NS = (NOW_MS + 86_400_000) * 1_000_000
"""For spans that other tests do not see."""
FAILED = next(row for row in ROWS if row["StatusCode"] == "Error")
LONGEST = max({row["TraceId"] for row in ROWS}, key=lambda one: sum(row["TraceId"] == one for row in ROWS))
START_S = min(row["Timestamp"] for row in ROWS) // 10**9


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceTables]:
    with Database.open(tmp_path_factory.mktemp("store"), 1e9, SystemClock()) as database:
        for name in NAMES:
            database.insert_arrow("otel_traces", table(recorded(name)))
        yield TraceTables(database)


@pytest.fixture(scope="module")
def client(tables: TraceTables) -> TestClient:
    app = FastAPI()
    for router in routers(tables):
        app.include_router(router)
    return TestClient(app)


def routers(tables: TraceTables) -> list[APIRouter]:
    return [module.router(tables, ManualClock(NOW_MS)) for module in (traces, traces_jaeger, traces_tempo)]


def spans_of(trace_id: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["TraceId"] == trace_id]


# LOMS's own


def test_search_and_tree(client: TestClient) -> None:
    found = client.get("/api/traces", params={"service": "sglang", "since": "6h", "limit": 100}).json()["traces"]
    assert {one["trace_id"] for one in found} == {row["TraceId"] for row in ROWS if row["ServiceName"] == "sglang"}
    assert client.get("/api/traces", params={"since": "1s"}).json() == {"traces": []}
    tree = client.get(f"/api/traces/{LONGEST.lstrip('0')}").json()
    assert (tree["trace_id"], tree["spans"], tree["cut"]) == (LONGEST, len(spans_of(LONGEST)), False)
    seen: dict[str, str] = {}
    rows = [(root, "") for root in tree["roots"]]
    while rows:
        span, above = rows.pop()
        seen[span["span_id"]] = above
        rows += [(child, span["span_id"]) for child in span["children"]]
    known = {row["SpanId"] for row in spans_of(LONGEST)}
    parents = {row["SpanId"]: row["ParentSpanId"] for row in spans_of(LONGEST)}
    assert seen == {one: parent if parent in known else "" for one, parent in parents.items()}
    assert client.get("/api/traces/services", params={"since": "6h"}).json() == {
        "services": ["sglang", "triton-lab", "vllm-lab"]
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"attribute": ["gen_ai.usage.completion_tokens>20", "gen_ai.request.n=1"]},
        {"status": "error"},
        {"name": "llm_request", "min_duration": "1s", "max_duration": "2s"},
    ],
)
def test_what_can_be_asked(client: TestClient, asked: dict[str, Any]) -> None:
    def fits(row: dict[str, Any]) -> bool:
        own = dict(row["SpanAttributes"])
        return {
            "attribute": int(own.get("gen_ai.usage.completion_tokens", 0)) > 20 and own.get("gen_ai.request.n") == "1",
            "status": row["StatusCode"] == "Error",
            "name": row["SpanName"] == "llm_request" and 10**9 <= row["Duration"] <= 2 * 10**9,
        }[next(iter(asked))]

    found = client.get("/api/traces", params={**asked, "since": "6h", "limit": 100}).json()["traces"]
    assert {one["trace_id"] for one in found} == {row["TraceId"] for row in ROWS if fits(row)}
    assert found


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/traces?min_duration=1", 400),
        ("/api/traces?status=odd", 400),
        ("/api/traces?attribute=%3Dx", 400),
        ("/api/traces?attribute=x%3Ey", 400),
        ("/api/traces?attribute=x%3D~(", 400),
        ("/api/traces?since=odd", 400),
        ("/api/traces?start=odd", 400),
        ("/api/traces?limit=0", 422),
        ("/api/traces/nonsense", 400),
        ("/api/traces/123", 404),
        ("/tempo/api/traces/123", 404),
        ("/tempo/api/traces/x", 400),
        ("/tempo/api/search?q=odd", 400),
        ("/tempo/api/search?tags=odd", 400),
        ("/tempo/api/search?minDuration=odd", 400),
        ("/tempo/api/v2/search/tags?scope=odd", 400),
        ("/jaeger/api/traces", 400),
        ("/jaeger/api/traces?service=x&tags=odd", 400),
        ("/jaeger/api/traces?service=x&minDuration=odd", 400),
        ("/jaeger/api/operations", 400),
        ("/jaeger/api/traces/123", 404),
        ("/jaeger/api/traces/x", 400),
    ],
)
def test_mistakes(client: TestClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    if path.startswith("/jaeger"):
        body = answer.json()
        assert (body["data"], body["errors"][0]["code"]) == (None, status)


LATE = ("nan", "inf", "-inf", "1e30", str(2**63), "9999-12-31T00:00:00Z")
TIMES = [
    *(
        (f"/api/traces{path}?{name}={text}", name)
        for path in ("", "/services")
        for name in ("start", "end")
        for text in LATE
    ),
    *(
        (f"/api/traces{path}?since={text}", "since")
        for path in ("", "/services")
        for text in ("99999999y", "9" * 400 + "y")
    ),
    *(
        (f"/tempo/api/{path}?{name}={text}", name)
        for path in ("search", "search/tags", "v2/search/tags", "search/tag/name/values", "v2/search/tag/name/values")
        for name in ("start", "end")
        for text in LATE
    ),
    *((f"/jaeger/api/traces?service=x&{name}={text}", name) for name in ("start", "end") for text in LATE),
    *(
        (f"{path}{name}={text}", name)
        for path, names in (
            ("/api/traces?", ("min_duration", "max_duration")),
            ("/tempo/api/search?", ("minDuration", "maxDuration")),
            ("/jaeger/api/traces?service=x&", ("minDuration", "maxDuration")),
        )
        for name in names
        for text in ("1", "nan", "9223372036854775808ns", "200000000h", "9" * 400 + "s")
    ),
    *((f"/tempo/api/search?q={{duration>{text}}}", "TraceQL") for text in ("200000000h", "9" * 400 + "s")),
]


@pytest.mark.parametrize(("path", "name"), TIMES, ids=lambda text: text[:80])
def test_times_that_the_store_cannot_hold_are_refused_by_name(client: TestClient, path: str, name: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 400
    body = answer.json()
    text = body["errors"][0]["msg"] if path.startswith("/jaeger") else body["detail"]
    assert text.startswith(name if name == "TraceQL" else f'invalid parameter "{name}": ')


@pytest.mark.parametrize("path", ["/api/traces?", "/tempo/api/search?", "/jaeger/api/traces?service=sglang&"])
def test_the_furthest_times_that_the_store_holds_can_be_asked_for(client: TestClient, path: str) -> None:
    unit = 10**6 if path.startswith("/jaeger") else 1
    for start, end, found in ((1, 9_223_372_036, True), (-9_223_372_036, 9_223_372_036, True), (-5, -1, False)):
        answer = client.get(f"{path}start={start * unit}&end={end * unit}").json()
        assert bool(answer.get("traces") or answer.get("data")) == found
    assert client.get("/api/traces", params={"since": "292y"}).json()["traces"]
    assert client.get("/api/traces", params={"since": "6h", "max_duration": "9223372036s"}).json()["traces"]


def test_answers_are_written_by_the_threads_of_their_requests(tables: TraceTables) -> None:
    """What a handler returns as a plain value, FastAPI turns into JSON in the event loop, which a large trace stops."""
    routes = [route for router in routers(tables) for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 12
    assert {r.path for r in routes if r.response_model is not None} == {"/tempo/api/status/buildinfo"}


def test_attributes_as_people_write_them() -> None:
    assert attribute_condition("a.b") == Condition("attribute", "exists", key="a.b")
    assert attribute_condition("span.a = x=y") == Condition("attribute", "=", " x=y", "a", "span")
    assert attribute_condition("resource.a!=") == Condition("attribute", "!=", "", "a", "resource")
    assert attribute_condition("service.name=~x.*") == Condition("service", "=~", "x.*")


def test_a_tree_lists_roots_then_orphans_and_ends_where_it_is_deep() -> None:
    def span(own: str, parent: str, at: int) -> Span:
        return Span("t", own, parent, own, "Server", "s", at, 1)

    chain = [span("late root", "", 9), span("orphan", "gone", 1), span("root", "", 2)]
    chain += [span(f"{i}", f"{i - 1}" if i else "root", 3 + i) for i in range(5)]
    tops = grown(chain, deepest=3)
    assert [top.span.name for top in tops] == ["root", "late root", "orphan"]
    (first,) = tops[0].children
    assert [(child.span.name, child.level) for child in first.children] == [("1", 3), ("2", 4), ("3", 5), ("4", 6)]


def test_what_lies_too_deep_follows_its_parent() -> None:
    """a → (b → (c, d → e), f): below two levels it reads from the top down."""
    parents = {"a": "", "b": "a", "f": "a", "c": "b", "d": "b", "e": "d"}
    spans = [Span("t", own, parent, own, "Server", "s", at, 1) for at, (own, parent) in enumerate(parents.items())]
    (top,) = grown(spans, deepest=2)
    assert [(child.span.name, child.level) for child in top.children] == [
        ("b", 2),
        ("c", 3),
        ("d", 3),
        ("e", 4),
        ("f", 2),
    ]


def test_a_tree_of_orphans_is_made_without_comparing_spans() -> None:
    """A list of tops that is searched for each of them takes a minute for 20,000."""

    class Incomparable(Span):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise AssertionError("spans are compared")

        __hash__ = None  # type: ignore[assignment]

    def orphan(at: int) -> Span:
        return Incomparable("t", f"{at}", f"gone {at}", "o", "Server", "s", at, 1)

    assert [top.span.start_ns for top in grown([orphan(at) for at in range(100)])] == list(range(100))


@pytest.mark.parametrize("depth", [130, DEEPEST, DEEPEST + 50])
def test_a_deep_trace_is_given_to_the_documented_depth(client: TestClient, tables: TraceTables, depth: int) -> None:
    first = {**ROWS[0], "TraceId": f"d{depth:031x}"}
    chain = [
        {**first, "SpanId": f"{at + 1:016x}", "ParentSpanId": f"{at:016x}" if at else "", "Timestamp": LATER_NS + at}
        for at in range(depth)
    ]
    tables._database.insert_arrow("otel_traces", table(chain))  # type: ignore[attr-defined]
    answer = client.get(f"/api/traces/{first['TraceId']}")
    assert answer.status_code == 200
    spans, levels = answer.json()["roots"], list[list[int]]()
    while spans:
        levels.append([span["level"] for span in spans])
        spans = [child for span in spans for child in span["children"]]
    assert levels[:-1] == [[level] for level in range(1, min(depth, DEEPEST))]
    assert levels[-1] == list(range(min(depth, DEEPEST), depth + 1))


# Jaeger


def test_jaeger_lists(client: TestClient) -> None:
    whole = client.get("/jaeger/api/services").json()
    assert whole == {
        "data": ["sglang", "triton-lab", "vllm-lab"],
        "total": 3,
        "limit": 0,
        "offset": 0,
        "errors": None,
    }
    assert "llm_request" in client.get("/jaeger/api/services/vllm-lab/operations").json()["data"]
    found = client.get("/jaeger/api/operations", params={"service": "vllm-lab", "spanKind": "server"}).json()["data"]
    assert found == [{"name": "llm_request", "spanKind": "server"}]


def test_jaeger_gives_a_trace(client: TestClient) -> None:
    (trace,) = client.get(f"/jaeger/api/traces/{FAILED['TraceId']}").json()["data"]
    assert trace["traceID"] == FAILED["TraceId"]
    rows = {row["SpanId"]: row for row in spans_of(FAILED["TraceId"])}
    assert {span["spanID"] for span in trace["spans"]} == set(rows)
    for span in trace["spans"]:
        row = rows[span["spanID"]]
        assert (span["operationName"], span["traceID"]) == (row["SpanName"], row["TraceId"])
        assert (span["startTime"], span["duration"]) == (row["Timestamp"] // 1000, row["Duration"] // 1000)
        process = trace["processes"][span["processID"]]
        assert process["serviceName"] == row["ServiceName"]
        own = {tag["key"]: tag["value"] for tag in process["tags"]}
        assert own == {key: value for key, value in row["ResourceAttributes"] if key != "service.name"}
        tags = {tag["key"]: (tag["type"], tag["value"]) for tag in span["tags"]}
        assert tags["span.kind"] == ("string", row["SpanKind"].lower())
        assert tags.get("error") == (("bool", True) if row["StatusCode"] == "Error" else None)
        assert tags.get("otel.status_code") == (("string", "ERROR") if row["StatusCode"] == "Error" else None)
        references = [(one["refType"], one["spanID"]) for one in span["references"]]
        parent = [("CHILD_OF", row["ParentSpanId"])] if row["ParentSpanId"] else []
        assert references == [*parent, *(("FOLLOWS_FROM", one) for one in row["Links.SpanId"])]
        assert [
            (log["timestamp"], log["fields"][0], {f["key"]: f["value"] for f in log["fields"][1:]})
            for log in span["logs"]
        ] == [
            (at // 1000, {"key": "event", "type": "string", "value": name}, dict(fields))
            for at, name, fields in zip(
                row["Events.Timestamp"], row["Events.Name"], row["Events.Attributes"], strict=True
            )
        ]


def test_jaeger_searches(client: TestClient) -> None:
    span = {"start": START_S * 10**6, "end": NOW_MS * 1000, "limit": 200, "lookback": "custom"}
    asked = {"service": "sglang", "tags": json.dumps({"error": "true"}), **span}
    found = client.get("/jaeger/api/traces", params=asked).json()["data"]
    assert {one["traceID"] for one in found} == {row["TraceId"] for row in ROWS if row["StatusCode"] == "Error"}
    asked = {"service": "vllm-lab", "operation": "llm_request", "minDuration": "1.5s", "maxDuration": "3s", **span}
    found = client.get("/jaeger/api/traces", params=asked).json()["data"]
    expected = {r["TraceId"] for r in ROWS if r["SpanName"] == "llm_request" and 1.5e9 <= r["Duration"] <= 3e9}
    assert {one["traceID"] for one in found} == expected
    asked = {"service": "vllm-lab", "tag": ["gen_ai.request.n:1", "span.kind:server"], **span}
    found = client.get("/jaeger/api/traces", params=asked).json()["data"]
    own = [row for row in ROWS if row["ServiceName"] == "vllm-lab" and row["SpanKind"] == "Server"]
    assert len(found) == len({row["TraceId"] for row in own if ("gen_ai.request.n", "1") in row["SpanAttributes"]})
    both = client.get("/jaeger/api/traces", params={"traceID": [LONGEST, "abc0", "123"]}).json()["data"]
    assert [one["traceID"] for one in both] == [LONGEST, "abc0".zfill(32)]


# Tempo


def sent(trace_id: str) -> dict[str, dict[str, Any]]:
    """Span id → the span as the engine sent it."""
    found = {}
    for name in NAMES:
        for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found |= {span["spanId"]: span for span in scope["spans"] if span["traceId"] == trace_id}
    return found


def test_tempo_gives_a_trace_as_protobuf_in_both_versions(client: TestClient) -> None:
    headers = {"Accept": "application/protobuf"}
    first = client.get(f"/tempo/api/traces/{LONGEST}", headers=headers)
    assert first.headers["content-type"] == "application/protobuf"
    data = TracesData.FromString(first.content)
    second = client.get(f"/tempo/api/v2/traces/{LONGEST}", headers=headers).content
    assert second[:1] == b"\x0a"
    assert second.endswith(first.content)
    expected, spans = sent(LONGEST), [s for r in data.resource_spans for c in r.scope_spans for s in c.spans]
    assert {span.span_id.hex() for span in spans} == set(expected)
    for span in spans:
        one = expected[span.span_id.hex()]
        assert span.trace_id.hex() == LONGEST
        assert (span.name, span.parent_span_id.hex()) == (one["name"], one.get("parentSpanId", ""))
        assert span.start_time_unix_nano == int(one["startTimeUnixNano"])
        assert span.end_time_unix_nano == int(one["endTimeUnixNano"])
        assert [event.name for event in span.events] == [event["name"] for event in one.get("events", [])]
        assert [link.span_id.hex() for link in span.links] == [link["spanId"] for link in one.get("links", [])]
    services = {
        a.value.string_value for r in data.resource_spans for a in r.resource.attributes if a.key == "service.name"
    }
    assert services == {row["ServiceName"] for row in spans_of(LONGEST)}


def test_tempo_gives_a_trace_as_json(client: TestClient) -> None:
    one = client.get("/tempo/api/traces/abc0").json()["batches"]
    two = client.get("/tempo/api/v2/traces/abc0").json()["trace"]["resourceSpans"]
    assert one == two
    spans = [span for batch in one for scope in batch["scopeSpans"] for span in scope["spans"]]
    assert {base64.b64decode(span["traceId"]).hex() for span in spans} == {"abc0".zfill(32)}
    assert {base64.b64decode(span["spanId"]).hex() for span in spans} == set(sent("abc0".zfill(32)))
    assert {span["kind"] for span in spans} == {"SPAN_KIND_SERVER"}


def test_tempo_searches(client: TestClient) -> None:
    span = {"start": START_S, "end": NOW_MS // 1000, "limit": 100}

    def ids(**asked: Any) -> set[str]:
        found = client.get("/tempo/api/search", params={**asked, **span}).json()["traces"]
        return {one["traceID"].zfill(32) for one in found}

    errors = {row["TraceId"] for row in ROWS if row["StatusCode"] == "Error"}
    assert ids(q='{ status=error && resource.service.name=~"sg.*" }') == errors
    assert ids(tags="service.name=sglang status=error") == errors
    assert ids(q="{}") == {row["TraceId"] for row in ROWS}
    long = {
        one
        for one in ids(q="{}")
        if max(r["Timestamp"] + r["Duration"] for r in spans_of(one)) - min(r["Timestamp"] for r in spans_of(one))
        >= 2e9
    }
    assert ids(minDuration="2s") == ids(q="{ traceDuration >= 2s }") == long != set()
    answer = client.get("/tempo/api/search", params={"q": '{name="tokenize"}', "spss": 1, **span}).json()
    for one in answer["traces"]:
        rows = spans_of(one["traceID"].zfill(32))
        matched = [row for row in rows if row["SpanName"] == "tokenize"]
        (spanset,) = one["spanSets"]
        assert (spanset["matched"], len(spanset["spans"])) == (len(matched), 1)
        assert spanset["spans"][0]["spanID"] in {row["SpanId"] for row in matched}
        assert one["startTimeUnixNano"] == str(min(row["Timestamp"] for row in rows))
        assert one["serviceStats"]["sglang"]["spanCount"] == sum(row["ServiceName"] == "sglang" for row in rows)


def test_tempo_says_what_there_is_to_search_by(client: TestClient) -> None:
    span = {"start": START_S, "end": NOW_MS // 1000}
    assert client.get("/tempo/api/echo").text == "echo"
    assert client.get("/tempo/api/status/buildinfo").json()["version"].startswith("2.")
    one = client.get("/tempo/api/search/tags", params=span).json()["tagNames"]
    assert {"service.name", "gen_ai.request.id", "duration"} <= set(one)
    scopes = {s["name"]: s["tags"] for s in client.get("/tempo/api/v2/search/tags", params=span).json()["scopes"]}
    assert "service.name" in scopes["resource"]
    assert "gen_ai.request.id" in scopes["span"]
    assert "status" in scopes["intrinsic"]
    services = ["sglang", "triton-lab", "vllm-lab"]
    assert client.get("/tempo/api/search/tag/service.name/values", params=span).json()["tagValues"] == services
    for tag in ("resource.service.name", ".service.name"):
        found = client.get(f"/tempo/api/v2/search/tag/{tag}/values", params=span).json()["tagValues"]
        assert found == [{"type": "string", "value": one} for one in services]
    statuses = client.get("/tempo/api/v2/search/tag/status/values").json()["tagValues"]
    assert {"type": "keyword", "value": "error"} in statuses
    names = client.get("/tempo/api/v2/search/tag/name/values", params=span).json()["tagValues"]
    assert {one["value"] for one in names} == {row["SpanName"] for row in ROWS}
