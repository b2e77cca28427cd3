from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from loms.engines.engine import Identity
from loms.engines.identity import getter, keep_identified

VLLM = '# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{engine="0",model_name="m"}} {}\n'


def with_server(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], body: Callable[..., Awaitable[None]]
) -> None:
    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        async with aiohttp.ClientSession() as session:
            await body(session, str(server.make_url("/")))
        await server.close()

    asyncio.run(run())


def test_an_engine_is_identified_when_it_appears_and_again_when_it_restarts(scraped) -> None:
    versions = ["0.31.0", "0.32.0"]

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"version": versions.pop(0)})

    async def body(session: aiohttp.ClientSession, url: str) -> None:
        target, news = scraped(), []

        async def on_news() -> None:
            news.append(target.translator.identity)

        task = asyncio.create_task(keep_identified(target.translator, session, url, on_news=on_news))
        target.scrape(VLLM.format(9))
        await until(lambda: target.translator.identity == Identity("0.31.0"))
        target.scrape(VLLM.format(9))
        assert target.value("llm_engine_info", version="0.31.0", model="m") == 1
        target.scrape(VLLM.format(1))
        await until(lambda: target.translator.identity == Identity("0.32.0"))
        target.scrape(VLLM.format(1))
        assert target.value("llm_engine_info", version="0.32.0") == 1
        await until(lambda: news == [Identity("0.31.0"), Identity("0.32.0")])
        task.cancel()

    with_server(handler, body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_whatever_is_not_a_small_json_answer_is_none() -> None:
    async def handler(request: web.Request) -> web.Response:
        answers = {
            "/good": web.json_response({"a": 1}),
            "/odd": web.Response(text="{oops"),
            "/long": web.Response(body=b'"' + b"x" * (5 << 20) + b'"'),
        }
        return answers.get(request.path) or web.Response(status=404, text="{}")

    async def body(session: aiohttp.ClientSession, url: str) -> None:
        get = getter(session, url)
        assert await get("/good") == {"a": 1}
        assert [await get(path) for path in ("/odd", "/long", "/missing")] == [None] * 3
        assert await getter(session, "http://127.0.0.1:1")("/good") is None

    with_server(handler, body)
