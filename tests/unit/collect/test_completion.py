"""The one-token request against a real HTTP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loms.collect.completion import CompletionClient
from loms.collect.probe import Answer, Usage
from loms.collect.targets import Auth, ProbeSettings, Target, Tls

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USAGE = {
    "choices": [{"text": "!", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
}


def ask(handler: Handler, *, model: str = "m", change: Callable[[Target], Target] = lambda target: target) -> Answer:
    """One request to a server whose every path is ``handler``."""

    async def run() -> Answer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        client = CompletionClient()
        try:
            url = str(server.make_url("/metrics"))
            probe = ProbeSettings(deadline_seconds=5)
            return await client(change(Target("engines", "here", url, probe=probe)), model)
        finally:
            await client.close()
            await server.close()

    return asyncio.run(run())


def test_one_token_is_asked_for() -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.path, await request.json(), request.headers.get("Authorization")))
        return web.json_response(USAGE)

    assert ask(handler) == Answer("ok", True, Usage(3, 1, 2, "length"))
    ((method, path, body, authorization),) = seen
    assert (method, path, authorization) == ("POST", "/v1/completions", None)
    assert (body["model"], body["max_tokens"]) == ("m", 1)


def test_a_model_without_a_name_is_looked_up() -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "found"}]})
        assert (await request.json())["model"] == "found"
        return web.json_response(USAGE)

    assert ask(handler, model="").outcome == "ok"


@pytest.mark.parametrize(
    ("status", "alive"), [(400, None), (401, None), (404, None), (429, None), (501, None), (500, False), (503, False)]
)
def test_only_errors_of_the_server_itself_say_that_it_does_not_work(status: int, alive: bool | None) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status)

    answer = ask(handler)
    assert (answer.outcome, answer.alive) == ("http", alive)
    assert str(status) in answer.detail


@pytest.mark.parametrize(
    "body", ["", "{oops", "[]", '{"usage": null}', '{"usage": {"prompt_tokens": "x"}}', '{"usage": [], "choices": []}']
)
def test_an_answer_without_usage_is_still_an_answer(body: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=body)

    assert ask(handler) == Answer("ok", True, None)


def test_what_an_engine_does_not_say_of_a_request_stays_unsaid() -> None:
    async def handler(request: web.Request) -> web.Response:
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}
        return web.json_response({"choices": [{"text": ""}], "usage": usage})

    assert ask(handler) == Answer("ok", True, Usage(3, 1, None, ""))


def test_the_deadline_gives_up_and_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            closed.set()
            raise
        return web.Response()

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        server = TestServer(app)
        await server.start_server()
        client = CompletionClient()
        target = Target("engines", "here", str(server.make_url("/metrics")), probe=ProbeSettings(deadline_seconds=0.2))
        answer = await client(target, "m")
        assert (answer.outcome, answer.alive) == ("timeout", False)
        await asyncio.wait_for(closed.wait(), 10)
        await client.close()
        await server.close()

    asyncio.run(run())


def test_a_refused_connection_and_a_name_that_does_not_resolve() -> None:
    async def run(url: str) -> Answer:
        client = CompletionClient()
        try:
            return await client(Target("engines", "here", url, probe=ProbeSettings(deadline_seconds=5)), "m")
        finally:
            await client.close()

    refused = asyncio.run(run("http://127.0.0.1:1/metrics"))
    assert (refused.outcome, refused.alive) == ("refused", False)
    unknown = asyncio.run(run("http://nowhere.invalid/metrics"))
    assert (unknown.outcome, unknown.alive) == ("refused", None)


def test_a_broken_connection_is_no_answer() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert (ask(handler).outcome, ask(handler).alive) == ("refused", False)


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (lambda t: replace(t, probe=replace(t.probe, api_key="k-1")), "Bearer k-1"),
        (lambda t: replace(t, auth=Auth(bearer_token="t-1")), "Bearer t-1"),
        (lambda t: replace(t, auth=Auth(bearer_token="t-1"), probe=replace(t.probe, api_key="k-1")), "Bearer k-1"),
        (lambda t: replace(t, auth=Auth(username="u", password="p")), "Basic dTpw"),
        (lambda t: t, None),
    ],
    ids=["key", "scrape token", "key first", "basic", "none"],
)
def test_keys_go_where_they_belong_and_into_no_log(
    change: Callable[[Target], Target], sent: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=403)

    with caplog.at_level(logging.DEBUG):
        answer = ask(handler, change=change)
    assert seen == [sent]
    assert not any(secret in text for secret in ("k-1", "t-1") for text in (answer.detail, caplog.text))


def test_tls_files_that_are_missing_are_a_fault_of_ours() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(USAGE)

    def change(target: Target) -> Target:
        return replace(target, url=target.url.replace("http:", "https:"), tls=Tls(ca_file="/nonexistent/ca.pem"))

    answer = ask(handler, change=change)
    assert "/nonexistent/ca.pem" in answer.detail
    assert (answer.outcome, answer.alive) == ("refused", None)


def test_whatever_is_not_a_small_json_answer_is_none() -> None:
    async def handler(request: web.Request) -> web.Response:
        answers = {
            "/good": web.json_response({"a": 1}),
            "/odd": web.Response(text="{oops"),
            "/long": web.Response(body=b'"' + b"x" * (5 << 20) + b'"'),
            "/moved": web.Response(status=307, headers={"Location": "/good"}),
        }
        return answers.get(request.path) or web.Response(status=404, text="{}")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        server, client = TestServer(app), CompletionClient()
        await server.start_server()
        target = Target("engines", "here", str(server.make_url("/metrics")))
        assert await client.get(target, "/good") == {"a": 1}
        assert [await client.get(target, path) for path in ("/odd", "/long", "/moved", "/missing")] == [None] * 4
        assert await client.get(Target("engines", "here", "http://127.0.0.1:1/metrics"), "/good") is None
        await client.close()
        await server.close()

    asyncio.run(run())
