"""The engine expires by its own clock, so these rows lie around the present time."""

from __future__ import annotations

from pathlib import Path

import pytest

from loms.core.clock import SystemClock
from loms.core.settings import Receive, Store
from loms.store.database import Database
from loms.store.retention import SERIES_GRACE_SECONDS, Retention, apply_retention

HOUR = 3600
DAY = 86_400
CLOCK = SystemClock()


def insert(database: Database, ages_seconds: list[int]) -> None:
    for age in ages_seconds:
        database.command(f"INSERT INTO samples SELECT {age}, now64(3) - toIntervalSecond({age}), 0")


def ages_left(database: Database, table: str = "samples", key: str = "series_id") -> list[int]:
    database.command(f"OPTIMIZE TABLE {table} FINAL")
    left: list[int] = database.query_columns(f"SELECT {key} AS age FROM {table} ORDER BY age")["age"].to_pylist()
    return left


@pytest.mark.parametrize(
    ("retention", "ages", "kept"),
    [
        pytest.param(HOUR, [10, HOUR - 100, HOUR + 100, 2 * HOUR], [10, HOUR - 100], id="hours: row by row"),
        pytest.param(10**11, [10, 9000 * DAY], [10, 9000 * DAY], id="beyond what a TTL can say: for ever"),
        pytest.param(10 * DAY, [10, 9 * DAY, 12 * DAY, 30 * DAY], [10, 9 * DAY], id="days: part by part"),
    ],
)
def test_what_is_older_than_the_retention_goes(
    tmp_path: Path, retention: int, ages: list[int], kept: list[int]
) -> None:
    with Database.open(tmp_path, retention, CLOCK) as database:
        insert(database, ages)
        assert ages_left(database) == kept


def test_a_shorter_retention_applies_to_what_is_stored(tmp_path: Path) -> None:
    with Database.open(tmp_path, 10 * DAY, CLOCK) as database:
        insert(database, [10, 2 * HOUR])
        assert ages_left(database) == [10, 2 * HOUR]
    with Database.open(tmp_path, HOUR, CLOCK) as database:
        assert ages_left(database) == [10]


def test_a_longer_retention_saves_what_is_still_there(tmp_path: Path) -> None:
    with Database.open(tmp_path, 7 * DAY, CLOCK) as database:
        insert(database, [10, 5 * DAY])
    with Database.open(tmp_path, 30 * DAY, CLOCK) as database:
        insert(database, [20 * DAY])
        assert ages_left(database) == [10, 5 * DAY, 20 * DAY]


def test_only_another_retention_alters_the_tables(database: Database) -> None:
    assert alter(database, Retention(database.retention_seconds)) == []
    statements = alter(database, Retention(HOUR))
    assert sorted(one.split()[2] for one in statements) == ["samples", "samples", "series", "series"]


def test_series_outlive_their_samples(tmp_path: Path) -> None:
    with Database.open(tmp_path, DAY, CLOCK) as database:
        for age in (DAY, DAY + SERIES_GRACE_SECONDS - HOUR, DAY + SERIES_GRACE_SECONDS + HOUR):
            database.command(f"INSERT INTO series SELECT {age}, 'm', map('a', 'b'), now64(3) - toIntervalSecond({age})")
        assert ages_left(database, "series", "id") == [DAY, DAY + SERIES_GRACE_SECONDS - HOUR]


EVERYTHING = Retention.of(
    Store(retention=2 * DAY, rollups={"minute": 3 * DAY, "hour": 100 * DAY}),
    Receive(traces_retention=2 * HOUR, logs_retention=3 * DAY),
)
AGED = {
    "rollup_minute": ("series_id, bucket", "now() - toIntervalSecond({0})"),
    "rollup_hour": ("series_id, bucket", "now() - toIntervalSecond({0})"),
    "otel_traces": ("Duration, Timestamp", "now64(9) - toIntervalSecond({0})"),
    "otel_traces_trace_id_ts": ("TraceId, Start", "now() - toIntervalSecond({0})"),
    "otel_logs": ("Body, Timestamp", "now64(9) - toIntervalSecond({0})"),
}
"""Table → the column that a test reads the age from, and how a row of that age is written."""


@pytest.mark.parametrize(
    ("table", "ages", "kept"),
    [
        ("rollup_minute", [10, 2 * DAY, 4 * DAY + HOUR], [10, 2 * DAY]),
        ("rollup_hour", [10, 60 * DAY, 140 * DAY], [10, 60 * DAY]),
        ("otel_traces", [10, HOUR, 3 * HOUR], [10, HOUR]),
        ("otel_traces_trace_id_ts", [10, HOUR, 3 * HOUR], [10, HOUR]),
        ("otel_logs", [10, 2 * DAY, 5 * DAY], [10, 2 * DAY]),
    ],
)
def test_each_kind_of_row_has_an_age_of_its_own(
    database: Database, table: str, ages: list[int], kept: list[int]
) -> None:
    alter(database, EVERYTHING)
    columns, time = AGED[table]
    for age in ages:
        database.command(f"INSERT INTO {table} ({columns}) SELECT {age}, {time.format(age)}")
    left = ages_left(database, table, f"toInt64({columns.split(',')[0]})")
    assert left == kept


def alter(database: Database, retention: Retention) -> list[str]:
    def rows(sql: str) -> list[tuple[object, ...]]:
        return list(zip(*(column.to_pylist() for column in database.query_columns(sql).values()), strict=True))

    statements: list[str] = []
    apply_retention(statements.append, rows, retention)
    for statement in statements:
        database.command(statement)
    return statements


def test_all_ages_are_altered_once(database: Database) -> None:
    assert {one.split()[2] for one in alter(database, EVERYTHING)} == {
        "samples", "series", "rollup_minute", "rollup_hour", "otel_traces", "otel_traces_trace_id_ts", "otel_logs"
    }  # fmt: skip
    assert alter(database, EVERYTHING) == []


def test_series_outlive_the_longest_rollup() -> None:
    assert EVERYTHING.limits()["series"] == ("last_seen", 100 * DAY + SERIES_GRACE_SECONDS)
    without = Retention.of(Store(retention=2 * DAY, rollups={"enabled": False}))
    assert without.limits()["series"] == ("last_seen", 2 * DAY + SERIES_GRACE_SECONDS)


def test_rollups_are_kept_at_least_as_long_as_samples() -> None:
    keep = Retention.of(Store(retention=800 * DAY, rollups={"minute": 3 * DAY, "hour": 4 * DAY}))
    assert (keep.samples, keep.minute, keep.hour) == (800 * DAY, 800 * DAY, 800 * DAY)
