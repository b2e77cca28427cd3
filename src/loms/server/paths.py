"""Paths as clients write them: a base URL that ends in a slash gives two of them, some clients add one at the end."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("//+")


class TidyPaths:
    """ASGI middleware: repeated slashes are one, and an API's path does not end in one.

    A redirect, which is Prometheus's way, would turn a POST into a GET without its form.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"])
            scope = {**scope, "path": path.rstrip("/") if path.startswith("/api/") else path}
        await self._app(scope, receive, send)
