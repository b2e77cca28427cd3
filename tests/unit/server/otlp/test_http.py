"""OTLP over HTTP, by its specification: encodings, answers, and what is refused with which status."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from google.protobuf import json_format
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.testclient import TestClient
from unit.server.otlp_sending import (
    ENCODINGS,
    NOW_MS,
    REQUESTS,
    Kept,
    logs,
    metrics,
    receiving,
    rows,
    running,
    traces,
    zstd,
)

from loms.core.model import Metadata
from loms.server.api import Collected
from loms.server.app import build
from loms.server.otlp.http import OtlpPort, router
from loms.server.runtime import Server

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json; charset=utf-8"}
RESPONSES = {
    "metrics": ExportMetricsServiceResponse,
    "traces": ExportTraceServiceResponse,
    "logs": ExportLogsServiceResponse,
}


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def client(kept: Kept) -> TestClient:
    app = FastAPI()
    app.include_router(router(receiving(kept, body=65_536, otlp_message=262_144)))
    return TestClient(app)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as opened:
        yield opened


def client_of(server: Server) -> TestClient:
    return TestClient(build(server, Collected()), base_url="http://127.0.0.1:8090")


@pytest.mark.parametrize("signal", ["metrics", "traces", "logs"])
def test_each_signal_in_each_encoding(kept: Kept, client: TestClient, signal: str) -> None:
    request = REQUESTS[signal]
    for encoding, pack in ENCODINGS.items():
        headers = PROTOBUF | ({"Content-Encoding": encoding} if encoding else {})
        answer = client.post(f"/v1/{signal}", content=pack(request.SerializeToString()), headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-protobuf")
        assert RESPONSES[signal].FromString(answer.content) == RESPONSES[signal]()
    assert kept.count(signal) == len(ENCODINGS)


def test_json_is_answered_in_json(kept: Kept, client: TestClient) -> None:
    for signal, request in REQUESTS.items():
        fields = json_format.MessageToDict(request)
        for span in (s for g in fields.get("resourceSpans", ()) for scope in g["scopeSpans"] for s in scope["spans"]):
            span |= {"traceId": "01" * 16, "spanId": "02" * 8}
        answer = client.post(f"/v1/{signal}", content=json.dumps(fields), headers=JSON)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json() == {}
        assert kept.count(signal) == 1


def test_prometheus_s_own_path(kept: Kept, client: TestClient) -> None:
    answer = client.post("/api/v1/otlp/v1/metrics", content=metrics(1.0).SerializeToString(), headers=PROTOBUF)
    assert answer.status_code == 200
    assert kept.count("metrics") == 1


def test_samples_can_be_queried_and_their_metadata_is_known(server: Server) -> None:
    client = client_of(server)
    client.post("/v1/metrics", content=metrics(2.5).SerializeToString(), headers=PROTOBUF)
    assert server.writer.flush()
    (found,) = client.get(f"/api/v1/query?query=g_seconds&time={NOW_MS // 1000}").json()["data"]["result"]
    assert found["value"][1] == "2.5"
    assert server.metadata.of("g_seconds") == {"g_seconds": Metadata("g_seconds", "gauge", "What it is.", "seconds")}


def test_what_is_refused_of_a_request_is_said_and_the_rest_is_stored(kept: Kept, client: TestClient) -> None:
    content = traces({}, {"start_time_unix_nano": 5}, {"trace_id": b"short"}).SerializeToString()
    answer = client.post("/v1/traces", content=content, headers=PROTOBUF)
    assert answer.status_code == 200
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert partial.rejected_spans == 2
    assert "1 spans began before what is kept, or in the future" in partial.error_message
    assert kept.count("traces") == 1


@pytest.mark.parametrize("at_ns", [10**15, 4_102_444_800 * 10**9], ids=["1970", "2100"])
def test_times_that_cannot_be_stored(kept: Kept, client: TestClient, at_ns: int) -> None:
    for signal, content in (
        ("metrics", metrics(1.0, at_ns=at_ns)),
        ("traces", traces({"start_time_unix_nano": at_ns})),
        ("logs", logs({"time_unix_nano": at_ns})),
    ):
        answer = client.post(f"/v1/{signal}", content=content.SerializeToString(), headers=PROTOBUF)
        assert answer.status_code == 200
        (_, partial), = RESPONSES[signal].FromString(answer.content).ListFields()  # fmt: skip
        assert "of the future" in partial.error_message or "in the future" in partial.error_message
        assert kept.count(signal) == 0


def test_the_same_again_is_taken_once_and_another_value_at_its_time_is_refused(server: Server) -> None:
    client = client_of(server)
    for _ in range(2):
        answer = client.post("/v1/metrics", content=metrics(1.0, 2.0).SerializeToString(), headers=PROTOBUF)
        assert ExportMetricsServiceResponse.FromString(answer.content) == ExportMetricsServiceResponse()
    answer = client.post("/v1/metrics", content=metrics(1.0, 3.0).SerializeToString(), headers=PROTOBUF)
    assert ExportMetricsServiceResponse.FromString(answer.content).partial_success.rejected_data_points == 1
    assert rows(server, "metrics") == 2


BOMB = b"\x0a\x00" * 2**20


@pytest.mark.parametrize(
    ("status", "code", "content", "headers"),
    [
        (400, 3, b"\x0a\x05abc", PROTOBUF),
        (400, 3, b"\xff" * 50, PROTOBUF),
        (400, 3, b"{", JSON),
        (400, 3, b'{"resourceSpans":1}', JSON),
        (400, 3, b"no gzip", PROTOBUF | {"Content-Encoding": "gzip"}),
        (400, 3, gzip.compress(traces({}).SerializeToString())[:-6], PROTOBUF | {"Content-Encoding": "gzip"}),
        (400, 3, zstd(traces({}).SerializeToString())[:-3], PROTOBUF | {"Content-Encoding": "zstd"}),
        (413, 8, b"x" * 70_000, PROTOBUF),
        (413, 8, gzip.compress(BOMB), PROTOBUF | {"Content-Encoding": "gzip"}),
        (413, 8, zstd(BOMB), PROTOBUF | {"Content-Encoding": "zstd"}),
        (413, 8, gzip.compress(b'{"resourceSpans":[' + b"{}," * 10**6 + b"{}]}"), JSON | {"Content-Encoding": "gzip"}),
        (415, 12, b"x", {"Content-Type": "text/plain"}),
        (415, 12, b"x", {}),
        (415, 12, b"x", PROTOBUF | {"Content-Encoding": "br"}),
    ],
    ids=[
        "truncated",
        "no message",
        "JSON cut",
        "JSON of another shape",
        "no gzip",
        "gzip cut",
        "zstd cut",
        "large",
        "gzip bomb",
        "zstd bomb",
        "JSON bomb",
        "text",
        "no type",
        "another encoding",
    ],
)
def test_refusals_are_a_status_in_the_encoding_of_the_request(
    kept: Kept, client: TestClient, status: int, code: int, content: bytes, headers: dict[str, str]
) -> None:
    answer = client.post("/v1/traces", content=content, headers=headers)
    assert answer.status_code == status
    if headers is not PROTOBUF and headers.get("Content-Type") == JSON["Content-Type"]:
        said = json_format.ParseDict(answer.json(), Status())
    else:
        said = Status.FromString(answer.content)
    assert said.code == code
    assert said.message
    assert kept.count("traces") == 0


def test_a_long_body_without_a_length_is_refused_while_it_is_read(client: TestClient) -> None:
    answer = client.post("/v1/traces", content=(b"x" * 4096 for _ in range(100)), headers=PROTOBUF)
    assert answer.status_code == 413


def test_a_full_queue_says_when_to_come_again_and_the_next_time_all_is_taken(kept: Kept, client: TestClient) -> None:
    for signal, request in REQUESTS.items():
        kept.full = True
        refused = client.post(f"/v1/{signal}", content=request.SerializeToString(), headers=PROTOBUF)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        info = RetryInfo()
        assert Status.FromString(refused.content).details[0].Unpack(info)
        assert info.retry_delay.seconds == 1
        kept.full = False
        assert client.post(f"/v1/{signal}", content=request.SerializeToString(), headers=PROTOBUF).status_code == 200
        assert kept.count(signal) == 1


def test_a_closed_store_asks_to_come_again(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        client = client_of(server)
    for signal, request in REQUESTS.items():
        answer = client.post(f"/v1/{signal}", content=request.SerializeToString(), headers=PROTOBUF)
        assert answer.status_code in (429, 503)
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("keep", [False, True])
def test_prompts_are_kept_only_where_that_is_asked_for(kept: Kept, keep: bool) -> None:
    app = FastAPI()
    app.include_router(router(receiving(kept, keep_prompts=keep)))
    client = TestClient(app)
    secret = {"key": "gen_ai.input.messages", "value": {"string_value": "hunter2"}}
    for signal, request in (("traces", traces({"attributes": [secret]})), ("logs", logs({"attributes": [secret]}))):
        in_json = json_format.MessageToDict(request)
        for span in (s for g in in_json.get("resourceSpans", ()) for scope in g["scopeSpans"] for s in scope["spans"]):
            span |= {"traceId": "01" * 16, "spanId": "02" * 8}
        escaped = json.dumps(in_json).replace("gen_ai", "gen\\u005fai")
        client.post(f"/v1/{signal}", content=request.SerializeToString(), headers=PROTOBUF)
        client.post(f"/v1/{signal}", content=escaped, headers=JSON)
        assert kept.count(signal) == 2
    for _, table in kept.rows:
        assert ("hunter2" in str(table.to_pydict())) == keep


def test_behind_a_token(tmp_path: Path) -> None:
    with running(tmp_path, LOMS__SERVER__TOKEN="right") as server:
        client = TestClient(build(server, Collected()), base_url="http://monitor.example")
        content = traces({}).SerializeToString()
        assert client.post("/v1/traces", content=content, headers=PROTOBUF).status_code == 401
        allowed = PROTOBUF | {"Authorization": "Bearer right"}
        assert client.post("/v1/traces", content=content, headers=allowed).status_code == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/traces", "POST", 200),
        ("/v1/traces", "GET", 405),
        ("/healthz", "GET", 404),
        ("/api/v1/query?query=1", "GET", 404),
        ("/api/v1/otlp/v1/metrics", "POST", 404),
        ("/v1/odd", "POST", 404),
    ],
)
def test_otlp_s_own_port_answers_nothing_else(client: TestClient, path: str, method: str, status: int) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.add_api_route("/healthz", lambda: "ok")
    app.add_middleware(OtlpPort, port=4318)
    client = TestClient(app, base_url="http://127.0.0.1:4318")
    answer = client.request(method, path, content=b"", headers=PROTOBUF)
    assert answer.status_code == status
    assert TestClient(app, base_url="http://127.0.0.1:8090").get("/healthz").status_code == 200
