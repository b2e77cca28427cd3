"""A ClickHouse server or cluster over HTTP: several hosts, one of which is asked at a time.

The host that answered last is asked first; when it is away the next one is. A query is asked again elsewhere, for
asking changes nothing. An insert carries a token made of its rows, by which the server knows it again: it may be sent
as often as needed, and is there once. Any other statement is sent to another host only if it cannot have arrived.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from clickhouse_connect.driver.httputil import get_pool_manager
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError, ReadTimeoutError, SSLError

from loms import __version__
from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import LomsError, QueryTimeoutError, StoreError
from loms.core.settings import ClickHouse
from loms.store import ddl
from loms.store.address import Address, shown
from loms.store.engine import Command, Rows, rows_of
from loms.store.migration_lock import MigrationLock

Kind = Literal["reader", "writer", "bare"]
"""``bare`` has no database: the one that makes it."""

_Answer = TypeVar("_Answer")

CONNECT_SECONDS = 5
WRITE_SECONDS = 300
"""The longest wait for a statement; the engine itself gives up on one ``ON CLUSTER`` after 180 s."""
GRACE_SECONDS = 10
"""A query that the server does not end in time is given up so much later."""

_WRITER: Mapping[str, str | int] = {
    "async_insert": 0,
    "max_insert_threads": 1,
    "input_format_parallel_parsing": 0,
    "max_partitions_per_insert_block": 0,
    "output_format_arrow_string_as_string": 1,
    # What an insert brings to the table, it brings to the views on it, also when only the former was done before.
    "deduplicate_blocks_in_dependent_materialized_views": 1,
}
_BARE_DATABASE = "default"
_UNKNOWN_DATABASE = 81
_BUSY = frozenset({202, 203, 209, 210, 225, 236, 242, 279, 319, 999})
"""TOO_MANY_SIMULTANEOUS_QUERIES, NO_FREE_CONNECTION, SOCKET_TIMEOUT, NETWORK_ERROR, NO_ZOOKEEPER, ABORTED,
TABLE_IS_READ_ONLY, ALL_CONNECTION_TRIES_FAILED, UNKNOWN_STATUS_OF_INSERT, KEEPER_EXCEPTION: another host may do."""
_NUMBERS = re.compile(r"\{(\w+):(Array\((?:U?Int|Float)\d+\))\}")
_LISTED = 1000
_FUNCTION = "timeSeriesRateToGrid"
"""What PromQL's windows are computed by: an engine without it is too old."""


# It tells what it raises as well, without the host.
logging.getLogger("clickhouse_connect").setLevel(logging.ERROR)


