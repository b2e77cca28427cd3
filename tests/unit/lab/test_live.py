"""The live engine's core on a clock that stands still: only what it decides counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loms.core.clock import ManualClock
from loms.lab.live import LiveEngine
from loms.lab.scheduler import EngineConfig, Request, StepCost

QUICK = EngineConfig(cost=StepCost(0.02, 0.0, 0.0, 0.0, jitter=0.0))


def request(name: str, reply: int) -> Request:
    return Request(name, (1, 2, 3), tuple(range(reply)), 0.0)


def run(scenario: Callable[[LiveEngine, ManualClock], Awaitable[None]]) -> None:
    async def inside() -> None:
        clock = ManualClock()
        engine = LiveEngine(QUICK, clock)
        core = asyncio.create_task(engine.run())
        async with asyncio.timeout(30):
            await scenario(engine, clock)
        core.cancel()
        await asyncio.wait([core])

    asyncio.run(inside())


async def several_steps() -> None:
    await asyncio.sleep(0.1)


def test_tokens_are_said_one_step_at_a_time() -> None:
    async def scenario(engine: LiveEngine, _: ManualClock) -> None:
        answer = engine.ask(request("a", 3))
        assert [await answer.beyond(0), await answer.beyond(1), await answer.beyond(2)] == [1, 2, 3]
        assert answer.complete
        await answer.finished()
        assert engine.stats.generated_tokens == 3

    run(scenario)


def test_a_step_under_way_when_the_core_hangs_is_not_finished() -> None:
    async def scenario(engine: LiveEngine, _: ManualClock) -> None:
        answer = engine.ask(request("a", 2))
        await asyncio.sleep(0)  # lets the core begin its step
        engine.hang(True)
        await several_steps()
        assert (answer.emitted, engine.stats.running, engine.stats.generated_tokens) == (0, 0, 0)
        engine.hang(False)
        await answer.finished()

    run(scenario)


def test_requests_that_come_while_the_core_hangs_are_read_when_it_goes_on() -> None:
    async def scenario(engine: LiveEngine, clock: ManualClock) -> None:
        await asyncio.sleep(0)
        engine.hang(True)
        answer = engine.ask(request("a", 1))
        await several_steps()
        clock.advance(100.0)
        engine.hang(False)
        await answer.finished()
        # For its client it took 100 s; the core has known it for no time at all.
        assert engine.stats.ttft_seconds.total == 100.0
        assert (engine.stats.queue_seconds.total, engine.stats.prefill_seconds.total) == (0.0, 0.0)

    run(scenario)


def test_the_last_abort_updates_the_gauges() -> None:
    async def scenario(engine: LiveEngine, _: ManualClock) -> None:
        answer = engine.ask(request("a", 1000))
        await answer.beyond(1)
        assert (engine.stats.running, engine.stats.kv_utilization) == (1, 1 / 512)
        engine.abort("a")
        engine.abort("a")
        await several_steps()
        assert (engine.stats.running, engine.stats.kv_utilization) == (0, 0.0)

    run(scenario)


def test_an_engine_full_of_leaks_serves_again_when_they_are_given_back() -> None:
    async def scenario(engine: LiveEngine, _: ManualClock) -> None:
        engine.leak(1.0)
        for number in range(2):
            long = Request(str(number), tuple(range(number, number + 4000)), (0,), 0.0)
            answer = engine.ask(long)
            await answer.finished()
        starving = engine.ask(Request("starving", tuple(range(7, 4007)), (0,), 0.0))
        await several_steps()
        assert not starving.complete
        assert engine.stats.waiting == 1
        assert engine.stats.kv_utilization > 0.95
        engine.leak(0.0)
        await starving.finished()

    run(scenario)


def test_what_never_fits_is_refused_at_once() -> None:
    async def scenario(engine: LiveEngine, _: ManualClock) -> None:
        with pytest.raises(ValueError, match="at most 4096 fit"):
            engine.ask(request("a", 4094))

    run(scenario)
