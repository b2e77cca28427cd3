"""An engine's own HTTP API: asking it for one token, and for what it says of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from loms.collect.credentials import TlsContexts, authorization
from loms.collect.http import no_connection
from loms.collect.lateness import Lateness
from loms.collect.probe import Answer, Usage
from loms.collect.targets import Target
from loms.core.errors import TargetError

PROMPT = "Hi"
GET_SECONDS = 5.0
_BODY_LIMIT = 4 << 20


class CompletionClient:
    """Satisfies `loms.collect.probe.Ask`. One for all targets of an event loop; close it there.

    Every request has a connection of its own: giving up at the deadline closes it, which is how these engines are told
    to abort a request.
    """

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._lateness = Lateness()
        self._contexts = TlsContexts()

    async def __call__(self, target: Target, model: str, /) -> Answer:
        with self._lateness.watch() as lateness:
            answer = await self._ask(target, model)
            self._lateness.look()
        if answer.outcome == "timeout" and lateness.worst > target.probe.deadline_seconds / 4:
            return replace(answer, alive=None, detail=f"{answer.detail}, but LOMS was late by {lateness.worst:.1f} s")
        return answer

    async def _ask(self, target: Target, model: str) -> Answer:
        deadline = target.probe.deadline_seconds
        try:
            async with asyncio.timeout(deadline):
                model = model or _first_model((await self._exchange(target, "GET", "/v1/models"))[1])
                request = {"model": model, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
                status, body = await self._exchange(target, "POST", "/v1/completions", request)
        except TimeoutError:
            return Answer("timeout", False, detail=f"no answer to POST /v1/completions within {deadline:g} s")
        except (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError, aiohttp.InvalidURL, TargetError) as error:
            return Answer("refused", None, detail=str(error))
        except aiohttp.ClientConnectorError as error:  # no route to it says nothing about the engine
            return Answer("refused", _nobody_there(error.os_error), detail=str(error))
        except (aiohttp.ClientError, OSError) as error:
            return Answer("refused", False, detail=str(error) or type(error).__name__)
        if status == 200:
            return Answer("ok", True, _usage(body))
        # Below 500 it is the API server that speaks: no key, no such model, no such endpoint, too many requests.
        alive = None if status < 500 or status == 501 else False
        return Answer("http", alive, detail=f"POST /v1/completions answered {status}{_hint(status)}")

    async def close(self) -> None:
        await self._session.close()

    async def get(self, target: Target, path: str) -> Any:
        """Decoded JSON of a path of the engine's API; None for whatever is not a small JSON answer with status 200."""
        try:
            async with asyncio.timeout(GET_SECONDS):
                status, body = await self._exchange(target, "GET", path)
        except (TimeoutError, TargetError, aiohttp.ClientError, OSError):
            return None
        return body if status == 200 else None

    async def _exchange(
        self, target: Target, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and decoded body. The engine's key, else what opens its metrics; never sent on by a redirect."""
        key = target.probe.api_key
        credentials = f"Bearer {key}" if key else authorization(target.auth, target.address)
        parts = urlsplit(target.url)
        async with self._session.request(
            method,
            urlunsplit((parts.scheme, target.address.authority, path, "", "")),
            json=body,
            headers={"Authorization": credentials} if credentials else {},
            ssl=self._contexts.get(target.tls) if target.address.secure else True,
            server_hostname=target.tls.server_name or None if target.address.secure else None,
            allow_redirects=False,
        ) as response:
            return response.status, await _json(response)


def _nobody_there(error: OSError) -> Literal[False] | None:
    return False if no_connection(error) in ("refused", "connection") else None


async def _json(response: aiohttp.ClientResponse) -> Any:
    """The decoded body; None where it is not JSON, or too long to be an answer."""
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _BODY_LIMIT:
            return None
    try:
        return json.loads(body)
    except ValueError:
        return None


def _first_model(answer: Any) -> str:
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return ""


def _usage(answer: Any) -> Usage | None:
    try:
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Usage(
            int(usage["prompt_tokens"]),
            int(usage["completion_tokens"]),
            None if cached is None else int(cached),
            str(answer["choices"][0].get("finish_reason") or ""),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _hint(status: int) -> str:
    return {401: ": set probe.api_key", 403: ": set probe.api_key", 404: ": set probe.model, or probe: false"}.get(
        status, ""
    )
