"""A simulated engine, the scrape loop, the probe and the detector together, in time that only this test lets pass.

Whatever the phase of scrapes and evaluations, however many scrapes fail in between, and however starved the event loop:
a working engine is never condemned, a frozen one is found, and not acquitted before it works again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from loms.collect.lateness import Lateness
from loms.collect.probe import Answer, Probe, Usage
from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import ProbeSettings, Target
from loms.core.errors import TargetError
from loms.core.model import SampleBatch, labels_of
from loms.detect.stall import Stall
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader
from loms.lab.exposition import CONTENT_TYPE, MetricsText
from loms.lab.faults import FaultBoard, Hang
from loms.lab.live import LiveEngine
from loms.lab.scheduler import EngineConfig, Request
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource

EPOCH_MS = 1_800_000_000_000
EVALUATED_SECONDS = 3.0
FREEZE, THAW, END = 25.0, 65.0, 80.0
NEEDED = ("llm_engine_", "loms_", "up")


class VirtualSelector(selectors.DefaultSelector):
    """Nobody waits: the loop's time goes on by what it would have waited, or by what a turn costs."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for somebody"
        self.loop.seconds += timeout if timeout > 0 else self.loop.cost()
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop and a clock."""

    def __init__(self, cost: Callable[[], float]) -> None:
        selector = VirtualSelector()
        super().__init__(selector)
        selector.loop, self.seconds, self.cost = self, 0.0, cost

    def time(self) -> float:
        return self.seconds

    monotonic = time

    def now_ms(self) -> int:
        return EPOCH_MS + round(self.seconds * 1000)


@dataclass(frozen=True)
class Case:
    interval: float
    load_until: float = 0.0
    """Second at which the users' requests end."""
    freeze: bool = False
    whole: bool = False
    """The whole process stands still: scrapes are accepted and not answered."""
    failing: float = 0.0
    """Share of scrapes that are refused, never two in a row."""
    starved: bool = False


