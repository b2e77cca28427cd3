"""Samples wait for the memory that they rest on, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from loms.core import guard
from loms.core.errors import StoreError
from loms.core.model import SampleBatch
from loms.ingest.memory import PAUSE_SECONDS, WriteAhead


def batch(number: int) -> SampleBatch:
    """One that is told from others by its time."""
    return SampleBatch(np.array([1], np.uint64), np.array([number], np.int64), np.array([0.0]))


class World:
    """A governed target whose number of changes is set by hand, and a store that lists what it gets in its order."""

    def __init__(self, **options: float) -> None:
        self.changes = 0
        self.log: list[object] = []
        self.saving = threading.Event()
        self.may_save = threading.Event()
        self.may_save.set()
        self.refuses = 0
        self.pauses: list[float] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.sink = WriteAhead(self, self.store, self.save, sleep=self.sleep, **options)

    def memory(self) -> str:
        return f"memory {self.changes}"

    def save(self, text: str) -> None:
        self.saving.set()
        self.may_save.wait()
        if self.refuses:
            self.refuses -= 1
            raise StoreError("full")
        self.log.append(text)

    def store(self, batch: SampleBatch) -> None:
        self.log.append(int(batch.timestamps_ms[0]))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)
        await self.may_go_on.wait()

    def scrape(self, number: int, changes: int = 0) -> None:
        self.changes += changes
        self.sink(batch(number))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - threads bring it about
        await asyncio.sleep(0.001)


def lives(act: Callable[[World], Awaitable[None]], **options: float) -> World:
    """A world in which `WriteAhead.run` runs while ``act`` does, and is cancelled then."""

    async def run() -> World:
        world = World(**options)
        running = asyncio.create_task(world.sink.run())
        try:
            await asyncio.wait_for(act(world), 20)
        finally:
            world.may_save.set()
            running.cancel()
            await asyncio.wait((running,))
        return world

    return asyncio.run(run())


def test_what_shows_no_change_is_passed_on_at_once() -> None:
    async def act(world: World) -> None:
        world.scrape(1)
        world.scrape(2)
        assert world.log == [1, 2]

    assert lives(act).log == [1, 2]


def test_the_memory_is_stored_before_the_samples_that_show_the_change() -> None:
    async def act(world: World) -> None:
        world.may_save.clear()
        world.scrape(1, changes=1)
        await until(world.saving.is_set)
        world.scrape(2)
        world.scrape(3, changes=1)
        assert world.log == []
        world.may_save.set()
        await until(lambda: 3 in world.log)
        world.scrape(4)

    world = lives(act)
    assert world.log == ["memory 1", 1, 2, "memory 2", 3, 4]
    assert set(world.pauses) == {PAUSE_SECONDS}


def test_changes_within_the_pause_are_saved_together() -> None:
    async def act(world: World) -> None:
        world.scrape(1, changes=1)
        world.may_go_on.clear()
        await until(lambda: world.log == ["memory 1", 1])
        for number in (2, 3, 4):
            world.scrape(number, changes=1)
        assert world.log == ["memory 1", 1]
        world.may_go_on.set()
        await until(lambda: 4 in world.log)

    assert lives(act).log == ["memory 1", 1, "memory 4", 2, 3, 4]


def test_samples_are_not_lost_with_a_saving_that_fails_and_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    before = guard.failures["labels"]

    async def act(world: World) -> None:
        world.refuses = 1
        world.scrape(1, changes=1)
        await until(lambda: 1 in world.log)
        world.scrape(2)
        await until(lambda: 2 in world.log)

    assert lives(act).log == [1, "memory 1", 2]
    assert guard.failures["labels"] == before + 1


def test_samples_do_not_pile_up_behind_a_saving_that_does_not_end() -> None:
    async def act(world: World) -> None:
        world.may_save.clear()
        for number in range(100):
            world.scrape(number, changes=number == 0)
        assert world.log[:61] == list(range(61))

    assert lives(act).log[-1] == 99


def test_what_has_changed_is_saved_at_the_end_and_later_samples_pass() -> None:
    async def act(world: World) -> None:
        world.scrape(1, changes=1)

    world = lives(act)
    assert world.log == ["memory 1", 1]
    world.scrape(2, changes=1)
    assert world.log == ["memory 1", 1, 2]


def test_the_memory_is_renewed_when_it_is_old_if_there_is_one() -> None:
    async def act(world: World) -> None:
        world.scrape(1, changes=1)
        await until(lambda: world.log.count("memory 1") >= 3)

    assert lives(act, renew_seconds=0.001).log[:2] == ["memory 1", 1]


def test_nothing_is_saved_where_nothing_has_ever_changed() -> None:
    async def act(world: World) -> None:
        world.scrape(1)
        for _ in range(50):
            await asyncio.sleep(0.001)  # while it is old many times

    assert lives(act, renew_seconds=0.001).log == [1]
