"""A query that is cancelled ends in the database too, and its reader answers afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import wait_until

from loms.core.clock import SystemClock
from loms.core.errors import LomsError, QueryCancelledError
from loms.promql.selection import Selection
from loms.promql.source import Budget, Cancel, Limits
from loms.store.database import Database

HOURS = "SELECT sum(sin(number)) AS s FROM numbers(100000000000000)"
RUNNING = (
    "SELECT count() AS n FROM system.processes WHERE query LIKE '%sum(sin(number))%' AND query NOT LIKE '%count()%'"
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path, 86_400, SystemClock(), readers=2, query_timeout_seconds=600) as database:
        yield database


def running(database: Database) -> int:
    number: int = database.query_columns(RUNNING)["n"][0].as_py()
    return number


def test_a_cancelled_query_ends_in_the_database(database: Database) -> None:
    selection = Selection(database.query_columns, database.end_query)
    cancels, ends = [Cancel(), Cancel()], list[LomsError]()

    def run(cancel: Cancel) -> None:
        with Budget(Limits(timeout_seconds=600), SystemClock(), cancel) as budget:
            try:
                selection.query(HOURS, budget)
            except LomsError as error:
                ends.append(error)

    workers = [threading.Thread(target=run, args=(cancel,)) for cancel in cancels]
    workers[0].start()
    wait_until(lambda: running(database) == 1, 60, "the first query's start")
    cancels[0].cancel()
    workers[0].join(60)
    assert [type(error) for error in ends] == [QueryCancelledError]
    assert running(database) == 0

    workers[1].start()  # on the same reader, or the other: one busy reader does not hold up the other's cancelling
    wait_until(lambda: running(database) == 1, 60, "the second query's start")
    cancels[1].cancel()
    workers[1].join(60)
    assert [type(error) for error in ends] == [QueryCancelledError] * 2
    for _ in range(4):  # both readers, in turns
        assert database.query_columns("SELECT 1 AS one")["one"].to_pylist() == [1]


def test_cancelling_works_while_all_readers_are_busy_and_ends_only_its_own(database: Database) -> None:
    selection = Selection(database.query_columns, database.end_query)
    cancels, ends = [Cancel(), Cancel()], dict[int, LomsError]()

    def run(number: int) -> None:
        with Budget(Limits(timeout_seconds=600), SystemClock(), cancels[number]) as budget:
            try:
                selection.query(HOURS, budget)
            except LomsError as error:
                ends[number] = error

    workers = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    workers[0].start()
    wait_until(lambda: running(database) == 1, 60, "the first query's start")
    workers[1].start()
    cancels[1].cancel()  # perhaps before it has begun: then it never does, or is ended as soon as it has
    workers[1].join(60)
    assert isinstance(ends[1], QueryCancelledError)
    assert 0 not in ends
    assert running(database) == 1
    cancels[0].cancel()
    workers[0].join(60)
    assert isinstance(ends[0], QueryCancelledError)
