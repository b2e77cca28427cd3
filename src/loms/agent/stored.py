"""What the store holds of a target that was pushed to a LOMS before this one, and that was not translated any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from loms.agent.rescrape import Place, engine_prefixes, other_families
from loms.core.clock import Clock
from loms.core.model import Frame, Labels, SampleBatch, Series
from loms.promql.syntax import NAME
from loms.promql.values import MatrixResult, Result

FURTHEST_SECONDS = 300
"""Further back nothing is looked for: then the engine has been away, not LOMS."""
_TRANSLATED = "loms_engine_progress_total"
"""Written with each translated scrape."""


class Store(Protocol):
    """`loms.promql.engine.Engine`."""

    def instant(self, expr: str, at_ms: int) -> Frame: ...

    def query(self, expr: str, at_ms: int) -> Result: ...


class Left:
    """Finds, for `loms.agent.pushed.Pushed`, what is left of a target."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def __call__(self, place: Place) -> tuple[int, SampleBatch] | None:
        """Time (ms) of the newest translated scrape, and the raw samples after it; None when there was none lately.

        Raises `LomsError` when the store cannot answer.
        """
        now_ms = self._clock.now_ms()
        where = f"job={_quoted(place[0])}, instance={_quoted(place[1])}"
        newest = self._store.instant(f"max(timestamp({_TRANSLATED}{{{where}}}))", now_ms)
        if not len(newest.labels) or np.isnan(newest.last[0]):
            return None
        done_ms = round(float(newest.last[0]) * 1000)
        if not 0 < now_ms - done_ms <= FURTHEST_SECONDS * 1000:
            return None
        names = "|".join((f"({engine_prefixes()}).*", *other_families()))
        found = self._store.query(f"{{{NAME}=~{_quoted(names)}, {where}}}[{now_ms - done_ms}ms]", now_ms)
        assert isinstance(found, MatrixResult)
        return done_ms, _batch(found)


def _batch(found: MatrixResult) -> SampleBatch:
    series = tuple(_series(found.labels))
    counts = [len(times) for times in found.times_ms]
    return SampleBatch(
        np.repeat(np.array([one.id for one in series], dtype=np.uint64), counts),
        np.concatenate([*found.times_ms, np.empty(0, dtype=np.int64)]),
        np.concatenate([*found.values, np.empty(0)]),
        series,
    )


def _series(found: tuple[Labels, ...]) -> Iterator[Series]:
    for labels in found:
        own = dict(labels)
        name = own.pop(NAME)
        yield Series.of(name, tuple(sorted(own.items())))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
