"""The client against a small server whose answers are written down as Prometheus's documentation has them."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from loms.core.errors import (
    ConfigError,
    LomsError,
    QueryCancelledError,
    QueryError,
    QueryLimitError,
    QueryTimeoutError,
    TargetError,
)
from loms.core.model import Metadata
from loms.core.settings import Source
from loms.promql.remote import MAX_POINTS, RemotePrometheus
from loms.promql.remote_http import TooLongError, body_of
from loms.promql.values import MatrixResult, ScalarResult, StringResult, VectorResult

TLS = Path(__file__).parents[2] / "data/tls"
Form = Mapping[str, list[str]]
Reply = tuple[int, Any]


class Api:
    """Answers ``/api/v1/…`` by a function of path and form, and keeps what was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[str, str, Form], Reply] = lambda *_: (200, {"status": "success", "data": []})
        self.asked: list[tuple[str, str, Form, Mapping[str, str]]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply("GET", urlsplit(self.path).query)

            def do_POST(self) -> None:
                self._reply("POST", self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _reply(self, method: str, text: str) -> None:
                path, form = urlsplit(self.path).path, parse_qs(text, keep_blank_values=True)
                api.asked.append((method, path, form, dict(self.headers)))
                status, answer = api.answer(method, path, form)
                body = gzip.compress(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
                self.send_response(status)
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def gives(self, data: Any, **more: Any) -> None:
        self.answer = lambda *_: (200, {"status": "success", "data": data, **more})


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()


def remote(api: Api, **settings: Any) -> RemotePrometheus:
    return RemotePrometheus(Source.model_validate({"type": "prometheus", "url": api.url, **settings}))


def test_a_vector_is_a_frame_of_one_column(api: Api) -> None:
    rows = [
        {"metric": {"__name__": "up", "job": "a"}, "value": [1700000000.123, "1"]},
        {"metric": {"job": "b"}, "value": [1700000000.123, "NaN"]},
        {"metric": {}, "value": [1700000000.123, "-Inf"]},
    ]
    api.gives({"resultType": "vector", "result": rows})
    frame = remote(api).instant("up or x", 1_700_000_000_123)
    assert frame.labels == ({"__name__": "up", "job": "a"}, {"job": "b"}, {})
    assert frame.times_ms.tolist() == [1_700_000_000_123]
    np.testing.assert_array_equal(frame.values, [[1.0], [np.nan], [-np.inf]])
    method, path, form, headers = api.asked[0]
    assert (method, path) == ("POST", "/api/v1/query")
    assert form == {"query": ["up or x"], "time": ["1700000000.123"], "timeout": ["30s"]}
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_results_are_typed(api: Api) -> None:
    client = remote(api)
    api.gives({"resultType": "scalar", "result": [1, "2.5"]})
    assert client.query("2.5", 1000) == ScalarResult(1000, 2.5)
    assert client.instant("2.5", 1000).labels == ({},)
    api.gives({"resultType": "string", "result": [1, "x"]})
    assert client.query('"x"', 1000) == StringResult(1000, "x")
    api.gives({"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": [[0.001, "1"], [5, "+Inf"]]}]})
    found = client.query("m[5m]", 5000)
    assert isinstance(found, MatrixResult)
    assert (found.labels, found.times_ms[0].tolist()) == (((("a", "b"),),), [1, 5000])
    assert found.values[0].tolist() == [1.0, np.inf]
    with pytest.raises(QueryError, match="gives no frame"):
        client.instant("m[5m]", 5000)


def test_a_long_range_is_asked_for_in_parts_and_put_together(api: Api) -> None:
    def answer(method: str, path: str, form: Form) -> Reply:
        start, end, step = (float(form[name][0]) for name in ("start", "end", "step"))
        times = np.arange(start, end + step / 2, step)
        assert len(times) <= MAX_POINTS
        every, odd = ([[t, str(t)] for t in part.tolist()] for part in (times, times[times % 2 == 1]))
        rows = [{"metric": {"row": "a"}, "values": every}, {"metric": {"row": "b"}, "values": odd}]
        return 200, {"status": "success", "data": {"resultType": "matrix", "result": rows}}

    api.answer = answer
    frame = remote(api).range("x", 0, 25_000_000, 1000)
    assert len(api.asked) == 3
    assert frame.times_ms.tolist() == list(range(0, 25_001_000, 1000))
    np.testing.assert_array_equal(frame.values[0], np.arange(25_001))
    np.testing.assert_array_equal(np.isnan(frame.values[1]), np.arange(25_001) % 2 == 0)
    assert frame.labels == ({"row": "a"}, {"row": "b"})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"errorType": "bad_data", "error": "parse error"}, QueryError),
        (422, {"errorType": "execution", "error": "too many samples"}, QueryLimitError),
        (503, {"errorType": "timeout", "error": "query timed out"}, QueryTimeoutError),
        (499, {"errorType": "canceled", "error": "gone"}, QueryCancelledError),
        (422, {"errorType": "422", "error": "VictoriaMetrics says no"}, QueryError),
        (500, {"errorType": "internal", "error": "disk"}, TargetError),
    ],
)
def test_errors_keep_their_kind_and_name_the_endpoint(
    api: Api, status: int, body: dict[str, str], kind: type[LomsError]
) -> None:
    api.answer = lambda *_: (status, {"status": "error", **body})
    with pytest.raises(kind) as caught:
        remote(api).query("x", 0)
    assert type(caught.value) is kind
    assert caught.value.message == f"{api.url}: {body['error']}"


