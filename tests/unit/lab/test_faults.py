from __future__ import annotations

import asyncio

import pytest
from pydantic import TypeAdapter, ValidationError

from loms.lab.faults import Fault, FaultBoard, Hang, KvLeak, Slow

FAULT: TypeAdapter[Hang | Slow | KvLeak] = TypeAdapter(Fault)


class Engine:
    """Remembers what was done to it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.called = asyncio.Event()

    def hang(self, on: bool) -> None:
        self._call("hang", on)

    def slow(self, factor: float) -> None:
        self._call("slow", factor)

    def leak(self, share: float) -> None:
        self._call("leak", share)

    def _call(self, name: str, value: float) -> None:
        self.calls.append((name, value))
        self.called.set()


def test_switching_on_and_clearing() -> None:
    async def scenario() -> None:
        engine = Engine()
        board = FaultBoard(engine)
        board.switch_on(FAULT.validate_python({"fault": "hang"}))
        board.switch_on(FAULT.validate_python({"fault": "slow", "factor": 3}))
        board.switch_on(FAULT.validate_python({"fault": "kv_leak", "share": 0.2, "seconds": 60}))
        hang, slow, leak = board.describe()
        assert hang == {"fault": "hang", "seconds_left": None}
        assert slow == {"fault": "slow", "factor": 3, "seconds_left": None}
        assert leak.pop("seconds_left") <= 60
        assert leak == {"fault": "kv_leak", "share": 0.2}
        board.clear("slow")
        board.clear("slow")
        board.clear_all()
        assert engine.calls == [("hang", 1), ("slow", 3), ("leak", 0.2), ("slow", 1), ("hang", 0), ("leak", 0)]
        assert board.describe() == []

    asyncio.run(scenario())


def test_a_fault_with_a_duration_ends_by_itself() -> None:
    async def scenario() -> None:
        engine = Engine()
        board = FaultBoard(engine)
        board.switch_on(Slow(fault="slow", factor=2, seconds=0.01))
        engine.called.clear()
        await asyncio.wait_for(engine.called.wait(), 10)
        assert engine.calls == [("slow", 2), ("slow", 1)]
        assert board.describe() == []

    asyncio.run(scenario())


def test_a_new_fault_replaces_the_old_one_and_its_timer() -> None:
    async def scenario() -> None:
        engine = Engine()
        board = FaultBoard(engine)
        board.switch_on(Hang(fault="hang", seconds=0.01))
        board.switch_on(Hang(fault="hang"))
        await asyncio.sleep(0.05)
        assert engine.calls == [("hang", 1), ("hang", 1)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        {"fault": "explode"},
        {},
        {"fault": "slow", "factor": 0},
        {"fault": "kv_leak", "share": 1.5},
        {"fault": "hang", "seconds": -1},
        {"fault": "hang", "factor": 2},
    ],
)
def test_wrong_faults_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FAULT.validate_python(body)
