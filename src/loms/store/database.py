"""The embedded database (chDB, which is ClickHouse in this process): one writing client, a few reading ones.

Facts this rests on, measured with chDB 26.9: a client serialises its own calls and releases the GIL while it works, so
each concurrent reader needs a client of its own (about 1 MB and 7 ms); a process can have one data path open at a time;
an acknowledged insert survives ``kill -9``, because its files are complete before the call returns.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from loms.core.clock import Clock
from loms.core.errors import QueryLimitError, QueryTimeoutError, StoreError
from loms.store.lock import DirectoryLock
from loms.store.migrations import Migration, migrate, shipped
from loms.store.retention import apply_retention

DATABASE = "loms"

_LAST_MS = 4_102_444_800_000
"""The year 2100: later than any sample."""
_ENGINE = {
    # The default wakes twenty times a second to correct memory accounting: 0.3 % of a core for nothing.
    "memory_worker_period_ms": 1000,
    "background_pool_size": 2,
    "max_server_memory_usage_to_ram_ratio": 0.5,
    "mark_cache_size": 64 * 2**20,
    "index_mark_cache_size": 16 * 2**20,
    "primary_index_cache_size": 64 * 2**20,
}
"""Server settings of the embedded engine, for a machine whose work is something else."""

_WRITER = {
    "max_threads": 1,
    "max_insert_threads": 1,
    "input_format_parallel_parsing": 0,
    "optimize_on_insert": 0,
    "max_partitions_per_insert_block": 0,
}

_TOO_MUCH = frozenset({158, 241, 307, 396})
"""TOO_MANY_ROWS, MEMORY_LIMIT_EXCEEDED, TOO_MANY_BYTES, TOO_MANY_ROWS_OR_BYTES."""
_TOO_SLOW = frozenset({159, 160})
"""TIMEOUT_EXCEEDED, TOO_SLOW."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The store's size: rows of samples, their parts, distinct series (a close estimate), bytes of all tables."""

    samples: int
    parts: int
    series: int
    bytes_on_disk: int


