from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from loms.core import guard, selfmetrics
from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.core.model import SampleBatch, Series
from loms.store.database import Database
from loms.store.series import REFRESH_MS, WINDOW_MS
from loms.store.writer import Writer

T0 = 1_790_000_000_000
A = Series.of("up", (("instance", "a:1"),))
B = Series.of("up", (("instance", "b:1"),))
DEADLINE = 30.0


class Tables:
    """A database that remembers what it was given, and refuses or waits when told to."""

    retention_seconds = 86_400.0

    def __init__(self) -> None:
        self.inserts: list[tuple[str, list[dict[str, object]]]] = []
        self.error: Exception | None = None
        self.attempts = threading.Semaphore(0)
        self.open_gate = threading.Event()
        self.open_gate.set()

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self.attempts.release()
        assert self.open_gate.wait(DEADLINE)
        if self.error is not None:
            raise self.error
        self.inserts.append((table, rows.to_pylist()))

    def rows(self, table: str) -> list[dict[str, object]]:
        return [row for name, rows in self.inserts if name == table for row in rows]

    def values(self) -> list[object]:
        return [row["value"] for row in self.rows("samples")]


def batch(*values: float, series: tuple[Series, ...] = (), of: Series = A) -> SampleBatch:
    n = len(values)
    return SampleBatch(np.full(n, of.id, np.uint64), np.full(n, T0), np.array(values, dtype=float), series)


@contextmanager
def writing(tables: Tables, clock: ManualClock | None = None, **options: object) -> Iterator[Writer]:
    writer = Writer(tables, clock or ManualClock(T0), **{"flush_seconds": 3600, **options})  # type: ignore[arg-type]
    try:
        yield writer
    finally:
        tables.open_gate.set()
        writer.close()


def total(name: str, **labels: str) -> float:
    return selfmetrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def dropped() -> Callable[[str], float]:
    """Samples dropped for a reason since the test began."""
    before = {
        reason: total("loms_dropped_samples_total", reason=reason)
        for reason in ("queue_full", "closed", "insert_failed", "out_of_bounds", "unwritable")
    }
    return lambda reason: total("loms_dropped_samples_total", reason=reason) - before[reason]


def test_batches_are_written_together_with_their_new_series_first() -> None:
    tables = Tables()
    with writing(tables) as writer:
        writer(batch(1.0, 2.0, series=(A,)))
        writer(batch(3.0, series=(A, B), of=B))
        assert writer.flush(DEADLINE)
    assert [name for name, _ in tables.inserts] == ["series", "samples"]
    assert [row["id"] for row in tables.rows("series")] == [A.id, B.id]
    assert tables.values() == [1.0, 2.0, 3.0]


def test_a_series_is_written_once() -> None:
    tables = Tables()
    with writing(tables) as writer:
        for value in (1.0, 2.0, 3.0):
            writer(batch(value, series=(A,)))
            assert writer.flush(DEADLINE)
    assert [name for name, _ in tables.inserts] == ["series", "samples", "samples", "samples"]


def test_rows_are_written_without_asking_after_the_flush_interval() -> None:
    tables = Tables()
    with writing(tables, flush_seconds=0.01) as writer:
        writer(batch(1.0))
        assert tables.attempts.acquire(timeout=DEADLINE)
        assert writer.flush(DEADLINE)
        writer(batch(2.0))
        assert tables.attempts.acquire(timeout=DEADLINE)


def test_many_rows_are_written_before_the_flush_interval() -> None:
    tables = Tables()
    with writing(tables, flush_rows=10) as writer:
        writer(batch(*range(9)))
        writer(batch(9.0))
        assert tables.attempts.acquire(timeout=DEADLINE)
        assert writer.flush(DEADLINE)
    assert tables.values() == [float(i) for i in range(10)]


def test_one_insert_holds_about_the_rows_of_a_flush() -> None:
    tables = Tables()
    tables.open_gate.clear()
    with writing(tables, flush_rows=10) as writer:
        for i in range(20):
            writer(batch(*[float(i)] * 4))
        tables.open_gate.set()
        assert writer.flush(DEADLINE)
    assert {len(rows) for _, rows in tables.inserts} <= {8, 12}
    assert len(tables.values()) == 80


def test_closing_writes_what_waits() -> None:
    tables = Tables()
    writer = Writer(tables, ManualClock(T0), flush_seconds=3600)
    writer(batch(1.0, series=(A,)))
    writer.close()
    writer.close()
    assert tables.values() == [1.0]
    assert len(tables.rows("series")) == 1


