"""Rules over somebody else's Prometheus: what is asked there, and what only this process has.

Alerts that other alerts silence (``… unless on (instance) ALERTS{…}``) and LOMS's own metrics are in the own store, and
everything else is there. An expression that names only the one or the other is evaluated where its series are; one that
names both is evaluated here, and reads the raw samples of its selectors from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Literal

import numpy as np

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import QueryError
from loms.core.model import Frame, Labels, Querier
from loms.core.settings import Config
from loms.promql.engine import Engine
from loms.promql.parse import parse
from loms.promql.remote import RemotePrometheus
from loms.promql.source import Budget, Limits, Samples, Source
from loms.promql.syntax import NAME, Aggregation, Matchers, Node, Selector
from loms.promql.values import Grid, MatrixResult, Vector

_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
Home = Literal["own", "remote", "both"]


def remote_of(config: Config) -> RemotePrometheus | None:
    """What ``source`` names; None for the own store. Raises `ConfigError`."""
    if config.source.type == "store":
        return None
    return RemotePrometheus(config.source, timeout_seconds=config.query.timeout)


def querier_of(remote: RemotePrometheus | None, own: Engine, source: Source, limits: Limits, clock: Clock) -> Querier:
    """What rules and detectors ask: the own engine, which reads ``source``, or the remote beside it."""
    return own if remote is None else TwoPlaces(remote, own, Engine(Split(remote, source), limits, clock))


class TwoPlaces:
    """A `loms.core.model.Querier` that sends each expression to where its series are."""

    def __init__(self, remote: Querier, own: Querier, both: Querier) -> None:
        self._places: dict[Home, Querier] = {"remote": remote, "own": own, "both": both}

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        return self._places[home_of(expr)].range(expr, start_ms, end_ms, step_ms)

    def instant(self, expr: str, at_ms: int) -> Frame:
        return self._places[home_of(expr)].instant(expr, at_ms)


class Split:
    """A `loms.promql.source.Source` whose selectors are read in two places; from the remote one as raw samples.

    Its API shows no staleness markers: a series that ended there is seen for as long as the look back goes.
    """

    def __init__(self, remote: RemotePrometheus, own: Source) -> None:
        self._remote = remote
        self._own = own

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        if is_own(matchers):
            return self._own.series(matchers, start_ms, end_ms, budget)
        return self._remote.series([selector(matchers)], start_ms, end_ms)

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        if is_own(matchers):
            return self._own.samples(matchers, start_ms, end_ms, budget)
        if end_ms <= start_ms:
            return Samples((), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
        budget.remaining_seconds()
        found = self._remote.query(f"{selector(matchers)}[{end_ms - start_ms}ms]", end_ms)
        if not isinstance(found, MatrixResult):
            raise QueryError(f"{self._remote.url} gives no raw samples")
        inside = [times > start_ms for times in found.times_ms]  # Prometheus 2 counts the left edge in
        times = [each[there] for each, there in zip(found.times_ms, inside, strict=True)]
        values = [each[there] for each, there in zip(found.values, inside, strict=True)]
        budget.check_series(len(times))
        budget.take_samples(sum(map(len, times)))
        return Samples(
            found.labels,
            np.cumsum([0, *map(len, times)]),
            np.concatenate([np.empty(0, np.int64), *times]),
            np.concatenate([np.empty(0), *values]),
        )

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        return self._own.grid(function, matchers, grid, window_ms, arg, budget) if is_own(matchers) else None

    def aggregate(
        self, node: Aggregation, function: str, matchers: Matchers, grid: Grid, window_ms: int, budget: Budget
    ) -> Vector | None:
        return None


@lru_cache(maxsize=1000)
def home_of(expr: str) -> Home:
    """Where the series of an expression are."""
    places = {is_own(matchers) for matchers in _selectors(parse(expr))}
    return "both" if len(places) == 2 else "own" if places == {True} else "remote"


def is_own(matchers: Matchers) -> bool:
    """Whether a selector names a metric that this process writes of itself."""
    return any(m.name == NAME and m.op == "=" and m.value in _own_names() for m in matchers)


def selector(matchers: Matchers) -> str:
    """The matchers as PromQL.

    >>> from loms.promql.syntax import Matcher
    >>> selector((Matcher("__name__", "=", "up"), Matcher("job", "=~", 'a"b')))
    '{__name__="up", job=~"a\\\\"b"}'
    """
    return f"{{{', '.join(f'{m.name}{m.op}{json.dumps(m.value, ensure_ascii=False)}' for m in matchers)}}}"


@lru_cache(maxsize=1)
def _own_names() -> frozenset[str]:
    families = (family.name for family in selfmetrics.registry.collect())
    return frozenset({"ALERTS", *(name + suffix for name in families for suffix in _SUFFIXES)})


def _selectors(node: Node) -> Iterator[Matchers]:
    if isinstance(node, Selector):
        yield node.matchers
    for field in fields(node):
        value = getattr(node, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Node):
                yield from _selectors(part)
