"""The embedded engine: chDB, which is ClickHouse in this process.

Facts this rests on, measured with chDB 26.9: a client serialises its own calls and releases the GIL while it works, so
each concurrent reader needs a client of its own (about 1 MB and 7 ms); a process can have one data path open at a time;
an acknowledged insert survives ``kill -9``, because its files are complete before the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client

from loms.store.engine import Command, Rows, rows_of
from loms.store.lock import DirectoryLock

DATABASE = "loms"

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
    "output_format_arrow_string_as_string": 1,
}


class Embedded:
    """A `loms.store.engine.Engine` under a directory, which it holds alone.

    Raises `StoreBusyError` when another process has the directory, `StoreError` when it cannot be used, and
    clickhouse-connect's errors.
    """

    shared = False
    samples = "samples"
    everywhere = ""
    parts = "system.parts"
    arrow = pa.ipc.IpcWriteOptions()

    def __init__(self, path: Path, limits: Mapping[str, float]) -> None:
        self.where = str(path)
        self._path = path
        self._limits = limits
        self._lock = DirectoryLock(path)
        self._anchor: Client | None = None
        """Keeps the engine running while sessions come and go."""

    def reader(self) -> Client:
        return self._client(DATABASE, self._limits)

    def writer(self) -> Client:
        return self._client(DATABASE, _WRITER)

    def prepare(self, work: Callable[[Command, Rows], None]) -> None:
        self._anchor = self._client(None, {})
        self._anchor.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        writer = self.writer()
        try:
            work(writer.command, partial(rows_of, writer))
        finally:
            writer.close()

    def end_queries(self) -> None:
        if self._anchor is not None:
            self._anchor.command("KILL QUERY WHERE query_kind = 'Select' ASYNC")

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None
        self._lock.close()

    def _client(self, database: str | None, settings: Mapping[str, object]) -> Client:
        return clickhouse_connect.get_client(
            interface="chdb",
            path=str(self._path / "chdb"),
            database=database,
            settings=dict(settings),
            chdb_options=_ENGINE,
        )
