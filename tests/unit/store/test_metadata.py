"""Type, help and unit of families in the store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from loms.core.clock import ManualClock, SystemClock
from loms.core.errors import StoreError
from loms.core.model import Metadata
from loms.store.database import Database
from loms.store.metadata import MOST_TEXT, MetadataStore

DEPTH = Metadata("depth", "gauge", "Depth of the queue.")
WAIT = Metadata("wait_seconds", "histogram", "Waiting.", "seconds")


def test_what_is_noted_is_known_at_once_and_by_family(database: Database) -> None:
    with MetadataStore(database, SystemClock()) as store:
        store.note([WAIT, DEPTH])
        assert store.of() == {"depth": DEPTH, "wait_seconds": WAIT}
        assert list(store.of()) == ["depth", "wait_seconds"]
        assert store.of("wait_seconds") == {"wait_seconds": WAIT}
        assert store.of("other") == {}
        assert store.of(limit=1) == {"depth": DEPTH}
        assert store.of(limit=0) == {}


def test_the_newest_counts_also_within_a_millisecond_and_after_a_restart(tmp_path: Path) -> None:
    newer, clock = Metadata("depth", "gauge", "Requests that wait."), ManualClock(now_ms=2_000_000_000_000)
    with Database.open(tmp_path, 1e9, SystemClock()) as database, MetadataStore(database, clock) as store:
        store.note([DEPTH])
        assert store.flush()
        store.note([newer])
    with Database.open(tmp_path, 1e9, SystemClock()) as database, MetadataStore(database, SystemClock()) as store:
        assert store.of() == {"depth": newer}


def test_the_same_again_is_not_written_again(database: Database) -> None:
    with MetadataStore(database, SystemClock()) as store:
        for _ in range(3):
            store.note([DEPTH])
            assert store.flush()
    assert database.query_columns("SELECT count() AS n FROM metric_metadata")["n"].to_pylist() == [1]


def test_long_texts_are_cut_and_long_names_left_out(database: Database) -> None:
    with MetadataStore(database, SystemClock()) as store:
        store.note([Metadata("x" * (MOST_TEXT + 1), "gauge"), Metadata("y", "gauge", "h" * 10_000)])
        assert store.flush()
        assert {name: len(one.help) for name, one in store.of().items()} == {"y": MOST_TEXT}


class Refusing:
    """A database that takes nothing until it is told to."""

    def __init__(self, database: Database) -> None:
        self.refuses = True
        self.query_columns = database.query_columns
        self._insert = database.insert_arrow

    def insert_arrow(self, table: str, rows: object) -> None:
        if self.refuses:
            raise StoreError("the disk is full")
        self._insert(table, rows)  # type: ignore[arg-type]


def test_what_the_store_refuses_waits(database: Database) -> None:
    refusing = Refusing(database)
    with MetadataStore(refusing, SystemClock()) as store:  # type: ignore[arg-type]
        store.note([DEPTH])
        assert not store.flush()
        assert store.of() == {"depth": DEPTH}
        refusing.refuses = False
        assert store.flush()
    assert database.query_columns("SELECT family FROM metric_metadata")["family"].to_pylist() == ["depth"]


@pytest.mark.parametrize("writers", [4])
def test_several_threads_may_note(database: Database, writers: int) -> None:
    with MetadataStore(database, SystemClock()) as store:

        def note(first: int) -> None:
            for n in range(first, 200, writers):
                store.note([Metadata(f"m{n:03}", "gauge")])

        threads = [threading.Thread(target=note, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with MetadataStore(database, SystemClock()) as store:
        assert len(store.of()) == 200
