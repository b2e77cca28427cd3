"""Remote read. Requests and answers are built and read by protobuf itself, with the messages of the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi import FastAPI
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from starlette.testclient import TestClient

from loms.core.clock import ManualClock
from loms.core.errors import LomsError
from loms.core.model import STALE_NAN, is_stale, labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.server.prometheus import read as prometheus_read
from loms.server.prometheus.answer import Answering

Field = descriptor_pb2.FieldDescriptorProto
MESSAGES: dict[str, tuple[tuple[str, int, Any, str], ...]] = {
    "LabelMatcher": (
        ("type", 1, Field.TYPE_INT32, ""),
        ("name", 2, Field.TYPE_STRING, ""),
        ("value", 3, Field.TYPE_STRING, ""),
    ),
    "Query": (
        ("start_timestamp_ms", 1, Field.TYPE_INT64, ""),
        ("end_timestamp_ms", 2, Field.TYPE_INT64, ""),
        ("matchers", 3, Field.TYPE_MESSAGE, "LabelMatcher"),
    ),
    "ReadRequest": (
        ("queries", 1, Field.TYPE_MESSAGE, "Query"),
        ("accepted_response_types", 2, Field.TYPE_INT32, "many"),
    ),
    "Label": (("name", 1, Field.TYPE_STRING, ""), ("value", 2, Field.TYPE_STRING, "")),
    "Sample": (("value", 1, Field.TYPE_DOUBLE, ""), ("timestamp", 2, Field.TYPE_INT64, "")),
    "TimeSeries": (("labels", 1, Field.TYPE_MESSAGE, "Label"), ("samples", 2, Field.TYPE_MESSAGE, "Sample")),
    "QueryResult": (("timeseries", 1, Field.TYPE_MESSAGE, "TimeSeries"),),
    "ReadResponse": (("results", 1, Field.TYPE_MESSAGE, "QueryResult"),),
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="read.proto", package="read", syntax="proto3")
    for name, rows in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in rows:
            label = Field.LABEL_REPEATED if of else Field.LABEL_OPTIONAL
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=f".read.{of}" if of in MESSAGES else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"read.{name}")) for name in MESSAGES}


PROTO = _messages()
NOW = 1_800_000_000_000
TIMES = np.array([NOW - 10_000, NOW - 5_000, NOW], np.int64)


@pytest.fixture
def engine() -> Engine:
    source = MemorySource()
    source.add(labels_of({"__name__": "up", "job": "b"}), TIMES, np.array([1.0, 0.5, STALE_NAN]))
    source.add(labels_of({"__name__": "up", "job": "a"}), TIMES, np.array([1.0, -0.0, np.inf]))
    source.add(labels_of({"__name__": "early"}), np.array([5, 2**35], np.int64), np.array([1.0, 2.0]))
    return Engine(source, clock=ManualClock(now_ms=NOW))


@pytest.fixture
def client(engine: Engine) -> TestClient:
    app = FastAPI()
    app.include_router(prometheus_read.router(engine, Answering()))
    return TestClient(app)


def request(*queries: tuple[int, int, list[tuple[int, str, str]]], accepted: tuple[int, ...] = ()) -> bytes:
    message = PROTO["ReadRequest"](accepted_response_types=accepted)
    for start, end, matchers in queries:
        query = message.queries.add(start_timestamp_ms=start, end_timestamp_ms=end)
        for kind, name, value in matchers:
            query.matchers.add(type=kind, name=name, value=value)
    body: bytes = pa.compress(message.SerializeToString(), codec="snappy", asbytes=True)
    return body


def answer(client: TestClient, body: bytes) -> Any:
    got = client.post("/api/v1/read", content=body)
    assert (got.status_code, got.headers["content-encoding"]) == (200, "snappy"), got.text
    length, shift = 0, 0
    for byte in got.content:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    raw = pa.decompress(got.content, decompressed_size=length, codec="snappy", asbytes=True)
    return PROTO["ReadResponse"].FromString(raw)


def test_samples_come_as_they_are_between_both_times(client: TestClient) -> None:
    found = answer(client, request((NOW - 5_000, NOW, [(0, "__name__", "up")]), accepted=(1, 0)))
    rows = found.results[0].timeseries
    assert [[(one.name, one.value) for one in row.labels] for row in rows] == [
        [("__name__", "up"), ("job", "a")],
        [("__name__", "up"), ("job", "b")],
    ]
    assert [[one.timestamp for one in row.samples] for row in rows] == [[NOW - 5_000, NOW]] * 2
    first, second = ([one.value for one in row.samples] for row in rows)
    assert first == [0.0, np.inf]
    assert np.signbit(first[0])
    assert second[0] == 0.5
    assert is_stale(np.array([second[1]])).all()


def test_each_query_has_its_result_and_odd_times_are_written_too(client: TestClient) -> None:
    found = answer(client, request((0, 2**40, [(2, "__name__", "ear.+")]), (NOW, NOW, [(1, "__name__", "up")])))
    (early,) = found.results[0].timeseries
    assert [(one.timestamp, one.value) for one in early.samples] == [(5, 1.0), (2**35, 2.0)]
    assert len(found.results[1].timeseries) == 0


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"\x05hello", 400, "snappy"),
        (b"\x05\x10hello", 400, "protobuf"),
        (pa.compress(b"\x0a\x7f", codec="snappy", asbytes=True), 400, "cut off"),
        (request((0, 1, [(7, "a", "b")])), 400, "matcher type"),
        (request((0, 1, [(2, "a", "(")])), 400, "regexp"),
        (request((0, 1, []), accepted=(1,)), 400, "response types"),
        (b"\x80\x80\x80\x80\x04", 400, "larger"),
        (b"x" * (prometheus_read.MOST_REQUEST_BYTES + 1), 413, "larger"),
    ],
)
def test_what_is_no_request_is_refused(client: TestClient, body: bytes, status: int, text: str) -> None:
    got = client.post("/api/v1/read", content=body)
    assert got.status_code == status
    assert text in got.text


def test_too_many_samples_are_refused(engine: Engine) -> None:
    query = prometheus_read.ReadQuery(0, NOW, ())
    with pytest.raises(LomsError, match="exceeded sample limit"):
        prometheus_read.encode(engine, [query] * 3, most_samples=10)
