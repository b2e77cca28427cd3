from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import SystemClock
from loms.core.errors import QueryLimitError, QueryTimeoutError, StoreError
from loms.store.database import Database

SLOW = "SELECT sum(sipHash64(number)) AS s FROM numbers(1000000000000)"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For tests that only read; each query within ten seconds and 100 MB."""
    path = tmp_path_factory.mktemp("shared")
    with Database.open(path, 1e9, SystemClock(), query_timeout_seconds=10, query_memory_bytes=10**8) as opened:
        yield opened


def test_columns_come_as_arrow_arrays_of_their_types(shared: Database) -> None:
    columns = shared.query_columns(
        "SELECT toUInt64(18446744073709551615) AS id, fromUnixTimestamp64Milli(1700000000123) AS ts,"
        " [1.5, NULL, nan] AS grid, map('a', 'é') AS labels, toLowCardinality('up') AS name FROM numbers(2)"
    )
    assert list(columns) == ["id", "ts", "grid", "labels", "name"]
    assert columns["id"].to_pylist() == [2**64 - 1] * 2
    assert columns["ts"].cast(pa.int64()).to_pylist() == [1_700_000_000_123] * 2
    assert columns["labels"].to_pylist() == [[("a", "é")]] * 2
    assert columns["name"].to_pylist() == ["up"] * 2
    number, null, nan = columns["grid"].to_pylist()[0]
    assert (number, null) == (1.5, None)
    assert np.isnan(nan)


def test_no_rows_still_have_columns(shared: Database) -> None:
    columns = shared.query_columns("SELECT series_id, value FROM samples")
    assert {name: (len(column), str(column.type)) for name, column in columns.items()} == {
        "series_id": (0, "uint64"),
        "value": (0, "double"),
    }


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("String", 'it\'s a "b" \\ {c:String} %s\n\té\0z'),
        ("Array(String)", ["a'b", "c\\", "d\ne", ""]),
        ("Array(UInt64)", [0, 2**64 - 1]),
        ("Array(UInt64)", []),
        ("Float64", float("inf")),
        ("Int64", -(2**63)),
    ],
)
def test_parameters_arrive_as_given(shared: Database, kind: str, value: object) -> None:
    assert shared.query_columns(f"SELECT {{p:{kind}}} AS p", {"p": value})["p"].to_pylist() == [value]


def test_many_parameters_fit_into_one_query(shared: Database) -> None:
    ids = list(range(2**63, 2**63 + 100_000))
    assert shared.query_columns(
        "SELECT arraySum({ids:Array(UInt64)}) - 0 AS s, length({ids:Array(UInt64)}) AS n", {"ids": ids}
    )["n"].to_pylist() == [100_000]


def test_a_query_ends_at_its_time_limit(shared: Database) -> None:
    with pytest.raises(QueryTimeoutError, match="Timeout exceeded"):
        shared.query_columns(SLOW, settings={"max_execution_time": 0.2})


def test_a_query_ends_at_its_memory_limit(shared: Database) -> None:
    with pytest.raises(QueryLimitError, match="memory limit exceeded"):
        shared.query_columns("SELECT groupArray(number) AS a FROM numbers(100000000)")


def test_a_query_ends_at_a_limit_of_rows(shared: Database) -> None:
    with pytest.raises(QueryLimitError):
        shared.query_columns("SELECT number FROM numbers(100000)", settings={"max_result_rows": 1000})


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT nothing FROM samples", "SELECT 1 FROM nowhere"])
def test_a_wrong_query_is_one_line(shared: Database, sql: str) -> None:
    with pytest.raises(StoreError) as failed:
        shared.query_columns(sql)
    assert failed.value.message.startswith("the store cannot answer: ")
    assert "\n" not in failed.value.message
    assert shared.query_columns("SELECT 1 AS one")["one"].to_pylist() == [1], "the reader goes on working"


@pytest.mark.parametrize(
    "sql", ["INSERT INTO samples SELECT 1, now64(3), 1", "DROP TABLE samples", "TRUNCATE TABLE series"]
)
def test_readers_cannot_write(shared: Database, sql: str) -> None:
    with pytest.raises(StoreError, match="readonly"):
        shared.query_columns(sql)