@pytest.mark.parametrize(
    ("status", "body", "text", "reason"),
    [
        (200, b"<html>", "does not answer /api/v1/query as Prometheus does", "malformed"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": [{}]}}, "does not answer", "malformed"),
        (200, {"status": "success", "data": {"resultType": "odd", "result": []}}, "does not answer", "malformed"),
        (401, b"no", "answers HTTP 401", "http"),
        (502, b"bad gateway", "answers HTTP 502", "http"),
        (302, b"", "answers HTTP 302", "http"),
    ],
)
def test_what_is_no_prometheus_is_said(api: Api, status: int, body: Any, text: str, reason: str) -> None:
    api.answer = lambda *_: (status, body)
    with pytest.raises(TargetError, match=text) as caught:
        remote(api).query("x", 0)
    assert caught.value.reason == reason
    assert caught.value.message.startswith(api.url)


def test_nobody_there() -> None:
    with pytest.raises(TargetError, match=r"^nothing answers at http://127\.0\.0\.1:1: ") as caught:
        RemotePrometheus(Source(type="prometheus", url="http://127.0.0.1:1")).instant("up", 0)
    assert caught.value.reason == "refused"


def test_an_answer_beyond_the_bound_is_refused(api: Api) -> None:
    api.answer = lambda *_: (200, b"x" * (3 << 20))
    with pytest.raises(QueryLimitError, match="more than 2 MiB"):
        RemotePrometheus(Source(type="prometheus", url=api.url), body_bytes=2 << 20).query("x", 0)


def test_warnings_are_kept_once_and_go_with_the_result(api: Api) -> None:
    api.gives({"resultType": "vector", "result": []}, warnings=["w"], infos=["i"], isPartial=True)
    client = remote(api)
    partial = "the answer is partial: not every storage node answered"
    for _ in range(2):
        result = client.query("x", 0)
        assert isinstance(result, VectorResult)
        assert result.warnings == ("w", "i", partial)
    assert client.warnings == ("w", "i", partial)


def test_credentials(api: Api, tmp_path: Any) -> None:
    def sent(**settings: Any) -> Mapping[str, str]:
        remote(api, **settings).ask("labels", ())
        return api.asked[-1][3]

    assert sent(bearer_token="t")["Authorization"] == "Bearer t"
    assert sent(basic_auth={"username": "u", "password": "p"})["Authorization"] == "Basic dTpw"
    (tmp_path / "secret").write_text("p\n")
    held = {"username": "u", "password_file": str(tmp_path / "secret")}
    assert sent(basic_auth=held)["Authorization"] == "Basic dTpw"
    assert sent(headers={"X-Scope-OrgID": "team"})["X-Scope-OrgID"] == "team"
    in_url = api.url.replace("//", "//u:p@") + "/"
    assert sent(url=in_url)["Authorization"] == "Basic dTpw"
    assert "u:p" not in remote(api, url=in_url).url
    assert "Authorization" not in sent()


def test_where_post_is_not_taken_get_is(api: Api) -> None:
    found = {"status": "success", "data": {"resultType": "vector", "result": []}}
    api.answer = lambda method, *_: (405, b"no") if method == "POST" else (200, found)
    client = remote(api)
    assert client.instant("up", 0).labels == ()
    assert client.instant("up", 0).labels == ()
    assert [method for method, *_ in api.asked] == ["POST", "GET", "GET"]
    assert api.asked[-1][2]["query"] == ["up"]


def test_series_values_and_metadata(api: Api) -> None:
    client = remote(api, url=f"{api.url}/prefix/api/v1/")
    api.gives([{"__name__": "b"}, {"__name__": "a", "x": "y"}])
    assert client.series(["a", "b"], 1000, 2000) == [(("__name__", "a"), ("x", "y")), (("__name__", "b"),)]
    assert api.asked[-1][:3] == (
        "POST",
        "/prefix/api/v1/series",
        {"match[]": ["a", "b"], "start": ["1.000"], "end": ["2.000"]},
    )
    api.gives(["x/y"])
    assert client.label_values("a/b") == ["x/y"]
    assert api.asked[-1][1] == "/prefix/api/v1/label/a%2Fb/values"
    api.gives({"f": [{"type": "counter", "help": "h", "unit": ""}, {"type": "gauge"}]})
    assert client.metadata() == {"f": Metadata("f", "counter", "h")}
    api.answer = lambda *_: (404, b"no such thing")
    assert client.metadata() == {}


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:y"])
def test_a_wrong_url_is_a_mistake_in_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match="is not an http or https URL"):
        RemotePrometheus(Source().model_copy(update={"url": url}))


