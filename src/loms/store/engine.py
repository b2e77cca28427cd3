"""What `loms.store.database.Database` stands on: sessions of an engine that is embedded or somewhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

Command = Callable[[str], object]
"""Runs a statement."""
Rows = Callable[[str], Sequence[Sequence[object]]]
"""Answers a query."""


class Session(Protocol):
    """One caller's access to the engine. clickhouse-connect's client is one, and so is `loms.store.remote.Session`.

    Errors are clickhouse-connect's (`ClickHouseError`), or `StoreError` when no host can be reached.
    """

    def raw_query(self, query: str, parameters: dict[str, Any] | None = None, *, fmt: str) -> bytes: ...

    def raw_insert(self, table: str, column_names: Sequence[str], insert_block: bytes, *, fmt: str) -> object: ...

    def command(self, cmd: str, parameters: dict[str, Any] | None = None) -> object: ...

    def close(self) -> None: ...


class Engine(Protocol):
    """A ClickHouse that holds one store."""

    where: str
    """For people: the directory or the hosts, never a secret."""
    shared: bool
    """Whether other processes may write to the store too."""
    arrow: pa.ipc.IpcWriteOptions
    """How rows are sent."""
    samples: str
    """The table that the samples lie in; in a cluster ``samples`` only leads there."""
    everywhere: str
    """What makes KILL reach all servers: a clause with a space in front, or nothing."""
    parts: str
    """What to read instead of ``system.parts``, so that every shard counts once."""

    def reader(self) -> Session:
        """A session for queries, which are held to the limits."""
        ...

    def writer(self) -> Session:
        """A session for everything else."""
        ...

    def prepare(self, work: Callable[[Command, Rows], None]) -> None:
        """Make the database and let ``work`` bring its tables up to date, one process at a time.

        ``work`` must be able to run any number of times and to say what it would do without doing it: where the store
        is shared it is first run with a command that only listens.
        """
        ...

    def end_queries(self) -> None:
        """End the SELECTs of this process."""
        ...

    def close(self) -> None:
        """Let the store go. Calling again does nothing."""
        ...


def rows_of(session: Session, sql: str) -> Sequence[Sequence[object]]:
    """A query's answer, row by row."""
    table = pa.ipc.open_stream(session.raw_query(sql, fmt="ArrowStream")).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
