"""Each sample once: held against a plain dictionary of (series, time), over the real store and writer."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from support.processes import wait_until

from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.core.model import SampleBatch, Series
from loms.store.arrivals import ANNOUNCE_MS, PIECE_ROWS, Accepted, Arrivals
from loms.store.database import Database
from loms.store.writer import Writer

NOW = 1_790_000_000_000
SERIES = [Series.of("m", (("n", str(i)),)) for i in range(5)]


def batch(*rows: tuple[int, int, float], series: tuple[Series, ...] = tuple(SERIES)) -> SampleBatch:
    """(number of the series, milliseconds before now, value)."""
    ids, times, values = zip(*rows, strict=True)
    return SampleBatch(
        np.array([SERIES[i].id for i in ids], dtype=np.uint64),
        NOW - np.array(times, dtype=np.int64),
        np.array(values, dtype=np.float64),
        series,
    )


class Kept:
    """Stands before the store, remembers what was offered, and has no room when told so."""

    def __init__(self) -> None:
        self.offered: list[SampleBatch] = []
        self.room = 10**9
        self.writes = True
        self.flushes = 0

    def offer(self, some: SampleBatch, /) -> bool:
        if len(some) > self.room:
            return False
        self.room -= len(some)
        self.offered.append(some)
        return True

    def flush(self, _: float = 30.0, /) -> bool:
        self.flushes += 1
        return self.writes

    def bounds_ms(self) -> tuple[int, int]:
        return NOW - 86_400_000, NOW + 600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def writer(database: Database, clock: ManualClock) -> Iterator[Writer]:
    opened = Writer(database, clock, flush_seconds=3600)
    yield opened
    opened.close()


def stored(database: Database, writer: Writer) -> list[tuple[int, int, float]]:
    assert writer.flush()
    columns = database.query_columns(
        "SELECT series_id AS id, toUnixTimestamp64Milli(ts) AS t, value FROM samples ORDER BY id, t, value"
    )
    return list(zip(*(columns[name].to_pylist() for name in ("id", "t", "value")), strict=True))


def test_a_sample_that_comes_again_is_a_duplicate_and_one_with_another_value_conflicts(
    database: Database, writer: Writer, clock: ManualClock
) -> None:
    arrivals = Arrivals(writer, database, clock)
    first = batch((0, 9, 1.0), (1, 9, float("nan")), (0, 7, 2.0))
    assert arrivals.accept(first) == Accepted(accepted=3)
    assert arrivals.accept(first) == Accepted(duplicate=3)
    assert arrivals.accept(batch((0, 9, 5.0), (0, 8, 1.5), (0, 6, 3.0))) == Accepted(accepted=2, conflicting=1)
    assert [(t - NOW, v) for i, t, v in stored(database, writer) if i == SERIES[0].id] == [
        (-9, 1.0),
        (-8, 1.5),
        (-7, 2.0),
        (-6, 3.0),
    ]


def test_within_one_request_the_first_counts(database: Database, writer: Writer, clock: ManualClock) -> None:
    arrivals = Arrivals(writer, database, clock)
    assert arrivals.accept(batch((2, 5, 1.0), (2, 5, 1.0), (2, 5, 2.0), (2, 4, 2.0))) == Accepted(2, 1, 1)
    assert [v for _, _, v in stored(database, writer)] == [1.0, 2.0]


def test_after_a_restart_what_is_stored_is_known(database: Database, writer: Writer, clock: ManualClock) -> None:
    Arrivals(writer, database, clock).accept(batch((0, 9, 1.0), (0, 5, 2.0), (1, 5, 3.0)))
    assert writer.flush()
    again = Arrivals(writer, database, clock)
    assert again.accept(batch((0, 9, 1.0), (0, 7, 4.0), (0, 5, 2.0), (0, 4, 5.0), (3, 9, 1.0))) == Accepted(3, 2)
    assert len(stored(database, writer)) == 6


def test_any_order_of_any_repetition_keeps_each_sample_once(
    database: Database, writer: Writer, clock: ManualClock
) -> None:
    rng = random.Random(4)
    there: dict[tuple[int, int], float] = {}
    arrivals = Arrivals(writer, database, clock, most_series=3)
    for turn in range(40):
        rows = [(rng.randrange(5), rng.randrange(1, 60), float(rng.randrange(2))) for _ in range(rng.randint(1, 8))]
        new = 0
        for series, before, value in rows:
            new += (series, before) not in there
            there.setdefault((series, before), value)
        accepted = arrivals.accept(batch(*rows))
        assert (accepted.accepted, accepted.duplicate + accepted.conflicting) == (new, len(rows) - new)
        if turn % 10 == 9:
            assert writer.flush()
            arrivals = Arrivals(writer, database, clock, most_series=3)
    found = {(i, t): v for i, t, v in stored(database, writer)}
    assert found == {(SERIES[series].id, NOW - before): value for (series, before), value in there.items()}
    assert len(stored(database, writer)) == len(there)


class Counting:
    """A database that counts what it is asked."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.asked = 0

    def query_columns(self, sql: str, parameters: Mapping[str, Any] | None = None, /) -> dict[str, Any]:
        self.asked += 1
        return self._database.query_columns(sql, parameters)


