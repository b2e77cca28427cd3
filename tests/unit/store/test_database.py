from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import SystemClock
from loms.core.errors import QueryCancelledError, QueryTimeoutError, StoreBusyError, StoreError
from loms.core.model import STALE_NAN, Series
from loms.store.database import Database, Figures
from loms.store.series import series_rows

SLOW = "SELECT sum(sipHash64(number)) AS s FROM numbers(1000000000000)"
T0 = 1_790_000_000_000


def insert(database: Database, ids: list[int], times: list[int], values: list[float]) -> None:
    columns = {
        "series_id": np.array(ids, dtype=np.uint64),
        "ts": np.array(times, dtype="datetime64[ms]"),
        "value": np.array(values),
    }
    database.insert_arrow("samples", pa.table(columns))


@contextmanager
def slow_query(database: Database) -> Iterator[threading.Thread]:
    """A query that runs in a thread for as long as the body does."""
    errors: list[QueryCancelledError] = []

    def run() -> None:
        try:
            database.query_columns(SLOW, settings={"max_execution_time": 60, "max_threads": 1})
        except QueryCancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield thread
    while thread.is_alive():
        database.command("KILL QUERY WHERE query LIKE '%sipHash64%' AND query_kind = 'Select' SYNC")
        thread.join(0.1)
    assert len(errors) == 1


def test_a_query_waits_for_a_free_reader_only_so_long(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, SystemClock(), readers=1, query_timeout_seconds=0.5) as database:
        with slow_query(database) as slow:
            refusal = ""
            while slow.is_alive() and not refusal:
                try:
                    database.query_columns("SELECT 1")
                except QueryTimeoutError as error:
                    refusal = error.message
        assert refusal == "the query waited 0.5 s for one of the store's 1 readers"
        assert database.query_columns("SELECT 1 AS one")["one"].to_pylist() == [1]


def test_a_slow_query_holds_up_neither_other_readers_nor_the_writer(database: Database) -> None:
    with slow_query(database) as slow:
        for count in range(1, 6):
            insert(database, [1], [database_now()], [0.0])
            assert database.query_columns("SELECT count() AS n FROM samples")["n"].to_pylist() == [count]
        assert slow.is_alive()


def test_closing_ends_a_running_query(tmp_path: Path) -> None:
    database = Database.open(tmp_path, 1e9, SystemClock(), readers=1)
    began, ended = threading.Event(), []

    def run() -> None:
        began.set()
        try:
            database.query_columns(SLOW, settings={"max_execution_time": 250, "max_threads": 1})
        except QueryCancelledError as error:
            ended.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    database.close()
    thread.join()
    assert len(ended) == 1
    Database.open(tmp_path, 1e9, SystemClock()).close()


def database_now() -> int:
    return SystemClock().now_ms()


def test_many_threads_read_at_once(database: Database) -> None:
    answers: list[int] = []

    def read(number: int) -> None:
        for _ in range(20):
            answers.extend(database.query_columns("SELECT {n:UInt32} AS n", {"n": number})["n"].to_pylist())

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(list(range(8)) * 20)


def test_a_refused_insert_is_one_sentence_and_leaves_nothing(database: Database) -> None:
    with pytest.raises(StoreError, match=r"^the store refuses rows of nowhere: .*nowhere"):
        database.insert_arrow("nowhere", pa.table({"a": [1]}))
    with pytest.raises(StoreError, match=r"^the store refuses rows of samples: "):
        database.insert_arrow("samples", pa.table({"series_id": [1], "missing": [2.0]}))
    assert database.figures().samples == 0


def test_a_refused_command_is_one_sentence(database: Database) -> None:
    with pytest.raises(StoreError, match=r"^the store refuses a statement: .*"):
        database.command("ALTER TABLE nowhere DELETE WHERE 1")


def test_last_values_are_the_newest_of_the_series_asked_for(database: Database) -> None:
    now = database_now()
    big = 2**64 - 1
    insert(database, [1, big, 3, 4], [now, now - 50, now - 10_000, now], [1.0, 2.0, 3.0, 4.0])
    insert(database, [1, big, 1], [now - 1000, now - 20, now - 2000], [-1.0, 2.5, -2.0])
    assert database.last_values([1, big, 3, 99], since_ms=now - 5000) == {1: (now, 1.0), big: (now - 20, 2.5)}
    assert database.last_values([3], since_ms=now - 10_000) == {3: (now - 10_000, 3.0)}
    assert database.last_values([], since_ms=0) == {}
    assert database.last_values([1, 4], since_ms=now - 5000, until_ms=now - 1) == {1: (now - 1000, -1.0)}
    insert(database, [1], [now + 5], [STALE_NAN])
    assert database.last_values([1], since_ms=now - 5000) == {1: (now, 1.0)}


def test_the_newest_time_of_all_samples(database: Database) -> None:
    assert database.newest_ms() == 0
    now_ms = database_now()
    insert(database, [1, 2, 1], [now_ms - 5, now_ms, now_ms - 90_000_000], [1.0, 2.0, 3.0])
    assert database.newest_ms() == now_ms


def test_new_series_are_told_as_long_as_they_are_few(database: Database) -> None:
    a, b = Series.of("a", (("x", "1"),)), Series.of("b", ())
    version = database.series_version()
    assert database.series_since(version) == []
    for one in (a, b):
        database.insert_arrow("series", series_rows((one,), now_ms=database_now()))
    assert database.series_since(version) == [(a.id, "a", [("x", "1")]), (b.id, "b", [])]
    assert database.series_since(database.series_version() - 1) == [(b.id, "b", [])]
    assert database.series_since(-1) is None
    version = database.series_version()
    many = [Series.of("c", (("x", str(i)),)) for i in range(3_000)]
    database.insert_arrow("series", series_rows(many, now_ms=database_now()))
    assert database.series_since(version) is None
    version = database.series_version()
    database.command("TRUNCATE TABLE series")
    assert database.series_since(version) is None


def test_figures_count_samples_series_and_bytes(database: Database) -> None:
    assert database.figures() == Figures(samples=0, parts=0, series=0, bytes_on_disk=database.figures().bytes_on_disk)
    insert(database, list(range(1000)), [database_now()] * 1000, [1.0] * 1000)
    database.command("INSERT INTO series SELECT 1, 'm', map('a', toString(number % 7)), now64(3) FROM numbers(70)")
    figures = database.figures()
    assert (figures.samples, figures.parts, figures.series) == (1000, 1, 7)
    assert figures.bytes_on_disk > 1000


def test_rows_are_there_after_the_store_was_closed(tmp_path: Path) -> None:
    with Database.open(tmp_path, 1e9, SystemClock()) as database:
        insert(database, [1], [T0], [0.5])
    with Database.open(tmp_path, 1e9, SystemClock()) as database:
        assert database.query_columns("SELECT value FROM samples")["value"].to_pylist() == [0.5]


def test_the_same_directory_cannot_be_open_twice(database: Database) -> None:
    with pytest.raises(StoreBusyError):
        Database.open(database.path, 1e9, SystemClock())
    assert database.query_columns("SELECT 1 AS one")["one"].to_pylist() == [1]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    database = Database.open(tmp_path, 1e9, SystemClock())
    database.close()
    database.close()
    with pytest.raises(StoreError, match="closed"):
        database.query_columns("SELECT 1")


def test_a_spoilt_store_is_one_sentence_and_frees_the_directory(tmp_path: Path) -> None:
    (tmp_path / "chdb").write_text("not a directory")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"the store cannot be opened") as failed:
            Database.open(tmp_path, 1e9, SystemClock())
        assert not isinstance(failed.value, StoreBusyError)
