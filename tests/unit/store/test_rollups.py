"""Rows worked out by hand, and the roller's bookkeeping, on a clock that counts from 1970."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.processes import wait_until
from support.rolled import DAY, Rolled

from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.core.model import STALE_NAN, SampleBatch, Series
from loms.store.rollups import Roller
from loms.store.writer import Writer

MINUTE, HOUR = 60_000, 3_600_000
M = Series.of("m", ())


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    store = Rolled(tmp_path_factory.mktemp("rolled"))
    yield store
    store.close()


@pytest.fixture
def store(opened: Rolled) -> Rolled:
    opened.begin(2 * HOUR + 5 * MINUTE)
    return opened


def write(store: Rolled, *samples: tuple[int, float], series: Series = M) -> None:
    times, values = zip(*samples, strict=True)
    store.write([(series, np.array(times, np.int64), np.array(values, np.float64))])


def rows(store: Rolled, table: str) -> list[dict[str, Any]]:
    """The rows by series and bucket, named by the bucket's end in seconds."""
    columns = store.database.query_columns(
        f"SELECT toUnixTimestamp(bucket) AS bucket, * EXCEPT (bucket, version) FROM {table} FINAL"
        " ORDER BY series_id, bucket"
    )
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*(one.to_pylist() for one in columns.values()), strict=True)
    ]


def test_a_minute_is_open_on_the_left_and_closed_on_the_right(store: Rolled) -> None:
    write(store, (60_000, 1.0), (60_001, 2.0), (120_000, 4.0), (120_001, 8.0))
    store.roll()
    assert [(row["bucket"], row["total"]) for row in rows(store, "rollup_minute")] == [
        (60, 1.0),
        (120, 6.0),
        (180, 8.0),
    ]


def test_what_a_row_says_of_its_samples(store: Rolled) -> None:
    write(store, (61_000, 5.0), (71_000, 9.0), (81_000, 9.0), (91_000, 2.0), (101_000, 7.0), (111_000, 1.0))
    store.roll()
    assert rows(store, "rollup_minute") == [
        {
            "bucket": 120,
            "series_id": M.id,
            "samples": 6,
            "total": 33.0,
            "lowest": 1.0,
            "highest": 9.0,
            "spread": pytest.approx(59.5),  # 25 + 81 + 81 + 4 + 49 + 1 less 33² / 6
            "opening": 5.0,
            "closing": 1.0,
            "opening_before_ms": 59_000,
            "closing_before_ms": 9_000,
            "changes": 4,
            "resets": 2,  # 9 to 2 and 7 to 1
            "lost": 16.0,
            "ended": 0,
        }
    ]


def test_a_row_says_whether_the_series_has_ended(store: Rolled) -> None:
    write(store, (10_000, 1.0), (20_000, STALE_NAN), (70_000, STALE_NAN), (130_000, STALE_NAN), (140_000, 3.0))
    store.roll()
    found = [(row["bucket"], row["samples"], row["total"], row["ended"]) for row in rows(store, "rollup_minute")]
    assert found == [(60, 1, 1.0, 1), (120, 0, 0.0, 1), (180, 1, 3.0, 0)]


def test_not_a_number_is_the_extreme_only_where_there_is_no_other(store: Rolled) -> None:
    write(store, (10_000, np.nan), (20_000, 4.0), (30_000, -4.0), (70_000, np.nan))
    store.roll()
    one, other = rows(store, "rollup_minute")
    assert (one["lowest"], one["highest"]) == (-4.0, 4.0)
    assert np.isnan([one["total"], other["lowest"], other["highest"]]).all()


def test_samples_of_one_time_count_once(store: Rolled) -> None:
    write(store, (10_000, 4.0), (20_000, 4.0))
    write(store, (10_000, 4.0), (20_000, 3.0))
    store.roll()
    assert [(row["samples"], row["total"], row["changes"]) for row in rows(store, "rollup_minute")] == [(2, 8.0, 0)]


def test_hours_know_what_happened_between_their_minutes(store: Rolled) -> None:
    write(store, (30_000, 10.0), (90_000, 4.0), (100_000, 6.0), (HOUR, 1.0), (HOUR + 1, 7.0))
    store.roll()
    one, other = rows(store, "rollup_hour")
    assert (one["bucket"], one["samples"], one["total"], one["changes"], one["resets"]) == (3600, 4, 21.0, 3, 2)
    assert one["lost"] == 16.0
    assert one["spread"] == pytest.approx(42.75)  # 100 + 16 + 36 + 1 less 21² / 4
    assert (one["opening"], one["closing"], one["opening_before_ms"], one["closing_before_ms"]) == (
        10.0, 1.0, HOUR - 30_000, 0
    )  # fmt: skip
    assert (other["bucket"], other["total"]) == (7200, 7.0)


