"""Which rows answer which part of a query, and what is answered where no samples are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.rolled import DAY, Rolled

from loms.core.clock import ManualClock
from loms.core.errors import QueryLimitError
from loms.core.model import Series
from loms.promql.engine import Engine
from loms.promql.rollups import HOUR_MS, MINUTE_MS, Piece, Rollups
from loms.promql.source import Limits
from loms.promql.values import Grid

NOW = 200 * DAY * 1000
KEPT = 10 * DAY * 1000
FIVE = 5 * MINUTE_MS


def rollups(samples_a_minute: int = 12, minute: int = NOW - FIVE, hour: int = NOW - HOUR_MS) -> Rollups:
    def query_columns(
        sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]:
        if "rollup_progress" in sql:
            known = {key: value for key, value in (("minute", minute), ("hour", hour)) if value}
            return {"key": pa.array(known), "value": pa.array(known.values(), pa.int64())}
        return {"n": pa.array([samples_a_minute * 100]), "rows": pa.array([100])}

    clock = ManualClock(NOW)
    return Rollups(query_columns, clock, samples_seconds=KEPT / 1000, minute_seconds=30 * DAY)


def widths(found: tuple[Piece, ...]) -> list[tuple[int, int, bool]]:
    return [(piece.last - piece.first, piece.width_ms, piece.exact) for piece in found]


def test_hours_answer_what_is_aligned_up_to_where_they_are() -> None:
    grid = Grid(NOW - 10 * HOUR_MS, NOW, HOUR_MS)
    assert widths(rollups().pieces("rate", grid, HOUR_MS)) == [(10, HOUR_MS, True), (1, 0, True)]


def test_of_the_newest_sample_only_the_time_must_be_aligned() -> None:
    grid = Grid(NOW - 10 * HOUR_MS, NOW, HOUR_MS)
    assert widths(rollups().pieces("last", grid, FIVE)) == [(10, HOUR_MS, True), (1, 0, True)]
    assert widths(rollups().pieces("last_over_time", grid, FIVE)) == [(10, MINUTE_MS, True), (1, 0, True)]


def test_minutes_answer_coarse_steps_over_dense_samples() -> None:
    grid = Grid(NOW - 10 * FIVE, NOW, FIVE)
    assert widths(rollups().pieces("rate", grid, FIVE)) == [(10, MINUTE_MS, True), (1, 0, True)]
    assert rollups(samples_a_minute=4).pieces("rate", grid, FIVE) == ()
    assert rollups(samples_a_minute=7).pieces("rate", grid, FIVE) == ()  # neighbours cost more
    assert rollups(samples_a_minute=7).pieces("sum_over_time", grid, FIVE)
    assert rollups().pieces("rate", Grid(NOW - HOUR_MS, NOW, MINUTE_MS), FIVE) == ()


@pytest.mark.parametrize(
    ("function", "grid", "window_ms"),
    [
        ("rate", Grid(NOW - HOUR_MS - 1, NOW, FIVE), FIVE),
        ("rate", Grid(NOW - HOUR_MS, NOW, FIVE + 1), FIVE),
        ("rate", Grid(NOW - HOUR_MS, NOW, FIVE), FIVE + 1),
        ("irate", Grid(NOW - HOUR_MS, NOW, HOUR_MS), HOUR_MS),
    ],
)
def test_samples_answer_everything_else(function: str, grid: Grid, window_ms: int) -> None:
    assert rollups().pieces(function, grid, window_ms) == ()


def test_where_nothing_is_rolled_samples_answer() -> None:
    assert rollups(minute=0, hour=0).pieces("rate", Grid(0, NOW, HOUR_MS), HOUR_MS) == ()


def test_each_table_answers_for_its_time() -> None:
    start = NOW - 40 * DAY * 1000 + 1
    found = rollups().pieces("rate", Grid(start, NOW, DAY * 1000), HOUR_MS)
    # Windows of an hour: one more reaches over what is kept of minutes (30 days), and of samples (10 days).
    assert widths(found) == [(11, HOUR_MS, False), (20, MINUTE_MS, False), (9, 0, True)]
    aligned = rollups().pieces("rate", Grid(start - 1, NOW, DAY * 1000), HOUR_MS)
    assert widths(aligned) == [(40, HOUR_MS, True), (1, 0, True)]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    store = Rolled(tmp_path_factory.mktemp("rolled"))
    yield store
    store.close()


@pytest.fixture
def store(opened: Rolled) -> Rolled:
    """Two days of a counter that grows by 2 a second, every 10 s, and of a gauge; nothing is left but rollups."""
    opened.begin(2 * DAY * 1000)
    times = np.arange(5_000, 2 * DAY * 1000, 10_000, dtype=np.int64)
    opened.write([(Series.of("c", ()), times, times / 500.0), (Series.of("g", ()), times, times % 60_000 / 1000.0)])
    opened.roll()
    opened.database.command("TRUNCATE TABLE samples")
    return opened


def months_later(store: Rolled, expr: str, start_ms: int, end_ms: int, step_ms: int, days: int) -> list[float]:
    engine = store.engine_at(ManualClock(days * DAY * 1000))
    found = engine.query_range(expr, start_ms, end_ms, step_ms)
    assert len(found.values) == 1
    assert found.times_ms[0].tolist() == list(range(start_ms, end_ms + 1, step_ms))
    values: list[float] = found.values[0].tolist()
    return values


@pytest.mark.parametrize("days", [60, 150], ids=["minutes are left", "hours are left"])
def test_dashboards_over_months_work_when_samples_are_gone(store: Rolled, days: int) -> None:
    start, end = 10 * HOUR_MS + 12_345, 20 * HOUR_MS + 12_345
    odd = (start, end, 3_333_000 // 9)
    rates = months_later(store, "rate(c[1h])", start, start + 27 * odd[2], odd[2], days)
    assert rates == pytest.approx([2.0] * 28, rel=0.02)
    averages = months_later(store, "avg_over_time(g[1h])", start, start + 9 * HOUR_MS, HOUR_MS, days)
    assert averages == pytest.approx([30.0] * 10)
    newest = months_later(store, "c", start, start + 9 * HOUR_MS, HOUR_MS, days)
    apart = MINUTE_MS if days == 60 else HOUR_MS
    assert np.abs(np.array(newest) - np.arange(start, end, HOUR_MS) / 500).max() <= apart / 500
    assert months_later(store, "deriv(c[4h])", start, start + HOUR_MS, HOUR_MS, days) == pytest.approx([2.0] * 2)


def test_what_is_aligned_stays_exact_when_samples_are_gone(store: Rolled) -> None:
    found = months_later(store, "increase(c[1h])", 10 * HOUR_MS, 20 * HOUR_MS, HOUR_MS, 150)
    assert found == pytest.approx([7200.0] * 11, rel=1e-9)


def test_series_of_which_only_rollups_are_left_are_found(store: Rolled) -> None:
    engine = store.engine_at(ManualClock(150 * DAY * 1000))
    assert engine.series(['{__name__=~".+"}'], 10 * HOUR_MS, 11 * HOUR_MS) == [
        (("__name__", "c"),),
        (("__name__", "g"),),
    ]
    assert engine.series(['{__name__=~".+"}'], 100 * DAY * 1000, 101 * DAY * 1000) == []


def test_series_that_ended_long_before_a_query_do_not_count(opened: Rolled) -> None:
    opened.begin()
    for day in (1, 60, 99):
        opened.advance_to(day * DAY * 1000)
        at = np.array([opened.clock.now_ms()], np.int64)
        opened.write([(Series.of("m", (("day", str(day)),)), at, np.ones(1))])
    opened.advance_to(100 * DAY * 1000)
    now = opened.clock.now_ms()
    engine = Engine(opened.source_at(opened.clock), Limits(max_series=2), opened.clock)
    assert len(engine.query_range("last_over_time(m[30d])", now, now, 1).labels) == 1
    with pytest.raises(QueryLimitError):
        engine.query_range("last_over_time(m[99d])", now, now, 1)