def test_the_store_is_asked_for_new_series_and_late_samples_only(database: Database, clock: ManualClock) -> None:
    kept, counting = Kept(), Counting(database)
    arrivals = Arrivals(kept, counting, clock)
    asked = []
    for rows in (batch((0, 9, 1.0), (1, 9, 1.0)), batch((0, 8, 1.0)), batch((0, 7, 1.0), (2, 7, 1.0))):
        arrivals.accept(rows)
        asked.append((counting.asked, kept.flushes))
    assert asked == [(1, 0), (1, 0), (2, 0)]
    arrivals.accept(batch((0, 20, 1.0)))
    assert (counting.asked, kept.flushes) == (3, 1)
    arrivals.accept(batch((0, 7, 2.0)))
    assert (counting.asked, kept.flushes) == (4, 2)
    kept.room = 0
    for _ in range(2):  # the second time nothing has been accepted since the flush
        arrivals.accept(batch((0, 30, 1.0)))
    assert (counting.asked, kept.flushes) == (6, 3)


def test_a_series_that_was_forgotten_while_its_samples_wait_is_found_again(
    database: Database, writer: Writer, clock: ManualClock
) -> None:
    arrivals = Arrivals(writer, database, clock, most_series=2)
    for series, before in ((0, 9), (1, 8), (2, 7)):
        arrivals.accept(batch((series, before, 1.0)))
    assert arrivals.accept(batch((0, 9, 1.0), (0, 8, 1.0))) == Accepted(accepted=1, duplicate=1)


def test_what_is_too_old_or_of_the_future_is_not_taken(database: Database, clock: ManualClock) -> None:
    kept = Kept()
    arrivals = Arrivals(kept, database, clock)
    rows = batch(
        (0, NOW, 1.0), (0, NOW - 4_102_444_800_000, 1.0), (0, 86_400_001, 1.0), (0, -600_001, 1.0), (0, 0, 1.0)
    )
    assert arrivals.accept(rows) == Accepted(accepted=1, out_of_bounds=4)
    assert arrivals.accept(batch((0, NOW, 1.0))) == Accepted(out_of_bounds=1)


def test_without_room_nothing_is_remembered(database: Database, clock: ManualClock) -> None:
    kept = Kept()
    kept.room = 0
    arrivals = Arrivals(kept, database, clock)
    assert arrivals.accept(batch((0, 5, 1.0))) == Accepted(full=True)
    kept.room = 10
    assert arrivals.accept(batch((0, 5, 1.0))) == Accepted(accepted=1)
    assert kept.offered[0].series == (SERIES[0],)


def test_a_large_request_is_offered_in_pieces_and_comes_again_whole(database: Database, clock: ManualClock) -> None:
    kept = Kept()
    kept.room = PIECE_ROWS
    arrivals = Arrivals(kept, database, clock)
    rows = batch(*((0, i, 1.0) for i in range(PIECE_ROWS + 10, 0, -1)))
    assert arrivals.accept(rows) == Accepted(accepted=PIECE_ROWS, full=True)


def test_a_series_is_named_with_its_first_samples_and_again_after_hours(database: Database, clock: ManualClock) -> None:
    kept = Kept()
    arrivals = Arrivals(kept, database, clock)
    arrivals.accept(batch((0, 9, 1.0), (1, 9, 1.0)))
    arrivals.accept(batch((0, 8, 1.0), (2, 8, 1.0)))
    arrivals.accept(batch((0, 7, 1.0)))
    clock.advance(ANNOUNCE_MS / 1000 + 1)
    arrivals.accept(batch((0, 6, 1.0)))
    arrivals.accept(batch((0, 5, 1.0)))
    named = [[one.labels[0][1] for one in some.series] for some in kept.offered]
    assert named == [["0", "1"], ["2"], [], ["0"], []]


def test_a_store_that_does_not_write_is_not_asked(database: Database, clock: ManualClock) -> None:
    kept = Kept()
    arrivals = Arrivals(kept, database, clock)
    arrivals.accept(batch((0, 5, 1.0)))
    kept.writes = False
    with pytest.raises(StoreError, match="does not write"):
        arrivals.accept(batch((0, 6, 1.0)))
    assert arrivals.accept(batch((0, 4, 1.0))) == Accepted(accepted=1)


def test_a_small_batch_does_not_wait_for_the_end_of_a_large_one(database: Database, clock: ManualClock) -> None:
    class Asking(Kept):
        def offer(self, some: SampleBatch, /) -> bool:
            if not self.offered:
                other.start()
                wait_until(arrivals._next.locked, 30, "that the other one waits for its turn", pause=0.01)
            return super().offer(some)

    kept = Asking()
    arrivals = Arrivals(kept, database, clock)
    other = threading.Thread(target=lambda: arrivals.accept(batch((1, 0, 7.0))))
    arrivals.accept(batch(*[(0, i, 1.0) for i in range(3 * PIECE_ROWS)]))
    other.join()
    assert [len(some) for some in kept.offered] == [PIECE_ROWS, 1, PIECE_ROWS, PIECE_ROWS]
