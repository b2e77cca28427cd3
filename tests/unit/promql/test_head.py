from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, Ids, SampleBatch, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.head import Head
from loms.promql.head_parts import Columns, Wanted
from loms.promql.head_source import HeadSource
from loms.promql.values import VectorResult

NOW_MS = 1_000_000_000
IDS = np.array([30, 10, 20], np.uint64)


def scrape(at_ms: int, *values: float, ids: Ids = IDS) -> SampleBatch:
    return SampleBatch(ids[: len(values)], np.full(len(values), at_ms), np.array(values, np.float64))


def head(size: int = 1 << 24, seconds: float = 660.0, from_ms: int = 0) -> Head:
    return Head(ManualClock(NOW_MS), size=size, seconds=seconds, from_ms=from_ms)


def rows(read: Columns | None) -> list[list[tuple[int, float]]]:
    """Times (from `NOW_MS`) and values of each series."""
    assert read is not None
    pairs = list(zip((read.times_ms - NOW_MS).tolist(), read.values.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(read.offsets[:-1], read.offsets[1:], strict=True)]


def test_samples_are_those_of_the_window_in_the_order_of_time() -> None:
    filled, wanted = head(), Wanted([(10,), (30,), (99,)])
    for at in (-30_000, -15_000, 0, -20_000):  # the last one comes late
        filled(scrape(NOW_MS + at, at + 0.3, at + 0.1, at + 0.2))
    want = [[(at, at + tenth) for at in (-20_000, -15_000, 0)] for tenth in (0.1, 0.3)]
    assert rows(filled.read(wanted, NOW_MS - 30_000, NOW_MS)) == [*want, []]
    newest = [[row[-1]] for row in want]
    assert rows(filled.read(wanted, NOW_MS - 30_000, NOW_MS, newest=True)) == [*newest, []]
    assert rows(filled.read(wanted, NOW_MS - 20_000, NOW_MS - 15_000, newest=True)) == [[row[1]] for row in want] + [[]]


def test_series_of_several_ids_and_ids_of_several_series() -> None:
    filled = head()
    for at in (-20_000, -10_000):
        filled(scrape(NOW_MS + at, 3.0, 1.0, 2.0))
        filled(scrape(NOW_MS + at + 1, 4.0, ids=np.array([40], np.uint64)))
    both = [(-20_000, 3.0), (-19_999, 4.0), (-10_000, 3.0), (-9_999, 4.0)]
    wanted = Wanted([(30, 40), (30,), (40,)])
    assert rows(filled.read(wanted, NOW_MS - 60_000, NOW_MS)) == [both, both[::2], both[1::2]]


def test_two_samples_of_a_series_at_one_time_are_left_to_the_store() -> None:
    filled = head()
    for at in (-20_000, -10_000, -10_000):
        filled(scrape(NOW_MS + at, 3.0, 1.0, 2.0))
    assert filled.read(Wanted([(10,)]), NOW_MS - 60_000, NOW_MS) is None
    assert filled.read(Wanted([(10,)]), NOW_MS - 60_000, NOW_MS - 15_000) is not None


def test_ids_that_a_batch_repeats_are_left_to_the_store() -> None:
    filled, twice = head(), np.array([10, 10, 20], np.uint64)
    for at in (-20_000, -10_000):
        filled(scrape(NOW_MS + at, 3.0, 1.0, 2.0, ids=twice))
    assert filled.read(Wanted([(10,)]), NOW_MS - 60_000, NOW_MS) is None
    assert rows(filled.read(Wanted([(20,)]), NOW_MS - 60_000, NOW_MS)) == [[(-20_000, 2.0), (-10_000, 2.0)]]


def test_a_series_goes_on_in_other_batches() -> None:
    filled, wanted, other = head(), Wanted([(10,)]), np.array([10, 50], np.uint64)
    for at in (-40_000, -30_000):
        filled(scrape(NOW_MS + at, 3.0, 1.0, 2.0))
    assert len(rows(filled.read(wanted, NOW_MS - 60_000, NOW_MS))[0]) == 2
    for at in (-20_000, -10_000):
        filled(scrape(NOW_MS + at, 5.0, 6.0, ids=other))
    times = [at for at, _ in rows(filled.read(wanted, NOW_MS - 60_000, NOW_MS))[0]]
    assert times == [-40_000, -30_000, -20_000, -10_000]
    assert [at for at, _ in rows(filled.read(wanted, NOW_MS - 40_000, NOW_MS))[0]] == times[1:]


def test_it_holds_what_came_since_it_began() -> None:
    filled = head(from_ms=NOW_MS - 60_000)
    filled(scrape(NOW_MS - 60_000, 1.0))
    filled(scrape(NOW_MS - 59_999, 2.0))
    assert not filled.holds(NOW_MS - 60_001, NOW_MS)
    assert filled.holds(NOW_MS - 60_000, NOW_MS)
    assert rows(filled.read(Wanted([(30,)]), NOW_MS - 60_000, NOW_MS)) == [[(-59_999, 2.0)]]
    assert filled.read(Wanted([(30,)]), NOW_MS - 60_001, NOW_MS) is None


def test_time_bounds_what_it_holds() -> None:
    clock = ManualClock(NOW_MS)
    filled = Head(clock, size=1 << 24, seconds=60.0, from_ms=0)
    for _ in range(1_000):
        filled(scrape(clock.now_ms(), 1.0, 2.0, 3.0))
        filled(scrape(clock.now_ms() - 1, 1.0, ids=np.array([clock.now_ms()], np.uint64)))
        clock.advance(1.0)
    now_ms = clock.now_ms()
    assert filled.holds(now_ms - 60_000, now_ms)
    assert not filled.holds(now_ms - 60_001, now_ms)
    read = filled.read(Wanted([(10,)]), now_ms - 60_000, now_ms)
    assert read is not None
    assert len(read.times_ms) == 59
    assert filled.nbytes < 60_000


def test_room_bounds_what_it_holds_and_all_is_there_since_what_was_let_go_of() -> None:
    filled, wanted = head(size=200_000), Wanted([(7,)])
    ids = np.arange(500, dtype=np.uint64)
    for second in range(200):
        filled(SampleBatch(ids, np.full(500, NOW_MS - 200_000 + second * 1_000), np.full(500, float(second))))
        assert filled.nbytes <= 200_000
    held = [second for second in range(200) if filled.holds(NOW_MS - 200_000 + second * 1_000, NOW_MS)]
    assert 10 < len(held) < 60
    for second in held:
        read = filled.read(wanted, NOW_MS - 200_000 + second * 1_000, NOW_MS)
        assert read is not None
        assert read.values.tolist() == [float(one) for one in range(second + 1, 200)]


def test_when_all_has_gone_the_same_ids_can_come_again() -> None:
    clock, wanted = ManualClock(NOW_MS), Wanted([(10,)])
    filled = Head(clock, size=1 << 24, seconds=60.0, from_ms=0)
    for _ in range(3):
        for _ in range(3):
            filled(scrape(clock.now_ms(), 1.0, 2.0, 3.0))
            clock.advance(1.0)
        read = filled.read(wanted, clock.now_ms() - 60_000, clock.now_ms())
        assert read is not None
        assert len(read.times_ms) == 3
        clock.advance(600.0)
        filled(scrape(clock.now_ms() - 1, 1.0, ids=np.array([5], np.uint64)))
    assert filled.nbytes < 3_000


@pytest.mark.parametrize("ahead_ms", [600_001, 900_000])
def test_samples_that_the_store_may_refuse_are_left_to_it(ahead_ms: int) -> None:
    clock, wanted = ManualClock(NOW_MS), Wanted([(10,)])
    filled = Head(clock, size=1 << 24, seconds=660.0, from_ms=0)
    filled(scrape(NOW_MS + ahead_ms, 1.0, 2.0))
    filled(scrape(NOW_MS, 1.0, 2.0))
    assert filled.holds(NOW_MS - 60_000, NOW_MS)
    clock.advance(ahead_ms / 1000)
    assert not filled.holds(clock.now_ms() - 60_000, clock.now_ms())
    clock.advance(360.0)
    assert filled.holds(clock.now_ms() - 60_000, clock.now_ms())
    assert rows(filled.read(wanted, clock.now_ms() - 60_000, clock.now_ms())) == [[]]


def test_readers_see_each_batch_whole_or_not_at_all() -> None:
    """One batch of three hundred series after another, in both forms; each has one value throughout."""
    ids = np.arange(300, dtype=np.uint64)
    filled, wanted = head(), Wanted([(int(one),) for one in ids])
    stop, seen = threading.Event(), set[float]()
    wrong: list[set[float]] = []

    def read() -> None:
        while not stop.is_set():
            found = filled.read(wanted, NOW_MS - 600_000, NOW_MS, newest=True)
            values = set() if found is None else set(found.values.tolist())
            seen.update(values)
            if found is None or len(values) > 1 or len(found.values) not in (0, 300):
                wrong.append(values)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(2_000):
        own = ids if number % 3 else np.roll(ids, number)
        filled(SampleBatch(own, np.full(300, NOW_MS - 500_000 + number), np.full(300, float(number))))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(seen) > 1


class Rows:
    """A database with one series, whose samples it must not be asked for."""

    def __init__(self, series: Series) -> None:
        self.series = series

    def __call__(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]:
        assert "FROM series" in sql, sql
        return {
            "id": pa.array([self.series.id], pa.uint64()),
            "digest": pa.array([1], pa.uint64()),
            "name": pa.array([self.series.name]),
            "labels": pa.array([list(self.series.labels)], pa.map_(pa.string(), pa.string())),
        }


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("m", 44.0),
        ("timestamp(m)", NOW_MS / 1000),
        ("sum(m)", 44.0),
        ("m offset 15s", 43.0),
        ("max_over_time(m[1m])", 44.0),
        ("sum(min_over_time(m[1m]))", 41.0),
        ("quantile_over_time(0, m[1m])", 41.0),
        ("max_over_time(sum(m)[1m:15s])", 43.0),
    ],
)
def test_what_the_head_holds_is_not_asked_of_the_store(expr: str, want: float) -> None:
    series = Series.of("m", (("i", "1"),))
    filled = head()
    for step in range(45):
        filled(scrape(NOW_MS - (44 - step) * 15_000, float(step), ids=np.array([series.id], np.uint64)))
    engine = Engine(HeadSource(filled, ClickHouseSource(Rows(series))))
    found = engine.query(expr, NOW_MS)
    assert isinstance(found, VectorResult)
    assert found.values.tolist() == [want]
    with pytest.raises(AssertionError, match="FROM samples"):
        engine.query(expr, NOW_MS - 700_000)
    few = Engine(HeadSource(filled, ClickHouseSource(Rows(series)), most_samples=0))
    with pytest.raises(AssertionError, match="FROM samples"):
        few.query(expr, NOW_MS)
    filled(scrape(NOW_MS + 1, STALE_NAN, ids=np.array([series.id], np.uint64)))
    ended = engine.query("m", NOW_MS + 1)
    assert isinstance(ended, VectorResult)
    assert not len(ended.values)
