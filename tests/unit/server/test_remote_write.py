"""``POST /api/v1/write`` over a real store: what is stored, and what the sender is told."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.remote_write_messages import ONE, request, request_2, snappy, zstd

from loms.core import config
from loms.core.clock import ManualClock
from loms.core.settings import Receive
from loms.server.api import Collected
from loms.server.app import build
from loms.server.remote_write import RemoteWriteReceiver, Verdict, router
from loms.server.runtime import Server

NOW = 1_800_000_000_000
V1 = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2 = V1 | {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
UP = {"__name__": "up", "job": "j"}
Make = Callable[..., "Client"]


class Client:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._http = TestClient(build(server, Collected()), base_url="http://127.0.0.1:8090")

    def write(self, body: bytes, headers: dict[str, str] = V1) -> Any:
        return self._http.post("/api/v1/write", content=body, headers=headers)

    def get(self, path: str) -> Any:
        return self._http.get(path)

    def stored(self) -> list[tuple[str, int, float]]:
        assert self._server.writer.flush()
        columns = self._server.database.query_columns(
            "SELECT name, toUnixTimestamp64Milli(ts) AS t, value FROM samples"
            " JOIN (SELECT DISTINCT id, name FROM series) AS s ON s.id = series_id ORDER BY name, t"
        )
        return list(zip(*(columns[name].to_pylist() for name in ("name", "t", "value")), strict=True))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    servers: list[Server] = []

    def client(**environ: str) -> Client:
        settings = config.load(None, {"LOMS__STORE__PATH": str(tmp_path), **environ})
        servers.append(Server(settings, ManualClock(now_ms=NOW), "http://127.0.0.1:8090"))
        return Client(servers[-1])

    yield client
    for server in servers:
        server.__exit__()


def test_both_versions_are_stored_and_both_encodings(make: Make) -> None:
    client = make()
    assert client.write(snappy(request((UP, [(NOW - 4, 1.0)])))).status_code == 204
    answer = client.write(snappy(request_2((UP, [(NOW - 3, 2.0), (NOW - 2, 3.0)]))), V2)
    assert (answer.status_code, answer.headers[WRITTEN]) == (204, "2")
    assert answer.headers["X-Prometheus-Remote-Write-Histograms-Written"] == "0"
    assert answer.headers["X-Prometheus-Remote-Write-Exemplars-Written"] == "0"
    vm = V1 | {"Content-Encoding": "zstd", "X-VictoriaMetrics-Remote-Write-Version": "1"}
    assert client.write(zstd(request((UP, [(NOW - 1, 4.0)]))), vm).status_code == 204
    assert (
        client.write(gzip.compress(request((UP, [(NOW, 5.0)]))), V1 | {"Content-Encoding": "gzip"}).status_code == 204
    )
    assert client.stored() == [("up", NOW - 4 + i, i + 1.0) for i in range(5)]


def test_very_old_senders_leave_the_headers_out(make: Make) -> None:
    client = make()
    assert client.write(snappy(request((UP, [(NOW, 1.0)]))), {}).status_code == 204
    assert len(client.stored()) == 1


def test_vmagents_question_is_answered(make: Make) -> None:
    client = make()
    assert client.get("/api/v1/write?get_vm_proto_version=1").text == "1"
    assert client.get("/api/v1/write").status_code == 405


def test_content_is_negotiated(make: Make) -> None:
    client, body = make(), snappy(request((UP, [(NOW, 1.0)])))
    for headers, status in (
        ({"Content-Type": "application/json"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-protobuf;proto=prometheus.Other"}, 415),
        ({"Content-Encoding": "br"}, 415),
        ({"Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"}, 204),
        ({"Content-Type": "application/x-protobuf; proto=io.prometheus.write.v2.Request"}, 400),
    ):
        assert client.write(body, V1 | headers).status_code == status, headers


def test_what_cannot_be_taken_is_said_and_the_rest_is_stored(make: Make) -> None:
    client = make()
    message = request(
        (UP, [(NOW, 1.0)]),
        ({"job": "j"}, [(NOW, 2.0)]),
        ({"__name__": "old"}, [(5, 3.0)]),
        ({"__name__": "future"}, [(4_102_444_800_000, 4.0)]),
    )
    answer = client.write(snappy(message))
    assert answer.status_code == 400
    assert "3 of 4 samples are not taken: invalid_labels (1), out_of_bounds (2)" in answer.text
    assert client.stored() == [("up", NOW, 1.0)]
    answer = client.write(snappy(request_2((UP, [(NOW, 9.0)]), (UP, [(NOW - 1, 9.0)]))), V2)
    assert (answer.status_code, answer.headers[WRITTEN]) == (400, "1")
    assert "conflicting (1)" in answer.text
    dropped = client.get("/api/status").json()["dropped_samples"]
    assert dropped["conflicting"] >= 1
    assert dropped["invalid_labels"] >= 1


def test_sending_again_is_fine(make: Make) -> None:
    client = make()
    body = snappy(request_2((UP, [(NOW, 1.0), (NOW - 1, 2.0)])))
    for _ in range(2):
        answer = client.write(body, V2)
        assert (answer.status_code, answer.headers[WRITTEN]) == (204, "2")
    assert len(client.stored()) == 2


def test_native_histograms_are_refused_and_samples_beside_them_stored(make: Make) -> None:
    message = ONE["WriteRequest"]()
    series = message.timeseries.add()
    series.labels.add(name="__name__", value="up")
    series.samples.add(value=1, timestamp=NOW)
    series.histograms.add(sum=1, timestamp=NOW)
    series.exemplars.add(value=1, timestamp=NOW)
    client = make()
    answer = client.write(snappy(message.SerializeToString()))
    assert answer.status_code == 400
    assert "native histograms are not supported" in answer.text
    assert client.stored() == [("up", NOW, 1.0)]
    assert "loms_remote_write_ignored_exemplars_total" in client.get("/metrics").text


HOSTILE = {
    "empty": (b"", 400),
    "junk": (b"no snappy", 400),
    "cut": (snappy(request((UP, [(NOW, 1.0)])))[:-3], 400),
    "cut inside": (snappy(request((UP, [(NOW, 1.0)]))[:-3]), 400),
    "no protobuf": (snappy(b"\x0b\x0c\x0d"), 400),
    "bomb": (snappy(bytes(2**20 + 1)), 413),
    "huge length": (b"\xff\xff\xff\xff\x0f" + b"x" * 20, 413),
    "large": (bytes(70_000), 413),
}


def test_hostile_bodies_are_refused_and_nothing_is_harmed(make: Make) -> None:
    client = make(LOMS__RECEIVE__BODY="65536", LOMS__RECEIVE__DECOMPRESSED="1048576")
    for name, (body, status) in HOSTILE.items():
        answer = client.write(body)
        assert answer.status_code == status, name
        assert len(answer.text) > 10
        assert answer.text.count("\n") == 1, name
    assert client.write(snappy(request((UP, [(NOW, 1.0)])))).status_code == 204
    assert client.stored() == [("up", NOW, 1.0)]


def test_a_full_queue_makes_the_sender_come_again(make: Make) -> None:
    client = make(LOMS__STORE__QUEUE_ROWS="1", LOMS__STORE__FLUSH_INTERVAL="1h")
    body = snappy(request((UP, [(NOW, 1.0), (NOW - 1, 2.0)])))
    answer = client.write(body)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert client.stored() == []
    assert client.write(snappy(request((UP, [(NOW, 1.0)])))).status_code == 204


def test_bodies_are_held_within_bounds() -> None:
    """Five senders of the largest size that do not come to their end: four are waited for, the fifth is put off."""

    async def sending(app: FastAPI, chunks: list[bytes], ended: asyncio.Event) -> int:
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            if not chunks:
                await ended.wait()
            return {"type": "http.request", "body": chunks.pop() if chunks else b"", "more_body": not ended.is_set()}

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        headers = [(b"content-encoding", b"identity")]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/write", "query_string": b"", "headers": headers}
        await app(scope, receive, send)
        return statuses[0]

    async def all_of_them() -> None:
        app, ended = FastAPI(), asyncio.Event()
        app.include_router(router(Taking()))
        waiting = [asyncio.create_task(sending(app, [bytes(1000)], ended)) for _ in range(4)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert await sending(app, [bytes(1000)], ended) == 503
        ended.set()
        assert await asyncio.gather(*waiting) == [204] * 4
        assert await sending(app, [bytes(1000)], ended) == 204

    class Taking(RemoteWriteReceiver):
        def __init__(self) -> None:
            self.settings = Receive(body=1000)

        def receive(self, body: bytes, version: int, encoding: str) -> Verdict:
            return Verdict(204)

    asyncio.run(all_of_them())


def test_limits_on_labels_are_the_configured_ones(make: Make) -> None:
    client = make(LOMS__RECEIVE__LABELS="2", LOMS__RECEIVE__LABEL_VALUE_LENGTH="10")
    rows = ((UP | {"a": "1", "b": "2"}, [(NOW, 1.0)]), (UP | {"a": "x" * 11}, [(NOW, 1.0)]), (UP, [(NOW, 1.0)]))
    answer = client.write(snappy(request(*rows)))
    assert answer.status_code == 400
    assert "too_many_labels (1), label_too_long (1)" in answer.text
    assert len(client.stored()) == 1


def test_metadata_is_kept(make: Make) -> None:
    message = ONE["WriteRequest"]()
    message.metadata.add(type=1, metric_family_name="work_total", help="Work.", unit="")
    client = make()
    assert client.write(snappy(message.SerializeToString())).status_code == 204
    found = client.get("/api/v1/metadata?metric=work_total").json()["data"]
    assert found == {"work_total": [{"type": "counter", "help": "Work.", "unit": ""}]}


def test_a_token_is_asked_for(make: Make) -> None:
    client = make(LOMS__SERVER__TOKEN="secret")
    body = snappy(request((UP, [(NOW, 1.0)])))
    assert client.write(body).status_code == 401
    assert client.write(body, V1 | {"Authorization": "Bearer secret"}).status_code == 204
