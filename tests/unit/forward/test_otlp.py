"""OTLP out: what was given is what arrives, over both transports, later if it must be."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from support.otlp_host import OtlpHost
from support.post_host import Answer, PostHost

from loms.core import selfmetrics
from loms.core.clock import ManualClock
from loms.core.errors import ConfigError
from loms.core.settings import OtlpForward
from loms.forward.otlp import OtlpOut, otlp_outs_of


def out(tmp_path: Path, url: str, **settings: object) -> OtlpOut:
    config = OtlpForward.model_validate({"url": url, "name": "there", **settings})
    return OtlpOut(config, tmp_path, ManualClock(1_800_000_000_000))


def test_over_http(tmp_path: Path) -> None:
    with PostHost([Answer(200)]) as host:
        forward = out(tmp_path, f"http://127.0.0.1:{host.port}/base/", headers={"X-Tenant": "t"}, bearer_token="secret")
        forward("traces", b"spans", 3)
        forward("metrics", b"points", 2)
        forward("logs", b"records", 1)
        while forward.step() is not None:
            pass
    assert [(one.path, gzip.decompress(one.body)) for one in host.posted] == [
        ("/base/v1/traces", b"spans"),
        ("/base/v1/metrics", b"points"),
        ("/base/v1/logs", b"records"),
    ]
    headers = host.posted[0].headers
    assert headers["Content-Type"] == "application/x-protobuf"
    assert (headers["X-Tenant"], headers["Authorization"]) == ("t", "Bearer secret")


def test_over_grpc(tmp_path: Path) -> None:
    with OtlpHost() as host:
        forward = out(tmp_path, f"grpc://127.0.0.1:{host.port}", headers={"X-Tenant": "t"}, bearer_token="secret")
        for signal in ("traces", "metrics", "logs"):
            forward(signal, signal.encode(), 1)  # type: ignore[arg-type]
        while forward.step() is not None:
            pass
    assert [(one.path.split(".")[3], one.body) for one in host.called] == [
        ("trace", b"traces"),
        ("metrics", b"metrics"),
        ("logs", b"logs"),
    ]
    assert host.called[0].metadata["x-tenant"] == "t"
    assert host.called[0].metadata["authorization"] == "Bearer secret"


def test_only_the_signals_that_are_wanted(tmp_path: Path) -> None:
    forward = out(tmp_path, "http://127.0.0.1:9", signals=["logs"])
    forward("traces", b"spans", 3)
    assert forward.standing().queued_bytes == 0
    forward("logs", b"records", 3)
    assert forward.standing().queued_bytes > 0


def test_a_grpc_receiver_that_is_busy_is_tried_again_when_it_says(tmp_path: Path) -> None:
    status = Status(code=8, message="full")
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=40)))
    with OtlpHost([(8, "full", status.SerializeToString()), (14, "down", b""), (3, "no", b"junk")]) as host:
        forward = out(tmp_path, f"grpc://127.0.0.1:{host.port}")
        forward("traces", b"first", 3)
        forward("traces", b"second", 5)
        assert forward.step() == 40
        assert (
            forward.standing().trouble
            == f"there: 127.0.0.1:{host.port} answered RESOURCE_EXHAUSTED: full; trying again"
        )
        pause = forward.step()
        assert pause is not None
        assert 0 < pause < 40
        dropped = selfmetrics.forward_dropped.labels("there", "grpc_invalid_argument")
        before = dropped._value.get()
        assert forward.step() == 0, "what is wrong for good is given up"
        assert dropped._value.get() - before == 3
        assert forward.step() == 0
        assert forward.step() is None
    assert [one.body for one in host.called] == [b"first", b"first", b"first", b"second"]


def test_what_waits_outlives_the_process(tmp_path: Path) -> None:
    forward = out(tmp_path, "http://127.0.0.1:9")
    forward("traces", b"spans", 3)
    forward.stop(0)
    with PostHost() as host:
        again = out(tmp_path, f"http://127.0.0.1:{host.port}")
        assert again.step() == 0
    assert gzip.decompress(host.posted[0].body) == b"spans"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"basic_auth": {"username": "u", "password": "p"}}, "gRPC has no basic_auth"),
        ({"url": "grpcs://h:1", "tls": {"insecure_skip_verify": True}}, "gRPC always verifies"),
        ({"url": "grpcs://h:1", "tls": {"ca_file": "/nowhere"}}, "/nowhere: No such file"),
    ],
)
def test_settings_that_grpc_cannot_have(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        out(tmp_path, str(settings.pop("url", "grpc://h:1")), **settings)


def test_two_destinations_need_two_names(tmp_path: Path) -> None:
    one = OtlpForward(url="http://h:1")
    with pytest.raises(ConfigError, match="two destinations are named 'otlp-h:1'"):
        otlp_outs_of([one, one], tmp_path, ManualClock())
