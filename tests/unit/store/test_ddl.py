"""What the schema files become on a server and in a cluster; the engine itself says whether that is SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from loms.core.errors import StoreError
from loms.core.settings import Receive, Store
from loms.store.ddl import EVERYWHERE, SHARDED, Layout
from loms.store.embedded import Embedded
from loms.store.engine import Session, rows_of
from loms.store.migrations import migrate, shipped
from loms.store.retention import Retention, apply_retention

SERVER, CLUSTER = Layout("loms"), Layout("loms", "main")
COLD = Layout("loms", "main", storage_policy="tiered", cold_volume="cold", cold_seconds=86_400)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    engine = Embedded(tmp_path_factory.mktemp("engine"), {})
    engine.prepare(lambda _, __: None)
    writer = engine.writer()
    yield writer
    writer.close()
    engine.close()


def everything() -> list[str]:
    """Every statement that opening a new store with the default settings runs, as it stands in the files."""
    found: list[str] = []
    tables = [(name, "") for name in [*SHARDED, *EVERYWHERE]]
    migrate("here", found.append, lambda _: [], shipped(), 1_700_000_000_000)
    apply_retention(found.append, lambda _: tables, Retention.of(Store(), Receive()))
    return found


@pytest.mark.parametrize("layout", [SERVER, CLUSTER, COLD])
def test_the_engine_can_read_every_statement(layout: Layout, session: Session) -> None:
    rendered = [one for statement in everything() for one in layout.render(statement)]
    assert len(rendered) > 25
    for statement in rendered:
        if not statement.startswith("INSERT"):
            session.command(f"EXPLAIN AST {statement}")
            by_itself = any(f"ALTER TABLE `loms`.{name} " in statement for name in EVERYWHERE)
            assert (" ON CLUSTER `main`" in statement) == bool(layout.cluster) or by_itself


def test_what_is_no_statement_does_not_pass(session: Session) -> None:
    """So that the test above can fail."""
    broken = CLUSTER.render("CREATE TABLE IF NOT EXISTS series (id UInt64) ENGINE = MergeTree ORDRE BY id")
    with pytest.raises(Exception, match="Syntax error"):
        session.command(f"EXPLAIN AST {broken[0]}")


def test_every_statement_for_one_server_runs_twice(session: Session) -> None:
    for _ in range(2):
        for statement in everything():
            for one in SERVER.render(statement):
                session.command(one)
    engines = rows_of(
        session, "SELECT name, engine_full FROM system.tables WHERE database = 'loms' AND engine LIKE '%Tree'"
    )
    assert len(engines) == len(SHARDED) + len(EVERYWHERE)
    assert all("non_replicated_deduplication_window = 1000" in str(engine) for _, engine in engines)


def test_every_table_has_its_place() -> None:
    created = {
        found[1]
        for migration in shipped()
        for statement in migration.statements
        if (found := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", statement))
    }
    assert created | {"schema_version"} == SHARDED.keys() | EVERYWHERE
    assert not SHARDED.keys() & EVERYWHERE


def test_rows_that_replace_one_another_are_on_one_shard() -> None:
    """The sharding key reads only columns of the sorting key, wherever the engine puts rows together."""
    for migration in shipped():
        for statement in migration.statements:
            made = re.match(
                r"CREATE TABLE IF NOT EXISTS (\w+).*ENGINE = (\w+)MergeTree.*ORDER BY (.*)", statement, re.S
            )
            if made and made[2] and made[1] in SHARDED:
                column = re.fullmatch(r"\w+\((\w+)\)", SHARDED[made[1]])
                assert column is not None
                assert re.search(rf"\b{column[1]}\b", made[3]), made[1]


def test_a_sharded_table() -> None:
    sql = """CREATE TABLE IF NOT EXISTS samples
(
    series_id UInt64 CODEC(LZ4)
)
ENGINE = MergeTree
ORDER BY (series_id, ts)
SETTINGS a = 1"""
    assert CLUSTER.render(sql) == [
        """CREATE TABLE IF NOT EXISTS `loms`.samples_local ON CLUSTER `main`
