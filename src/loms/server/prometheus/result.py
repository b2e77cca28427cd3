"""Typed results of the engine as the JSON of Prometheus's API, written as text: there may be millions of points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from loms.core.model import Labels
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult
from loms.server.prometheus.answer import to_json
from loms.server.prometheus.points import points_json, texts
from loms.server.wire import format_time, format_value


def result_json(result: Result) -> str:
    """The answer's ``data``, a JSON object."""
    if isinstance(result, MatrixResult):
        return f'{{"resultType":"matrix","result":[{",".join(_matrix(result))}]}}'
    at = format_time(result.at_ms)
    if isinstance(result, ScalarResult):
        return f'{{"resultType":"scalar","result":[{at},"{format_value(result.value)}"]}}'
    if isinstance(result, StringResult):
        return f'{{"resultType":"string","result":[{at},{to_json(result.value)}]}}'
    rows = (
        f'{{"metric":{_metric(labels)},"value":[{at},"{value}"]}}'
        for labels, value in zip(result.labels, texts(result.values).to_pylist(), strict=True)
    )
    return f'{{"resultType":"vector","result":[{",".join(rows)}]}}'


def truncated(result: VectorResult | MatrixResult, limit: int) -> VectorResult | MatrixResult:
    """The first ``limit`` series."""
    labels = result.labels[:limit]
    if isinstance(result, VectorResult):
        return replace(result, labels=labels, values=result.values[:limit])
    return replace(result, labels=labels, times_ms=result.times_ms[:limit], values=result.values[:limit])


def _matrix(result: MatrixResult) -> Iterator[str]:
    for labels, points in zip(result.labels, points_json(result.times_ms, result.values), strict=True):
        yield f'{{"metric":{_metric(labels)},"values":[{points}]}}'


@lru_cache(maxsize=50_000)
def _metric(labels: Labels) -> str:
    """The same series are asked for again and again."""
    return to_json(dict(labels))
