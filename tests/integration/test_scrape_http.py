"""The HTTP client against a real server: what it sends, and what it understands."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from loms.collect.http import HttpFetcher
from loms.collect.protocols import Response
from loms.collect.targets import Auth, Target, Tls
from loms.core.errors import TargetError

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
TLS = HERE.parent / "data/tls"
CA = str(TLS / "ca.pem")


@pytest.fixture
def target(bad_ports: dict[str, int]) -> Target:
    return Target(job="j", instance="i", url=f"http://127.0.0.1:{bad_ports['http']}/echo", timeout_seconds=30)


def fetch(*targets: Target) -> list[Response]:
    """One after the other, with one client."""

    async def run() -> list[Response]:
        fetcher = HttpFetcher()
        try:
            return [await fetcher.fetch(target, 30.0) for target in targets]
        finally:
            await fetcher.close()

    return asyncio.run(run())


def at(target: Target, path: str) -> Target:
    return replace(target, url=target.url.replace("/echo", path))


def sent(target: Target) -> dict[str, str]:
    """Header → value of the request that the server got, the request line under ``""``."""
    line = fetch(target)[0].body.decode().removeprefix('request{head="').rpartition('"')[0]
    first, *headers = line.replace("\\n", "\n").strip().split("\n")
    return {"": first, **dict(header.split(": ", 1) for header in headers)}


def test_what_is_asked_for(target: Target) -> None:
    headers = sent(replace(target, url=f"{target.url}"))
    assert headers[""] == "GET /echo HTTP/1.1"
    assert headers["Host"] == target.address.authority
    assert headers["User-Agent"].startswith("loms/")
    assert headers["Accept"].startswith("text/plain;version=0.0.4")
    assert "openmetrics" not in headers["Accept"], "it would rename vLLM's metrics"
    assert headers["Accept-Encoding"] == "identity"
    assert headers["X-Prometheus-Scrape-Timeout-Seconds"] == "30"
    assert "Authorization" not in headers


def test_compression_is_asked_for_when_wanted_and_understood_anyway(target: Target) -> None:
    assert sent(replace(target, compression=True))["Accept-Encoding"] == "gzip"
    assert fetch(at(target, "/gzip"))[0].body == b"# TYPE a gauge\na 1\nb 2\n"


def test_chunks(target: Target) -> None:
    assert fetch(at(target, "/chunked"))[0].body == b"a 1\nb 2\n"


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        (Auth(bearer_token="t0k"), "Bearer t0k"),
        (Auth(username="me", password="ä:b"), "Basic bWU6w6Q6Yg=="),  # base64 of "me:ä:b"
        (Auth(username="me"), "Basic bWU6"),
    ],
)
def test_credentials(target: Target, auth: Auth, header: str) -> None:
    assert sent(replace(target, auth=auth))["Authorization"] == header


def test_credentials_in_the_url(target: Target) -> None:
    headers = sent(replace(target, url=target.url.replace("http://", "http://me:p%40w@")))
    assert headers["Authorization"] == "Basic bWU6cEB3"
    assert headers["Host"] == target.address.authority


def test_a_token_file_is_read_at_each_scrape(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert sent(replace(target, auth=Auth(bearer_token_file=str(file))))["Authorization"] == f"Bearer {token}"


def test_a_password_file(target: Target, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("pw\n")
    headers = sent(replace(target, auth=Auth(username="me", password_file=str(file))))
    assert headers["Authorization"] == "Basic bWU6cHc="


@pytest.mark.parametrize(("content", "complaint"), [(None, "No such file"), ("a\r\nb", "more than one line")])
def test_a_token_file_that_is_no_token(target: Target, tmp_path: Path, content: str | None, complaint: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(TargetError, match=complaint):
        fetch(replace(target, auth=Auth(bearer_token_file=str(file))))


class TestConnections:
    def test_they_are_kept(self, target: Target) -> None:
        one, other = fetch(at(target, "/port"), at(target, "/port"))
        assert one.body == other.body

    def test_one_that_the_server_closed_is_opened_again(self, target: Target) -> None:
        one, other, again = fetch(at(target, "/port-and-close"), at(target, "/port"), at(target, "/port"))
        assert one.body != other.body
        assert other.body == again.body


class TestRedirects:
    def test_they_are_followed(self, target: Target) -> None:
        assert fetch(at(target, "/redirect"))[0].status == 200

    def test_unless_switched_off(self, target: Target) -> None:
        with pytest.raises(TargetError, match="HTTP 302") as caught:
            fetch(replace(at(target, "/redirect"), follow_redirects=False))
        assert caught.value.reason == "http"

    def test_credentials_do_not_follow_to_another_host(self, target: Target) -> None:
        secret = replace(target, auth=Auth(bearer_token="t0k"))
        assert "Authorization" not in sent(at(secret, "/redirect-away"))
        assert "Authorization" in sent(secret)


class TestTls:
    @pytest.fixture
    def secure(self, target: Target, bad_ports: dict[str, int]) -> Target:
        return replace(target, url=f"https://127.0.0.1:{bad_ports['tls']}/good")

    def test_with_the_authority_and_the_name_in_the_certificate(self, secure: Target) -> None:
        tls = Tls(ca_file=CA, server_name="engine.test")
        assert fetch(replace(secure, tls=tls))[0].status == 200

    def test_another_name_is_refused(self, secure: Target) -> None:
        with pytest.raises(TargetError, match=r"[Hh]ostname mismatch") as caught:
            fetch(replace(secure, tls=Tls(ca_file=CA, server_name="other.test")))
        assert caught.value.reason == "tls"

    def test_without_verification(self, secure: Target) -> None:
        assert fetch(replace(secure, tls=Tls(insecure_skip_verify=True)))[0].status == 200

    def test_a_client_certificate(self, secure: Target, bad_ports: dict[str, int]) -> None:
        mutual = replace(secure, url=f"https://127.0.0.1:{bad_ports['mutual_tls']}/good")
        tls = Tls(
            ca_file=CA,
            server_name="engine.test",
            cert_file=str(TLS / "client.pem"),
            key_file=str(TLS / "client.key"),
        )
        assert fetch(replace(mutual, tls=tls))[0].status == 200
        with pytest.raises(TargetError) as caught:
            fetch(replace(mutual, tls=Tls(ca_file=CA, server_name="engine.test")))
        assert caught.value.reason in ("tls", "connection"), "TLS 1.3 tells a client only after the handshake"