(
    series_id UInt64 CODEC(LZ4)
)
ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/loms/samples', '{replica}')
ORDER BY (series_id, ts)
SETTINGS a = 1""",
        "CREATE TABLE IF NOT EXISTS `loms`.samples ON CLUSTER `main` AS `loms`.samples_local"
        " ENGINE = Distributed(`main`, `loms`, samples_local, intHash64(series_id))",
    ]
    assert SERVER.render(sql) == [f"{sql}, non_replicated_deduplication_window = 1000"]


def test_a_table_that_is_everywhere() -> None:
    sql = "CREATE TABLE IF NOT EXISTS alerts (k String, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY k"
    assert CLUSTER.render(sql) == [
        "CREATE TABLE IF NOT EXISTS `loms`.alerts ON CLUSTER `main` (k String, v UInt64) ENGINE ="
        " ReplicatedReplacingMergeTree('/clickhouse/tables/all/loms/alerts', '{shard}-{replica}', v) ORDER BY k"
    ]
    assert SERVER.render(sql) == [f"{sql} SETTINGS non_replicated_deduplication_window = 1000"]


def test_a_view_reads_and_writes_local_tables() -> None:
    sql = (
        "CREATE MATERIALIZED VIEW IF NOT EXISTS v TO otel_traces_trace_id_ts AS\n"
        "SELECT TraceId, min(Timestamp) AS Start FROM otel_traces WHERE TraceId != '' GROUP BY TraceId"
    )
    assert CLUSTER.render(sql) == [
        "CREATE MATERIALIZED VIEW IF NOT EXISTS `loms`.v ON CLUSTER `main` TO `loms`.otel_traces_trace_id_ts_local AS\n"
        "SELECT TraceId, min(Timestamp) AS Start FROM `loms`.otel_traces_local WHERE TraceId != '' GROUP BY TraceId"
    ]
    assert SERVER.render(sql) == [sql]


def test_changes_of_storage_concern_local_tables_only() -> None:
    ttl = "ALTER TABLE samples MODIFY TTL ts + toIntervalSecond(60)"
    local = "ALTER TABLE `loms`.samples_local ON CLUSTER `main`"
    assert CLUSTER.render(ttl) == [f"{local} MODIFY TTL ts + toIntervalSecond(60)"]
    assert COLD.render(ttl) == [
        f"{local} MODIFY SETTING storage_policy = 'tiered'",
        f"{local} MODIFY TTL ts + toIntervalSecond(60), ts + toIntervalSecond(86400) TO VOLUME 'cold'",
    ]
    assert COLD.render("ALTER TABLE series MODIFY TTL last_seen + toIntervalSecond(9)") == [
        "ALTER TABLE `loms`.series_local ON CLUSTER `main` MODIFY TTL last_seen + toIntervalSecond(9)"
    ]
    column = "ADD COLUMN IF NOT EXISTS unit String"
    assert CLUSTER.render(f"ALTER TABLE samples {column}") == [
        f"{local} {column}",
        f"ALTER TABLE `loms`.samples ON CLUSTER `main` {column}",
    ]
    # One replication path for all servers: the table passes changes on by itself, all but its settings.
    assert CLUSTER.render(f"ALTER TABLE alerts {column}") == [f"ALTER TABLE `loms`.alerts {column}"]
    assert CLUSTER.render("ALTER TABLE alerts MODIFY SETTING ttl_only_drop_parts = 1") == [
        "ALTER TABLE `loms`.alerts ON CLUSTER `main` MODIFY SETTING ttl_only_drop_parts = 1"
    ]


def test_dropping_drops_both() -> None:
    assert CLUSTER.render("DROP TABLE IF EXISTS samples") == [
        "DROP TABLE IF EXISTS `loms`.samples ON CLUSTER `main`",
        "DROP TABLE IF EXISTS `loms`.samples_local ON CLUSTER `main`",
    ]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(StoreError, match="table elsewhere are to lie"):
        CLUSTER.render("CREATE TABLE IF NOT EXISTS elsewhere (a UInt8) ENGINE = MergeTree ORDER BY a")
    with pytest.raises(StoreError, match="cannot be run on a cluster: 'OPTIMIZE TABLE samples'"):
        CLUSTER.render("OPTIMIZE TABLE samples")


@pytest.mark.parametrize(
    ("layout", "ttl", "expected"),
    [
        (COLD, "ts + toIntervalSecond(60)", True),
        (COLD, "ts + toIntervalSecond(60), ts + toIntervalSecond(86400) TO VOLUME 'cold'", False),
        (COLD, "ts + toIntervalSecond(60), ts + toIntervalSecond(7200) TO VOLUME 'cold'", True),
        (CLUSTER, "ts + toIntervalSecond(60), ts + toIntervalSecond(86400) TO VOLUME 'cold'", True),
        (CLUSTER, "ts + toIntervalSecond(60)", False),
    ],
)
def test_samples_move_as_the_settings_say(layout: Layout, ttl: str, expected: bool) -> None:
    commands: list[str] = []
    engine = f"ReplicatedMergeTree('/p', 'r') ORDER BY ts TTL {ttl} SETTINGS index_granularity = 8192"
    layout.store_cold(commands.append, lambda _: [(engine,)])
    assert commands == (["ALTER TABLE samples MODIFY TTL ts + toIntervalSecond(60)"] if expected else [])
