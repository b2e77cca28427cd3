"""Asking engines who they are: at discovery, after each restart, and now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loms.engines.engine import Get, Identity, engines
from loms.engines.translate import Translator

REFRESH_SECONDS = 300.0
_ATTEMPTS = 3


async def keep_identified(
    translator: Translator, get: Get, *, on_news: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Answer the translator's question whenever it asks, until cancelled. New answers are followed by ``on_news``.

    An engine that does not answer is asked again a few times and then taken for nameless, so that its metrics do not
    wait for ever; the next round may still name it.
    """
    while True:
        try:
            async with asyncio.timeout(REFRESH_SECONDS):  # wait_for can swallow a cancellation in Python 3.11
                await translator.unidentified.wait()
        except TimeoutError:
            if not translator.engine:
                continue
        translator.unidentified.clear()
        translator.asking = True
        identity = await identify(translator.engine, get)
        translator.asking = False
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
