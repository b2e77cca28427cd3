"""Prometheus's query API, so that Grafana, promtool and scripts can ask LOMS as they ask Prometheus."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from fastapi import APIRouter, Request
from fastapi.responses import Response

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.promql.engine import Engine
from loms.promql.parse import parse
from loms.promql.source import Cancel
from loms.promql.syntax import Node, Selector, children
from loms.promql.values import MatrixResult, Result, StringResult, VectorResult
from loms.server.prometheus.answer import TRUNCATED, Answer, Answering, Parameters, selectors_of, to_json
from loms.server.prometheus.format import pretty
from loms.server.prometheus.result import result_json, truncated
from loms.server.prometheus.tree import tree_of
from loms.server.wire import parse_seconds, parse_step, parse_time

MOST_POINTS = 11_000
_ESCAPED = re.compile(r"__|_([0-9a-fA-F]{1,8})_")


class Labels(Protocol):
    """Answers about labels: the engine, or what finds them faster. Without times, all that is known counts."""

    def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None,
        end_ms: int | None,
        cancel: Cancel | None,
        limit: int | None,
        /,
    ) -> list[tuple[tuple[str, str], ...]]: ...

    def label_names(
        self, selectors: Sequence[str], start_ms: int | None, end_ms: int | None, cancel: Cancel | None, /
    ) -> list[str]: ...

    def label_values(
        self, name: str, selectors: Sequence[str], start_ms: int | None, end_ms: int | None, cancel: Cancel | None, /
    ) -> list[str]: ...


def router(engine: Engine, clock: Clock, answering: Answering, labels: Labels | None = None) -> APIRouter:
    """Routes under ``/api/v1``; GET and form-encoded POST alike."""
    api, queries = APIRouter(prefix="/api/v1", tags=["prometheus"]), _Queries(engine, clock)
    catalogue = _Catalogue(labels or engine)

    @api.api_route("/query", methods=["GET", "POST"])
    async def query(request: Request) -> Response:
        """Evaluate an expression at one moment: ``query``, ``time``, ``timeout``, ``limit``, ``lookback_delta``,
        ``stats``.
        """
        return await answering(request, queries.query)

    @api.api_route("/query_range", methods=["GET", "POST"])
    async def query_range(request: Request) -> Response:
        """Evaluate over a span of time: ``query``, ``start``, ``end``, ``step``, and those of ``/query``."""
        return await answering(request, queries.query_range)

    @api.api_route("/query_exemplars", methods=["GET", "POST"])
    async def query_exemplars(request: Request) -> Response:
        """Exemplars of an expression's series; LOMS keeps none."""
        return await answering(request, _exemplars)

    @api.api_route("/format_query", methods=["GET", "POST"])
    async def format_query(request: Request) -> Response:
        """The expression ``query`` in its usual spelling, long ones over several lines."""
        return await answering(request, lambda parameters, _: Answer.of(pretty(_parsed(parameters))))

    @api.api_route("/parse_query", methods=["GET", "POST"])
    async def parse_query(request: Request) -> Response:
        """The syntax tree of the expression ``query``."""
        return await answering(request, lambda parameters, _: Answer.of(tree_of(_parsed(parameters))))

    @api.api_route("/series", methods=["GET", "POST"])
    async def series(request: Request) -> Response:
        """Label sets that match one of ``match[]``; given ``start`` or ``end``, those with samples there."""
        return await answering(request, catalogue.series)

    @api.api_route("/labels", methods=["GET", "POST"])
    async def label_names(request: Request) -> Response:
        """Names of labels, of all series or of those that match one of ``match[]``."""
        return await answering(request, catalogue.names)

    @api.get("/label/{name}/values")
    async def label_values(request: Request, name: str) -> Response:
        """Values of one label; a name with odd characters is escaped as ``U__…``."""
        return await answering(request, lambda *asked: catalogue.values(unescaped(name), *asked))

    return api


