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
    """For tests that only read; one reader for all of them, each query within ten seconds and 100 MB."""
    path = tmp_path_factory.mktemp("shared")
    with Database.open(
        path, 1e9, SystemClock(), readers=1, query_timeout_seconds=10, query_memory_bytes=10**8
    ) as opened:
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


@pytest.mark.parametrize(
    ("sql", "settings", "error", "message"),
    [
        pytest.param(SLOW, {"max_execution_time": 0.2}, QueryTimeoutError, "Timeout exceeded", id="time"),
        pytest.param(
            "SELECT groupArray(number) AS a FROM numbers(100000000)", {}, QueryLimitError, "memory limit", id="memory"
        ),
        pytest.param(
            "SELECT number FROM numbers(300000)", {"max_result_rows": 200_000}, QueryLimitError, "rows", id="rows"
        ),
        pytest.param("SELEC 1", {}, StoreError, "Syntax error", id="syntax"),
        pytest.param("SELECT nothing FROM samples", {}, StoreError, "nothing", id="column"),
        pytest.param("SELECT 1 FROM nowhere", {}, StoreError, "nowhere", id="table"),
        pytest.param(
            "SELECT number, throwIf(number = 200000, 'ouch') AS t FROM numbers(300000)",
            {},
            StoreError,
            "ouch",
            id="late",
        ),
    ],
)
def test_a_failed_query_is_one_line_and_leaves_nothing_in_the_next_answer(
    shared: Database, sql: str, settings: dict[str, float], error: type[StoreError], message: str
) -> None:
    """chDB alone gives the next query of the same client the beginning of the failed one's answer as well."""
    for _ in range(3):
        with pytest.raises(error, match=rf"^the store cannot answer: .*{message}.*$") as failed:
            shared.query_columns(sql, settings=settings)
        assert type(failed.value) is error
        columns = shared.query_columns("SELECT 1 AS one, 'two' AS two")
        assert {name: column.to_pylist() for name, column in columns.items()} == {"one": [1], "two": ["two"]}


@pytest.mark.parametrize(
    "sql", ["INSERT INTO samples SELECT 1, now64(3), 1", "DROP TABLE samples", "TRUNCATE TABLE series"]
)
def test_readers_cannot_write(shared: Database, sql: str) -> None:
    with pytest.raises(StoreError, match="readonly"):
        shared.query_columns(sql)
