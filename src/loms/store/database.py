"""The open store: one writing session, a few reading ones, over an engine that is embedded or a ClickHouse elsewhere.

What differs between the two is in `loms.store.embedded` and `loms.store.remote`.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError

from loms.core.clock import Clock
from loms.core.errors import QueryCancelledError, QueryLimitError, QueryTimeoutError, StoreError
from loms.core.settings import Receive, Store
from loms.store.embedded import Embedded
from loms.store.engine import Command, Engine, Rows, Session
from loms.store.migrations import Migration, migrate, shipped
from loms.store.remote import Remote, said
from loms.store.retention import Retention, apply_retention

_MEMORY_BYTES = 2 * 2**30
"""Of one query."""
_LAST_MS = 4_102_444_800_000
"""The year 2100: later than any sample."""
_TOO_MUCH = frozenset({158, 241, 307, 396})
"""TOO_MANY_ROWS, MEMORY_LIMIT_EXCEEDED, TOO_MANY_BYTES, TOO_MANY_ROWS_OR_BYTES."""
_TOO_SLOW = frozenset({159, 160})
"""TIMEOUT_EXCEEDED, TOO_SLOW."""
_NEWS, _NEWS_ROWS = 100, 2_000
"""Inserts of series that are remembered, and rows that it is worth while to look at one by one."""
_CANCELLED = 394
"""QUERY_WAS_CANCELLED."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The store's size: rows of samples, their parts, distinct series (a close estimate), bytes of all tables."""

    samples: int
    parts: int
    series: int
    bytes_on_disk: int


