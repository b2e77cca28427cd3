"""The engine expires by its own clock, so these rows lie around the present time."""

from __future__ import annotations

from pathlib import Path

import pytest

from loms.core.clock import SystemClock
from loms.store.database import Database
from loms.store.retention import SERIES_GRACE_SECONDS, apply_retention

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
    def rows(sql: str) -> list[tuple[object, ...]]:
        return list(zip(*(column.to_pylist() for column in database.query_columns(sql).values()), strict=True))

    statements: list[str] = []
    apply_retention(statements.append, rows, database.retention_seconds)
    assert statements == []
    apply_retention(statements.append, rows, HOUR)
    assert sorted(one.split()[2] for one in statements) == ["samples", "samples", "series", "series"]


def test_series_outlive_their_samples(tmp_path: Path) -> None:
    with Database.open(tmp_path, DAY, CLOCK) as database:
        for age in (DAY, DAY + SERIES_GRACE_SECONDS - HOUR, DAY + SERIES_GRACE_SECONDS + HOUR):
            database.command(f"INSERT INTO series SELECT {age}, 'm', map('a', 'b'), now64(3) - toIntervalSecond({age})")
        assert ages_left(database, "series", "id") == [DAY, DAY + SERIES_GRACE_SECONDS - HOUR]
