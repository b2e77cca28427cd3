"""Asking engines who they are: at discovery, after each restart, and now and then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from loms.engines.engine import Get, Identity, engines
from loms.engines.translate import Translator

REFRESH_SECONDS = 300.0
TIMEOUT_SECONDS = 5.0
_ATTEMPTS = 3
_BODY_LIMIT = 4 << 20


async def keep_identified(
    translator: Translator,
    session: aiohttp.ClientSession,
    base_url: str,
    headers: Mapping[str, str] | None = None,
    *,
    on_news: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Answer the translator's question whenever it asks, until cancelled. New answers are followed by ``on_news``.

    An engine that does not answer is asked again a few times and then taken for nameless, so that its metrics do not
    wait for ever; the next round may still name it.
    """
    get = getter(session, base_url, headers)
    while True:
        try:
            await asyncio.wait_for(translator.unidentified.wait(), REFRESH_SECONDS)
        except TimeoutError:
            if not translator.engine:
                continue
        translator.unidentified.clear()
        identity = await identify(translator.engine, get)
        known = translator.identity
        if known is not None and identity in (known, Identity()):
            continue
        translator.identified(identity)
        if on_news is not None:
            await on_news()


async def identify(name: str, get: Get) -> Identity:
    """What the engine says of itself; empty when it does not answer three times."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(attempt)
        identity = await engines[name].identify(get)
        if identity != Identity():
            return identity
    return Identity()


def getter(session: aiohttp.ClientSession, base_url: str, headers: Mapping[str, str] | None = None) -> Get:
    """A `Get` over HTTP: None for whatever is not a small JSON answer with status 200."""

    async def get(path: str) -> Any:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        body = b""
        try:
            async with session.get(base_url.rstrip("/") + path, headers=headers, timeout=timeout) as response:
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > _BODY_LIMIT:
                        return None
            return json.loads(body) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    return get
