from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from loms.alerting.delivery import Delivery
from loms.alerting.receiver import Receiver
from loms.alerting.state import Entry, entry_key
from loms.core import selfmetrics
from loms.core.errors import NotifyError

AGAIN, NEVER = NotifyError("down", retry=True), NotifyError("wrong", retry=False)


def entry(number: int, receiver: str = "r") -> Entry:
    return Entry(entry_key(number, f"i{number}", receiver), f"message {number}")


class Sleeps:
    """Notes how long it was asked to sleep, and only gives way."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (any condition, not one event)
            await asyncio.sleep(0.001)


async def delivered(delivery: Delivery, condition: Callable[[], bool], *entries: Entry) -> None:
    """Run until the condition holds, then stop."""
    running = asyncio.create_task(delivery.run())
    delivery.put(entries)
    await until(condition)
    delivery.stop()
    await running


def dropped(reason: str) -> float:
    return selfmetrics.notifications_dropped.labels("notes", reason)._value.get()


@pytest.fixture
def receiver(notes) -> Receiver:
    return Receiver("r", "notes", notes)


def test_entries_are_sent_in_order_and_noted_as_sent(state, notes, receiver, delivery_of) -> None:
    entries = [entry(n) for n in range(3)]
    state.put_notifications(entries)
    asyncio.run(delivered(delivery_of(receiver), lambda: not state.pending_notifications(), *entries))
    assert notes.sent == ["message 0", "message 1", "message 2"]
    assert [one.state for one in state.outbox.values()] == ["sent"] * 3


def test_what_may_help_is_tried_again_ever_more_slowly(state, notes, receiver, delivery_of) -> None:
    sleeps = Sleeps()
    notes.answers = [AGAIN] * 8 + [None]
    delivery = delivery_of(receiver, sleep=sleeps, rng=random.Random(1))
    asyncio.run(delivered(delivery, lambda: len(notes.sent) == 2, entry(0), entry(1)))
    assert notes.sent == ["message 0", "message 1"]
    for waited, planned in zip(sleeps.seconds, (1, 2, 4, 8, 16, 32, 60, 60), strict=True):
        assert 0.75 * planned <= waited <= 1.25 * planned
    assert len(set(sleeps.seconds)) == 8
    assert state.outbox[entry(0).key].attempts == 8


def test_what_cannot_help_is_given_up_and_counted(state, notes, receiver, delivery_of) -> None:
    before = dropped("refused")
    notes.answers = [NEVER, None]
    asyncio.run(delivered(delivery_of(receiver, sleep=Sleeps()), lambda: bool(notes.sent), entry(0), entry(1)))
    assert notes.sent == ["message 1"]
    assert state.outbox[entry(0).key].state == "dropped"
    assert dropped("refused") == before + 1


def test_an_unexpected_failure_does_not_end_the_delivery(notes, receiver, delivery_of) -> None:
    notes.answers = [ZeroDivisionError("a bug"), None]
    asyncio.run(delivered(delivery_of(receiver), lambda: bool(notes.sent), entry(0), entry(1)))
    assert notes.sent == ["message 1"]


def test_a_receiver_that_never_answers_is_timed_out_and_asked_again(state, delivery_of) -> None:
    class Silent:
        calls = 0

        async def send(self, payload: str) -> None:
            self.calls += 1
            if self.calls == 1:
                await asyncio.Event().wait()

    silent = Silent()
    receiver = Receiver("r", "notes", silent, timeout_seconds=0.01)
    delivery = delivery_of(receiver, sleep=Sleeps())
    asyncio.run(delivered(delivery, lambda: bool(state.outbox), entry(0)))
    assert (silent.calls, state.outbox[entry(0).key].state) == (2, "sent")


def test_one_receiver_that_is_down_holds_up_no_other(state, notes, receiver, delivery_of) -> None:
    class Down:
        async def send(self, payload: str) -> None:
            raise NotifyError("down", retry=True)

    delivery = delivery_of(Receiver("down", "notes", Down()), receiver)
    asyncio.run(delivered(delivery, lambda: bool(notes.sent), entry(0, "down"), entry(1, "r")))
    assert notes.sent == ["message 1"]
    assert delivery.waiting("down") == {entry(0, "down").key}
    assert delivery.waiting("r") == delivery.waiting("unknown") == frozenset()


def test_a_full_outbox_drops_the_oldest(state, receiver, delivery_of) -> None:
    before = dropped("outbox_full")
    delivery = delivery_of(receiver, capacity=2)
    delivery.put([entry(0), entry(1), entry(2)])
    assert delivery.waiting("r") == {entry(1).key, entry(2).key}
    assert state.outbox[entry(0).key].state == "dropped"
    assert dropped("outbox_full") == before + 1


def test_what_was_pending_at_the_last_stop_is_sent(state, notes, receiver, delivery_of) -> None:
    state.put_notifications([entry(2), entry(1), entry(3, "gone")])
    delivery = delivery_of(receiver)
    delivery.restore()
    asyncio.run(delivered(delivery, lambda: not state.pending_notifications()))
    assert notes.sent == ["message 1", "message 2"]
    assert state.outbox[entry(3, "gone").key].state == "dropped"


def test_entries_may_come_from_another_thread_while_it_waits(state, notes, receiver, delivery_of) -> None:
    async def scenario() -> None:
        delivery = delivery_of(receiver)
        running = asyncio.create_task(delivery.run())
        await asyncio.sleep(0.01)
        await asyncio.to_thread(delivery.put, [entry(0)])
        await until(lambda: bool(notes.sent))
        delivery.stop()
        await running

    asyncio.run(scenario())


def test_stopping_does_not_wait_for_a_retry(state, notes, receiver, delivery_of) -> None:
    notes.answers = [AGAIN] * 100
    delivery = delivery_of(receiver)
    asyncio.run(delivered(delivery, lambda: len(notes.answers) < 100, entry(0)))
    assert delivery.waiting("r") == {entry(0).key}


def test_a_store_that_refuses_does_not_stop_the_delivery(state, notes, receiver, delivery_of) -> None:
    state.refuses = True
    asyncio.run(delivered(delivery_of(receiver), lambda: len(notes.sent) == 2, entry(0), entry(1)))
