"""Bodies of requests, read within bounds: each for itself, and all that are in memory at one time together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from loms.core.errors import PayloadError


class Bodies:
    """Reads on the event loop. ``limit`` bytes are the most of one body, ``together`` those of all that are held."""

    def __init__(self, limit: int, together: int) -> None:
        self._limit = limit
        self._room = together

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body, which counts as held until the block ends.

        Raises `PayloadError`: 413 for one too large, 429 when there is no room for it now, 400 for one cut off.
        """
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:19]) > self._limit:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self._limit:
                        raise self._too_large()
                    if len(chunk) > self._room:
                        raise PayloadError("too many large requests at once; come again", status=429)
                    self._room -= len(chunk)
                    body += chunk
            except ClientDisconnect:
                raise PayloadError("the body is cut off") from None
            yield bytes(body)
        finally:
            self._room += len(body)

    def _too_large(self) -> PayloadError:
        return PayloadError(f"the body is larger than {self._limit} bytes (receive.body)", status=413)
