from __future__ import annotations

import asyncio
from collections.abc import Callable

from loms.engines.engine import Identity
from loms.engines.identity import keep_identified

VLLM = '# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{engine="0",model_name="m"}} {}\n'


def test_an_engine_is_identified_when_it_appears_and_again_when_it_restarts(scraped) -> None:
    versions = ["0.31.0", "0.32.0"]

    async def get(path: str) -> object:
        return {"version": versions.pop(0)}

    async def run() -> None:
        target, news = scraped(), []

        async def on_news() -> None:
            news.append(target.translator.identity)

        task = asyncio.create_task(keep_identified(target.translator, get, on_news=on_news))
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

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