class Remote:
    """A `loms.store.engine.Engine` at ``url``; ``sessions`` is how many callers there are at a time.

    Raises `ConfigError` for a wrong URL. Nothing is connected before it is needed.
    """

    shared = True
    arrow = pa.ipc.IpcWriteOptions(compression="lz4")

    def __init__(
        self, url: str, settings: ClickHouse, limits: Mapping[str, float], clock: Clock, *, sessions: int
    ) -> None:
        self._address = Address.parse(url)
        self.where = str(self._address)
        self.layout = ddl.Layout(
            self._address.database,
            settings.cluster,
            storage_policy=settings.storage_policy,
            cold_volume=settings.cold_volume,
            cold_seconds=round(settings.cold_after),
        )
        self.samples = self.layout.local("samples")
        self.everywhere = self.layout.on_cluster
        self.parts = (
            f"cluster({ddl.identifier(settings.cluster)}, system.parts)" if settings.cluster else "system.parts"
        )
        self._clock = clock
        everywhere = ddl.SETTINGS if settings.cluster else {}
        self._settings: Mapping[Kind, dict[str, Any]] = {
            "reader": {**everywhere, **limits, "replace_running_query": 1, "max_query_size": 2**26},
            "writer": {**everywhere, **_WRITER},
            "bare": {},
        }
        self._wait_seconds: Mapping[Kind, int] = {
            "reader": round(limits["max_execution_time"]) + GRACE_SECONDS,
            "writer": WRITE_SECONDS,
            "bare": WRITE_SECONDS,
        }
        self._name = f"loms-{uuid.uuid4().hex[:12]}"
        self._numbers = count()
        tls = settings.tls
        names: dict[str, Any] = (
            {"server_hostname": tls.server_name, "assert_hostname": tls.server_name} if tls.server_name else {}
        )
        self._pool = get_pool_manager(
            ca_cert=str(tls.ca_file) if tls.ca_file else None,
            verify=not tls.insecure_skip_verify,
            client_cert=str(tls.cert_file) if tls.cert_file else None,
            client_cert_key=str(tls.key_file) if tls.key_file else None,
            maxsize=sessions,
            **names,
        )
        self._clients: dict[tuple[int, Kind], Client] = {}
        self._connecting = threading.Lock()
        self._first = 0
        self._closed = False

    def reader(self) -> Session:
        return Session(self, "reader")

    def writer(self) -> Session:
        return Session(self, "writer")

    def prepare(self, work: Callable[[Command, Rows], None]) -> None:
        """Nothing is changed, and no lock taken, when the schema is as it should be: so a LOMS starts also while one
        server of the cluster is down."""
        session = self.writer()
        rows = partial(rows_of, session)
        self._make_database(rows)
        wanted: list[str] = []
        work(wanted.append, rows)
        self.layout.store_cold(wanted.append, rows)
        if not wanted:
            return
        with MigrationLock(session, rows, self._clock, layout=self.layout, where=self.where) as lock:
            if rows("SELECT 1 FROM system.replicas WHERE database = currentDatabase() AND table = 'schema_version'"):
                session.command("SYSTEM SYNC REPLICA schema_version")

            def command(statement: str) -> None:
                for one in self.layout.render(statement):
                    lock.renew()
                    session.command(one)

            work(command, rows)
            self.layout.store_cold(command, rows)

    def end_queries(self) -> None:
        self.writer().command(f"KILL QUERY{self.everywhere} WHERE startsWith(query_id, '{self._name}') ASYNC")

    def close(self) -> None:
        self._closed = True
        self._pool.clear()

    def next_query_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"

    def run(self, kind: Kind, ask: Callable[[Client], _Answer], *, repeat: bool) -> _Answer:
        """What ``ask`` gives on the first host that answers. With ``repeat`` it may be asked of several.

        Raises what the server says (`ClickHouseError`), `QueryTimeoutError` for a query without an answer, and
        `StoreError` with each host that was tried.
        """
        if self._closed:
            raise StoreError("the store is closed")
        troubles: list[str] = []
        hosts = self._address.hosts
        waiting = [(self._first + i) % len(hosts) for i in range(len(hosts))]
        lost = False
        while waiting:
            number = waiting.pop(0)
            if troubles:
                selfmetrics.store_retries.inc()
            name, port = hosts[number]
            asked = False
            try:
                client = self._client(number, kind)
                asked = True
                answer = ask(client)
            except ClickHouseError as error:
                trouble = _trouble(error)
                if trouble is None:
                    raise
                troubles.append(f"{shown(name)}:{port} {trouble}")
                if asked and isinstance(error.__cause__, ReadTimeoutError):
                    raise self._error(kind, troubles) from None
                if asked and not _never_sent(error):
                    if not repeat:
                        break
                    if not lost:  # a server that was restarted, or closed an idle connection, is itself asked again
                        waiting.append(number)
                        lost = True
            else:
                self._first = number
                return answer
        raise self._error("writer", troubles) from None

    def _error(self, kind: Kind, troubles: Sequence[str]) -> LomsError:
        text = "; ".join(troubles)
        if kind == "reader":
            return QueryTimeoutError(f"the query timed out: {text}", hint="narrow the selector or the time range")
        return StoreError(f"{self.where}: {text}", hint="see that the server runs and that store.url names it")

    def _client(self, number: int, kind: Kind) -> Client:
        """The host's client for this kind of work. Clients hold no session, so all callers share them."""
        with self._connecting:
            if (client := self._clients.get((number, kind))) is not None:
                return client
        host, port = self._address.hosts[number]
        client = clickhouse_connect.get_client(
            interface="https" if self._address.secure else "http",
            host=host,
            port=port,
            username=self._address.user,
            password=self._address.password,
            database=_BARE_DATABASE if kind == "bare" else self._address.database,
            settings=dict(self._settings[kind]),
            pool_mgr=self._pool,
            connect_timeout=CONNECT_SECONDS,
            send_receive_timeout=self._wait_seconds[kind],
            client_name=f"loms/{__version__}",
            autogenerate_session_id=False,
        )
        with self._connecting:
            return self._clients.setdefault((number, kind), client)

    def _make_database(self, rows: Rows) -> None:
        try:
            found = rows(f"SELECT 1 FROM system.functions WHERE name = '{_FUNCTION}'")  # noqa: S608
        except ClickHouseError as error:
            if getattr(error, "code", None) != _UNKNOWN_DATABASE:
                raise
            Session(self, "bare").command(
                f"CREATE DATABASE IF NOT EXISTS {ddl.identifier(self._address.database)}{self.layout.on_cluster}"
            )
            found = rows(f"SELECT 1 FROM system.functions WHERE name = '{_FUNCTION}'")  # noqa: S608
        if not found:
            raise StoreError(
                f"{self.where}: this ClickHouse has no function {_FUNCTION}",
                hint="LOMS is made for ClickHouse 26.9; 25.6 was the first to have the function",
            )


