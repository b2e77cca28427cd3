"""The queue on disk: order, bounds, and what is left after a kill at any point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.clock import ManualClock, SystemClock
from loms.core.errors import StoreError
from loms.forward.queue import DiskQueue


class Dropped(Counter[str]):
    def __call__(self, reason: str, weight: int) -> None:
        self[reason] += weight


def emptied(queue: DiskQueue) -> list[bytes]:
    found = []
    while (item := queue.peek()) is not None:
        found.append(item.data)
        queue.done(item)
    return found


def finish(queue: DiskQueue) -> bytes:
    item = queue.peek()
    assert item is not None
    queue.done(item)
    return item.data


def test_first_in_first_out_also_after_the_process_is_gone(tmp_path: Path) -> None:
    first = DiskQueue(tmp_path, 2**20, ManualClock(1000))
    for i in range(100):
        first.append(f"item {i}".encode())
    for _ in range(30):
        finish(first)
    first.close()
    second = DiskQueue(tmp_path, 2**20, ManualClock(1000))
    assert emptied(second) == [f"item {i}".encode() for i in range(30, 100)]
    assert (second.size, second.oldest_ms(), second.peek()) == (0, None, None)
    second.close()
    assert emptied(DiskQueue(tmp_path, 2**20, ManualClock(1000))) == []


def test_an_item_stays_until_it_is_done(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, 2**20, ManualClock())
    queue.append(b"a")
    item = queue.peek()
    assert item is not None
    assert (item.data, queue.peek()) == (b"a", item)
    queue.done(item)
    queue.done(item)
    assert queue.peek() is None


def test_beyond_its_bound_the_oldest_go_and_are_counted_by_weight(tmp_path: Path) -> None:
    dropped = Dropped()
    queue = DiskQueue(tmp_path, 100_000, ManualClock(), dropped)
    for i in range(300):
        queue.append(bytes([i % 256]) * 1000, weight=7)
        assert queue.size <= 100_000
    kept = emptied(queue)
    assert dropped["queue_full"] == 7 * (300 - len(kept))
    assert len(kept) > 80
    assert kept == [bytes([i % 256]) * 1000 for i in range(300 - len(kept), 300)]


def test_the_files_of_what_is_done_are_removed(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, 100_000, ManualClock())
    for _ in range(90):
        queue.append(bytes(1000))
    emptied(queue)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


def test_an_item_larger_than_the_queue_is_dropped(tmp_path: Path) -> None:
    dropped = Dropped()
    queue = DiskQueue(tmp_path, 1000, ManualClock(), dropped)
    queue.append(b"small")
    queue.append(bytes(2000), weight=3)
    assert (dropped["queue_full"], emptied(queue)) == (3, [b"small"])


def test_what_is_being_sent_while_it_is_crowded_out_takes_nothing_else_with_it(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, 10_000, ManualClock(), Dropped())
    queue.append(b"first")
    item = queue.peek()
    assert item is not None
    for i in range(30):
        queue.append(bytes([i]) * 1000)
    assert queue.oldest_ms() is not None  # which looks at the item that is the first one now
    queue.done(item)
    kept = emptied(queue)
    assert b"first" not in kept
    assert kept == [bytes([i]) * 1000 for i in range(30 - len(kept), 30)]
    assert len(kept) >= 8


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_record_that_was_cut_off_is_cut_away(tmp_path: Path, cut: int) -> None:
    queue = DiskQueue(tmp_path, 2**20, ManualClock())
    queue.append(b"whole")
    queue.append(b"cut off here")
    queue.close()
    segment = next(tmp_path.glob("*.segment"))
    segment.write_bytes(segment.read_bytes()[:-cut])
    dropped = Dropped()
    again = DiskQueue(tmp_path, 2**20, ManualClock(), dropped)
    again.append(b"new")
    assert emptied(again) == [b"whole", b"new"]
    assert dropped == {"corrupt": 1}


@pytest.mark.parametrize(("changed", "lost"), [(0, [0]), (1, [1]), (2, [2]), (4, [4])])
def test_of_records_of_which_one_was_changed_the_others_are_sent(tmp_path: Path, changed: int, lost: list[int]) -> None:
    queue, dropped = DiskQueue(tmp_path, 2**20, ManualClock()), Dropped()
    for i in range(5):
        queue.append(bytes([i]) * 100, weight=7)
    queue.close()
    segment = next(tmp_path.glob("*.segment"))
    raw = bytearray(segment.read_bytes())
    raw[120 * changed + 70] ^= 1
    segment.write_bytes(raw)
    kept = emptied(DiskQueue(tmp_path, 2**20, ManualClock(), dropped))
    assert kept == [bytes([i]) * 100 for i in range(5) if i not in lost]
    assert dropped == {"corrupt": 7}


def test_files_of_others_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    for name in ("x.segment", "5.segment", "notes.txt"):
        (tmp_path / name).write_text("not ours")
    queue = DiskQueue(tmp_path, 2**20, ManualClock())
    queue.append(b"a")
    assert emptied(queue) == [b"a"]
    assert (tmp_path / "x.segment").read_text() == "not ours"


def test_a_disk_that_takes_no_further_segment_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """What has the number of a file that was closed must not get what is meant for the queue."""
    directory = tmp_path / "queue"
    queue = DiskQueue(directory, 8_000, ManualClock())
    queue.append(bytes(900))
    moved = directory.rename(tmp_path / "away")
    with pytest.raises(StoreError, match="cannot be used"):
        queue.append(bytes(900))
    others = [os.open(tmp_path / f"other{i}", os.O_RDWR | os.O_CREAT) for i in range(5)]
    with pytest.raises(StoreError, match="cannot be used"):
        queue.append(bytes(900))
    queue.append(b"small")
    assert [os.fstat(other).st_size for other in others] == [0] * 5
    for other in others:
        os.close(other)
    moved.rename(directory)
    queue.append(bytes(900))
    assert emptied(queue) == [bytes(900), b"small", bytes(900)]
    queue.close()


def test_a_record_that_was_changed_is_not_sent(tmp_path: Path) -> None:
    dropped = Dropped()
    queue = DiskQueue(tmp_path, 80_000, ManualClock())
    for i in range(20):
        queue.append(bytes([i]) * 1000)
    queue.close()
    segments = sorted(tmp_path.glob("*.segment"))
    raw = bytearray(segments[0].read_bytes())
    raw[1500] ^= 1
    segments[0].write_bytes(raw)
    kept = emptied(DiskQueue(tmp_path, 80_000, ManualClock(), dropped))
    assert dropped["corrupt"] >= 1
    assert kept[0] == bytes([0]) * 1000
    assert kept[-1] == bytes([19]) * 1000
    assert all(len(set(item)) == 1 for item in kept)


@pytest.mark.parametrize("raw", [b"", b"short", bytes(20), b"\xff" * 20])
def test_a_position_that_was_lost_means_from_the_start(tmp_path: Path, raw: bytes) -> None:
    queue = DiskQueue(tmp_path, 2**20, ManualClock())
    queue.append(b"a")
    queue.append(b"b")
    finish(queue)
    queue.close()
    (tmp_path / "position").write_bytes(raw)
    assert emptied(DiskQueue(tmp_path, 2**20, ManualClock())) == [b"a", b"b"]


def test_the_age_is_the_first_items(tmp_path: Path) -> None:
    clock = ManualClock(50_000)
    queue = DiskQueue(tmp_path, 2**20, clock)
    queue.append(b"a")
    clock.advance(5)
    queue.append(b"b")
    assert queue.oldest_ms() == 50_000
    finish(queue)
    assert queue.oldest_ms() == 55_000


CHILD = """
import sys
from pathlib import Path
from loms.core.clock import SystemClock
from loms.forward.queue import DiskQueue
queue = DiskQueue(Path(sys.argv[1]), 2**30, SystemClock())
for i in range(10**9):
    queue.append(b"%d" % i * 100)
    if i % 3 == 0:
        queue.done(queue.peek())
    print(i, flush=True)
