"""The HTTP application: Prometheus's API, LOMS's own, the page, self-metrics and health checks."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.requests import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from loms import __version__
from loms.core import selfmetrics
from loms.core.errors import LomsError
from loms.server import api, page, remote_write
from loms.server.auth import OwnPages, SafeHeaders, TokenGate
from loms.server.otlp import http as otlp
from loms.server.paths import TidyPaths
from loms.server.prometheus import federate, read, rules, status
from loms.server.prometheus import routes as prometheus
from loms.server.prometheus.answer import Answering
from loms.server.runtime import Server
from loms.server.traces import jaeger, tempo
from loms.server.traces import routes as traces
from loms.store.traces import TraceTables

LOOPBACK = ["127.0.0.1", "localhost", "[::1]", "["]
"""Host names of a server without a token (the last is what remains of an IPv6 address when the port is cut off)."""


def build(server: Server, collected: api.Collected) -> FastAPI:
    """All routes over one running server."""
    app = FastAPI(title="LOMS", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)
    token = server.config.server.token
    if token:
        app.add_middleware(TokenGate, token=token.get_secret_value())
    else:  # a page of somebody else's, whose name is made to point here, must not read what only loopback may
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK)
    app.add_middleware(OwnPages)
    app.add_middleware(SafeHeaders)
    app.add_middleware(TidyPaths)

    @app.get("/healthz", include_in_schema=False)
    def healthz() -> Response:
        """The process answers."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def readyz() -> Response:
        """The store takes and answers, and rules are evaluated."""
        trouble = server.trouble()
        return PlainTextResponse(f"{trouble or 'ok'}\n", 503 if trouble else 200)

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """LOMS's own metrics."""
        return Response(selfmetrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # Two, because a slow dashboard does not keep anybody from the alerts.
    answering, aside = (Answering(timeout_seconds=server.config.query.timeout) for _ in range(2))
    app.include_router(prometheus.router(server.engine, server.clock, answering, server.labels))
    app.include_router(rules.router(server.evaluator, aside))
    app.include_router(status.router(server, collected, aside))
    app.include_router(read.router(server.engine, answering))
    lookback_ms = round(server.config.query.lookback * 1000)
    app.include_router(federate.router(server.engine, server.clock, lookback_ms, answering))
    received = remote_write.RemoteWriteReceiver(server.config.receive, server.arrivals, server.metadata.note)
    app.include_router(remote_write.router(received))
    app.include_router(otlp.router(server.otlp))
    tables = TraceTables(server.database)
    app.include_router(traces.router(tables, server.clock))
    app.include_router(jaeger.router(tables, server.clock))
    app.include_router(tempo.router(tables, server.clock))
    app.include_router(api.router(server, collected))
    app.include_router(page.router(gated=token is not None))
    app.mount("/web", page.assets(), name="web")
    app.add_exception_handler(LomsError, _loms_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    return app


def _error(kind: str, text: str, status: int) -> JSONResponse:
    return JSONResponse({"status": "error", "errorType": kind, "error": text}, status)


async def _loms_error(_: Request, error: Exception) -> JSONResponse:
    return _error("internal", str(error), 503)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _error("bad_data", f'invalid parameter "{first["loc"][-1]}": {first["msg"]}', 400)


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _error("not_found" if error.status_code == 404 else "bad_data", str(error.detail), error.status_code)
