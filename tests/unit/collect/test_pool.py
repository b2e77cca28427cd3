from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loms.collect.discovery import Static
from loms.collect.pool import ScrapePool
from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.model import Floats, Ids, Ints, SampleBatch, Series, Shape, is_stale
from loms.ingest.exposition import ExpositionReader

ONE, TWO = (Target(job="j", instance=f"h{i}:1", url=f"http://h{i}:1/metrics", interval_seconds=1.0) for i in (1, 2))


class Silent:
    """A translator that knows no engine."""

    engine = version = model = ""
    aliases: tuple[Series, ...] = ()
    derived: tuple[Series, ...] = ()
    keep: Ints | None = None

    def plan(self, shape: Shape, raw_ids: Ids, /) -> Silent:
        return self

    def derive(self, values: Floats, /) -> Floats:
        return values[:0]


class Fetches:
    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        return Response(200, "text/plain", b"a 1\n")


@dataclass
class Bench:
    """A pool whose scrapers write to one list."""

    batches: list[SampleBatch] = field(default_factory=list)
    made: list[Target] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self, target: Target) -> Scraper:
        self.made.append(target)
        return Scraper(
            target,
            fetcher=Fetches(),
            reader=ExpositionReader(),
            translator=Silent(),
            sink=self.take,
            clock=ManualClock(1_000_000),
            sleep=self.short,
        )

    async def short(self, seconds: float) -> None:
        await asyncio.sleep(0.001)

    def take(self, batch: SampleBatch) -> None:
        self.batches.append(batch)
        self.arrived.set()

    async def scraped(self) -> None:
        """Wait for the next batch."""
        self.arrived.clear()
        await asyncio.wait_for(self.arrived.wait(), 10)


@dataclass(eq=False)
class Scripted:
    """A discovery that answers in order; the last answer stays."""

    answers: list[Sequence[Target] | Exception]
    poll_seconds: float = 0.001
    problems: tuple[str, ...] = ()

    async def refresh(self, last_good_ms: Callable[[Target], int | None], /) -> Sequence[Target]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_targets_come_and_go() -> None:
    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make)
        await pool.update([ONE, TWO, ONE])
        assert [row.instance for row in pool.status()] == ["h1:1", "h2:1"]
        await bench.scraped()
        kept = pool.scrapers[0]
        await pool.update([ONE])
        assert pool.scrapers == (kept,)
        assert bench.made == [ONE, TWO]
        await pool.close()
        assert pool.scrapers == ()

    asyncio.run(run())


def test_a_target_that_goes_is_marked_and_a_process_that_stops_marks_nothing() -> None:
    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make)
        await pool.update([ONE])
        await bench.scraped()
        await pool.update([])
        assert is_stale(bench.batches[-1].values).all()
        await pool.update([TWO])
        await bench.scraped()
        await pool.close()
        count = len(bench.batches)
        assert not is_stale(bench.batches[-1].values).any()
        await asyncio.sleep(0.01)
        assert len(bench.batches) == count

    asyncio.run(run())


def test_the_pool_knows_when_a_target_was_last_good() -> None:
    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make)
        await pool.update([ONE])
        assert pool.last_good_ms(ONE) is None
        await bench.scraped()
        assert (pool.last_good_ms(ONE) or 0) >= 1_000_000
        assert pool.last_good_ms(TWO) is None
        await pool.close()

    asyncio.run(run())


def test_what_was_named_is_not_scraped_again_because_of_its_port() -> None:
    named = replace(ONE, instance="localhost:8000", url="http://localhost:8000/metrics")
    found = replace(ONE, instance="127.0.0.1:8000", url="http://127.0.0.1:8000/metrics", discovered_by="ports")
    other = replace(found, instance="127.0.0.1:8001", url="http://127.0.0.1:8001/metrics", discovered_by="ports")

    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make)
        task = asyncio.create_task(pool.run([Scripted([[found, other]]), Static([named])]))
        async with asyncio.timeout(10):
            while {s.target.instance for s in pool.scrapers} != {"localhost:8000", "127.0.0.1:8001"}:
                await bench.scraped()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pool.scrapers == (), "a pool that ends stops its scrapers"

    asyncio.run(run())


def test_a_discovery_that_fails_keeps_its_targets_and_goes_on() -> None:
    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make)
        broken = Scripted([[ONE], ZeroDivisionError(), [ONE, TWO]], problems=("file x is broken",))
        task = asyncio.create_task(pool.run([broken]))
        async with asyncio.timeout(10):
            while len(pool.scrapers) < 2:
                await bench.scraped()
        assert bench.made == [ONE, TWO], "the first one was never stopped"
        assert pool.problems() == ["file x is broken"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_companions_live_as_long_as_their_target() -> None:
    log: list[str] = []

    def companion(scraper: Scraper) -> Coroutine[Any, Any, None]:
        async def live() -> None:
            log.append(f"begin {scraper.target.instance}")
            try:
                await asyncio.Event().wait()
            finally:
                log.append(f"end {scraper.target.instance}")

        return live()

    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make, [companion])
        await pool.update([ONE])
        await bench.scraped()
        await pool.update([TWO])
        await bench.scraped()
        assert log == ["begin h1:1", "end h1:1", "begin h2:1"]
        await pool.close()
        assert log[-1] == "end h2:1"

    asyncio.run(run())


def test_a_companion_that_loses_a_cancellation_ends_all_the_same() -> None:
    lost = asyncio.Event()

    async def forgetful(scraper: Scraper) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    async def run() -> None:
        bench = Bench()
        pool = ScrapePool(bench.make, [forgetful])
        await pool.update([ONE])
        await bench.scraped()
        await asyncio.wait_for(pool.close(), 30)

    asyncio.run(run())
    assert lost.is_set()
