"""What others push of engines becomes canonical as well, as if the engine had been scraped here.

Remote write and OTLP bring the raw series that a Prometheus, vmagent or Collector has scraped, in pieces and in no
order. The samples of one scrape carry one timestamp, so that it can be put together (`loms.agent.rescrape`) once all
of it has come: `SETTLE_SECONDS` after its first sample. Raw samples are stored at once and by others; from here come
only the canonical series and LOMS's own (``loms_scrape_failed``, ``loms_engine_progress_total``, …).

A scrape that comes after a later one of its target has been translated adds nothing canonical. Targets that this LOMS
scrapes itself are left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from loms.agent.replicas import Replicas
from loms.agent.rescrape import Place, Rescraped, engine_prefixes, other_families, place_of
from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.guard import guard
from loms.core.model import EngineStatus, Floats, Ids, Ints, Labels, Metadata, SampleBatch, Series, Sink, is_stale
from loms.core.semconv import is_canonical
from loms.promql.syntax import NAME

SETTLE_SECONDS = 3.0
LOOK_SECONDS = 0.5
FORGET_SECONDS = 3600.0
"""A target of which nothing comes any more is let go after this time."""
MOST_WAITING = 2_000_000
"""Samples that may wait for the rest of their scrape."""

_log = logging.getLogger("loms.agent")


@dataclass(slots=True)
class _Waiting:
    """Samples of one target that have not been translated yet."""

    parts: list[tuple[Ids, Ints, Floats]] = field(default_factory=list)
    first_seen: dict[int, float] = field(default_factory=dict)
    """Timestamp → when its first sample came, by the monotonic clock."""
    ids: set[int] = field(default_factory=set)
    """Of its series."""
    engine: bool = False
    """Some series of it is an engine's."""
    done_ms: int = -1
    """The newest translated scrape."""
    heard: float = 0.0
    replicas: Replicas = field(default_factory=Replicas)
    recalled: bool = False
    """What a LOMS before this one had left untranslated has been looked for."""