def test_after_closing_batches_are_counted_as_dropped(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    with writing(tables) as writer:
        pass
    writer(batch(1.0, 2.0))
    assert dropped("closed") == 2
    assert writer.flush(DEADLINE)
    assert tables.inserts == []


def test_what_does_not_fit_is_dropped_without_waiting_and_its_series_kept(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.open_gate.clear()
    with writing(tables, flush_rows=1, queue_rows=10) as writer:
        writer(batch(1.0, 2.0, 3.0))
        assert tables.attempts.acquire(timeout=DEADLINE)
        writer(batch(*range(7)))
        writer(batch(8.0, series=(B,)))
        assert dropped("queue_full") == 1
        assert total("loms_write_queue_samples") == 10
        tables.open_gate.set()
        assert writer.flush(DEADLINE)
        writer(batch(9.0))
        assert writer.flush(DEADLINE)
    assert len(tables.values()) == 11
    assert tables.rows("series")[0]["id"] == B.id
    assert total("loms_write_queue_samples") == 0


def test_who_listens_is_told_of_what_is_accepted_and_of_nothing_else() -> None:
    tables, told = Tables(), list[SampleBatch]()
    tables.open_gate.clear()
    with writing(tables, flush_rows=1, queue_rows=4, accepted=told.append) as writer:
        batches = [batch(1.0, 2.0), batch(3.0, 4.0), batch(5.0), batch(6.0)]
        writer(batches[0])
        assert writer.offer(batches[1])
        writer(batches[2])
        assert not writer.offer(batches[3])
        tables.open_gate.set()
    writer(batch(7.0))
    assert not writer.offer(batch(8.0))
    assert [one.values.tolist() for one in told] == [[1.0, 2.0], [3.0, 4.0]]
    assert tables.values() == [1.0, 2.0, 3.0, 4.0]


def test_a_failed_insert_is_tried_again(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.error = StoreError("disk full")
    failures = total("loms_write_failures_total")
    with writing(tables, flush_rows=1) as writer:
        writer(batch(1.0, series=(A,)))
        for _ in range(2):
            assert tables.attempts.acquire(timeout=DEADLINE)
        tables.error = None
        assert writer.flush(DEADLINE)
    assert tables.values() == [1.0]
    assert len(tables.rows("series")) == 1
    assert total("loms_write_failures_total") - failures >= 1
    assert dropped("insert_failed") == 0


def test_failed_rows_make_room_once_the_queue_overflows(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.error = StoreError("disk full")
    with writing(tables, flush_rows=4, queue_rows=10) as writer:
        writer(batch(*[1.0] * 4, series=(A,)))
        assert tables.attempts.acquire(timeout=DEADLINE)
        writer(batch(*[2.0] * 6))
        writer(batch(*[3.0] * 5))
        assert dropped("queue_full") == 5
        while dropped("insert_failed") == 0:
            assert tables.attempts.acquire(timeout=DEADLINE)
        tables.error = None
        assert writer.flush(DEADLINE)
        assert dropped("insert_failed") == 4
    assert tables.values() == [2.0] * 6
    assert [row["id"] for row in tables.rows("series")] == [A.id], "a series outlives the samples it came with"


def test_closing_tries_a_failing_insert_once_more_and_counts_the_loss(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.error = StoreError("disk full")
    with writing(tables) as writer:
        writer(batch(1.0, 2.0, series=(A,)))
        assert not writer.flush(0.01)
    assert dropped("insert_failed") == 2


def test_an_unexpected_error_is_counted_and_writing_goes_on(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.error = ZeroDivisionError("a mistake of ours")
    before = guard.failures["store.writer"]
    with writing(tables) as writer:
        writer(batch(1.0, series=(A,)))
        assert writer.flush(DEADLINE)
        tables.error = None
        writer(batch(2.0))
        assert writer.flush(DEADLINE)
    assert guard.failures["store.writer"] > before
    assert dropped("insert_failed") == 1
    assert tables.values() == [2.0]
    assert len(tables.rows("series")) == 1


def test_flushing_gives_up_after_its_time() -> None:
    tables = Tables()
    tables.open_gate.clear()
    with writing(tables) as writer:
        writer(batch(1.0))
        assert not writer.flush(0.01)
        tables.open_gate.set()
        assert writer.flush(DEADLINE)


def test_living_series_are_written_again_after_a_day() -> None:
    tables, clock = Tables(), ManualClock(T0)
    with writing(tables, clock) as writer:
        writer(batch(1.0, series=(A,)))
        writer(batch(1.0, series=(B,), of=B))
        assert writer.flush(DEADLINE)
        for seconds in (REFRESH_MS / 1000, WINDOW_MS / 1000):
            clock.advance(seconds)
            writer(batch(1.0))
            assert writer.flush(DEADLINE)
        writer(batch(1.0))
        assert writer.flush(DEADLINE)
    assert [row["id"] for row in tables.rows("series")] == [A.id, B.id, A.id]


def test_samples_out_of_bounds_are_dropped_and_the_others_written(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    day_ms = 86_400_000
    times = np.array([T0, T0 - day_ms, T0 - day_ms - 1, T0 + 600_000, T0 + 600_001, 0, 2**62, -(2**62)])
    with writing(tables) as writer:
        writer(SampleBatch(np.full(8, A.id, np.uint64), times, np.arange(8.0)))
        assert writer.flush(DEADLINE)
    assert tables.values() == [0.0, 1.0, 3.0]
    assert dropped("out_of_bounds") == 5


def test_a_batch_may_span_hundreds_of_days(database: Database) -> None:
    writer = Writer(database, ManualClock(T0), flush_seconds=3600)
    writer(SampleBatch(np.full(300, A.id, np.uint64), T0 - 86_400_000 * np.arange(300), np.arange(300.0)))
    assert writer.flush(DEADLINE)
    writer.close()
    assert database.figures().samples == 300


def test_empty_batches_write_only_their_series() -> None:
    tables = Tables()
    with writing(tables) as writer:
        writer(batch())
        writer(batch(series=(A,)))
        assert writer.flush(DEADLINE)
    assert [name for name, _ in tables.inserts] == ["series"]


def test_written_samples_and_series_are_counted(database: Database) -> None:
    before = total("loms_written_samples_total"), total("loms_written_series_total")
    writer = Writer(database, ManualClock(T0), flush_seconds=3600)
    writer(batch(1.0, 2.0, series=(A,)))
    assert writer.flush(DEADLINE)
    writer.close()
    after = total("loms_written_samples_total"), total("loms_written_series_total")
    assert after == (before[0] + 2, before[1] + 1)
    assert database.figures().samples == 2


def test_threads_may_write_at_once() -> None:
    tables = Tables()
    with writing(tables, flush_rows=50) as writer:
        threads = [threading.Thread(target=lambda: [writer(batch(1.0, 2.0)) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.flush(DEADLINE)
    assert len(tables.values()) == 4 * 200 * 2


class Picky(Tables):
    """Refuses what has a certain series or value in it, for ever."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.refusal = error

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        wrong = B.id in rows["id"].to_pylist() if table == "series" else 13.0 in rows["value"].to_pylist()
        self.attempts.release()
        if wrong:
            raise self.refusal
        super().insert_arrow(table, rows)


@pytest.mark.parametrize("error", [TypeError("a mistake of ours"), StoreError("this row, never")])
def test_what_can_never_be_written_does_not_keep_the_rest_waiting(
    error: Exception, dropped: Callable[[str], float]
) -> None:
    tables = Picky(error)
    lost = total("loms_dropped_series_total", reason="unwritable")
    others = tuple(Series.of("up", (("instance", f"{i}:1"),)) for i in range(100))
    with writing(tables, flush_rows=1000) as writer:
        writer(batch(*range(10), series=(*others[:40], B, *others[40:])))
        writer(batch(12.0, 13.0))
        writer(batch(14.0))
        assert writer.flush(DEADLINE)
        assert writer.trouble == ""
        writer(batch(15.0, series=(A,)))
        assert writer.flush(DEADLINE)
    assert tables.values() == [*map(float, range(10)), 14.0, 15.0]
    assert {row["id"] for row in tables.rows("series")} == {one.id for one in (*others, A)}
    assert total("loms_dropped_series_total", reason="unwritable") - lost == 1
    assert (dropped("unwritable"), dropped("insert_failed")) == (2, 0)


def test_a_store_that_is_away_costs_nothing_however_long_it_is(dropped: Callable[[str], float]) -> None:
    tables = Tables()
    tables.error = StoreError("nobody there")
    with writing(tables) as writer:
        for value in range(3):
            writer(batch(float(value), series=(A, B)))
        assert not writer.flush(0.01)
        for _ in range(12):  # three tries, then a fourth whose rows are tried apart
            assert tables.attempts.acquire(timeout=DEADLINE)
        tables.error = None
        assert writer.flush(DEADLINE)
    assert sorted(tables.values()) == [0.0, 1.0, 2.0]  # type: ignore[type-var]
    assert {row["id"] for row in tables.rows("series")} == {A.id, B.id}
    assert (dropped("unwritable"), dropped("insert_failed")) == (0, 0)
