"""Prometheus's query API, so that Grafana, promtool and scripts can ask LOMS as they ask Prometheus."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import LomsError, QueryError
from loms.promql.engine import Engine
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult
from loms.server.wire import format_time, format_value, parse_step, parse_time

_STATUS = {"bad_data": 400, "execution": 422, "timeout": 503, "internal": 500}
_HOUR_MS = 3_600_000
CONCURRENT_QUERIES = 3
"""Fewer than the store has readers, so that slow dashboards do not hold up the rules."""

Parameters = dict[str, list[str]]


def router(engine: Engine, clock: Clock) -> APIRouter:
    """Routes under ``/api/v1``; GET and form-encoded POST alike."""
    api, answers = APIRouter(prefix="/api/v1", tags=["prometheus"]), _Answers(engine, clock)
    limiter = anyio.CapacityLimiter(CONCURRENT_QUERIES)

    async def _answer(request: Request, work: Callable[[Parameters], Any]) -> Response:
        async def in_thread(parameters: Parameters) -> Any:
            return await anyio.to_thread.run_sync(work, parameters, limiter=limiter)

        return await _answered(request, in_thread)

    @api.api_route("/query", methods=["GET", "POST"])
    async def query(request: Request) -> Response:
        """Evaluate an expression at one moment: ``query``, ``time``."""
        return await _answer(request, answers.query)

    @api.api_route("/query_range", methods=["GET", "POST"])
    async def query_range(request: Request) -> Response:
        """Evaluate over a span of time: ``query``, ``start``, ``end``, ``step``."""
        return await _answer(request, answers.query_range)

    @api.api_route("/series", methods=["GET", "POST"])
    async def series(request: Request) -> Response:
        """Label sets that match one of ``match[]`` between ``start`` and ``end`` (default: the last hour)."""
        return await _answer(request, answers.series)

    @api.api_route("/labels", methods=["GET", "POST"])
    async def labels(request: Request) -> Response:
        """Names of labels."""
        return await _answer(request, answers.labels)

    @api.get("/label/{name}/values")
    async def label_values(request: Request, name: str) -> Response:
        """Values of one label."""
        return await _answer(request, lambda parameters: answers.label_values(name, parameters))

    return api


class _Answers:
    """The ``data`` of each answer. Raises `QueryError` for what the caller did wrong."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def query(self, parameters: Parameters) -> dict[str, Any]:
        expr, time = _required(parameters, "query"), parameters.get("time", [""])[0]
        with selfmetrics.query_seconds.time():
            return result_json(self._engine.query(expr, parse_time("time", time) if time else self._clock.now_ms()))

    def query_range(self, parameters: Parameters) -> dict[str, Any]:
        expr = _required(parameters, "query")
        start_ms, end_ms = (parse_time(name, _required(parameters, name)) for name in ("start", "end"))
        step_ms = parse_step("step", _required(parameters, "step"))
        with selfmetrics.query_seconds.time():
            return result_json(self._engine.query_range(expr, start_ms, end_ms, step_ms))

    def series(self, parameters: Parameters) -> list[dict[str, str]]:
        if not parameters.get("match[]"):
            raise QueryError("no match[] parameter provided")
        return [dict(labels) for labels in self._engine.series(parameters["match[]"], *self._span(parameters))]

    def labels(self, parameters: Parameters) -> list[str]:
        return self._engine.label_names(parameters.get("match[]", []), *self._span(parameters))

    def label_values(self, name: str, parameters: Parameters) -> list[str]:
        return self._engine.label_values(name, parameters.get("match[]", []), *self._span(parameters))

    def _span(self, parameters: Parameters) -> tuple[int, int]:
        now = self._clock.now_ms()
        start, end = parameters.get("start", [""])[0], parameters.get("end", [""])[0]
        return parse_time("start", start) if start else now - _HOUR_MS, parse_time("end", end) if end else now


async def _answered(request: Request, work: Callable[[Parameters], Awaitable[Any]]) -> Response:
    """Wrap what ``work`` returns or raises as Prometheus does."""
    parameters = parse_qs(request.url.query, keep_blank_values=True)
    if request.method == "POST":
        body = (await request.body()).decode(errors="replace")
        for name, values in parse_qs(body, keep_blank_values=True).items():
            parameters.setdefault(name, []).extend(values)
    try:
        data = await work(parameters)
    except QueryError as error:
        selfmetrics.query_failures.labels(error.kind).inc()
        return _json({"status": "error", "errorType": error.kind, "error": error.message}, _STATUS[error.kind])
    except LomsError as error:
        selfmetrics.query_failures.labels("internal").inc()
        return _json({"status": "error", "errorType": "internal", "error": error.message}, 500)
    return _json({"status": "success", "data": data})


def result_json(result: Result) -> dict[str, Any]:
    """A typed result as the API's ``data``."""
    if isinstance(result, MatrixResult):
        rows: Any = [
            {
                "metric": dict(labels),
                "values": [
                    [format_time(t), format_value(v)] for t, v in zip(times.tolist(), values.tolist(), strict=True)
                ],
            }
            for labels, times, values in zip(result.labels, result.times_ms, result.values, strict=True)
        ]
        return {"resultType": "matrix", "result": rows}
    at = format_time(result.at_ms)
    if isinstance(result, ScalarResult):
        return {"resultType": "scalar", "result": [at, format_value(result.value)]}
    if isinstance(result, StringResult):
        return {"resultType": "string", "result": [at, result.value]}
    rows = [
        {"metric": dict(labels), "value": [at, format_value(value)]}
        for labels, value in zip(result.labels, result.values.tolist(), strict=True)
    ]
    return {"resultType": "vector", "result": rows}


def _required(parameters: Parameters, name: str) -> str:
    value = parameters.get(name, [""])[0]
    if not value and name == "query":
        raise QueryError('invalid parameter "query": unknown position: parse error: no expression found in input')
    if not value:
        raise QueryError(
            f'invalid parameter "{name}": cannot parse "" to a valid {"duration" if name == "step" else "timestamp"}'
        )
    return value


def _json(body: object, status: int = 200) -> Response:
    return Response(json.dumps(body, ensure_ascii=False), status, media_type="application/json")
