"""Typed results of the engine as the JSON of Prometheus's API, written as text: there may be millions of points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loms.core.model import Ints
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult
from loms.server.prometheus_answer import to_json
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
        f'{{"metric":{to_json(dict(labels))},"value":[{at},"{format_value(value)}"]}}'
        for labels, value in zip(result.labels, result.values.tolist(), strict=True)
    )
    return f'{{"resultType":"vector","result":[{",".join(rows)}]}}'


def truncated(result: VectorResult | MatrixResult, limit: int) -> VectorResult | MatrixResult:
    """The first ``limit`` series."""
    labels = result.labels[:limit]
    if isinstance(result, VectorResult):
        return replace(result, labels=labels, values=result.values[:limit])
    return replace(result, labels=labels, times_ms=result.times_ms[:limit], values=result.values[:limit])


def _matrix(result: MatrixResult) -> Iterator[str]:
    times: Ints | None = None
    stamps: list[str] = []
    for labels, own, values in zip(result.labels, result.times_ms, result.values, strict=True):
        if times is None or not np.array_equal(own, times):  # most series of a range query have the same
            times, stamps = own, [f'[{format_time(at)},"' for at in own.tolist()]
        points = [f'{stamp}{format_value(value)}"]' for stamp, value in zip(stamps, values.tolist(), strict=True)]
        yield f'{{"metric":{to_json(dict(labels))},"values":[{",".join(points)}]}}'
