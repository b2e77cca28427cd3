"""The scrape loop: one `Scraper` per target, from its endpoint to the sink.

Semantics are Prometheus's: all samples of a scrape carry its start time; a series that is missing from the next
scrape gets a stale marker at that scrape's time; a failed scrape, and a target that goes, end all of its series;
samples with timestamps of their own are left alone. Source: Prometheus, scrape/scrape.go and "Staleness" in its
documentation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np

from loms.collect.protocols import Fetcher, Plan, Reader, Response, ScrapeOutcome, Translator
from loms.collect.series import META_NAMES, Layout, announced, ids_of, next_ms, raw_series
from loms.collect.targets import Target
from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import ExpositionError, TargetError
from loms.core.guard import guard
from loms.core.model import (
    STALE_NAN,
    Exposition,
    Floats,
    Ids,
    Ints,
    Labels,
    SampleBatch,
    Series,
    Shape,
    Sink,
    labels_of,
)

_log = logging.getLogger("loms.scrape")

_THREAD_BYTES = 1 << 20
"""A larger exposition is parsed in a thread, so that other targets keep their time."""
_NO_IDS: Ids = np.empty(0, np.uint64)
_counter = cache(selfmetrics.scrapes.labels)
"""Outcome → its counter: finding the child of a labelled counter costs more than counting."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """A row of ``/api/targets``."""

    job: str
    instance: str
    url: str
    engine: str
    up: bool
    health: str
    """``up``, ``down``, or ``unknown`` before the first scrape."""
    last_error: str
    last_scrape_ms: int | None
    duration_seconds: float | None
    samples: int
    interval_seconds: float
    discovered_by: str
    timeout_seconds: float
    labels: Labels
    """Those that every series of the target carries, job and instance among them."""


class Scraper:
    """Scrapes one target: `run` for ever, `scrape_now` when asked, `finish` when the target is gone.

    The sink gets one batch per scrape. Series rows come with the first batch that needs them.
    """

    def __init__(
        self,
        target: Target,
        *,
        fetcher: Fetcher,
        reader: Reader,
        translator: Translator,
        sink: Sink,
        clock: Clock,
        remark: Callable[[], str] = str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``remark`` is asked after each good scrape what is wrong with it all the same."""
        self.target = target
        self.last: ScrapeOutcome | None = None
        self.last_good_ms: int | None = None
        self.engine = ""
        self._fetcher = fetcher
        self._reader = reader
        self._translator = translator
        self._sink = sink
        self._clock = clock
        self._remarked = remark
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._due_ms = 0
        self._meta = tuple(Series.of(name, target.identity) for name in META_NAMES)
        self._meta_ids = ids_of(self._meta)
        self._layout: Layout | None = None
        self._live: Ids = _NO_IDS
        """Series with a sample and no marker since: what must be marked when it goes."""
        self._failing: Series | None = None
        """``loms_scrape_failed`` of the reason that holds now."""
        self._rows: tuple[Series, ...] = self._meta
        """Series rows for the next batch."""

    async def run(self) -> None:
        """Scrape at every slot of the interval, until cancelled. A slot that a long scrape ran over is left out."""
        while True:
            self._due_ms = self._next_slot_ms()
            await self._sleep(max(0.0, (self._due_ms - self._clock.now_ms()) / 1000))
            with guard("scrape"):
                await self._scrape(self._due_ms)

    async def scrape_now(self) -> ScrapeOutcome:
        """Scrape at once, beside the regular slots, and return what came. A target's fault does not raise."""
        return await self._scrape(None)

    def finish(self) -> None:
        """The target is gone: mark all of its series stale, ``up`` included."""
        if self.last is not None:
            ends = np.concatenate((self._live, self._meta_ids, self._end_failure(None)))
            self._write(self._start_ms(None), _NO_IDS, np.empty(0), ends)
        self._live = _NO_IDS

    def status(self) -> TargetStatus:
        last, target = self.last, self.target
        return TargetStatus(
            job=target.job,
            instance=target.instance,
            url=target.address.shown,
            engine=self.engine,
            up=last is not None and last.ok,
            health="unknown" if last is None else "up" if last.ok else "down",
            last_error=last.message if last else "",
            last_scrape_ms=last.at_ms if last else None,
            duration_seconds=last.duration_seconds if last else None,
            samples=len(last.exposition.values) if last and last.exposition else 0,
            interval_seconds=target.interval_seconds,
            discovered_by=target.discovered_by,
            timeout_seconds=min(target.timeout_seconds, target.interval_seconds),
            labels=target.identity,
        )

    def _next_slot_ms(self) -> int:
        interval = max(1, round(self.target.interval_seconds * 1000))
        offset = round(self.target.offset_seconds * 1000)
        slot = ((self._clock.now_ms() - offset) // interval + 1) * interval + offset
        early = 0 <= self._due_ms - slot < interval  # the timer fired a little before its time
        return slot + interval if early else slot

    def _start_ms(self, due_ms: int | None) -> int:
        """The timestamp of a scrape that starts now: its slot if that is at most 2 ms (1 % of the interval) away.

        Regular timestamps compress well, which is why Prometheus does the same.
        """
        now = self._clock.now_ms()
        tolerance = min(2.0, self.target.interval_seconds * 10)
        at_ms = due_ms if due_ms is not None and abs(now - due_ms) <= tolerance else now
        return at_ms if self.last is None else next_ms(at_ms, self.last.at_ms)

    async def _scrape(self, due_ms: int | None) -> ScrapeOutcome:
        async with self._lock:
            at_ms, begun = self._start_ms(due_ms), self._clock.monotonic()
            try:
                timeout = min(self.target.timeout_seconds, self.target.interval_seconds)
                exposition = await self._read(await self._fetcher.fetch(self.target, timeout))
                if self._layout is None or exposition.shape is not self._layout.shape:
                    await _turn()
            except TargetError as error:
                return self._fail(at_ms, begun, error.reason, error)
            except ExpositionError as error:
                told = ExpositionError(f"{self.target.address.shown}: {error}", hint=error.hint)
                return self._fail(at_ms, begun, getattr(error, "reason", "malformed"), told)
            return self._succeed(at_ms, begun, exposition)

    async def _read(self, response: Response) -> Exposition:
        body, content_type = response.body, response.content_type
        if len(body) > _THREAD_BYTES:
            exposition = await asyncio.to_thread(self._reader.read, body, content_type)
        else:
            exposition = self._reader.read(body, content_type)
        count, limit = len(exposition.values) + exposition.duplicates, self.target.sample_limit
        if limit and count > limit:
            raise TargetError(
                f"{self.target.address.shown}: there are {count} samples, more than the limit of {limit}",
                reason="too_many_samples",
                hint="raise the sample limit or expose less",
            )
        return exposition

    def _succeed(self, at_ms: int, begun: float, exposition: Exposition) -> ScrapeOutcome:
        before = self._layout
        layout = self._arrange(exposition.shape)
        values, derived = exposition.values, np.empty(0)
        if layout.plan is not None:
            derived = np.full(len(layout.plan.derived), np.nan)
            with guard("translate"):
                derived = layout.plan.derive(values)
        duration = self._clock.monotonic() - begun
        scraped = len(values) + exposition.duplicates
        raw = values if layout.keep is None else values[layout.keep]
        added = 0 if before is layout else len(_without(layout.kept_ids, before.kept_ids if before else _NO_IDS))
        meta = (1.0, duration, scraped, scraped - len(values) + len(raw), added)
        numbers = np.concatenate((raw, derived, meta))
        ends = np.concatenate((self._move_on(layout, exposition), self._end_failure(None)))
        self._write(at_ms, layout.ids, numbers, ends, self._own_times(layout, exposition), held=np.isnan(derived))

        plan = layout.plan
        self.engine = plan.engine if plan else ""
        self.last_good_ms = at_ms
        outcome = ScrapeOutcome(at_ms, duration, exposition, plan, message=self._remark(exposition))
        selfmetrics.samples_scraped.inc(scraped)
        if exposition.duplicates:
            selfmetrics.samples_dropped.labels("duplicate").inc(exposition.duplicates)
        return self._conclude(outcome)

    def _fail(self, at_ms: int, begun: float, reason: str, error: ExpositionError | TargetError) -> ScrapeOutcome:
        duration = self._clock.monotonic() - begun
        failed = Series.of("loms_scrape_failed", labels_of({**dict(self.target.identity), "reason": reason}))
        ends = np.concatenate((self._live, self._end_failure(failed)))
        self._live = _NO_IDS
        if self._failing is None:
            self._rows += (failed,)
        self._failing = failed
        ids = np.concatenate((self._meta_ids, ids_of((failed,))))
        self._write(at_ms, ids, np.array((0.0, duration, 0.0, 0.0, 0.0, 1.0)), ends)
        message = f"{error} ({error.hint})" if error.hint else str(error)
        return self._conclude(ScrapeOutcome(at_ms, duration, reason=reason, message=message))

    def _remark(self, exposition: Exposition) -> str:
        """What is wrong with a scrape that is good all the same."""
        repeated = f"{exposition.duplicates} samples repeat a series; the first of each counts"
        told = "; ".join(part for part in (repeated if exposition.duplicates else "", self._remarked()) if part)
        return told and f"{self.target.address.shown}: {told}"

    def _conclude(self, outcome: ScrapeOutcome) -> ScrapeOutcome:
        """Remember the outcome, count it, and log what is new about it."""
        before, self.last = self.last, outcome
        if outcome.message and (before is None or not before.message or before.reason != outcome.reason):
            _log.warning("%s", outcome.message)
        elif outcome.ok and before is not None and not before.ok:
            _log.info("%s answers again", self.target.address.shown)
        _counter(outcome.reason or "ok").inc()
        selfmetrics.scrape_seconds.observe(outcome.duration_seconds)
        return outcome

    def _arrange(self, shape: Shape) -> Layout:
        """The layout for ``shape`` under the translator's plan; the very same one as long as both stay."""
        before = self._layout
        series: list[Series] = []
        if before is not None and before.shape is shape:
            raw_ids = before.raw_ids
        else:
            series = raw_series(shape, self.target)
            raw_ids = ids_of(series)
        plan: Plan | None = None
        with guard("translate"):
            plan = self._translator.plan(shape, raw_ids)
        if before is not None and before.shape is shape and before.plan is plan:
            return before
        layout = Layout.of(shape, raw_ids, plan, self._meta_ids)
        fresh = set(_without(layout.kept_ids, before.kept_ids if before else _NO_IDS).tolist())
        if fresh and not series:  # a plan that keeps more of the same shape
            series = raw_series(shape, self.target)
        rows = announced(plan) - announced(before.plan if before else None)
        self._rows += (*(s for s in series if s.id in fresh), *sorted(rows, key=lambda s: s.id))
        self._layout = layout
        return layout

    def _move_on(self, layout: Layout, exposition: Exposition) -> Ids:
        """Make this scrape's series the live ones; those that were live and are missing now are returned."""
        live = layout.lasting
        if exposition.timestamps_ms is not None and self.target.honor_timestamps:
            times = exposition.timestamps_ms if layout.keep is None else exposition.timestamps_ms[layout.keep]
            live = np.concatenate((layout.kept_ids[times == 0], layout.lasting[len(layout.kept_ids) :]))
        if live is self._live:
            return _NO_IDS
        gone = _without(self._live, live)
        self._live = live
        return gone

    def _own_times(self, layout: Layout, exposition: Exposition) -> Ints | None:
        """Timestamps that the text itself gives to the raw samples (0: none), if they are to be honoured."""
        times = exposition.timestamps_ms if self.target.honor_timestamps else None
        return times if times is None or layout.keep is None else times[layout.keep]

    def _end_failure(self, now: Series | None) -> Ids:
        """The failure's series that ended, because another reason holds ``now`` or none does."""
        ended = self._failing
        if ended is None or ended == now:
            return _NO_IDS
        self._failing = None
        return ids_of((ended,))

    def _write(
        self,
        at_ms: int,
        ids: Ids,
        values: Floats,
        ends: Ids,
        own_times: Ints | None = None,
        held: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None,
    ) -> None:
        """One batch: samples, then stale markers for ``ends``. ``held`` derived values (they stand before the meta
        values) are not written."""
        times = np.full(len(ids) + len(ends), at_ms, np.int64)
        if own_times is not None:
            stated = np.flatnonzero(own_times)
            times[stated] = own_times[stated]
        if len(ends):
            ids = np.concatenate((ids, ends))
            values = np.concatenate((values, np.full(len(ends), STALE_NAN)))
        if held is not None and held.any():
            stay = np.ones(len(ids), np.bool_)
            last = len(ids) - len(ends) - len(self._meta_ids)
            stay[last - len(held) : last] = ~held
            ids, values, times = ids[stay], values[stay], times[stay]
        rows, self._rows = self._rows, ()
        self._sink(SampleBatch(ids, times, values, rows))


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _turn() -> None:
    """Wait until the event loop has been round since the last one left here.

    A new shape takes milliseconds to arrange. When many targets come with one (at the start of a fleet), the loop must
    still see answers and timers in between, else good targets run into their timeouts.
    """
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        await asyncio.sleep(0)


def _without(ids: Ids, others: Ids) -> Ids:
    """The ``ids`` that are not among ``others``."""
    return np.setdiff1d(ids, others) if len(others) else ids
