"""The synthetic request: an engine that shows no progress is asked for one token.

A frozen engine core leaves ``/health`` at 200 and ``/metrics`` answering with the old numbers, even ``running 0``
whatever clients wait for. Whether such an engine is idle or dead only a request can tell. So when no counter that the
engine's core moves has moved for an interval (15 s), one completion of one token is asked for, with a deadline (8 s),
and again each interval for as long as that lasts. A target whose scrapes fail is not asked: that is telling enough, and
a request would only wait in its queue.

What is written, with the labels of the target's canonical series: ``loms_probe_success`` (1 or 0) and
``loms_probe_duration_seconds`` at each probe's end, ``loms_probe_requests_total`` by outcome, every 15 s while
scrapes are good. The first two end (stale marker) when the engine moves by itself again, and by nothing else: a scrape
that failed says nothing about whether it moved. An answer that says nothing about the engine, such as 401 or 404 from
its API server, is counted as ``http`` and gives no verdict.

Probes are kept out of users' statistics: the target is scraped right before and right after, and what moved in between
is subtracted from then on if it is exactly this request (see `loms.engines.translate`). Where users' requests came in
between, only its tokens and its end are subtracted, and the probe is counted as ``unattributed``. Nothing is subtracted
for a request that was given up at the deadline, although the engine may still count it when it wakes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from loms.collect.protocols import ScrapeOutcome, Scraping
from loms.collect.series import next_ms
from loms.collect.targets import Target
from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.core.guard import guard
from loms.core.model import STALE_NAN, Exposition, Labels, SampleBatch, Series, Sink, labels_of

Outcome = Literal["ok", "timeout", "refused", "http", "unattributed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "timeout", "refused", "http", "unattributed")
SUCCESS, DURATION, REQUESTS = "loms_probe_success", "loms_probe_duration_seconds", "loms_probe_requests_total"

LOOK_SECONDS = (1.0, 5.0)
"""Pause between looks, at least and at most; between them, once per scrape."""
SETTLE_SECONDS = 2.0
COUNT_SECONDS = 15.0
"""How often the counters are written: a rate over a minute needs some, and none may be older than five minutes."""
_FIRST_PAUSE_SECONDS = 0.05
_log = logging.getLogger("loms.collect.probe")

Samples = Mapping[int, tuple[int, float]]
"""Series id → (time in ms, value) of one sample."""


class Recall(Protocol):
    """What the store remembers."""

    async def __call__(self, ids: Sequence[int], until_ms: int | None = None, /) -> Samples:
        """The newest stored sample of each series, of those up to ``until_ms``; ids without one are missing."""


class Subject(Protocol):
    """The face of a target's translator that the probe uses."""

    @property
    def openai(self) -> bool:
        """Whether this is an engine that answers ``POST /v1/completions``."""

    @property
    def labels(self) -> Labels: ...

    @property
    def model(self) -> str: ...

    def progress(self, exposition: Exposition) -> Mapping[str, float]:
        """Counters that only a working engine moves; empty when the exposition is not the newest one."""

    def hold(self, before: Exposition) -> bool:
        """A probe begins: hold back the counters that move from here on. False: not now."""

    def settle(
        self, after: Exposition, used: Mapping[str, float], finish_reason: str, *, last: bool
    ) -> Literal["pending", "exact", "mixed"]:
        """Subtract the probe from now on: ``exact``ly, as far as its amounts are known (``mixed``), or not yet."""

    def release(self) -> None:
        """The probe is over: hold nothing back any more."""

    @property
    def to_recall(self) -> tuple[int, ...]:
        """Series of which the newest stored samples are wanted, once after a start."""

    def behind(self, last: Samples) -> Mapping[int, Sequence[int]]:
        """Time in ms → series of which the samples of that time are wanted as well."""

    def restore(self, last: Samples, earlier: Mapping[int, Samples]) -> None: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine says of an answered request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Of the prompt's; None where the engine does not say."""
    finish_reason: str = ""

    @property
    def amounts(self) -> dict[str, float]:
        """By canonical name."""
        cached = {} if self.cached_tokens is None else {"llm.engine.tokens.input.cached": float(self.cached_tokens)}
        return {
            "llm.engine.requests.finished": 1.0,
            "llm.engine.tokens.input": float(self.prompt_tokens),
            "llm.engine.tokens.output": float(self.completion_tokens),
            **cached,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request."""

    outcome: Outcome
    alive: bool | None
    """Whether the engine works; None when the answer does not tell."""
    usage: Usage | None = None
    detail: str = ""


class Ask(Protocol):
    """Requests one token and never raises for the engine's fault (`loms.collect.completion`)."""

    async def __call__(self, target: Target, model: str, /) -> Answer: ...


class Probe:
    """One target's probe. At most one request is under way at any time."""

    def __init__(
        self, scraping: Scraping, subject: Subject, sink: Sink, clock: Clock, ask: Ask, recall: Recall | None = None
    ) -> None:
        self._scraping = scraping
        self._subject = subject
        self._sink = sink
        self._clock = clock
        self._ask = ask
        self._recall = recall
        self._settings = scraping.target.probe
        least, most = LOOK_SECONDS
        self._look_seconds = min(max(scraping.target.interval_seconds, least), most)
        self._seen: ScrapeOutcome | None = None
        self._progress: Mapping[str, float] = {}
        self._still_since = 0.0
        self._asked = -math.inf
        self._counted = -math.inf
        self._written_ms = 0
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._announced: set[int] = set()
        self._current: tuple[Series, ...] = ()
        self._trouble = ""

    async def run(self) -> None:
        """Look every second whether a probe is due, until cancelled."""
        while True:
            delay = self._look_seconds
            with guard("probe"):
                delay = await self.tick()
            await asyncio.sleep(delay)

    async def tick(self) -> float:
        """Do what is due now; return the seconds after which to look again."""
        outcome = self._scraping.last
        if outcome is None or not outcome.ok:
            return self._look_seconds
        if self._subject.to_recall:
            await self._remember(self._subject.to_recall)
            outcome = await self._scraping.scrape_now()  # the counters were held back until now
        if not self._subject.openai:
            return self._look_seconds
        self._observe(outcome)
        if not self._settings.enabled or self._seen is None:
            return self._look_seconds
        now = self._clock.monotonic()
        if now - self._counted >= COUNT_SECONDS:
            self._count()
        wait = max(self._still_since, self._asked) + self._settings.interval_seconds - now
        if wait > 0:
            return min(wait, self._look_seconds)
        await self._probe()
        return self._look_seconds

    def _observe(self, outcome: ScrapeOutcome) -> bool:
        """Take note of a scrape; True when the engine has moved by itself since the last one."""
        if outcome is self._seen or outcome.exposition is None:
            return False
        progress = self._subject.progress(outcome.exposition)
        if not progress:
            return False
        before, self._seen = self._seen, outcome
        if progress == self._progress and before is not None:
            return False
        # It moved somewhere between two scrapes; to count from the earlier one asks a little sooner.
        slack = min(self._scraping.target.interval_seconds, self._settings.interval_seconds / 3)
        ago = max(0.0, (self._clock.now_ms() - outcome.at_ms) / 1000)
        gap = max(0.0, (outcome.at_ms - before.at_ms) / 1000) if before is not None else 0.0
        self._still_since = self._clock.monotonic() - min(ago, self._settings.interval_seconds) - min(gap, slack)
        self._progress = progress
        self._end()
        return True

    async def _probe(self) -> None:
        before = await self._scraping.scrape_now()
        if before.exposition is None or self._observe(before):
            return
        if not self._subject.progress(before.exposition) or not self._subject.hold(before.exposition):
            return
        self._asked = began = self._clock.monotonic()
        try:
            answer = await self._ask(self._scraping.target, self._settings.model or self._subject.model)
            self._write(answer, self._clock.monotonic() - began)
            outcome = answer.outcome
            if outcome == "ok" and not await self._settle(answer.usage):
                outcome = "unattributed"
            self._count(outcome)
        finally:
            self._subject.release()

    async def _settle(self, usage: Usage | None) -> bool:
        """Wait until the engine's counters show the probe; True when it is all that they show."""
        amounts, reason = (usage.amounts, usage.finish_reason) if usage else ({}, "")
        end, pause = self._clock.monotonic() + SETTLE_SECONDS, _FIRST_PAUSE_SECONDS
        while True:
            after = await self._scraping.scrape_now()
            if after.exposition is None:
                return False
            last = self._clock.monotonic() >= end
            self._seen, self._progress = after, self._subject.progress(after.exposition) or self._progress
            verdict = self._subject.settle(after.exposition, amounts, reason, last=last)
            if verdict != "pending":
                return verdict == "exact"
            await asyncio.sleep(pause)
            pause *= 2

    async def _remember(self, ids: Sequence[int]) -> None:
        """Go on subtracting what earlier processes subtracted."""
        last: Samples = {}
        earlier: dict[int, Samples] = {}
        if self._recall is not None:
            try:
                last = await self._recall(ids)
                for at_ms, wanted in self._subject.behind(last).items():
                    earlier[at_ms] = await self._recall(wanted, at_ms)
            except LomsError as error:
                _log.warning("%s: probes made before this start stay counted: %s", self._instance, error.message)
        self._subject.restore(last, earlier)

    def _write(self, answer: Answer, seconds: float) -> None:
        if answer.alive is None:
            self._report("silent", f"the probe gives no verdict: {answer.detail}")
            return
        self._report("" if answer.alive else answer.outcome, f"the probe failed: {answer.detail}")
        labels = self._subject.labels
        self._current = (Series.of(SUCCESS, labels), Series.of(DURATION, labels))
        self._written_ms = next_ms(self._clock.now_ms(), self._written_ms)
        self._send(self._current, [float(answer.alive), seconds], self._written_ms)

    def _count(self, outcome: Outcome | None = None) -> None:
        """One more probe with this outcome; all the counters are written, so that they are there before they move."""
        self._counted = self._clock.monotonic()
        if outcome is not None:
            self._counts[outcome] += 1
        series = [Series.of(REQUESTS, labels_of({**dict(self._subject.labels), "outcome": o})) for o in OUTCOMES]
        self._send(series, [float(self._counts[o]) for o in OUTCOMES], self._clock.now_ms())

    def _end(self) -> None:
        """The verdict of the last probe is out of date."""
        if self._current:
            # Now, not when it moved: that may have been before the probe's end.
            self._written_ms = next_ms(self._clock.now_ms(), self._written_ms)
            self._send(self._current, [STALE_NAN] * len(self._current), self._written_ms)
            self._current = ()
            self._report("")

    def _send(self, series: Sequence[Series], values: Sequence[float], at_ms: int) -> None:
        new = tuple(s for s in series if s.id not in self._announced)
        self._announced.update(s.id for s in new)
        self._sink(
            SampleBatch(
                np.array([s.id for s in series], dtype=np.uint64),
                np.full(len(series), at_ms, dtype=np.int64),
                np.array(values, dtype=np.float64),
                new,
            )
        )

    def _report(self, trouble: str, text: str = "") -> None:
        """Log when the kind of trouble changes, not at each probe."""
        if trouble and trouble != self._trouble:
            _log.warning("%s: %s", self._instance, text)
        elif self._trouble and not trouble:
            _log.info("%s: the engine answers again", self._instance)
        self._trouble = trouble

    @property
    def _instance(self) -> str:
        return self._scraping.target.instance