def test_a_tls_file_that_is_not_there_is_named() -> None:
    settings = {"type": "prometheus", "url": "https://x", "tls": {"ca_file": "/nowhere/ca.pem"}}
    with pytest.raises(ConfigError, match=r"^source\.tls: /nowhere/ca\.pem cannot be used"):
        RemotePrometheus(Source.model_validate(settings))


def test_tls(api: Api) -> None:
    """The server's certificate is of engine.test, and it wants to see one of the client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    context.load_verify_locations(TLS / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    api.server.socket = context.wrap_socket(api.server.socket, server_side=True)
    own = {"cert_file": str(TLS / "client.pem"), "key_file": str(TLS / "client.key")}

    def asked(**tls: Any) -> Any:
        return remote(api, url=api.url.replace("http:", "https:"), tls={**own, **tls}).ask("labels", ())

    assert asked(ca_file=str(TLS / "ca.pem"), server_name="engine.test") == []
    assert asked(insecure_skip_verify=True) == []
    for wrong in ({"ca_file": str(TLS / "ca.pem")}, {"server_name": "engine.test"}):
        with pytest.raises(TargetError, match="no TLS connection to https://127") as caught:
            asked(**wrong)
        assert caught.value.reason == "tls"


DEEP = b"[" * 100_000
TIMES = {"resultType": "matrix", "result": [{"metric": {}, "values": [[1e300, "1"]]}]}
HUGE = {"resultType": "vector", "result": [{"metric": {}, "value": [1, 10**400]}]}
NUMBERS = {"resultType": "vector", "result": [{"metric": {"a": 1}, "value": [1, "1"]}]}


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b"\xff",
        {"status": "success"},
        *({"status": "success", "data": data} for data in (None, 7, "x", [1], {"f": 1}, TIMES, HUGE, NUMBERS)),
        {"status": "success", "data": {}, "warnings": 7},
    ],
    ids=lambda body: str(body)[:60],
)
def test_an_answer_of_another_shape_is_one_sentence(api: Api, body: Any) -> None:
    api.answer = lambda *_: (200, body)
    client = remote(api)
    for ask in (
        lambda: client.query("x", 0),
        lambda: client.query_range("x", 0, 1000, 1000),
        lambda: client.asked("query", {"query": "x"}),
        lambda: client.series(["x"]),
        lambda: client.label_values("x"),
        client.metadata,
    ):
        with pytest.raises(TargetError, match=r"does not answer /api/v1/.* as Prometheus does") as caught:
            ask()
        assert caught.value.message.startswith(api.url)


def test_times_that_were_not_asked_for_are_no_answer(api: Api) -> None:
    api.gives({"resultType": "matrix", "result": [{"metric": {}, "values": [[0, "1"], [9, "1"]]}]})
    with pytest.raises(TargetError, match="does not answer"):
        remote(api).range("x", 0, 5000, 1000)


@pytest.mark.parametrize("what", ["head", "body"])
def test_an_answer_that_drips_ends_at_the_deadline(what: str) -> None:
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"X: " if what == "head" else b"\r\n"))
            while not stop.wait(0.02):
                self.wfile.write(b" ")

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        client = RemotePrometheus(Source(type="prometheus", url=url), timeout_seconds=1, allowed_seconds=0)
        with pytest.raises(TargetError, match="has not answered within") as caught:
            client.query("x", 0)
        assert caught.value.reason == "timeout"
        assert client.trouble == caught.value.message
    finally:
        stop.set()
        server.shutdown()
        server.server_close()


def test_a_bomb_is_given_up_at_the_bound() -> None:
    read = 0

    class Bomb:
        headers: ClassVar = {"Content-Encoding": "gzip"}

        def stream(self, size: int, decode_content: bool) -> Iterator[bytes]:
            nonlocal read
            packing = zlib.compressobj(9, zlib.DEFLATED, 31)
            while True:
                read += 1
                yield packing.compress(bytes(1 << 20)) + packing.flush(zlib.Z_SYNC_FLUSH)

    with pytest.raises(TooLongError):
        body_of(Bomb(), 10 << 20)  # type: ignore[arg-type]
    assert read == 11


@pytest.mark.parametrize(("seconds", "text"), [(30, "30s"), (0.001, "1ms"), (1.5, "1500ms"), (120, "120s")])
def test_the_timeout_is_a_duration_that_prometheus_takes(api: Api, seconds: float, text: str) -> None:
    api.gives({"resultType": "vector", "result": []})
    RemotePrometheus(Source(type="prometheus", url=api.url), timeout_seconds=seconds).query("x", 0)
    assert api.asked[0][2]["timeout"] == [text]


def test_trouble_is_told_until_something_is_answered(api: Api) -> None:
    client = remote(api)
    api.answer = lambda *_: (502, b"no")
    for expr in ("a", "b"):
        with pytest.raises(TargetError):
            client.query(expr, 0)
    assert client.trouble == f"{api.url} answers HTTP 502 for /api/v1/query"
    api.answer = lambda *_: (400, {"status": "error", "errorType": "bad_data", "error": "parse error"})
    with pytest.raises(QueryError):
        client.query("a", 0)
    assert client.trouble == "", "it is there, and says what is wrong with the query"
