"""The writer of spans and records: bounded, batching, patient, and losing nothing that it took while it lives."""

from __future__ import annotations

import threading
from collections import defaultdict

import pyarrow as pa
import pytest

from loms.core import selfmetrics
from loms.core.errors import StoreError
from loms.store.telemetry import TelemetryWriter


class FakeStore:
    """Keeps rows; refuses as often as it is told, or waits until it may go on."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.inserts: list[tuple[str, list[int]]] = []
        self.go = threading.Event()
        self.go.set()

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self.go.wait()
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        self.inserts.append((table, rows.column("n").to_pylist()))

    def rows(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for table, numbers in self.inserts:
            found[table] += numbers
        return dict(found)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def test_what_comes_close_together_is_one_insert_for_each_table() -> None:
    store = FakeStore()
    writer = TelemetryWriter(store, flush_seconds=60)
    assert all(writer.offer(table, rows(n)) for n, table in enumerate(["t", "l", "t", "t"]))
    assert writer.flush()
    assert store.inserts == [("t", [0, 2, 3]), ("l", [1])]
    writer.close()


def test_enough_bytes_are_written_without_waiting_for_the_clock() -> None:
    store = FakeStore()
    writer = TelemetryWriter(store, flush_seconds=1e9, flush_bytes=80)
    assert writer.offer("t", rows(*range(10)))
    with writer._wake:
        assert writer._wake.wait_for(lambda: store.inserts, 30)
    writer.close()


def test_a_full_queue_refuses_and_has_room_again_later() -> None:
    store = FakeStore()
    store.go.clear()
    writer = TelemetryWriter(store, flush_seconds=0.01, queue_bytes=160)
    assert writer.offer("t", rows(*range(10)))
    assert writer.offer("t", rows(*range(10, 20)))
    assert not writer.offer("t", rows(20)), "what is being written counts too"
    store.go.set()
    assert writer.flush()
    assert writer.offer("t", rows(20))
    writer.close()
    assert store.rows() == {"t": list(range(21))}


def test_more_than_the_queue_holds_goes_alone() -> None:
    store = FakeStore()
    writer = TelemetryWriter(store, queue_bytes=80)
    assert writer.offer("t", rows(*range(1000)))
    writer.close()
    assert store.rows() == {"t": list(range(1000))}


def test_a_failed_insert_is_tried_again() -> None:
    store = FakeStore(failures=2)
    writer = TelemetryWriter(store, flush_seconds=0.01)
    assert writer.offer("t", rows(1, 2))
    assert writer.flush()
    assert store.rows() == {"t": [1, 2]}
    assert writer.trouble == ""
    writer.close()


def test_the_end_tries_once_more_and_then_counts_what_is_lost() -> None:
    store = FakeStore(failures=10**9)
    lost = selfmetrics.telemetry_lost.labels("t_lost")
    before = lost._value.get()
    writer = TelemetryWriter(store, flush_seconds=0.01)
    assert writer.offer("t_lost", rows(1, 2, 3))
    writer.close()
    assert lost._value.get() - before == 3
    assert writer.trouble == "the disk is full"
    assert not writer.offer("t_lost", rows(4))


@pytest.mark.parametrize("threads", [4])
def test_many_threads_lose_nothing(threads: int) -> None:
    store = FakeStore()
    writer = TelemetryWriter(store, flush_seconds=0.001, flush_bytes=64, queue_bytes=10**6)

    def send(first: int) -> None:
        for n in range(first, first + 200):
            assert writer.offer("t", rows(n))

    workers = [threading.Thread(target=send, args=(1000 * i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    writer.close()
    assert sorted(store.rows()["t"]) == sorted(n for i in range(threads) for n in range(1000 * i, 1000 * i + 200))
