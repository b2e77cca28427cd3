"""What a Prometheus has stored of engines → the scrapes that LOMS would have made of them.

Prometheus keeps samples, not expositions. All samples of one scrape carry the same timestamp, though, and ``up`` has
one for each scrape, so that the scrapes can be put together again: the samples of a target at one moment are an
exposition, and it goes through `loms.collect.scrape.Scraper` and the engines' translation like one just read.

What is not in there, and what stands for it:

- **Staleness markers** (the API does not show them): a series that is missing from a scrape ends there, as always.
- **Why a scrape failed**: one that failed at once is taken for a refused connection, one that took
  longer for a target that gave no answer. A target that answers with an error at once looks like a dead one.
- **Synthetic requests and what an engine says of itself over HTTP**: unknown. An engine frozen while idle is not seen.
- **Two Prometheus servers** that scrape the same target show as two sets of series: the one with more samples counts.
- **Labels of the target** are those of its ``up``. Without an ``up`` they are job and instance alone, and of failed
  scrapes nothing is known.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loms.agent.rescrape import Place, Rescraped, engine_prefixes, other_families, place_of
from loms.core.errors import QueryError
from loms.core.model import Floats, Frame, Ints, Labels, Metadata, SampleBatch, labels_of
from loms.promql.syntax import NAME
from loms.promql.values import MatrixResult, Result

_UP_WINDOW_MS = 600_000
_RANGE_POINTS = 10_000
"""Evaluation times of one range query; Prometheus takes 11,000."""
_QUERY_SAMPLES = 1_000_000
"""Samples that one query may bring; more series are asked for in parts."""


class Archive(Protocol):
    """Keeps samples: `loms.promql.remote.RemotePrometheus`, or `loms.promql.engine.Engine` over a file."""

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame: ...

    def query(self, expr: str, at_ms: int) -> Result: ...


@dataclass(frozen=True, slots=True)
class Found:
    """The engines that an archive knows, in one span of time."""

    places: tuple[Place, ...]
    series: int
    """Of all of them together, at most at one moment."""
    interval_ms: int
    """Between scrapes, the longest of the usual ones of all targets."""
    spans: tuple[tuple[int, int], ...] = ()
    """(after, up to) in ms: there are no samples of engines but in these, which are in order and apart."""


class History:
    """Reads an archive span after span, and gives what scraping would have written."""

    def __init__(self, archive: Archive, metadata: Mapping[str, Metadata]) -> None:
        self._archive = archive
        self._types = {family: one.type for family, one in metadata.items()}
        self._scrapes: dict[Place, Rescraped] = {}

    def look(self, start_ms: int, end_ms: int) -> Found:
        """Which engines there are, how many series, and how often they are scraped."""
        step_ms = max(60_000, min(300_000, (end_ms - start_ms) // 200))
        found = self._range(f"count by (job, instance) ({{{_names()}}})", start_ms, end_ms, step_ms)
        places = [place_of(row) for row in found.labels]
        if not places:
            return Found((), 0, 0)
        peak = float(np.nanmax(np.nansum(found.values, axis=0)))
        ups = f"count_over_time({_selector(('up',), places)}[{_UP_WINDOW_MS}ms])"
        asked = self._range(ups, start_ms, end_ms, step_ms)
        usual = [_UP_WINDOW_MS / float(np.nanmax(row)) for row in asked.values if np.isfinite(row).any()]
        there = [np.isfinite(frame.values).any(axis=0) for frame in (found, asked) if frame.values.size]
        seen = found.times_ms[np.logical_or.reduce(there)].tolist()
        spans = joined_spans((max(start_ms, at - _UP_WINDOW_MS), min(end_ms, at + step_ms)) for at in seen)
        return Found(tuple(sorted(places)), round(peak), round(max(usual, default=0)), spans)

    def _range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        """A range query of any length, asked for in parts."""
        span_ms = _RANGE_POINTS * step_ms
        lows = range(start_ms, end_ms + 1, span_ms)
        parts = [self._archive.range(expr, low, min(low + span_ms - step_ms, end_ms), step_ms) for low in lows]
        times: Ints = np.concatenate([part.times_ms for part in parts])
        rows: dict[Labels, Floats] = {}
        for number, part in enumerate(parts):
            first = number * _RANGE_POINTS
            for row, values in zip(part.labels, part.values, strict=True):
                whole = rows.setdefault(labels_of(row), np.full(len(times), np.nan))
                whole[first : first + len(values)] = values
        stacked: Floats = np.array(list(rows.values())).reshape(len(rows), len(times))
        return Frame(tuple(dict(labels) for labels in rows), times, stacked)

    def span_ms(self, found: Found) -> int:
        """How long a span should be so that one target's part of it is one comfortable query."""
        per_second = found.series / len(found.places) * 1000 / max(found.interval_ms or 15_000, 1000)
        return round(min(max(_QUERY_SAMPLES / 4 / max(per_second, 1), 60), 900)) * 1000

    def scrape(self, found: Found, start_ms: int, end_ms: int) -> list[SampleBatch]:
        """What the scrapes after ``start_ms`` up to ``end_ms`` would have written, target by target."""
        raw: dict[Place, dict[Labels, tuple[Ints, Floats]]] = defaultdict(dict)
        for places in self._portions(found, end_ms - start_ms):
            for selector in (f"{{{_names()}, {_where(places)}}}", _selector(other_families(), places)):
                for labels, times, values in self._samples(selector, start_ms, end_ms):
                    raw[place_of(dict(labels))][labels] = times, values
        batches: list[SampleBatch] = []

        async def scrape_all() -> None:
            for place in found.places:
                if place not in self._scrapes:
                    self._scrapes[place] = Rescraped(place, self._types, found.interval_ms / 1000, batches.append)
                self._scrapes[place].sink = batches.append
                await self._scrapes[place].scrape(raw.get(place, {}))

        asyncio.run(scrape_all())
        return batches

    @property
    def engines(self) -> tuple[tuple[str, str], ...]:
        """(engine, instance) of the targets that have been recognised."""
        rows = ((scraped.engine, place[1]) for place, scraped in sorted(self._scrapes.items()))
        return tuple((engine, instance) for engine, instance in rows if engine)

    @property
    def without_up(self) -> bool:
        """Whether some target has no ``up``."""
        return any(scraped.up_missing for scraped in self._scrapes.values())

    def _portions(self, found: Found, span_ms: int) -> Iterator[Sequence[Place]]:
        each = found.series / len(found.places) * span_ms / max(found.interval_ms or 15_000, 1000)
        count = max(1, int(_QUERY_SAMPLES // max(each, 1)))
        for first in range(0, len(found.places), count):
            yield found.places[first : first + count]

    def _samples(self, selector: str, start_ms: int, end_ms: int) -> Iterator[tuple[Labels, Ints, Floats]]:
        result = self._archive.query(f"{selector}[{end_ms - start_ms}ms]", end_ms)
        if not isinstance(result, MatrixResult):
            raise QueryError(f"{selector}: the answer has no raw samples")
        for labels, times, values in zip(result.labels, result.times_ms, result.values, strict=True):
            inside = times > start_ms  # Prometheus 2 counts the left edge in
            if inside.any():
                yield labels, times[inside], values[inside]


def joined_spans(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans in order of their beginnings; what overlaps or touches is made one.

    >>> joined_spans([(0, 10), (5, 20), (20, 30), (40, 50)])
    ((0, 30), (40, 50))
    """
    whole: list[tuple[int, int]] = []
    for low, high in spans:
        if whole and low <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(high, whole[-1][1])
        else:
            whole.append((low, high))
    return tuple(whole)


def _selector(names: Sequence[str], places: Sequence[Place]) -> str:
    return f'{{{NAME}=~"{"|".join(names)}", {_where(places)}}}'


def _where(places: Sequence[Place]) -> str:
    """Matchers for these targets; they also let through pairs of one target's job and another's instance."""
    jobs, instances = (sorted({place[i] for place in places}) for i in (0, 1))
    return f'job=~"{_either(jobs)}", instance=~"{_either(instances)}"'


def _either(texts: Sequence[str]) -> str:
    """An alternation in a PromQL string."""
    return "|".join("".join(_escaped(character) for character in text) for text in texts)


def _escaped(character: str) -> str:
    if character.isalnum() or character in "_-/: ,":
        return character
    return {'"': '\\"', "\\": "\\\\\\\\", "\n": "\\n"}.get(character, f"\\\\{character}")


def _names() -> str:
    """A matcher for the raw families of all engines."""
    return f'{NAME}=~"({engine_prefixes()}).*"'
