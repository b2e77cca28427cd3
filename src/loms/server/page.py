"""The web page: static files, found in the installed package or, in a checkout, beside ``src``."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

import loms
from loms.core.errors import LomsError
from loms.server.auth import COOKIE


def folder() -> Path:
    """Where ``index.html`` is. Raises `LomsError` when the installation lacks it."""
    package = Path(loms.__file__).parent
    for candidate in (package / "web", package.parent.parent / "web"):
        if (candidate / "index.html").is_file():
            return candidate
    raise LomsError("the web page is missing from this installation", hint="reinstall: pip install 'loms[server]'")


def router(*, gated: bool) -> APIRouter:
    """``/`` is the page. Behind a token gate, a token given there is kept as a cookie, for the page's own requests."""
    index = folder() / "index.html"
    pages = APIRouter(include_in_schema=False)

    @pages.get("/")
    def page(request: Request) -> Response:
        if gated and (token := request.query_params.get("token")):
            answer: Response = RedirectResponse("./")
            answer.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return answer
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    return pages


def assets() -> StaticFiles:
    """Everything under ``/web/``."""
    return StaticFiles(directory=folder())
