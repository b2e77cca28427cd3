"""Hostile OTLP against a running LOMS: refused with the right status, memory bounded, nothing harmed."""

from __future__ import annotations

import gzip
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from support.processes import Loms, free_port

from loms.core.clock import SystemClock

pytestmark = pytest.mark.integration

MIB = 2**20
LIMIT = 4 * MIB
GROWTH = 600 * MIB
"""Of memory, at most: thirty times the limit for each of two threads, and what the allocators keep."""


def zstd(body: bytes) -> bytes:
    packed: bytes = pa.compress(body, codec="zstd", asbytes=True)
    return packed


def field(tag: int, body: bytes) -> bytes:
    """A field of protobuf with its length."""
    length, size = b"", len(body)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([tag << 3 | 2]) + length + bytes([size]) + body


def in_span(body: bytes) -> bytes:
    return field(1, field(2, field(2, body)))


def nested(depth: int) -> bytes:
    """An attribute whose value is an array in an array in an array …"""
    value = b""
    for _ in range(depth):
        value = field(5, field(1, value))
    return in_span(field(9, field(1, b"k") + field(2, value)))


PROTOBUF, JSON = "application/x-protobuf", "application/json"
HOSTILE = {
    "gzip bomb": (413, gzip.compress(bytes(200 * MIB), 1), PROTOBUF, "gzip"),
    "zstd bomb": (413, zstd(bytes(200 * MIB)), PROTOBUF, "zstd"),
    "gzip bomb of JSON": (413, gzip.compress(b'{"resourceSpans":[' + b" " * 100 * MIB, 1), JSON, "gzip"),
    "larger than a body may be": (413, bytes(LIMIT + 1), PROTOBUF, ""),
    "as many groups as fit": (413, b"\x0a\x00" * (LIMIT // 2 - 10), PROTOBUF, ""),
    "as many spans as fit": (200, field(1, field(2, b"\x12\x00" * (LIMIT // 2 - 30))), PROTOBUF, ""),
    "as many attributes as fit": (200, in_span(b"\x4a\x00" * (LIMIT // 2 - 30)), PROTOBUF, ""),
    "as many objects as fit": (413, b'{"resourceSpans":[' + b"{}," * (LIMIT // 3 - 20) + b"{}]}", JSON, ""),
    "a length beyond the end": (400, b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF, ""),
    "a length of eleven bytes": (400, b"\x0a" + b"\xff" * 11, PROTOBUF, ""),
    "nested beyond protobuf's bounds": (400, nested(5000), PROTOBUF, ""),
    "nested within them": (200, nested(20), PROTOBUF, ""),
    "JSON nested beyond Python's": (400, b"[" * (MIB // 2), JSON, ""),
    "an integer of a million digits": (400, b'{"resourceSpans":[{"schemaUrl":' + b"9" * MIB + b"}]}", JSON, ""),
    "half a character": (400, b'{"a":"\xe2\x82"}', JSON, ""),
    "no text": (400, in_span(field(5, b"\xff\xfe")), PROTOBUF, ""),
    "groups that end nowhere": (400, struct.pack("B", 0x0B) * 1000, PROTOBUF, ""),
}


@pytest.fixture(scope="module")
def loms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loms, int]]:
    grpc_port = free_port()
    receive = {"body": LIMIT, "otlp_message": LIMIT, "otlp_http_port": None, "otlp_grpc_port": grpc_port}
    with Loms(tmp_path_factory.mktemp("loms"), [], {"receive": receive}) as running:
        assert good(running) == 200
        yield running, grpc_port


CUT_OFF, NO_REASON = -1, -2
"""The answer came before the body was sent, and the connection was closed; and an answer without a reason."""


def send(loms: Loms, body: bytes, kind: str, encoding: str) -> int:
    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    request = urllib.request.Request(f"{loms.url}/v1/traces", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code if error.read() else NO_REASON
    except urllib.error.URLError:
        return CUT_OFF


def good(loms: Loms) -> int:
    span = {"trace_id": b"\x01" * 16, "span_id": b"\x02" * 8, "start_time_unix_nano": SystemClock().now_ms() * 10**6}
    span["attributes"] = [{"key": "k", "value": AnyValue(string_value="v")}]  # type: ignore[assignment]
    request = ExportTraceServiceRequest(resource_spans=[{"scope_spans": [{"spans": [span]}]}])
    return send(loms, request.SerializeToString(), PROTOBUF, "")


def peak_bytes(loms: Loms) -> int:
    status = Path(f"/proc/{loms.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bodies(loms: tuple[Loms, int], what: str) -> None:
    running, _ = loms
    status, body, kind, encoding = HOSTILE[what]
    before = peak_bytes(running)
    assert send(running, body, kind, encoding) in ((status, CUT_OFF) if len(body) > LIMIT else (status,))
    assert peak_bytes(running) - before < GROWTH
    assert good(running) == 200


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_bomb_over_grpc(loms: tuple[Loms, int], compression: grpc.Compression) -> None:
    running, port = loms
    before = peak_bytes(running)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        with pytest.raises(grpc.RpcError) as caught:
            export(bytes(100 * MIB), compression=compression, timeout=60)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert peak_bytes(running) - before < GROWTH
    assert good(running) == 200


def test_at_the_end_all_that_was_good_is_there(loms: tuple[Loms, int]) -> None:
    running, _ = loms
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert "loms_telemetry_lost_rows_total{" not in text
    assert "loms_internal_errors_total{" not in text
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()