class Database:
    """An open store. `query_columns` may be called from any thread; writes go through one client, one at a time."""

    def __init__(
        self,
        path: Path,
        retention_seconds: float,
        lock: DirectoryLock,
        writer: Client,
        open_reader: Callable[[], Client],
        readers: int,
        timeout_seconds: float,
    ) -> None:
        self.path = path
        self.retention_seconds = retention_seconds
        self._lock = lock
        self._writer = writer
        self._open_reader = open_reader
        self._readers: queue.LifoQueue[Client] = queue.LifoQueue()
        for _ in range(readers):
            self._readers.put(open_reader())
        self._reader_count = readers
        self._timeout_seconds = timeout_seconds
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        retention_seconds: float,
        clock: Clock,
        *,
        readers: int = 4,
        query_timeout_seconds: float = 30.0,
        query_memory_bytes: int = 2 * 2**30,
        migrations: Sequence[Migration] | None = None,
    ) -> Self:
        """Open or create the store under the directory ``path`` and bring its schema up to date.

        ``readers`` queries run at a time, each within ``query_timeout_seconds`` and ``query_memory_bytes``. Raises
        `StoreBusyError` when another process has the directory, `StoreError` when it cannot be opened.
        """
        path = path.expanduser().absolute()
        lock = DirectoryLock(path)
        limits = {
            "max_threads": min(4, os.cpu_count() or 1),
            "max_execution_time": query_timeout_seconds,
            "max_memory_usage": query_memory_bytes,
            "allow_experimental_time_series_aggregate_functions": 1,
            "output_format_arrow_string_as_string": 1,
            "readonly": 2,
        }
        opened: list[Client] = []
        try:
            with _translated(f"{path}: the store cannot be opened"):
                opened.append(_client(path, None, {}))
                opened[0].command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
                opened.append(writer := _client(path, DATABASE, _WRITER))
                rows = partial(_rows, writer)
                migrate(path, writer.command, rows, migrations or shipped(), clock.now_ms())
                apply_retention(writer.command, rows, retention_seconds)
                open_reader = partial(_client, path, DATABASE, limits)
                store = cls(path, retention_seconds, lock, writer, open_reader, readers, query_timeout_seconds)
                opened.pop()
                return store
        except BaseException:
            lock.close()
            raise
        finally:
            for client in opened:
                client.close()

    def close(self) -> None:
        """End running queries, finish a running insert, free the directory. Calling again does nothing."""
        if self._closed:
            return
        self._closed = True
        idle = 0
        while idle < self._reader_count:
            try:
                self._readers.get(timeout=0.1).close()
                idle += 1
            except queue.Empty:
                with _translated("the store cannot be closed"):
                    self._writer.command("KILL QUERY WHERE query_kind = 'Select' ASYNC")
        self._writer.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query_columns(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> dict[str, pa.Array[Any]]:
        """Run a SELECT and return its columns as Arrow arrays of one length, by name.

        ``parameters`` fill ``{name:Type}`` places. ``settings`` (``max_execution_time``, …) hold for this query; with
        them ``sql`` must not end in a SETTINGS clause of its own. A DateTime64(3) comes as ``timestamp[ms]``, an
        Array as a list array, a Map as a map array, a String as ``string``.

        Raises `QueryTimeoutError`, `QueryLimitError` (too much memory or too many rows) or `StoreError`.
        """
        if settings:
            sql += "\n SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items())
        with _translated("the store cannot answer", query=True), self._reader() as reader:
            raw = reader.raw_query(sql, dict(parameters or {}), fmt="ArrowStream")
            table = pa.ipc.open_stream(raw).read_all()
            return {name: table.column(i).combine_chunks() for i, name in enumerate(table.column_names)}

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        """Append ``rows``, whose columns have the table's names; they survive ``kill -9`` once the call returns.

        Raises `StoreError`; then none of the rows are there, or, if they lie in several days, those of some days.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        with _translated(f"the store refuses rows of {table}"):
            self._writer.raw_insert(table, rows.column_names, cast("bytes", sink.getvalue()), fmt="ArrowStream")

    def last_values(
        self, ids: Iterable[int], since_ms: int, until_ms: int | None = None
    ) -> dict[int, tuple[int, float]]:
        """Series id → time (ms) and value of its newest sample from ``since_ms`` to ``until_ms``, where there is one.

        Staleness markers are passed over. The whole of each day since then is read: keep ``since_ms`` near.
        """
        columns = self.query_columns(
            "SELECT series_id AS id, toUnixTimestamp64Milli(max(ts)) AS t, argMax(value, ts) AS v FROM samples"
            " WHERE series_id IN {ids:Array(UInt64)} AND ts >= fromUnixTimestamp64Milli({since:Int64})"
            " AND ts <= fromUnixTimestamp64Milli({until:Int64}) AND NOT isNaN(value) GROUP BY series_id",
            {"ids": sorted(ids), "since": since_ms, "until": _LAST_MS if until_ms is None else until_ms},
        )
        rows = zip(*(columns[name].to_pylist() for name in ("id", "t", "v")), strict=True)
        return {series_id: (time_ms, value) for series_id, time_ms, value in rows}

    def figures(self) -> Figures:
        """How much is stored now."""
        columns = self.query_columns(
            "SELECT sumIf(rows, table = 'samples') AS samples, sum(bytes_on_disk) AS bytes_on_disk,"
            " countIf(table = 'samples') AS parts, (SELECT uniq(name, labels) FROM series) AS series"
            " FROM system.parts WHERE active AND database = currentDatabase()"
        )
        return Figures(**{name: column[0].as_py() for name, column in columns.items()})

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that changes the database. Raises `StoreError`."""
        with _translated("the store refuses a statement"):
            self._writer.command(sql, dict(parameters or {}))

    @contextmanager
    def _reader(self) -> Iterator[Client]:
        if self._closed:
            raise StoreError("the store is closed")
        try:
            reader = self._readers.get(timeout=self._timeout_seconds)
        except queue.Empty:
            raise QueryTimeoutError(
                f"the query waited {self._timeout_seconds:g} s for one of the store's {self._reader_count} readers",
                hint="other queries take long; narrow them",
            ) from None
        try:
            yield reader
        except BaseException:
            # chDB keeps what a failed query had begun to answer, and puts it in front of this client's next answer.
            reader.close()
            if not self._closed:
                reader = self._open_reader()
            raise
        finally:
            self._readers.put(reader)


def _client(path: Path, database: str | None, settings: Mapping[str, object]) -> Client:
    return clickhouse_connect.get_client(
        interface="chdb", path=str(path / "chdb"), database=database, settings=dict(settings), chdb_options=_ENGINE
    )


def _rows(client: Client, sql: str) -> Sequence[Sequence[object]]:
    return client.query(sql).result_rows


@contextmanager
def _translated(what: str, *, query: bool = False) -> Iterator[None]:
    """Turn the driver's errors into LOMS's own; a query's limits have leaves of their own."""
    try:
        yield
    except ClickHouseError as error:
        code = getattr(error, "code", None)
        text = f"{what}: {str(error).removeprefix(f'Code: {code}. DB::Exception: ').splitlines()[0]}"
        if query and code in _TOO_MUCH:
            raise QueryLimitError(text, hint="narrow the selector or the time range") from None
        if query and code in _TOO_SLOW:
            raise QueryTimeoutError(text, hint="narrow the selector or the time range") from None
        raise StoreError(text) from None
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from None