"""


def test_nothing_that_was_appended_is_lost_by_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(500)]
        child.kill()
        lines += child.stdout.read().splitlines(keepends=True)
    last = int([line for line in lines if line.endswith(b"\n")][-1])
    kept = [int(item[: len(item) // 100]) for item in emptied(DiskQueue(tmp_path, 2**30, SystemClock()))]
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert kept[0] in (last // 3 + 1, last // 3 + 2)
    assert kept[-1] in (last, last + 1)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, 2**20, ManualClock())
    with pytest.raises(StoreError, match="used by another process"):
        DiskQueue(tmp_path, 2**20, ManualClock())
    queue.close()
    DiskQueue(tmp_path, 2**20, ManualClock()).close()


def test_a_directory_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file.*cannot be used"):
        DiskQueue(tmp_path / "file", 2**20, ManualClock())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["append", "large", "done", "reopen"]), max_size=60))
def test_it_is_a_queue_whatever_happens(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Against a deque, with segments of 100 bytes and no bound that matters."""
    directory = tmp_path_factory.mktemp("queue")
    queue, model = DiskQueue(directory, 2**20, ManualClock()), deque[bytes]()
    queue._segment_bytes = 100
    for i, step in enumerate(steps):
        if step in ("append", "large"):
            item = str(i).encode() * (1 if step == "append" else 60)
            queue.append(item)
            model.append(item)
        elif step == "done" and model:
            assert finish(queue) == model[0]
            model.popleft()
        elif step == "reopen":
            queue.close()
            queue = DiskQueue(directory, 2**20, ManualClock())
            queue._segment_bytes = 100
    assert emptied(queue) == list(model)
    queue.close()