class World:
    """One engine and LOMS beside it."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.random, self.seed = case, random.Random(seed), seed
        self.loop = VirtualLoop(self._cost)
        self.engine = LiveEngine(EngineConfig(seed=seed), self.loop)
        self.text = MetricsText(self.engine.stats, self.engine.config, "sim", EPOCH_MS / 1000)
        self.source, self.names, self.lateness = MemorySource(), {}, Lateness()
        self.requests, self.refused_last = itertools.count(), False
        self.kinds: list[tuple[float, str]] = []
        self.moves: list[float] = []
        """Moments at which the engine had generated tokens since the last look."""

    def _cost(self) -> float:
        """Seconds that one turn of the event loop takes."""
        if not self.case.starved:
            return 0.0002
        return self.random.uniform(0.2, 1.2) if self.random.random() < 0.004 else self.random.expovariate(700)

    @property
    def frozen(self) -> bool:
        return self.case.freeze and FREEZE <= self.loop.seconds < THAW

    async def fetch(self, target: Target, timeout: float) -> Response:  # noqa: ASYNC109
        refuse = self.random.random() < self.case.failing and not self.refused_last
        self.refused_last = refuse
        if refuse:
            raise TargetError("refused", reason="refused")
        with self.lateness.watch() as lateness:
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.sleep(self.random.expovariate(50))
                    if self.case.whole and self.frozen:
                        await asyncio.sleep(THAW - self.loop.seconds)
                    return Response(200, CONTENT_TYPE, self.text.render())
            except TimeoutError:
                self.lateness.look()
                late = lateness.worst > timeout / 4
                raise TargetError("no answer", reason="late" if late else "timeout") from None

    async def request(self, prompt: tuple[int, ...], tokens: int, deadline: float) -> None:
        name = f"r{next(self.requests)}"
        asked = self.engine.ask(Request(name, prompt, tuple(range(tokens)), self.loop.seconds, "length", tokens))
        try:
            async with asyncio.timeout(deadline):
                await asked.finished()
        finally:
            self.engine.abort(name)

    async def ask(self, target: Target, model: str) -> Answer:
        with self.lateness.watch() as lateness:
            try:
                await self.request((1,), 1, target.probe.deadline_seconds)
            except TimeoutError:
                self.lateness.look()
                late = lateness.worst > target.probe.deadline_seconds / 4
                return Answer("timeout", None if late else False)
        return Answer("ok", True, Usage(1, 1, 0, "length"))

    async def users(self) -> None:
        async def user() -> None:
            with suppress(TimeoutError):
                await self.request(tuple(self.random.randrange(1000) for _ in range(200)), 60, 50)

        async with asyncio.TaskGroup() as group:
            while self.loop.seconds < self.case.load_until:
                await asyncio.sleep(self.random.expovariate(4))
                group.create_task(user())

    async def fault(self) -> None:
        await asyncio.sleep(FREEZE)
        if self.case.freeze:
            FaultBoard(self.engine).switch_on(Hang(fault="hang", seconds=THAW - FREEZE))

    def store(self, batch: SampleBatch) -> None:
        for series in batch.series:
            self.names.setdefault(series.id, set()).add(series)
        for i, at, value in zip(batch.series_ids.tolist(), batch.timestamps_ms, batch.values, strict=True):
            for series in self.names.get(i, ()):
                if series.name.startswith(NEEDED) and not series.name.endswith(("_bucket", "_sum")):
                    key = labels_of({**dict(series.labels), "__name__": series.name})
                    self.source.add(key, np.array([at]), np.array([value]))

    async def evaluate(self) -> None:
        stall, config, querier, tokens = Stall(), Stall.Config(), Engine(self.source), 0
        inputs = {name: each for name, each in stall.inputs(config).items() if name != "prefill"}
        await asyncio.sleep(self.random.uniform(0, EVALUATED_SECONDS))
        while True:
            at_ms = self.loop.now_ms()
            frames = {
                name: querier.range(
                    each.expr, at_ms - round(each.window_seconds * 1000), at_ms, round(each.step_seconds * 1000)
                )
                for name, each in inputs.items()
            }
            frames["prefill"] = querier.instant("vector(0) < 0", at_ms)
            self.kinds += [(self.loop.seconds, finding.kind) for finding in stall.detect(frames, at_ms, config)]
            if self.engine.stats.generated_tokens != tokens:
                tokens = self.engine.stats.generated_tokens
                self.moves.append(self.loop.seconds)
            await asyncio.sleep(EVALUATED_SECONDS)

    async def run(self) -> None:
        probe = ProbeSettings(deadline_seconds=8)
        target = Target("sim", "a:1", "http://a:1/metrics", self.case.interval, self.case.interval, probe=probe)
        translator = Translator(target.identity)
        scraper = Scraper(
            target, fetcher=self, reader=ExpositionReader(), translator=translator, sink=self.store, clock=self.loop
        )
        probing = Probe(scraper, translator, self.store, self.loop, self.ask)
        jobs: list[Awaitable[None]] = [self.engine.run(), self.users(), self.fault(), scraper.run(), probing.run()]
        tasks = [asyncio.ensure_future(job) for job in (*jobs, self.evaluate())]
        await asyncio.sleep(END)
        for task in tasks:
            assert not (task.done() and task.exception()), task
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def watched(case: Case, seed: int) -> World:
    world = World(case, seed)
    with asyncio.Runner(loop_factory=lambda: world.loop) as runner:
        runner.run(world.run())
    return world


def between(world: World, begin: float, end: float) -> Iterator[tuple[float, str]]:
    return ((at, kind) for at, kind in world.kinds if begin <= at < end)


WORKING = [
    Case(1, load_until=END),
    Case(2, load_until=END, failing=0.4),
    Case(1, failing=0.4),
    Case(5, load_until=END, failing=0.4, starved=True),
    Case(1, load_until=30, starved=True),
]
FROZEN = [
    Case(1, load_until=THAW, freeze=True),
    Case(2, load_until=THAW, freeze=True, failing=0.3),
    Case(5, load_until=THAW, freeze=True, starved=True),
    Case(1, freeze=True, failing=0.4),
    Case(2, freeze=True, starved=True),
    Case(5, load_until=10, freeze=True),
    Case(1, load_until=THAW, freeze=True, whole=True),
    Case(5, load_until=THAW, freeze=True, whole=True),
]


@pytest.mark.parametrize(("seed", "case"), list(enumerate(WORKING)), ids=repr)
def test_a_working_engine_is_never_condemned(seed: int, case: Case) -> None:
    world = watched(case, seed)
    assert len(world.kinds) > 20
    assert {kind for _, kind in world.kinds} <= {"idle", "busy", "long_prefill", "unknown"}
    if not case.starved:  # single failed scrapes do not even make it unknown
        assert {kind for _, kind in between(world, 10, END)} <= {"idle", "busy", "long_prefill"}


@pytest.mark.parametrize(("seed", "case"), list(enumerate(FROZEN, 10)), ids=repr)
def test_a_frozen_engine_is_found_and_not_acquitted_before_it_works_again(seed: int, case: Case) -> None:
    world = watched(case, seed)
    assert not any(FREEZE + 6 < at < THAW for at in world.moves)
    assert "stalled" not in {kind for _, kind in between(world, 0, FREEZE)}
    found = next((at for at, kind in between(world, FREEZE, THAW) if kind == "stalled"), THAW)
    assert found - FREEZE <= (35 if case.starved else 29)
    assert {kind for _, kind in between(world, found, THAW)} <= {"stalled", "unknown"}
    assert world.kinds[-1][1] in ("idle", "busy")
