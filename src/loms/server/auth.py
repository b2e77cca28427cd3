"""Who may ask, and what browsers are told: the token gate and the headers of every answer."""

from __future__ import annotations

import hmac

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/healthz", "/readyz", "/-/healthy", "/-/ready")
COOKIE = "loms_token"


class TokenGate:
    """ASGI middleware. The token comes as ``Authorization: Bearer …`` or, for the page, as a cookie (``/?token=…``)."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._admits(Request(scope)):
            await self._app(scope, receive, send)
            return
        answer = JSONResponse(
            {"status": "error", "errorType": "unauthorized", "error": "a token is needed: Authorization: Bearer …"},
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
        await answer(scope, receive, send)

    def _admits(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        offered = (
            given if scheme.lower() == "bearer" else "",
            request.cookies.get(COOKIE, ""),
            request.query_params.get("token", "") if request.url.path == "/" else "",
        )
        return any(hmac.compare_digest(self._token, text.encode()) for text in offered if text)


class SafeHeaders:
    """ASGI middleware: a page of LOMS loads nothing from elsewhere, and nothing takes it for what it is not."""

    HEADERS = (
        (
            b"content-security-policy",
            b"default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'",
        ),
        (b"x-content-type-options", b"nosniff"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self.HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)
