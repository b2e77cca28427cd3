from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.store.database import Database
from loms.store.migrations import Migration, shipped

RETENTION = 1e9
CLOCK = ManualClock(1_700_000_000_000)


def tables(database: Database) -> set[str]:
    columns = database.query_columns("SELECT name FROM system.tables WHERE database = currentDatabase()")
    return set(columns["name"].to_pylist())


def test_the_shipped_files_are_numbered_without_gap() -> None:
    migrations = shipped()
    assert [one.version for one in migrations] == list(range(1, len(migrations) + 1))
    assert all(migration.statements for migration in migrations)


def test_a_file_is_split_at_semicolons_that_end_a_line() -> None:
    sql = "-- one; comment\nSELECT ';' AS a;\n\nSELECT 2\n-- inside\nAS b;\n"
    assert Migration(1, "001_x.sql", sql).statements == ["SELECT ';' AS a", "SELECT 2\nAS b"]


def test_an_old_database_is_brought_forward_with_its_rows(tmp_path: Path) -> None:
    with Database.open(tmp_path, RETENTION, CLOCK, migrations=shipped()[:1]) as old:
        assert tables(old) == {"schema_version", "series", "samples"}
        rows = {"series_id": pa.array([7], pa.uint64()), "ts": pa.array([CLOCK.now_ms()]).cast(pa.timestamp("ms"))}
        old.insert_arrow("samples", pa.table({**rows, "value": [1.5]}))
    with Database.open(tmp_path, RETENTION, CLOCK) as new:
        assert tables(new) >= {"schema_version", "series", "samples", "alerts", "incidents", "notifications"}
        assert new.query_columns("SELECT series_id, value FROM samples")["value"].to_pylist() == [1.5]
        applied = new.query_columns("SELECT *, toUnixTimestamp64Milli(applied_at) AS at FROM schema_version")
        assert sorted(zip(applied["version"].to_pylist(), applied["checksum"].to_pylist(), strict=True)) == [
            (migration.version, migration.checksum) for migration in shipped()
        ]
        assert set(applied["at"].to_pylist()) == {CLOCK.now_ms()}


def test_an_unchanged_database_is_left_alone(tmp_path: Path) -> None:
    for _ in range(2):
        with Database.open(tmp_path, RETENTION, CLOCK) as database:
            count = database.query_columns("SELECT count() AS n FROM schema_version")["n"][0].as_py()
    assert count == len(shipped())


def test_a_crash_before_the_record_of_a_file_does_no_harm(tmp_path: Path) -> None:
    first, second, *rest = shipped()
    with Database.open(tmp_path, RETENTION, CLOCK, migrations=[first]) as database:
        for statement in second.statements:
            database.command(statement)
    with Database.open(tmp_path, RETENTION, CLOCK, migrations=[first, second, *rest]) as database:
        assert "incidents" in tables(database)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    Database.open(tmp_path, RETENTION, CLOCK).close()
    changed = [replace(shipped()[0], sql=shipped()[0].sql + "-- hm\n"), *shipped()[1:]]
    with pytest.raises(StoreError, match=r": schema file 001_metrics\.sql differs from the 001_metrics\.sql that"):
        Database.open(tmp_path, RETENTION, CLOCK, migrations=changed)
    Database.open(tmp_path, RETENTION, CLOCK).close()


def test_a_database_from_the_future_is_refused(tmp_path: Path) -> None:
    future = [*shipped(), Migration(99, "099_later.sql", "SELECT 1;\n")]
    Database.open(tmp_path, RETENTION, CLOCK, migrations=future).close()
    with pytest.raises(StoreError, match=r": the store has schema version 99 \(099_later\.sql\); this LOMS") as refused:
        Database.open(tmp_path, RETENTION, CLOCK)
    assert "newer LOMS" in refused.value.hint
