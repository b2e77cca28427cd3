from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.post_host import TLS, Answer, PostHost
from support.processes import free_port

from loms.core.clock import ManualClock
from loms.core.errors import ConfigError, ForwardError
from loms.core.settings import Forward
from loms.forward.http import HttpDestination


def destination(url: str, **settings: Any) -> HttpDestination:
    return HttpDestination(Forward.model_validate({"url": url, **settings}), ManualClock(1_000_000))


def failure(one: HttpDestination) -> ForwardError:
    with pytest.raises(ForwardError) as failed:
        one.post(b"body", {}, weight=5)
    return failed.value


def test_body_and_headers_arrive() -> None:
    with PostHost() as host:
        one = destination(host.url, headers={"X-Scope-OrgID": "team"}, bearer_token="t0ken")
        for body in (b"one", b"two"):
            one.post(body, {"Content-Encoding": "snappy"}, weight=1)
    assert [posted.body for posted in host.posted] == [b"one", b"two"]
    headers = host.posted[0].headers
    assert headers["Content-Encoding"] == "snappy"
    assert headers["X-Scope-OrgID"] == "team"
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["User-Agent"].startswith("loms/")


def test_a_password_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with PostHost() as host:
        one = destination(host.url, basic_auth={"username": "u", "password_file": str(file)})
        assert failure(one).retry
        for password in ("old\n", "new\n"):
            file.write_text(password)
            one.post(b"", {}, weight=1)
    assert [posted.headers["Authorization"] for posted in host.posted] == ["Basic dTpvbGQ=", "Basic dTpuZXc="]


@pytest.mark.parametrize(
    ("status", "retry"),
    [
        (400, False),
        (401, False),
        (404, False),
        (413, False),
        (302, False),
        (408, True),
        (429, True),
        (500, True),
        (503, True),
    ],
)
def test_which_answers_are_worth_another_try(status: int, retry: bool) -> None:
    with PostHost([Answer(status, {"Location": "/other"}, "a reason\nin two lines")]) as host:
        failed = failure(destination(host.url, name="central"))
    assert (failed.retry, failed.reason, failed.weight) == (retry, f"http_{status}", 5)
    assert failed.message == f"central: 127.0.0.1:{host.port} answered {status}: a reason in two lines"
    assert len(host.posted) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:17:10 GMT", 30.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
    ],
)
def test_when_a_receiver_wants_to_be_asked_again(text: str, seconds: float | None) -> None:
    with PostHost([Answer(503, {"Retry-After": text})]) as host:
        assert failure(destination(host.url)).retry_after_seconds == seconds


def test_nobody_there_is_worth_another_try_and_said_plainly() -> None:
    port = free_port()
    failed = failure(destination(f"http://user:secret@127.0.0.1:{port}/x"))
    assert (failed.retry, failed.reason) == (True, "network")
    assert failed.message == f"127.0.0.1:{port}: no answer from 127.0.0.1:{port}: Connection refused"


def test_credentials_in_the_url_are_used_and_not_sent_as_a_part_of_it() -> None:
    with PostHost() as host:
        destination(host.url.replace("//", "//us%40er:pw@")).post(b"", {}, weight=1)
    (posted,) = host.posted
    assert posted.headers["Authorization"] == "Basic dXNAZXI6cHc="
    assert "pw" not in posted.path + posted.headers["Host"]


def test_tls_is_checked() -> None:
    with PostHost(tls=True) as host:
        refused = failure(destination(host.url))
        assert refused.retry
        assert "ertificate" in refused.message or "CERTIFICATE" in refused.message
        own = {"ca_file": str(TLS / "ca.pem")}
        assert "Hostname mismatch" in failure(destination(host.url, tls=own)).message
        destination(host.url, tls=own | {"server_name": "engine.test"}).post(b"a", {}, weight=1)
        destination(host.url, tls={"insecure_skip_verify": True}).post(b"b", {}, weight=1)
    assert [posted.body for posted in host.posted] == [b"a", b"b"]


def test_tls_files_that_are_not_there_are_a_wrong_configuration() -> None:
    with pytest.raises(ConfigError, match="h:1: the TLS files cannot be used: No such file"):
        destination("https://h:1/", tls={"ca_file": "/nowhere/ca.pem"})


def test_of_an_answer_whose_body_drips_the_status_counts() -> None:
    with PostHost([Answer(200, text="its body", drip=True), Answer(400, text="its body", drip=True)]) as host:
        one = destination(host.url, timeout=0.5)
        one.post(b"first", {}, weight=1)
        assert failure(one).reason == "http_400"
        one.post(b"last", {}, weight=1)
    assert [posted.body for posted in host.posted] == [b"first", b"body", b"last"]


def test_an_answer_whose_head_drips_is_cut_off() -> None:
    with PostHost([Answer(200, drip=True)]) as host:
        one = destination(host.url, timeout=0.5)
        failed = failure(one)
        assert (failed.retry, failed.reason) == (True, "network")
        assert failed.message.endswith("no whole answer in 0.5 s")
        one.post(b"again", {}, weight=1)
    assert [posted.body for posted in host.posted] == [b"body", b"again"]


def test_of_a_long_answer_only_the_beginning_is_read_and_the_next_request_has_a_connection() -> None:
    with PostHost([Answer(400, text="a" * 5_000_000), Answer(200, text="fine"), Answer(200)]) as host:
        one = destination(host.url)
        assert failure(one).message.endswith("answered 400: " + "a" * 200)
        for body in (b"next", b"last"):
            one.post(body, {}, weight=1)
    assert [posted.body for posted in host.posted] == [b"body", b"next", b"last"]