class _Queries:
    """Raises `QueryError` for what the caller did wrong."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def query(self, parameters: Parameters, cancel: Cancel) -> Answer:
        limit, time = parameters.count("limit"), parameters.text("time")
        try:
            at_ms = parse_time("time", time) if time else self._clock.now_ms()
        except QueryError as error:
            reason = error.message.partition(": ")[2]
            raise QueryError(f"invalid parameter \"time\": invalid time value for 'time': {reason}") from None
        engine = self._within(parameters)
        expr, began = parameters.text("query"), self._clock.monotonic()
        with selfmetrics.query_seconds.time():
            try:
                result = engine.query(expr, at_ms, cancel)
            except QueryError as error:
                raise _about("query", error) from None
        return self._answer(result, limit, parameters, began)

    def query_range(self, parameters: Parameters, cancel: Cancel) -> Answer:
        limit = parameters.count("limit")
        start_ms, end_ms = (parse_time(name, parameters.text(name)) for name in ("start", "end"))
        if end_ms < start_ms:
            raise QueryError('invalid parameter "end": end timestamp must not be before start time')
        step_ms = parse_step("step", parameters.text("step"))
        if (end_ms - start_ms) // step_ms > MOST_POINTS:
            raise QueryError(
                f"exceeded maximum resolution of {MOST_POINTS:,} points per timeseries. "
                "Try decreasing the query resolution (?step=XX)"
            )
        engine = self._within(parameters)
        expr, began = parameters.text("query"), self._clock.monotonic()
        with selfmetrics.query_seconds.time():
            try:
                result = engine.query_range(expr, start_ms, end_ms, step_ms, cancel)
            except QueryError as error:
                raise _about("query", error) from None
        return self._answer(result, limit, parameters, began)

    def _within(self, parameters: Parameters) -> Engine:
        timeout = lookback = 0.0
        if text := parameters.text("timeout"):
            try:
                timeout = max(parse_seconds(text), 1e-6)
            except QueryError as error:
                raise _about("timeout", error) from None
        if text := parameters.text("lookback_delta"):
            try:
                lookback = max(parse_seconds(text), 0.0)
            except QueryError as error:
                raise QueryError(f"error parsing lookback delta duration: {error.message}") from None
        return (
            self._engine.within(timeout or None, round(lookback * 1000) or None)
            if timeout or lookback
            else self._engine
        )

    def _answer(self, result: Result, limit: int, parameters: Parameters, began: float) -> Answer:
        warnings, infos = ((), ()) if isinstance(result, StringResult) else (result.warnings, result.infos)
        if limit and isinstance(result, VectorResult | MatrixResult) and len(result.labels) > limit:
            result, warnings = truncated(result, limit), (*warnings, TRUNCATED)
        data = result_json(result)
        if parameters.text("stats"):
            data = f'{data[:-1]},"stats":{to_json(_stats(result, self._clock.monotonic() - began))}}}'
        return Answer(data, warnings, infos)


class _Catalogue:
    """Answers about series and their labels."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def series(self, parameters: Parameters, cancel: Cancel) -> Answer:
        if not parameters.all("match[]"):
            raise QueryError("no match[] parameter provided")
        limit, span = parameters.count("limit"), parameters.span()
        try:
            found = self._labels.series(selectors_of(parameters), *span, cancel, limit + 1 if limit else None)
        except QueryError as error:
            raise _about("match[]", error) from None
        return _limited([dict(labels) for labels in found], limit)

    def names(self, parameters: Parameters, cancel: Cancel) -> Answer:
        limit, span = parameters.count("limit"), parameters.span()
        return _limited(self._labels.label_names(selectors_of(parameters), *span, cancel), limit)

    def values(self, name: str, parameters: Parameters, cancel: Cancel) -> Answer:
        if not name:
            raise QueryError('invalid label name: ""')
        limit, span = parameters.count("limit"), parameters.span()
        return _limited(self._labels.label_values(name, selectors_of(parameters), *span, cancel), limit)


def unescaped(name: str) -> str:
    """A label's name from its escaped form (Prometheus, "UTF-8 escaping"); any other name stays.

    >>> unescaped("U__service_2e_name"), unescaped("U__a__b"), unescaped("U__a_zz_"), unescaped("job")
    ('service.name', 'a_b', 'U__a_zz_', 'job')
    """
    if not name.startswith("U__"):
        return name
    rest, points = name.removeprefix("U__"), [int(code, 16) for code in _ESCAPED.findall(name[3:]) if code]
    if "_" in _ESCAPED.sub("", rest) or any(point > 0x10FFFF or 0xD800 <= point < 0xE000 for point in points):
        return name
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else "_", rest)


def _limited(rows: list[str] | list[dict[str, str]], limit: int) -> Answer:
    return Answer.of(rows[:limit], [TRUNCATED]) if limit and len(rows) > limit else Answer.of(rows)


def _exemplars(parameters: Parameters, _: Cancel) -> Answer:
    start_ms, end_ms = parameters.span()
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise QueryError("end timestamp must not be before start timestamp")
    return Answer.of([]) if _selects(parse(parameters.text("query"))) else Answer(None)


def _selects(node: Node) -> bool:
    return isinstance(node, Selector) or any(map(_selects, children(node)))


def _parsed(parameters: Parameters) -> Node:
    try:
        return parse(parameters.text("query"))
    except QueryError as error:
        raise _about("query", error) from None


def _about(name: str, error: QueryError) -> QueryError:
    """The error, saying which parameter is wrong, if one is."""
    return QueryError(f'invalid parameter "{name}": {error.message}') if error.kind == "bad_data" else error


def _stats(result: Result, seconds: float) -> dict[str, object]:
    """What Prometheus tells of a query. Of the samples, only those of the answer are known here."""
    points = sum(map(len, result.values)) if isinstance(result, MatrixResult) else 1
    if isinstance(result, VectorResult):
        points = len(result.labels)
    names = ("evalTotalTime", "resultSortTime", "queryPreparationTime", "innerEvalTime", "execQueueTime")
    timings = {
        **dict.fromkeys(names, 0.0),
        "evalTotalTime": seconds,
        "innerEvalTime": seconds,
        "execTotalTime": seconds,
    }
    samples = {"totalQueryableSamples": points, "samplesRead": points, "peakSamples": points}
    return {"timings": timings, "samples": samples}
