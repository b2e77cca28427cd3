"""OTLP over HTTP: ``POST /v1/{metrics,traces,logs}``, and metrics where Prometheus takes them too.

Source: opentelemetry.io/docs/specs/otlp (OTLP/HTTP). An answer is in the encoding of its request, a refusal is a
``google.rpc.Status``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from google.protobuf import json_format
from starlette.types import ASGIApp, Receive, Scope, Send

from loms.core.errors import PayloadError
from loms.ingest.otlp.limits import SIGNALS, Signal
from loms.server.bodies import Bodies
from loms.server.otlp.receiver import Answer, OtlpReceiver, refusal

THREADS = 2
BODIES_AT_ONCE = 4
"""Requests held in memory at a time, in largest ones."""

PATHS: dict[str, Signal] = {**{f"/v1/{signal}": signal for signal in SIGNALS}, "/api/v1/otlp/v1/metrics": "metrics"}

_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


def router(receiver: OtlpReceiver) -> APIRouter:
    """The routes. Bodies are read on the event loop and worked on in threads of their own."""
    api = APIRouter(tags=["otlp"])
    bodies = Bodies(receiver.settings.body, BODIES_AT_ONCE * receiver.settings.body)
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="otlp")

    async def take(signal: Signal, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (_PROTOBUF, _JSON):
            text = f"the content type must be {_PROTOBUF} or {_JSON}"
            return rendered(refusal(signal, 415, text), as_json=False)
        as_json = kind == _JSON
        encoding = request.headers.get("content-encoding", "")
        try:
            async with bodies.read(request) as body:
                work = threads.submit(receiver.take, signal, body, encoding=encoding, as_json=as_json)
                return rendered(await asyncio.wrap_future(work), as_json=as_json)
        except PayloadError as error:
            return rendered(refusal(signal, error.status, error.message), as_json=as_json)

    for path, signal in PATHS.items():
        api.add_api_route(path, partial(take, signal), methods=["POST"], include_in_schema=False)
    return api


def rendered(answer: Answer, *, as_json: bool) -> Response:
    """The answer in its request's encoding."""
    message = answer.message
    content = json_format.MessageToJson(message, indent=None).encode() if as_json else message.SerializeToString()
    headers = {} if answer.retry_seconds is None else {"Retry-After": str(answer.retry_seconds)}
    return Response(content, answer.http, headers, _JSON if as_json else _PROTOBUF)


class OtlpPort:
    """ASGI middleware: what comes in at OTLP's own port finds OTLP there, and nothing else."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = scope["type"] == "http" and scope["server"] and scope["server"][1] == self._port
        if here and not (scope["path"].startswith("/v1/") and scope["path"] in PATHS):
            await PlainTextResponse("this port takes OTLP: POST /v1/metrics, /v1/traces, /v1/logs\n", 404)(
                scope, receive, send
            )
            return
        await self._app(scope, receive, send)