def test_what_has_not_settled_waits(store: Rolled) -> None:
    now = store.clock.now_ms()
    write(store, (now - 50_000, 1.0), (now + 90_000, 2.0))
    assert store.roll() == 0
    store.clock.advance(180)
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_minute")] == [1.0]
    store.clock.advance(60)
    assert store.roll() == 0  # fewer minutes than are worth a part
    store.clock.advance(240)
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_minute")] == [1.0, 2.0]


def test_an_old_store_is_rolled_up_day_by_day(store: Rolled) -> None:
    store.advance_to(4 * 24 * HOUR)
    write(store, *((time, 1.0) for time in range(30_000, 3 * 24 * HOUR, HOUR)))
    assert store.roller.roll()
    assert len(rows(store, "rollup_minute")) == 24
    store.roll()
    assert [len(rows(store, table)) for table in ("rollup_minute", "rollup_hour")] == [72, 72]


def test_work_is_cut_to_size(store: Rolled) -> None:
    series = [Series.of("m", (("i", str(i)),)) for i in range(40)]
    for one in series:
        write(store, (10_000, 1.0), (70_000, 1.0), series=one)
    store.restart(job_samples=20)
    assert store.roll() >= 80 // 20 * 2
    assert len(rows(store, "rollup_minute")) == 80
    assert {row["series_id"] for row in rows(store, "rollup_hour")} == {one.id for one in series}


def test_late_samples_have_their_buckets_made_again(store: Rolled) -> None:
    write(store, (30_000, 1.0), (HOUR + 30_000, 1.0))
    store.roll()
    write(store, (20_000, 5.0), (3 * MINUTE, 7.0))
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_hour")] == [1.0, 1.0]
    store.clock.advance(61)  # an insert may take so long
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_minute")] == [6.0, 7.0, 1.0]
    assert [row["total"] for row in rows(store, "rollup_hour")] == [13.0, 1.0]
    assert rows(store, "rollup_hour")[0]["resets"] == 1
    store.clock.advance(61)
    assert store.roll() == 0


def test_late_samples_are_not_forgotten_over_a_restart(store: Rolled) -> None:
    write(store, (30_000, 1.0))
    store.roll()
    write(store, (40_000, 5.0))
    store.clock.advance(7200)
    store.restart()
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_minute")] == [6.0]


def test_a_sample_in_time_needs_no_note(store: Rolled) -> None:
    now = store.clock.now_ms()
    write(store, (now - 59_999, 1.0), (now, 1.0), (now + 1000, 1.0))
    assert len(store.database.query_columns("SELECT hour FROM rollup_late")["hour"]) == 0


def test_an_hour_of_which_samples_may_be_gone_is_left_as_it_is(store: Rolled) -> None:
    store.advance_to((30 * 24 + 1) * HOUR + 1)
    store.roller.note(np.array([M.id], np.uint64), np.array([HOUR + 10_000]))
    write(store, (5 * HOUR, 1.0))
    store.roll()
    store.database.command(
        "INSERT INTO rollup_minute (series_id, bucket, samples, total, version)"
        f" SELECT {M.id}, toDateTime(3660, 'UTC'), 9, 9., 1"
    )
    store.clock.advance(61)
    store.roll()
    assert [row["samples"] for row in rows(store, "rollup_minute")] == [9, 1]


def test_the_writer_notes_late_samples_before_it_writes_them(store: Rolled) -> None:
    write(store, (30_000, 1.0))
    store.roll()
    writer = Writer(store.database, store.clock, flush_seconds=3600, before=store.roller.note)
    writer(SampleBatch(np.array([M.id], np.uint64), np.array([40_000]), np.array([5.0])))
    assert writer.flush(60)
    writer.close()
    store.clock.advance(61)
    store.roll()
    assert [row["total"] for row in rows(store, "rollup_minute")] == [6.0]


class Refusing:
    """A store that refuses statements while it is told to."""

    retention_seconds = 30.0 * DAY

    def __init__(self, store: Rolled) -> None:
        self._database = store.database
        self.refuses = True
        self.query_columns, self.insert_arrow = store.database.query_columns, store.database.insert_arrow

    def command(self, sql: str) -> None:
        if self.refuses:
            raise StoreError("no space left on the device")
        self._database.command(sql)


def test_work_that_failed_is_done_again(store: Rolled) -> None:
    write(store, (30_000, 1.0))
    refusing = Refusing(store)
    roller = Roller(refusing, ManualClock(2 * HOUR))
    with pytest.raises(StoreError):
        roller.roll()
    refusing.refuses = False
    while roller.roll():
        pass
    assert [row["total"] for row in rows(store, "rollup_hour")] == [1.0]


def test_a_started_roller_tells_its_trouble_and_ends(store: Rolled) -> None:
    write(store, (30_000, 1.0))
    roller = Roller(Refusing(store), ManualClock(2 * HOUR))
    roller.start()
    wait_until(lambda: roller.trouble == "no space left on the device", 60, "the roller's trouble")
    roller.close()
