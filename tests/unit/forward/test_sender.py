"""One step at a time, with a manual clock; the thread is only started where it is what is tested."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loms.core import selfmetrics
from loms.core.clock import ManualClock, SystemClock
from loms.core.errors import ForwardError
from loms.forward.queue import DiskQueue
from loms.forward.sender import LONGEST_RETRY_AFTER_SECONDS, Sender


def busy(after: float | None = None) -> ForwardError:
    return ForwardError("d: h answered 503: busy", reason="http_503", retry=True, retry_after_seconds=after, weight=2)


def bad(text: str = "wrong") -> ForwardError:
    return ForwardError(f"d: h answered 400: {text}", reason="http_400", retry=False, weight=2)


class Answers:
    """A destination with prepared answers; None takes an item, and so does whatever comes after them."""

    def __init__(self, *answers: ForwardError | None) -> None:
        self.taken: list[bytes] = []
        self.asked = 0
        self.took = threading.Semaphore(0)
        self._answers: Iterator[ForwardError | None] = iter(answers)

    def send(self, item: bytes, /) -> int:
        self.asked += 1
        error = next(self._answers, None)
        if error:
            raise error
        self.taken.append(item)
        self.took.release()
        return 2


def value(metric: str, **labels: str) -> float:
    return selfmetrics.registry.get_sample_value(metric, labels) or 0.0


def sender(tmp_path: Path, answers: Answers, name: str = "d", clock: ManualClock | None = None) -> Sender:
    clock = clock or ManualClock(1000)
    return Sender(name, DiskQueue(tmp_path, 2**20, clock), answers, clock, rng=random.Random(1))


def test_items_go_in_order_and_are_counted(tmp_path: Path) -> None:
    answers = Answers()
    one = sender(tmp_path, answers, "in-order")
    assert one.step() is None
    for item in (b"a", b"b"):
        one.put(item, 2)
    assert [one.step(), one.step(), one.step()] == [0.0, 0.0, None]
    assert answers.taken == [b"a", b"b"]
    assert value("loms_forwarded_total", destination="in-order") == 4


def test_what_may_succeed_later_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    answers = Answers(*[busy()] * 10, None, busy())
    one = sender(tmp_path, answers, "later")
    one.put(b"a")
    one.put(b"b")
    pauses = [one.step() or 0.0 for _ in range(10)]
    assert all(
        0.75 * due <= pause <= 1.25 * due for pause, due in zip(pauses, [0.5, 1, 2, 4, 8, 16, 30, 30], strict=False)
    )
    assert one.standing().trouble == "d: h answered 503: busy; trying again"
    assert one.step() == 0.0
    assert (answers.taken, one.trouble) == ([b"a"], "")
    assert (one.step() or 9.0) <= 0.625  # after a success the pauses begin anew
    assert value("loms_forward_failures_total", destination="later", reason="http_503") == 11
    assert value("loms_forward_dropped_total", destination="later", reason="http_503") == 0


@pytest.mark.parametrize(("asked", "waits"), [(45.0, 45.0), (1e9, LONGEST_RETRY_AFTER_SECONDS)])
def test_a_receiver_that_names_a_time_is_given_it(tmp_path: Path, asked: float, waits: float) -> None:
    one = sender(tmp_path, Answers(busy(asked)))
    one.put(b"a")
    assert one.step() == waits


def test_what_is_refused_is_dropped_counted_and_its_reason_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers(bad(), bad(), bad("other"))
    one = sender(tmp_path, answers, "refusing")
    for item in (b"a", b"b", b"c", b"d"):
        one.put(item, 2)
    with caplog.at_level(logging.ERROR, "loms.forward"):
        assert [one.step() for _ in range(4)] == [0.0] * 4
    assert answers.taken == [b"d"]
    assert len(caplog.records) == 2
    assert value("loms_forward_dropped_total", destination="refusing", reason="http_400") == 6


def test_how_it_stands(tmp_path: Path) -> None:
    clock = ManualClock(1000)
    one = sender(tmp_path, Answers(), clock=clock)
    one.put(b"abc")
    clock.advance(7)
    standing = one.standing()
    assert (standing.destination, standing.oldest_seconds, standing.trouble) == ("d", 7.0, "")
    assert standing.queued_bytes > 3


def test_its_thread_sends_and_at_the_end_sends_what_waits(tmp_path: Path) -> None:
    answers = Answers()
    clock = SystemClock()
    one = Sender("thread", DiskQueue(tmp_path, 2**20, clock), answers, clock)
    one.start()
    one.put(b"a")
    assert answers.took.acquire(timeout=30)
    for i in range(50):
        one.put(f"{i}".encode())
    one.stop(30)
    assert answers.taken == [b"a", *(f"{i}".encode() for i in range(50))]
    assert DiskQueue(tmp_path, 2**20, clock).peek() is None


def test_at_the_end_it_does_not_wait_for_a_receiver_that_is_away(tmp_path: Path) -> None:
    answers = Answers(*[busy(200.0)] * 100)
    clock = SystemClock()
    one = Sender("away", DiskQueue(tmp_path, 2**20, clock), answers, clock)
    one.put(b"a")
    one.start()
    one.stop(60)
    assert answers.asked <= 2
    left = DiskQueue(tmp_path, 2**20, clock).peek()
    assert left is not None
    assert left.data == b"a"
