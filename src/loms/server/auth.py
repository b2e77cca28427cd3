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


class OwnPages:
    """ASGI middleware: a page of somebody else's, open in a browser that reaches this server, must not write here.

    A browser says where a request comes from (``Sec-Fetch-Site``, ``Origin``); programs that send samples do not.
    """

    READING = frozenset({"GET", "HEAD", "OPTIONS"})
    QUESTIONS = frozenset(
        f"/api/v1/{name}"
        for name in (
            "query", "query_range", "query_exemplars", "format_query", "parse_query", "series", "labels", "read"
        )
    )  # fmt: skip
    """They come as POST too, and change nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in self.READING or scope["path"] in self.QUESTIONS:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "")
        host = (origin or "").partition("://")[2].lower()
        foreign = origin is not None and (not host or host != request.headers.get("host", "").lower())
        if foreign or site.lower() not in ("", "same-origin", "none"):
            text = f"a page of another site ({origin or site}) must not write here"
            answer = JSONResponse({"status": "error", "errorType": "forbidden", "error": text}, status_code=403)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


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
