"""The store on a ClickHouse elsewhere: every answer comes over HTTP, and what may go wrong on the way does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from promql.language import Case, cases, check, samples_of
from support.clickhouse import Place, place
from support.clickhouse_server import PASSWORD, ClickHouseServer, Fault
from support.processes import free_port

from loms.core.clock import ManualClock, SystemClock
from loms.core.errors import QueryCancelledError, QueryLimitError, QueryTimeoutError, StoreError
from loms.core.model import Series
from loms.core.settings import ClickHouse, Store, Tls
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.store.database import Database
from loms.store.rollups import Roller
from loms.store.series import series_rows
from loms.store.trace_conditions import Condition
from loms.store.traces import TraceTables

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
SLOW = "SELECT sum(sipHash64(number)) AS hash FROM numbers(100000000000)"


@pytest.fixture(scope="module", params=[False, True], ids=["one-server", "two-shards"])
def clickhouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("clickhouse"), shards=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("alone")) as found:
        yield found


@pytest.fixture
def database(clickhouse: Place, tmp_path: Path) -> Iterator[Database]:
    with Database.configured(clickhouse.store(tmp_path), SystemClock()) as opened:
        yield opened


def samples(count: int, *, first_id: int = 0) -> pa.Table:
    """One sample of value 1 of each of so many series."""
    ids = np.arange(first_id, first_id + count, dtype=np.uint64)
    return pa.table(
        {"series_id": ids, "ts": np.full(count, SystemClock().now_ms(), "datetime64[ms]"), "value": np.ones(count)}
    )


def number(database: Database, sql: str = "SELECT count() AS n FROM samples") -> int:
    found: int = database.query_columns(sql)["n"][0].as_py()
    return found


def test_what_is_written_is_read(database: Database) -> None:
    rows = samples(1000)
    database.insert_arrow("samples", rows)
    series = [Series(one, "m", (("instance", f"a'{one}"),)) for one in range(1000)]
    for _ in range(2):  # the same key twice is one series
        database.insert_arrow("series", series_rows(series, SystemClock().now_ms()))
    assert number(database) == 1000
    assert number(database, "SELECT count() AS n FROM series FINAL") == 1000
    time_ms = rows["ts"][0].as_py().timestamp() * 1000
    assert database.last_values([3, 5], 0) == {3: (time_ms, 1.0), 5: (time_ms, 1.0)}
    found = database.query_columns(
        "SELECT sum(value) AS n FROM samples WHERE series_id IN"
        " (SELECT id FROM series FINAL WHERE labels['instance'] IN {which:Array(String)})",
        {"which": ["a'7", "a'8", "nobody"]},
        {"max_threads": 1},
    )
    assert found["n"].to_pylist() == [2.0]
    figures = database.figures()
    assert figures.series == 1000
    assert figures.bytes_on_disk > 0


def test_a_limit_in_a_subquery_holds_over_all_shards(database: Database) -> None:
    database.insert_arrow("samples", samples(100))
    newest = (
        "SELECT count() AS n FROM samples WHERE series_id IN (SELECT series_id FROM samples ORDER BY series_id LIMIT 3)"
    )
    assert number(database, newest) == 3


def test_long_lists_of_numbers_may_be_asked_for(database: Database) -> None:
    database.insert_arrow("samples", samples(30_000))
    assert len(database.last_values(range(10_000, 60_000), 0)) == 20_000


def test_rollups_are_made_from_all_shards(clickhouse: Place, tmp_path: Path) -> None:
    """100 series, each with a sample of its number every 15 s of an hour."""
    hour_ms = SystemClock().now_ms() // 3_600_000 * 3_600_000
    clock = ManualClock(hour_ms + 600_000)
    ids = np.repeat(np.arange(100, dtype=np.uint64), 240)
    times = np.tile(hour_ms - 3_600_000 + 15_000 * np.arange(1, 241), 100).astype("datetime64[ms]")
    with Database.configured(clickhouse.store(tmp_path), clock) as database:
        database.insert_arrow("samples", pa.table({"series_id": ids, "ts": times, "value": ids.astype(float)}))
        roller = Roller(database, clock)
        while roller.roll():
            pass
        for table, rows in (("rollup_minute", 6000), ("rollup_hour", 100)):
            found = database.query_columns(
                f"SELECT count() AS n, sum(samples) AS samples, sum(total) AS total FROM {table} FINAL"
            )
            assert [column[0].as_py() for column in found.values()] == [rows, 24_000, 240 * sum(range(100))]


def test_spans_are_found_on_all_shards(database: Database) -> None:
    now_ns = SystemClock().now_ms() * 1_000_000
    names = [f"{number:032x}" for number in range(40)]
    spans: dict[str, Any] = {
        "Timestamp": pa.array([now_ns] * 40, pa.timestamp("ns")),
        "TraceId": names,
        "SpanId": [f"{number:016x}" for number in range(40)],
        "SpanName": ["work"] * 40,
        "ServiceName": ["here"] * 40,
        "Duration": pa.array([1000] * 40, pa.uint64()),
    }
    database.insert_arrow("otel_traces", pa.table(spans))
    tables = TraceTables(database)
    now_ms = now_ns // 1_000_000
    service = Condition("service", "=", "here")
    assert {one.trace_id for one in tables.search([service], now_ms - 1000, now_ms + 1000, limit=100)} == set(names)
    assert len(tables.search([service], now_ms - 1000, now_ms + 1000, limit=7)) == 7
    assert all(len(tables.trace(name).spans) == 1 for name in names)


def test_a_closed_store_is_one_sentence(clickhouse: Place, tmp_path: Path) -> None:
    with Database.configured(clickhouse.store(tmp_path), SystemClock()) as database:
        pass
    with pytest.raises(StoreError, match="the store is closed"):
        number(database)
    with pytest.raises(StoreError, match="the store is closed"):
        database.insert_arrow("samples", samples(1))


def test_a_store_that_is_up_to_date_is_left_alone(clickhouse: Place, tmp_path: Path) -> None:
    store = clickhouse.store(tmp_path)
    Database.configured(store, SystemClock()).close()
    clickhouse.server.order()
    before = len(clickhouse.server.queries())
    with Database.configured(store, SystemClock()) as database:
        assert number(database) == 0
    changes = [q for q in clickhouse.server.queries()[before:] if not q.startswith(("SELECT", "KILL"))]
    assert changes == []


def corpus() -> list[tuple[str, Case]]:
    names = ("rates", "selectors", "staleness", "aggregations")
    return [(name, case) for name in names for case in cases((TESTS / f"promql/{name}.test").read_text())]


def test_promql_has_the_same_answers(clickhouse: Place, tmp_path: Path) -> None:
    with Database.configured(clickhouse.store(tmp_path), ManualClock()) as database:
        local = "_local ON CLUSTER " + clickhouse.cluster if clickhouse.cluster else ""
        for table in ("series", "samples"):  # the corpus counts time from 1970
            database.command(f"ALTER TABLE {table}{local} REMOVE TTL")
        loaded = ""
        for file, case in corpus():
            columns = samples_of(case.loads)
            if repr(columns) != loaded:
                for table in ("series", "samples"):
                    database.command(f"TRUNCATE TABLE {table}{local}")
                write(database, columns)
                loaded = repr(columns)
            try:
                check(case, Engine(ClickHouseSource(database.query_columns)))
            except AssertionError as error:
                raise AssertionError(f"{file}.test:{case.line}: {error}") from None


def write(database: Database, columns: dict[tuple[tuple[str, str], ...], tuple[np.ndarray, np.ndarray]]) -> None:
    series = [
        Series.of(dict(labels).get("__name__", ""), tuple(pair for pair in labels if pair[0] != "__name__"))
        for labels in columns
    ]
    times, values = zip(*columns.values(), strict=True)
    rows = {
        "series_id": np.repeat(np.array([one.id for one in series], np.uint64), [len(one) for one in times]),
        "ts": pa.array(np.concatenate(times).astype("datetime64[ms]")),
        "value": np.concatenate(values),
    }
    database.insert_arrow("series", series_rows(series, now_ms=0))
    database.insert_arrow("samples", pa.table(rows))


def test_an_insert_whose_answer_is_lost_is_there_once(alone: Place, tmp_path: Path) -> None:
    with Database.configured(alone.store(tmp_path), SystemClock()) as database:
        alone.server.order(Fault("INSERT INTO samples", "drop_after"))
        rows = samples(1000)
        database.insert_arrow("samples", rows)
        sent = [query for query in alone.server.queries() if query.startswith("INSERT INTO samples")]
        assert len(sent) == 2
        assert number(database) == 1000
        # It may also come again much later, from a caller that was told of a failure.
        alone.server.order(Fault("INSERT INTO samples", "drop_after", times=9))
        more = samples(500, first_id=5000)
        with pytest.raises(StoreError, match="closed the connection"):
            database.insert_arrow("samples", more)
        alone.server.order()
        database.insert_arrow("samples", more)
        assert number(database) == 1500


def test_an_insert_that_did_not_arrive_is_sent_again(alone: Place, tmp_path: Path) -> None:
    with Database.configured(alone.store(tmp_path), SystemClock()) as database:
        for what, count in (("drop_before", 10), ("overloaded", 20)):
            alone.server.order(Fault("INSERT INTO samples", what))
            database.insert_arrow("samples", samples(10, first_id=count))
            assert number(database) == count


def test_a_query_is_asked_again_and_a_statement_is_not(alone: Place, tmp_path: Path) -> None:
    with Database.configured(alone.store(tmp_path), SystemClock()) as database:
        alone.server.order(
            Fault("SELECT 41", "drop_before"), Fault("SELECT 42", "overloaded"), Fault("OPTIMIZE", "drop_after")
        )
        assert number(database, "SELECT 41 AS n") == 41
        assert number(database, "SELECT 42 AS n") == 42
        with pytest.raises(StoreError, match=r"localhost:\d+ closed the connection"):
            database.command("OPTIMIZE TABLE samples")
        assert len([query for query in alone.server.queries() if query.startswith("OPTIMIZE")]) == 1


def test_limits_have_their_own_errors(alone: Place, tmp_path: Path) -> None:
    with Database.configured(alone.store(tmp_path), SystemClock()) as database:
        with pytest.raises(QueryTimeoutError):
            database.query_columns(SLOW, settings={"max_execution_time": 1})
        with pytest.raises(QueryLimitError):
            database.query_columns(
                "SELECT groupArray(number) AS n FROM numbers(1e9)", settings={"max_memory_usage": 10**7}
            )
        with pytest.raises(StoreError, match="Unknown expression identifier `nope`") as failed:
            database.query_columns("SELECT nope")
        assert "http" not in failed.value.message


def test_a_query_can_be_ended(alone: Place, tmp_path: Path) -> None:
    with Database.configured(alone.store(tmp_path), SystemClock()) as database:
        ended = threading.Event()

        def ask() -> None:
            with pytest.raises(QueryCancelledError):
                database.query_columns(SLOW, settings={"max_execution_time": 250, "log_comment": "'mine'"})
            ended.set()

        thread = threading.Thread(target=ask)
        thread.start()
        while not ended.wait(0.1):
            database.end_query("mine")
        thread.join()


def test_closing_ends_a_running_query(alone: Place, tmp_path: Path) -> None:
    database = Database.configured(alone.store(tmp_path), SystemClock())
    ended: list[Exception] = []

    def ask() -> None:
        try:
            database.query_columns(SLOW, settings={"max_execution_time": 250})
        except (QueryCancelledError, StoreError) as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    database.close()
    thread.join()
    assert len(ended) == 1


def test_the_next_host_is_asked_when_one_is_away(alone: Place, tmp_path: Path) -> None:
    store = alone.store(tmp_path)
    assert store.url is not None
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(StoreError, match=f"{nobody} cannot be reached: Connection refused") as away:
        Database.configured(Store(url=f"clickhouse://u:{PASSWORD[0]}secret@{nobody}/x", path=tmp_path), SystemClock())
    assert "secret" not in f"{away.value.message}{away.value.hint}"
    both = store.url.get_secret_value().replace("@", f"@{nobody},", 1)
    with Database.configured(Store(url=both, path=tmp_path), SystemClock()) as database:
        database.insert_arrow("samples", samples(10))
        assert number(database) == 10


def test_a_wrong_password_is_said_and_not_shown(alone: Place, tmp_path: Path) -> None:
    port = alone.server.port
    with pytest.raises(StoreError, match="Authentication failed") as refused:
        Database.configured(Store(url=f"clickhouse://loms:wrong-one@localhost:{port}", path=tmp_path), SystemClock())
    assert "wrong-one" not in f"{refused.value.message}{refused.value.hint}"


def test_a_server_that_was_restarted_is_found_again(tmp_path: Path) -> None:
    with (
        ClickHouseServer(tmp_path / "server", free_port()) as server,
        Database.configured(Store(url=server.url(), path=tmp_path), SystemClock()) as database,
    ):
        database.insert_arrow("samples", samples(10))
        server.stop()
        with pytest.raises(StoreError, match="cannot be reached: Connection refused"):
            number(database)
        server.start()
        assert number(database) == 10


def test_tls_is_checked(tmp_path: Path) -> None:
    data = TESTS / "data/tls"
    with ClickHouseServer(tmp_path / "server", free_port(), tls=(data / "server.pem", data / "server.key")) as server:
        url = server.url()
        trusting = Tls(ca_file=data / "ca.pem", server_name="engine.test")
        store = Store(url=url, path=tmp_path, clickhouse=ClickHouse(tls=trusting))
        with Database.configured(store, SystemClock()) as database:
            database.insert_arrow("samples", samples(10))
            assert number(database) == 10
        with pytest.raises(StoreError, match="cannot be trusted"):
            Database.configured(Store(url=url, path=tmp_path), SystemClock())


RACER = """
import sys
from pathlib import Path
from loms.core.clock import SystemClock
from loms.core.settings import Store
from loms.store.database import Database
store = Store.model_validate_json(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
Database.configured(store, SystemClock()).close()
"""


def test_of_several_that_start_at_once_one_makes_the_schema(clickhouse: Place, tmp_path: Path) -> None:
    settings = clickhouse.settings(path=str(tmp_path))
    text = (
        Store.model_validate(settings).model_dump_json(exclude={"url"}).rstrip("}") + f', "url": "{settings["url"]}"}}'
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    with Database.configured(Store.model_validate(settings), SystemClock()) as database:
        twice = "SELECT count() - uniqExact(version) AS n FROM schema_version"
        assert number(database, twice) == 0
        assert number(database, "SELECT count() AS n FROM schema_version") >= 6