class Pushed:
    """Listens to what is pushed (`loms.core.model.Sink`, from any thread); `run` translates it until cancelled."""

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        metadata: Callable[[], Mapping[str, Metadata]],
        scraped: Callable[[str, str], bool],
        left: Callable[[Place], tuple[int, SampleBatch] | None] = lambda _: None,
    ) -> None:
        """``metadata`` gives what is known of families; ``scraped`` says whether this LOMS scrapes (job, instance).

        ``left`` finds in the store what was left of a target: the time of its newest canonical sample, and the raw ones
        since then; None when it has none.
        """
        self._sink = sink
        self._clock = clock
        self._metadata = metadata
        self._scraped = scraped
        self._left = left
        self._wanted = re.compile(f"(?:{engine_prefixes()}).*|{'|'.join(other_families())}")
        self._of_engine = re.compile(engine_prefixes())
        self._labels: dict[int, Labels] = {}
        """Series that matter, with ``__name__``."""
        self._places: dict[int, Place] = {}
        """Their targets."""
        self._waiting: dict[Place, _Waiting] = {}
        self._count = 0
        self._targets: dict[Place, Rescraped] = {}
        self._lock = threading.Lock()

    def __call__(self, batch: SampleBatch, /) -> None:
        """Keep what belongs to engines until its scrape is whole."""
        with self._lock:
            self._learn(batch.series)
            rows: dict[Place, list[int]] = {}
            for row, one in enumerate(batch.series_ids.tolist()):
                if place := self._places.get(one):
                    rows.setdefault(place, []).append(row)
            count = sum(map(len, rows.values()))
            if self._count + count > MOST_WAITING:
                selfmetrics.untranslated.labels("queue_full").inc(count)
                return
            now = self._clock.monotonic()
            for place, own in rows.items():
                self._add(place, batch.series_ids[own], batch.timestamps_ms[own], batch.values[own], now)

    async def run(self) -> None:
        """Translate scrapes as they become whole."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with guard("pushed"):
                await self.look()

    async def look(self, settled_seconds: float = SETTLE_SECONDS) -> None:
        """Translate what is whole now: of which the first sample came so long ago."""
        await self._go_on()
        for place, raw in self._whole(settled_seconds).items():
            with guard("pushed"):
                if place not in self._targets:
                    _log.info("engine metrics of %s (job %s) are pushed here", place[1], place[0])
                    canonical = _Canonical(self._sink, self._waiting[place].ids)
                    types = {family: one.type for family, one in (await asyncio.to_thread(self._metadata)).items()}
                    self._targets[place] = Rescraped(place, types, _interval(raw), canonical)
                await self._targets[place].scrape(raw)

    async def finish(self) -> None:
        """Translate what is there, whole or not; there will be no more."""
        with guard("pushed"):
            await self.look(0.0)

    async def _go_on(self) -> None:
        """Of targets that are new here, take what was stored before and is not translated: a LOMS before this one may
        have ended meanwhile.
        """
        with self._lock:
            fresh = [place for place, waiting in self._waiting.items() if waiting.engine and not waiting.recalled]
        for place in fresh:
            self._waiting[place].recalled = True
            with guard("pushed"):
                left = await asyncio.to_thread(self._left, place)
                if left is not None:
                    self._waiting[place].done_ms = max(self._waiting[place].done_ms, left[0])
                    self(left[1])

    def engines(self) -> list[EngineStatus]:
        """One row for each engine that is known by what is pushed of it."""
        rows = [target.status() for target in list(self._targets.values())]
        return [row for row in rows if row is not None]

    def _learn(self, series: tuple[Series, ...]) -> None:
        fresh = {one.id: one for one in series if one.id not in self._labels and self._wanted.fullmatch(one.name)}
        for one in fresh.values():
            place = place_of(dict(one.labels))
            self._labels[one.id] = tuple(sorted((*one.labels, (NAME, one.name))))
            self._places[one.id] = place
            waiting = self._waiting.setdefault(place, _Waiting())
            waiting.ids.add(one.id)
            waiting.engine |= bool(self._of_engine.match(one.name))
            if one.name == "up" and waiting.replicas.met(dict(one.labels)):
                self._targets.pop(place, None)

    def _add(self, place: Place, ids: Ids, times: Ints, values: Floats, now: float) -> None:
        waiting = self._waiting.setdefault(place, _Waiting())
        waiting.heard = now
        fresh = (times > waiting.done_ms) & ~is_stale(values)
        late = int((times <= waiting.done_ms).sum())
        if late and waiting.engine:
            selfmetrics.untranslated.labels("late").inc(late)
        if not place[1] or not fresh.any() or self._scraped(*place):
            return
        ids, times, values = ids[fresh], times[fresh], values[fresh]
        servers = [waiting.replicas.told(self._labels[one])[0] for one in ids.tolist()]
        counting = {server for server in dict.fromkeys(servers) if waiting.replicas.counts(server, now)}
        if not counting:
            return
        if len(counting) < len(set(servers)):
            own = np.array([server in counting for server in servers])
            ids, times, values = ids[own], times[own], values[own]
        waiting.parts.append((ids, times, values))
        self._count += len(ids)
        for at_ms in np.unique(times).tolist():
            waiting.first_seen.setdefault(at_ms, now)

    def _whole(self, settled_seconds: float) -> dict[Place, dict[Labels, tuple[Ints, Floats]]]:
        """Take the samples of the scrapes that have settled: place → series → times and values, in order."""
        now, whole = self._clock.monotonic(), dict[Place, dict[Labels, tuple[Ints, Floats]]]()
        with self._lock:
            for place, waiting in list(self._waiting.items()):
                if now - waiting.heard > FORGET_SECONDS:
                    self._forget(place)
                    continue
                settled = [at for at, seen in waiting.first_seen.items() if now - seen >= settled_seconds]
                if not settled:
                    continue
                until_ms = max(settled)
                ids, times, values = (np.concatenate(column) for column in zip(*waiting.parts, strict=True))
                taken = times <= until_ms
                self._count -= int(taken.sum())
                rest = ~taken
                waiting.parts = [(ids[rest], times[rest], values[rest])] if rest.any() else []
                waiting.first_seen = {at: seen for at, seen in waiting.first_seen.items() if at > until_ms}
                if waiting.engine:
                    waiting.done_ms = until_ms
                    whole[place] = self._series(waiting, ids[taken], times[taken], values[taken])
        return whole

    def _series(self, waiting: _Waiting, ids: Ids, times: Ints, values: Floats) -> dict[Labels, tuple[Ints, Floats]]:
        order = np.lexsort((times, ids))
        ids, times, values = ids[order], times[order], values[order]
        starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        ends = [*starts[1:].tolist(), len(ids)]
        return {
            waiting.replicas.told(self._labels[int(ids[a])])[1]: (times[a:b], values[a:b])
            for a, b in zip(starts.tolist(), ends, strict=True)
        }

    def _forget(self, place: Place) -> None:
        waiting = self._waiting.pop(place)
        self._count -= sum(len(times) for _, times, _ in waiting.parts)
        self._targets.pop(place, None)
        for one in waiting.ids:
            del self._labels[one], self._places[one]


class _Canonical:
    """Passes on of what a scraper writes what no sender has stored: canonical series, and LOMS's own."""

    def __init__(self, sink: Sink, pushed: Set[int]) -> None:
        """A canonical series with an id among the ``pushed`` is another name for that, and has no samples."""
        self._sink = sink
        self._pushed = pushed
        self._own: set[int] = set()

    def __call__(self, batch: SampleBatch, /) -> None:
        series = tuple(one for one in batch.series if is_canonical(one.name) or one.name.startswith("loms_"))
        self._own.update(one.id for one in series if one.id not in self._pushed)
        kept = np.isin(batch.series_ids, np.fromiter(self._own, np.uint64, len(self._own)))
        if series or kept.any():
            self._sink(SampleBatch(batch.series_ids[kept], batch.timestamps_ms[kept], batch.values[kept], series))


def _interval(raw: Mapping[Labels, tuple[Ints, Floats]]) -> float:
    """Seconds between scrapes, as far as these samples show it."""
    times = np.unique(np.concatenate([times for times, _ in raw.values()]))
    return float(np.median(np.diff(times))) / 1000 if len(times) > 1 else 15.0