class Database:
    """An open store. `query_columns` may be called from any thread; inserts go one at a time, and so do statements."""

    def __init__(
        self,
        engine: Engine,
        path: Path,
        retention_seconds: float,
        readers: int,
        timeout_seconds: float,
    ) -> None:
        self.where = engine.where
        """For people: the directory, or the hosts."""
        self.path = path
        """The directory of the embedded store; also where a process keeps what is its own."""
        self.retention_seconds = retention_seconds
        self._engine = engine
        self._writer = engine.writer()
        self._statements = engine.writer()
        """For statements: rolling up takes a second at a time, and new samples must not wait for it."""
        self._readers: queue.LifoQueue[Session] = queue.LifoQueue()
        for _ in range(readers):
            self._readers.put(engine.reader())
        self._reader_count = readers
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._series_version = 0
        self._series_news: deque[tuple[int, pa.Table]] = deque(maxlen=_NEWS)
        """Versions of the series table, and the rows that made it so."""

    @classmethod
    def open(
        cls,
        path: Path,
        retention_seconds: float,
        clock: Clock,
        *,
        readers: int = 4,
        query_timeout_seconds: float = 30.0,
        query_memory_bytes: int = _MEMORY_BYTES,
        migrations: Sequence[Migration] | None = None,
    ) -> Self:
        """Open or create the store under the directory ``path`` and bring its schema up to date.

        ``readers`` queries run at a time, each within ``query_timeout_seconds`` and ``query_memory_bytes``. Raises
        `StoreBusyError` when another process has the directory, `StoreError` when it cannot be opened.
        """
        path = path.expanduser().absolute()
        engine = Embedded(path, _limits(query_timeout_seconds, query_memory_bytes))
        wanted, keep = migrations or shipped(), Retention(samples=retention_seconds)
        return cls._opened(engine, path, keep, clock, readers, query_timeout_seconds, wanted)

    @classmethod
    def configured(
        cls,
        store: Store,
        clock: Clock,
        receive: Receive | None = None,
        *,
        readers: int = 4,
        query_timeout_seconds: float = 30.0,
    ) -> Self:
        """Open the store that the settings name: a ClickHouse (``store.url``), else the directory ``store.path``.

        Raises what `open` does; a server that is away is a `StoreError` that names it. `ConfigError` for a wrong URL.
        """
        limits = _limits(query_timeout_seconds, _MEMORY_BYTES)
        path, keep = store.path.expanduser().absolute(), Retention.of(store, receive)
        engine: Engine = (
            Embedded(path, limits)
            if store.url is None
            else Remote(store.url.get_secret_value(), store.clickhouse, limits, clock, sessions=readers + 3)
        )
        return cls._opened(engine, path, keep, clock, readers, query_timeout_seconds, shipped())

    @classmethod
    def _opened(
        cls,
        engine: Engine,
        path: Path,
        retention: Retention,
        clock: Clock,
        readers: int,
        timeout_seconds: float,
        migrations: Sequence[Migration],
    ) -> Self:
        def bring_up(command: Command, rows: Rows) -> None:
            migrate(engine.where, command, rows, migrations, clock.now_ms())
            apply_retention(command, rows, retention)

        try:
            with _translated(f"{engine.where}: the store cannot be opened"):
                engine.prepare(bring_up)
                return cls(engine, path, retention.samples, readers, timeout_seconds)
        except BaseException:
            engine.close()
            raise

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
                with suppress(StoreError), _translated("the queries cannot be ended"):  # then their time limit does
                    self._engine.end_queries()
        self._statements.close()
        self._writer.close()
        self._engine.close()

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

        Raises `QueryTimeoutError`, `QueryLimitError` (too much memory or too many rows), `QueryCancelledError` (see
        `end_query`) or `StoreError`.
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
        with pa.ipc.new_stream(sink, rows.schema, options=self._engine.arrow) as stream:
            stream.write_table(rows)
        try:
            with _translated(f"the store refuses rows of {table}"):
                self._writer.raw_insert(table, rows.column_names, cast("bytes", sink.getvalue()), fmt="ArrowStream")
        finally:
            if table == "series":  # rows of an insert that failed may be there
                self._series_news.append((self._series_version + 1, rows))
                self._series_version += 1

    def end_query(self, comment: str) -> None:
        """End running queries whose setting ``log_comment`` is ``comment``: they raise `QueryCancelledError` soon.

        Has a client of its own, because all readers may be at work. Raises `StoreError`.
        """
        with _translated("the store cannot end a query"), closing(self._engine.writer()) as client:
            kill = f"KILL QUERY{self._engine.everywhere} WHERE Settings['log_comment'] = {{comment:String}} ASYNC"
            client.command(kill, {"comment": comment})

    def series_version(self) -> int:
        """A number that is another one as soon as the series table may have new rows."""
        self._series_version += self._engine.shared  # where others write too, that is always so
        return self._series_version

    def series_since(self, version: int) -> list[tuple[int, str, list[tuple[str, str]]]] | None:
        """Id, name and labels of the rows that the series table got since `series_version` was this.

        None when that is not known any more, or they are many.
        """
        news = [rows for number, rows in tuple(self._series_news) if number > version]
        if self._engine.shared or len(news) != self._series_version - version or sum(map(len, news)) > _NEWS_ROWS:
            return None
        columns = ("id", "name", "labels")
        return [row for rows in news for row in zip(*(rows[name].to_pylist() for name in columns), strict=True)]

    def newest_ms(self) -> int:
        """The newest time of any sample; 0 when there is none."""
        found = self.query_columns("SELECT toUnixTimestamp64Milli(max(ts)) AS t FROM samples")
        return int(found["t"][0].as_py())

    @property
    def shared(self) -> bool:
        """Whether others may write here."""
        return self._engine.shared

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
            f"SELECT sumIf(rows, table = '{self._engine.samples}') AS samples, sum(bytes_on_disk) AS bytes_on_disk,"  # noqa: S608
            f" countIf(table = '{self._engine.samples}') AS parts, (SELECT uniq(name, labels) FROM series) AS series"
            f" FROM {self._engine.parts} WHERE active AND database = currentDatabase()"
        )
        return Figures(**{name: column[0].as_py() for name, column in columns.items()})

    def command(self, sql: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Run a statement that changes the database. Raises `StoreError`."""
        with _translated("the store refuses a statement"):
            self._statements.command(sql, dict(parameters or {}))
        self._series_version += 1

    @contextmanager
    def _reader(self) -> Iterator[Session]:
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
                reader = self._engine.reader()
            raise
        finally:
            self._readers.put(reader)


def _limits(timeout_seconds: float, memory_bytes: int) -> dict[str, float]:
    """Settings that every query is held to."""
    return {
        "max_threads": min(4, os.cpu_count() or 1),
        "max_execution_time": timeout_seconds,
        "max_memory_usage": memory_bytes,
        "max_query_size": 32 * 2**20,  # many series are a long list of ids
        "allow_experimental_time_series_aggregate_functions": 1,
        "output_format_arrow_string_as_string": 1,
        "readonly": 2,
    }


@contextmanager
def _translated(what: str, *, query: bool = False) -> Iterator[None]:
    """Turn the driver's errors into LOMS's own; a query's limits have leaves of their own."""
    try:
        yield
    except ClickHouseError as error:
        code = getattr(error, "code", None)
        text = f"{what}: {said(error)}"
        if query and code in _TOO_MUCH:
            raise QueryLimitError(text, hint="narrow the selector or the time range") from None
        if query and code in _TOO_SLOW:
            raise QueryTimeoutError(text, hint="narrow the selector or the time range") from None
        if query and code == _CANCELLED:
            raise QueryCancelledError("query was canceled in expression evaluation") from None
        raise StoreError(text) from None
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from None
