"""The schema files as one ClickHouse server or a cluster needs them.

On one server the tables stand as they are written, and remember the newest inserts so that one which comes again is not
written twice. In a cluster each statement is rendered ``ON CLUSTER``, in one of two ways.

**Sharded tables** (`SHARDED`) are a local table ``<name>_local``, replicated within each shard, and ``<name>``, a
Distributed table over them. All code says ``<name>``. That its SQL gives the same answers there rests on four things:

- The sharding key is a function of the table's own sorting key, so rows that a Replacing- or AggregatingMergeTree puts
  together are on one shard, and ``FINAL`` (which each shard does for itself) is right. It is the same function of the
  series' id for samples, series and rollups: a series and its samples are on one shard, and a materialized view from
  one local table into another writes rows where they belong.
- ``IN (SELECT …)`` and ``JOIN`` of two Distributed tables are evaluated once and sent to the shards
  (``distributed_product_mode = 'global'``). The engine's ``local`` would be cheaper for ids but wrong for a subquery
  with a ``LIMIT``.
- ``GROUP BY`` merges the shards' aggregate states, also where a key combines ids of several shards.
- The sharding key depends on the row only (never ``rand()``), so an insert that is repeated after an answer was lost
  meets, on each shard, the block that its token has already brought there.

**Tables everywhere** (`EVERYWHERE`) are small: alerts, incidents, notes. Each server has the whole table (one
replication path for all shards), so any SQL on them is local, ``LIMIT`` and subqueries included.

Writes are acknowledged when one replica of each shard has them; the others fetch them a moment later
(``insert_quorum`` stays off: with two replicas it would refuse all writes while one is down).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from loms.core.errors import StoreError
from loms.store.engine import Command, Rows

SHARDED: Mapping[str, str] = {
    "series": "intHash64(id)",
    "samples": "intHash64(series_id)",
    "rollup_minute": "intHash64(series_id)",
    "rollup_hour": "intHash64(series_id)",
    "rollup_late": "intHash64(series_id)",
    "otel_traces": "cityHash64(TraceId)",
    "otel_traces_trace_id_ts": "cityHash64(TraceId)",
    "otel_logs": "cityHash64(Timestamp, Body)",
}
"""Table → the function of a row that says on which shard it lies."""

EVERYWHERE = frozenset(
    {
        "alerts",
        "incidents",
        "notifications",
        "target_notes",
        "metric_metadata",
        "rollup_progress",
        "schema_version",
    }
)

SETTINGS: Mapping[str, str | int] = {
    "distributed_product_mode": "global",
    # Acknowledged means that the shards have it, not that it lies in a queue of the server that was asked.
    "distributed_foreground_insert": 1,
    # With the local replica first, one server's reads and writes meet at the same replica: what was written is read.
    "prefer_localhost_replica": 1,
    "load_balancing": "in_order",
}
"""Of every session with a cluster."""

_DEDUPLICATION = "non_replicated_deduplication_window = 1000"
_CREATE = re.compile(
    r"CREATE TABLE IF NOT EXISTS (\w+)(\s*\(.*\)\s*ENGINE = )(\w*MergeTree)(?:\(([^()]*)\))?(.*)", re.S
)
_VIEW = re.compile(r"CREATE MATERIALIZED VIEW IF NOT EXISTS (\w+) TO (\w+)(.*)", re.S)
_ALTER = re.compile(r"ALTER TABLE (\w+)(.*)", re.S)
_DROP = re.compile(r"DROP (TABLE|VIEW) IF EXISTS (\w+)", re.S)
_READ = re.compile(r"\b(FROM|JOIN)\s+(\w+)\b")
_STORAGE_ONLY = re.compile(
    r"\s*(MODIFY (TTL|SETTING|ORDER BY|QUERY)|RESET SETTING|(ADD|DROP|MATERIALIZE) (INDEX|PROJECTION))"
)
"""What of an ALTER concerns how rows are kept: nothing to a Distributed table."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tables stand. Without a ``cluster`` there is one server.

    Where there is a ``cold_volume``, samples move to it after ``cold_seconds``.
    """

    database: str
    cluster: str = ""
    storage_policy: str = ""
    cold_volume: str = ""
    cold_seconds: int = 0

    @property
    def on_cluster(self) -> str:
        """The clause, with a space in front; empty for one server."""
        return f" ON CLUSTER {identifier(self.cluster)}" if self.cluster else ""

    def local(self, table: str) -> str:
        """The table that rows of ``table`` lie in."""
        return f"{table}_local" if self.cluster and table in SHARDED else table

    def named(self, table: str) -> str:
        """The table as a statement names it; an ``ON CLUSTER`` one is run by a server with a database of its own."""
        return f"{identifier(self.database)}.{table}" if self.cluster else table

    def render(self, statement: str) -> list[str]:
        """The statements that do here what ``statement``, from a schema file, does to an embedded store.

        Raises `StoreError` for a form or a table that this module does not know.
        """
        statement = statement.strip()
        if made := _CREATE.fullmatch(statement):
            return self._created(*made.groups())
        if view := _VIEW.fullmatch(statement):
            name, target, query = view.groups()
            return [
                f"CREATE MATERIALIZED VIEW IF NOT EXISTS {self.named(name)}{self.on_cluster}"
                f" TO {self.named(self.local(target))}"
                + _READ.sub(lambda found: f"{found[1]} {self.named(self.local(found[2]))}", query)
            ]
        if altered := _ALTER.fullmatch(statement):
            return self._altered(*altered.groups())
        if dropped := _DROP.fullmatch(statement):
            kind, name = dropped.groups()
            both = dict.fromkeys((name, self.local(name)))
            return [f"DROP {kind} IF EXISTS {self.named(one)}{self.on_cluster}" for one in both]
        if statement.startswith("INSERT INTO "):
            return [statement]
        raise StoreError(f"a schema file has a statement that cannot be run on a cluster: {statement[:60]!r}")

    def _created(self, name: str, columns: str, engine: str, arguments: str | None, rest: str) -> list[str]:
        if not self.cluster:
            joint = ", " if re.search(r"\bSETTINGS\b", rest) else " SETTINGS "
            given = f"({arguments})" if arguments is not None else ""
            return [f"CREATE TABLE IF NOT EXISTS {name}{columns}{engine}{given}{rest.rstrip()}{joint}{_DEDUPLICATION}"]
        if name not in SHARDED and name not in EVERYWHERE:
            raise StoreError(f"loms.store.ddl does not say where the rows of table {name} are to lie")
        shard, replica = ("{shard}", "{replica}") if name in SHARDED else ("all", "{shard}-{replica}")
        path = f"'/clickhouse/tables/{shard}/{self.database}/{name}', '{replica}'"
        local = (
            f"CREATE TABLE IF NOT EXISTS {self.named(self.local(name))}{self.on_cluster}{columns}"
            f"Replicated{engine}({', '.join([path, *([arguments] if arguments else [])])}){rest}"
        )
        if name in EVERYWHERE:
            return [local]
        led = (identifier(self.cluster), identifier(self.database), self.local(name), SHARDED[name])
        return [
            local,
            f"CREATE TABLE IF NOT EXISTS {self.named(name)}{self.on_cluster} AS {self.named(self.local(name))}"
            f" ENGINE = Distributed({', '.join(led)})",
        ]

    def _altered(self, name: str, change: str) -> list[str]:
        ttl = re.fullmatch(r" MODIFY TTL ([^,]*)", change)
        if ttl and name == "samples" and self.cold_volume:
            policy = f" MODIFY SETTING storage_policy = '{self.storage_policy}'"
            changes = [policy, f" MODIFY TTL {ttl[1]}, {self._move}"]
        else:
            changes = [change]
        local = self.local(name)
        statements = [f"ALTER TABLE {self.named(local)}{self._told(name, one)}{one}" for one in changes]
        if local != name and not _STORAGE_ONLY.match(change):
            statements.append(f"ALTER TABLE {self.named(name)}{self.on_cluster}{change}")
        return statements

    def _told(self, name: str, change: str) -> str:
        """Whom to tell of a change. A table that all servers replicate passes it on by itself, all but its settings,
        and two shards' leaders that begin the same change at once would get in each other's way.
        """
        return "" if name in EVERYWHERE and not re.match(r"\s*(MODIFY|RESET) SETTING", change) else self.on_cluster

    def store_cold(self, command: Command, rows: Rows) -> None:
        """Have samples move to the cold volume, or no longer, as these settings say. ``command`` renders."""
        found = rows(
            "SELECT engine_full FROM system.tables WHERE database = currentDatabase()"  # noqa: S608 - fixed texts
            f" AND name = '{self.local('samples')}'"
        )
        engine = str(found[0][0]) if found else ""
        moves = re.search(r"TO VOLUME", engine) is not None
        ttl = re.search(r"\bTTL (ts \+ toIntervalSecond\(\d+\))", engine)
        if ttl is None or (self._move in engine if self.cold_volume else not moves):
            return
        command(f"ALTER TABLE samples MODIFY TTL {ttl[1]}")

    @property
    def _move(self) -> str:
        return f"ts + toIntervalSecond({self.cold_seconds}) TO VOLUME '{self.cold_volume}'"


def identifier(name: str) -> str:
    """A quoted name."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
