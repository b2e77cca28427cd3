"""Asking an engine's OpenAI-compatible API for one token."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from loms.collect.http import no_connection
from loms.collect.lateness import Lateness
from loms.collect.probe import Answer, Usage
from loms.collect.targets import Target, Tls
from loms.core.errors import TargetError

PROMPT = "Hi"
_BODY_LIMIT = 1 << 20


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

    async def _exchange(
        self, target: Target, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        """Status and decoded body."""
        async with self._session.request(
            method,
            _base(target) + path,
            json=body,
            headers=_headers(target),
            ssl=_context(target.tls),
            allow_redirects=False,
        ) as response:
            return response.status, await _json(response)


def _nobody_there(error: OSError) -> Literal[False] | None:
    return False if no_connection(error) in ("refused", "connection") else None


def _base(target: Target) -> str:
    if target.probe.url:
        return target.probe.url.rstrip("/")
    parts = urlsplit(target.url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def _headers(target: Target) -> Mapping[str, str]:
    """The configured key; else, towards the very endpoint that is scraped, the token that opens it."""
    key = target.probe.api_key or ("" if target.probe.url else target.auth.bearer_token)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _context(tls: Tls) -> ssl.SSLContext | bool:
    """What aiohttp takes as ``ssl``: True means its defaults."""
    if tls == Tls():
        return True
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
    except OSError as error:
        raise TargetError(f"the TLS files cannot be used: {error}", reason="tls") from None
    if tls.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


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
