"""OTLP over gRPC: the three services, status codes, the token, and a port that somebody else has."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from fastapi import FastAPI
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from unit.server.otlp_sending import REQUESTS, Kept, receiving, traces

from loms.core.errors import LomsError
from loms.core.settings import Config
from loms.server.otlp.grpc import OtlpGrpc
from loms.server.otlp.ports import otlp_ports

STUBS = {"metrics": MetricsServiceStub, "traces": TraceServiceStub, "logs": LogsServiceStub}
EXPORT_TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture
def kept() -> Kept:
    return Kept()


@contextmanager
def channel(kept: Kept, token: str | None = None) -> Iterator[grpc.Channel]:
    with (
        OtlpGrpc(receiving(kept, otlp_message=262_144), "127.0.0.1", 0, token) as served,
        grpc.insecure_channel(f"127.0.0.1:{served.port}") as opened,
    ):
        yield opened


def refused(call: Any, body: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(body, timeout=20, **options)
    return caught.value


@pytest.mark.parametrize("signal", ["metrics", "traces", "logs"])
def test_each_signal_plain_and_gzipped(kept: Kept, signal: str) -> None:
    with channel(kept) as opened:
        export = STUBS[signal](opened).Export
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            answer = export(REQUESTS[signal], compression=compression, timeout=20)
            assert not answer.HasField("partial_success")
    assert kept.count(signal) == 2


def test_what_is_refused_of_a_request_is_said(kept: Kept) -> None:
    with channel(kept) as opened:
        answer = TraceServiceStub(opened).Export(traces({}, {"start_time_unix_nano": 5}), timeout=20)
    assert answer.partial_success.rejected_spans == 1
    assert kept.count("traces") == 1


def test_bytes_that_are_no_request(kept: Kept) -> None:
    with channel(kept) as opened:
        error = refused(opened.unary_unary(EXPORT_TRACES), b"\x0a\x05abc")
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "no ExportTraceServiceRequest in protobuf" in error.details()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_messages_that_are_too_large_also_when_they_come_small(kept: Kept, compression: grpc.Compression) -> None:
    with channel(kept) as opened:
        error = refused(opened.unary_unary(EXPORT_TRACES), b"\x0a\x00" * 10**6, compression=compression)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert kept.count("traces") == 0


def test_no_room_says_when_to_come_again(kept: Kept) -> None:
    kept.full = True
    with channel(kept) as opened:
        error = refused(TraceServiceStub(opened).Export, traces({}))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert info.retry_delay.seconds == 1


def test_the_token(kept: Kept) -> None:
    with channel(kept, token="right") as opened:
        export = TraceServiceStub(opened).Export
        for offered in ((), (("authorization", "Bearer wrong"),), (("authorization", "right"),)):
            assert refused(export, traces({}), metadata=offered).code() == grpc.StatusCode.UNAUTHENTICATED
        answer = export(traces({}), metadata=(("authorization", "Bearer right"),), timeout=20)
        assert answer == ExportTraceServiceResponse()
    assert kept.count("traces") == 1


def test_a_port_that_somebody_else_has_is_left_out(
    kept: Kept, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LomsError, match=f"cannot listen on 127.0.0.1:{port}"):
            OtlpGrpc(receiving(kept), "127.0.0.1", port)
        config = Config.model_validate({"receive": {"otlp_http_port": port, "otlp_grpc_port": port}})
        with caplog.at_level("WARNING"), otlp_ports(config, receiving(kept), FastAPI()) as sockets:
            assert sockets == []
    assert f"OTLP over HTTP is left out on port {port}" in caplog.text
    assert "OTLP over gRPC is left out" in caplog.text
    assert capfd.readouterr().err == "", "gRPC has no line of its own"


def test_ports_can_be_switched_off(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    config = Config.model_validate({"receive": {"otlp_http_port": None, "otlp_grpc_port": None}})
    with caplog.at_level("INFO"), otlp_ports(config, receiving(kept), FastAPI()) as sockets:
        assert sockets == []
    assert caplog.text == ""
