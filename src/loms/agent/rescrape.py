"""Stored or pushed samples of one target → the scrapes that LOMS would have made of it.

All samples of one scrape carry the same timestamp, and ``up`` has one for each scrape, so that the scrapes can be put
together again: the samples of a target at one moment are an exposition, and it goes through
`loms.collect.scrape.Scraper` and the engines' translation like one just read. Why a scrape failed is not kept: one that
failed within `_QUICK_SECONDS` is taken for a refused connection, one that took longer for a target that gave no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from loms.agent.status import engine_status
from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.errors import TargetError
from loms.core.families import HISTOGRAM
from loms.core.model import Bools, EngineStatus, Exposition, Floats, Ints, Labels, Shape, Sink, labels_of
from loms.engines.engine import Identity, engines
from loms.engines.read import SIMULATED
from loms.engines.source import families_of
from loms.engines.translate import Translator
from loms.engines.watch import START_TIME
from loms.promql.syntax import NAME

_QUICK_SECONDS = 0.5
_SHAPES = 100
"""Shapes of a target that are kept."""
_COUNTED = ("histogram", "summary")
_META = ("up", "scrape_duration_seconds")
_PARTS = "(_bucket|_sum|_count|_total)?"

Place = tuple[str, str]
"""job, instance"""
Raw = Mapping[Labels, tuple[Ints, Floats]]
"""Series (labels with ``__name__``) → its samples."""


class _Scrapes:
    """A clock, a fetcher and a reader for one target: each scrape is the next column of what was stored."""

    def __init__(self) -> None:
        self._at_ms = 0
        self._spent_seconds = 0.0
        self._lasted_seconds = 0.0
        self._exposition: Exposition | None = None

    def turn_to(self, at_ms: int, lasted_seconds: float, exposition: Exposition | None) -> None:
        """The next scrape; without an exposition, a failed one."""
        self._at_ms, self._spent_seconds = at_ms, 0.0
        self._lasted_seconds, self._exposition = lasted_seconds, exposition

    def now_ms(self) -> int:
        return self._at_ms

    def monotonic(self) -> float:
        return self._at_ms / 1000 + self._spent_seconds

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        self._spent_seconds = self._lasted_seconds
        if self._exposition is None:
            quick = self._lasted_seconds < _QUICK_SECONDS
            raise TargetError(f"{target.instance}: the scrape failed", reason="refused" if quick else "timeout")
        return Response(200, "", b"")

    def read(self, body: bytes, content_type: str, /) -> Exposition:
        assert self._exposition is not None
        return self._exposition


@dataclass(slots=True)
class Rescraped:
    """One target: its series so far, and the scraper that they go through; what that writes goes to ``sink``."""

    place: Place
    types: Mapping[str, str]
    interval_seconds: float
    sink: Sink
    up_missing: bool = False
    _rows: dict[Labels, int] = field(default_factory=dict)
    _shapes: dict[bytes, Shape] = field(default_factory=dict)
    _source: _Scrapes = field(default_factory=_Scrapes)
    _scraper: Scraper | None = None
    _translator: Translator | None = None
    _identity: Labels = ()
    _apart: dict[str, str] = field(default_factory=dict)
    """The labels by which one server's series are told from another's; empty where there is but one."""

    @property
    def engine(self) -> str:
        return self._scraper.engine if self._scraper else ""

    def status(self) -> EngineStatus | None:
        """The engine's row, if it has been recognised."""
        return engine_status(self._scraper, self._translator) if self._scraper and self._translator else None

    async def scrape(self, raw: Raw) -> None:
        """One scrape for each moment in ``raw``."""
        raw = self._told_once(raw)
        meta = {name: self._meta(raw, name) for name in _META}
        own = {labels: samples for labels, samples in raw.items() if dict(labels)[NAME] not in _META}
        (times, ups), (lasted_at, lasted) = meta["up"], meta["scrape_duration_seconds"]
        if not len(times):
            if not own:
                return
            times = np.unique(np.concatenate([at for at, _ in own.values()]))
            ups, self.up_missing = np.ones(len(times)), True
        scraper = self._scraper or self._begin(raw)
        for labels in own:
            self._rows.setdefault(labels, len(self._rows))
        values, present = self._table(own, times)
        durations = np.zeros(len(times))
        there = np.isin(times, lasted_at)
        durations[there] = lasted[np.searchsorted(lasted_at, times[there])]
        for column, at_ms in enumerate(times.tolist()):
            rows = present[column]
            answered = Exposition(self._shape(rows), values[column][rows]) if ups[column] else None
            self._source.turn_to(at_ms, float(durations[column]), answered)
            await scraper.scrape_now()

    def _told_once(self, raw: Raw) -> Raw:
        """Without what another server scraped of the same target; its ``up`` differs in a label."""
        ups = sorted((labels for labels in raw if dict(labels)[NAME] == "up"), key=lambda up: (-len(raw[up][0]), up))
        if len(ups) > 1 and raw[ups[0]][0][0] <= raw[ups[1]][0][-1] and raw[ups[1]][0][0] <= raw[ups[0]][0][-1]:
            shared = set(ups[0]).intersection(*ups[1:])
            self._apart = self._apart or {key: text for key, text in ups[0] if (key, text) not in shared}
        if not self._apart:
            return raw
        others = ((labels, dict(labels)) for labels in raw)
        return {
            labels: raw[labels]
            for labels, own in others
            if all(own.get(key, text) == text for key, text in self._apart.items())
        }

    def _begin(self, raw: Raw) -> Scraper:
        job, instance = self.place
        up = next((labels for labels in raw if dict(labels)[NAME] == "up"), ())
        own = labels_of(pair for pair in up if pair[0] not in (NAME, "job", "instance"))
        # The URL is only for messages: an instance may be called anything.
        target = Target(job, instance, "http://replayed/metrics", self.interval_seconds or 15.0, labels=own)
        self._identity = target.identity
        self._translator = translator = Translator(target.identity)
        translator.identified(Identity())
        self._scraper = Scraper(
            target,
            fetcher=self._source,
            reader=self._source,
            translator=translator,
            sink=lambda batch: self.sink(batch),
            clock=self._source,
        )
        return self._scraper

    def _meta(self, raw: Raw, name: str) -> tuple[Ints, Floats]:
        """Of several series of that name (a target whose labels changed) the samples of all, by time."""
        found = [samples for labels, samples in raw.items() if dict(labels)[NAME] == name]
        times, values = (np.concatenate(column) for column in zip(*found, strict=True)) if found else (_NO_TIMES, _NONE)
        times, places = np.unique(times, return_index=True)
        return times, values[places]

    def _table(self, own: Raw, times: Ints) -> tuple[Floats, Bools]:
        """Values and presence, shape [scrape, series]. A sample with a time of its own counts at the next scrape."""
        values: Floats = np.zeros((len(times), len(self._rows)))
        present: Bools = np.zeros(values.shape, dtype=np.bool_)
        for labels, (at, numbers) in own.items():
            columns = np.searchsorted(times, at)
            inside = columns < len(times)
            values[columns[inside], self._rows[labels]] = numbers[inside]
            present[columns[inside], self._rows[labels]] = True
        return values, present

    def _shape(self, rows: Bools) -> Shape:
        """The shape of an exposition with these series; the same object as long as they stay."""
        key = np.packbits(np.trim_zeros(rows, "b")).tobytes()
        if key not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.pop(next(iter(self._shapes)))
            of_target = set(self._identity)
            found = [labels for labels, there in zip(self._rows, rows.tolist(), strict=True) if there]
            names = tuple(dict(labels)[NAME] for labels in found)
            labels = tuple(tuple(p for p in each if p[0] != NAME and p not in of_target) for each in found)
            self._shapes[key] = Shape(names, labels, family_types(names, labels, self.types))
        return self._shapes[key]


