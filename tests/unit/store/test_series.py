from __future__ import annotations

import numpy as np

from loms.core.model import Series
from loms.store.database import Database
from loms.store.series import REFRESH_MS, WINDOW_MS, SeriesRegister, pieces, series_rows

DAY_MS = 86_400_000
T0 = 1_790_000_000_000
A = Series.of("up", (("instance", "a:1"), ("job", "x")))
B = Series.of("up", (("instance", "b:1"), ("job", "x")))
ALIAS = Series(A.id, "llm_up", (("engine", "vllm"),))


def ids(*series: Series) -> np.ndarray:
    return np.array([one.id for one in series], dtype=np.uint64)


def test_a_series_waits_once_until_it_is_written() -> None:
    register = SeriesRegister(30 * 86_400, T0)
    register.add([A, B])
    register.add([A, ALIAS])
    assert register.take() == (A, B, ALIAS)
    assert len(register) == 0
    register.wrote([A, B], T0)
    register.add([A, B, ALIAS])
    assert register.take() == (ALIAS,)


def test_the_living_are_written_again_each_day_and_the_dead_forgotten_after_the_retention() -> None:
    register = SeriesRegister(2.5 * 86_400, T0)
    register.wrote([A, ALIAS, B], T0)
    assert register.observe(ids(A, B), T0 + REFRESH_MS - 1) == ()
    for day, (living, seen) in enumerate([((A, ALIAS), ids(A)), ((A, ALIAS), ids(A)), ((A, ALIAS), ids(A))], start=1):
        begin = T0 + day * (REFRESH_MS + WINDOW_MS) - WINDOW_MS
        assert register.observe(seen, begin) == ()
        assert register.observe(ids(), begin + WINDOW_MS) == living
        register.add(living)
        assert register.take() == living
        register.wrote(living, begin + WINDOW_MS)
    register.add([A, B])
    assert register.take() == (B,), "B had no sample for three days"


def test_a_series_seen_at_any_time_of_the_window_is_alive() -> None:
    register = SeriesRegister(30 * 86_400, T0)
    register.wrote([A, B], T0)
    begin = T0 + REFRESH_MS
    register.observe(ids(A, A), begin)
    register.observe(ids(B), begin + WINDOW_MS - 1)
    assert set(register.observe(ids(), begin + WINDOW_MS)) == {A, B}


def test_rows_keep_names_labels_and_ids(database: Database) -> None:
    bare = Series.of("bare", ())
    odd = Series.of("odd", (("path", "C:\\x\n'\"é"), ("z", " ")))
    database.insert_arrow("series", series_rows([A, bare, odd, ALIAS], T0))
    database.insert_arrow("series", series_rows([], T0))
    columns = database.query_columns("SELECT id, name, labels, toUnixTimestamp64Milli(last_seen) AS seen FROM series")
    rows = zip(*(columns[name].to_pylist() for name in ("id", "name", "labels")), strict=True)
    assert {Series(i, name, tuple(labels)) for i, name, labels in rows} == {A, bare, odd, ALIAS}
    assert set(columns["seen"].to_pylist()) == {T0}


def test_a_row_of_the_same_series_replaces_and_an_alias_stands_beside(database: Database) -> None:
    twin = Series(A.id, A.name, B.labels)
    for at in (T0, T0 + 5000, T0 + 2000):
        database.insert_arrow("series", series_rows([A, ALIAS, twin], at))
    database.command("OPTIMIZE TABLE series FINAL")
    columns = database.query_columns("SELECT name, labels, toUnixTimestamp64Milli(last_seen) AS seen FROM series")
    assert len(columns["name"]) == 3
    assert set(columns["seen"].to_pylist()) == {T0 + 5000}


def test_series_are_written_in_pieces_that_arrow_can_hold() -> None:
    """24 GB of text at once would be beyond the 2 GiB of an array of strings."""
    few = [Series.of("m", (("i", str(i)),)) for i in range(25_000)]
    assert [len(piece) for piece in pieces(few)] == [10_000, 10_000, 5_000]
    text = "x" * 8 * 2**20
    long = [Series(i, "m", (("l", text),)) for i in range(3000)]
    found = [*pieces(long)]
    assert [one for piece in found for one in piece] == long
    assert max(map(len, found)) <= 4
    assert series_rows(found[0], T0)["labels"].null_count == 0
    assert [*pieces([])] == []