class Session:
    """One caller's access to a `Remote`; several may be used at the same time."""

    def __init__(self, remote: Remote, kind: Kind) -> None:
        self._remote = remote
        self._kind: Kind = kind

    def raw_query(self, query: str, parameters: dict[str, Any] | None = None, *, fmt: str) -> bytes:
        settings = {"query_id": self._remote.next_query_id()} if self._kind == "reader" else {}
        text, rest = _spelled(query, parameters or {})
        return self._remote.run(self._kind, lambda client: client.raw_query(text, rest, settings, fmt=fmt), repeat=True)

    def raw_insert(self, table: str, column_names: Sequence[str], insert_block: bytes, *, fmt: str) -> object:
        token = hashlib.blake2b(f"{table} {fmt} ".encode() + insert_block, digest_size=16).hexdigest()
        settings = {"insert_deduplication_token": token}
        return self._remote.run(
            self._kind,
            lambda client: client.raw_insert(table, column_names, insert_block, settings, fmt=fmt),
            repeat=True,
        )

    def command(self, cmd: str, parameters: dict[str, Any] | None = None) -> object:
        return self._remote.run(self._kind, lambda client: client.command(cmd, parameters), repeat=False)

    def close(self) -> None:
        """Nothing: the connections are the `Remote`'s."""


def _spelled(query: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The query with long lists of numbers written into it, as the server itself would do, and the other parameters.

    Parameters travel in the URL or a form, whose fields ClickHouse holds to 128 KiB; the query may be as long as it is.
    """
    long = {name for name, value in parameters.items() if isinstance(value, list) and len(value) > _LISTED}

    def spell(place: re.Match[str]) -> str:
        if place[1] not in long:
            return place[0]
        return f"_CAST('[{','.join(map(str, parameters[place[1]]))}]', '{place[2]}')"

    text = _NUMBERS.sub(spell, query)
    return text, {name: value for name, value in parameters.items() if f"{{{name}:" in text}


def _trouble(error: ClickHouseError) -> str | None:
    """Why a host did not do what it was asked, where another might; None when the server has spoken for all."""
    code = getattr(error, "code", None)
    if code is not None:
        return f"answered: {said(error)}" if code in _BUSY else None
    cause = error.__cause__
    if cause is None:  # an HTTP status without ClickHouse's own words: of a proxy, or of a server that is starting
        return f"answered: {said(error)}" if "HTTP status" in str(error) else None
    if isinstance(cause, MaxRetryError) and cause.reason is not None:
        cause = cause.reason
    if isinstance(cause, ReadTimeoutError):
        return "did not answer in time"
    if isinstance(cause, NewConnectionError):  # first, for urllib3 counts it among the timeouts
        return f"cannot be reached: {str(cause).rpartition(': ')[2].rpartition('] ')[2]}"
    if isinstance(cause, ConnectTimeoutError):
        return f"cannot be reached within {CONNECT_SECONDS} s"
    if isinstance(cause, SSLError):
        return f"cannot be trusted: {cause}"
    return "closed the connection"


def _never_sent(error: ClickHouseError) -> bool:
    cause = error.__cause__
    reason = cause.reason if isinstance(cause, MaxRetryError) else cause
    return isinstance(reason, ConnectTimeoutError | NewConnectionError | SSLError)


def said(error: ClickHouseError) -> str:
    """The first line of the server's own words."""
    words = str(error).rpartition("DB::Exception: ")[2].strip().splitlines()[0]
    return re.sub(r" \((?:version|for url) .*", "", words)