_NO_TIMES: Ints = np.empty(0, dtype=np.int64)
_NONE: Floats = np.empty(0)


def family_types(names: Sequence[str], labels: Sequence[Labels], known: Mapping[str, str]) -> dict[str, str]:
    """Family → type: what the API says, else what names and labels do."""
    types: dict[str, str] = {}
    for name, own in zip(names, labels, strict=True):
        keys = {key for key, _ in own}
        if name.endswith("_bucket") and "le" in keys:
            types[name.removesuffix("_bucket")] = "histogram"
        elif "quantile" in keys:
            types[name] = "summary"
    for name in names:
        part = next((p for p in HISTOGRAM if name.endswith(p) and types.get(name.removesuffix(p)) in _COUNTED), "")
        family = name.removesuffix(part)
        if family not in types:
            stated = known.get(family) or known.get(family.removesuffix("_total"))
            types[family] = stated or ("counter" if family.endswith("_total") else "untyped")
    return types


@cache
def engine_prefixes() -> str:
    """A regular expression of the beginnings of all engines' names; a colon may also have become an underscore."""
    return "|".join(sorted(engine.prefix.replace(":", "[:_]") for _, engine in engines.load().items()))


@cache
def other_families() -> tuple[str, ...]:
    """Expressions of what else is read of targets that turned out to be engines: among it families that their tables
    know by other names.
    """
    known = engines.load().items()
    prefixes = tuple(engine.prefix for _, engine in known)
    sources = (source for _, engine in known for row in engine.table for source in row.sources)
    others = {family for source in sources for family in families_of(source) if not family.startswith(prefixes)}
    return (*_META, START_TIME, SIMULATED, *(family + _PARTS for family in sorted(others)))


def place_of(labels: Mapping[str, str]) -> Place:
    return labels.get("job", ""), labels.get("instance", "")
