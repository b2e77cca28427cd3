"""One process at a time changes the schema of a store that several share.

ClickHouse offers no lock, but one thing that only one caller can do: create a table that does not exist yet. On one
server the catalogue sees to that; ``ON CLUSTER`` statements stand in one queue in Keeper, so every server runs them in
the same order and the same caller wins everywhere. The lock is therefore a table ``migration_lock_<n>``, whose comment
says who holds it and until when. Whoever finds the newest one free, or past its time because its holder died, creates
the next number; so two processes that break the same stale lock compete for one table as well. A winner looks again
afterwards: had it read an old state, a higher number is there by now, and it waits. Lower numbers are dropped.

A holder that is paused for longer than its time is overtaken. This is harmless, because every statement of a schema
file may be run twice (`loms.store.migrations.Migration`): the lock keeps order, it is not what makes them safe.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any, Self

from clickhouse_connect.driver.exceptions import ClickHouseError

from loms.core.clock import Clock
from loms.core.errors import StoreBusyError
from loms.store.ddl import Layout
from loms.store.engine import Rows, Session

HOLD_MS = 600_000
"""So long after its last renewal the lock of a process that says nothing more may be taken."""
RENEW_MS = 60_000
WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.25
_TABLE = "migration_lock_"
_EXISTS = 57
"""TABLE_ALREADY_EXISTS."""


@dataclass(frozen=True, slots=True)
class _Newest:
    number: int
    owner: str
    until_ms: int


class MigrationLock:
    """A context manager. Entering raises `StoreBusyError` when another process holds the lock for `WAIT_SECONDS`."""

    def __init__(
        self,
        session: Session,
        rows: Rows,
        clock: Clock,
        *,
        where: str,
        layout: Layout,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._session = session
        self._rows = rows
        self._clock = clock
        self._where = where
        self._layout = layout
        self._wait_seconds = wait_seconds
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._number = 0
        self._renewed_ms = 0

    def __enter__(self) -> Self:
        end = self._clock.monotonic() + self._wait_seconds
        while not self._taken():
            if self._clock.monotonic() >= end:
                newest = self._newest()
                raise StoreBusyError(
                    f"{self._where}: the schema is being changed by another LOMS ({newest.owner})",
                    hint=f"start again later; the lock of a process that died ends within {HOLD_MS // 60_000} minutes",
                )
            threading.Event().wait(PAUSE_SECONDS)
        for number, _ in self._tables():
            if number < self._number:
                self._session.command(f"DROP TABLE IF EXISTS {self._name(number)}")
        return self

    def __exit__(self, *_: object) -> None:
        self._note(until_ms=0)

    def renew(self) -> None:
        """Call this before each statement."""
        now_ms = self._clock.now_ms()
        if now_ms - self._renewed_ms >= RENEW_MS:
            self._renewed_ms = now_ms
            self._note(now_ms + HOLD_MS)

    def _taken(self) -> bool:
        now_ms = self._clock.now_ms()
        newest = self._newest()
        if newest.until_ms > now_ms:
            return False
        number = newest.number + 1
        try:
            self._session.command(
                f"CREATE TABLE {self._name(number)} (nothing UInt8) ENGINE = Memory"
                f" COMMENT '{self._text(now_ms + HOLD_MS)}'"
            )
        except ClickHouseError as error:
            if getattr(error, "code", None) == _EXISTS:
                return False
            raise
        if self._newest().number > number:
            self._session.command(f"DROP TABLE IF EXISTS {self._name(number)}")
            return False
        self._number, self._renewed_ms = number, now_ms
        return True

    def _newest(self) -> _Newest:
        found = self._tables()
        if not found:
            return _Newest(0, "", 0)
        number, comment = max(found)
        said: dict[str, Any] = json.loads(comment)
        return _Newest(number, said["owner"], said["until_ms"])

    def _tables(self) -> list[tuple[int, str]]:
        """The number and comment of each lock table."""
        found = self._rows(
            "SELECT name, comment FROM system.tables WHERE database = currentDatabase()"  # noqa: S608 - fixed texts
            f" AND match(name, '^{_TABLE}[0-9]+$')"
        )
        return [(int(str(name).removeprefix(_TABLE)), str(comment)) for name, comment in found]

    def _note(self, until_ms: int) -> None:
        self._session.command(f"ALTER TABLE {self._name(self._number)} MODIFY COMMENT '{self._text(until_ms)}'")

    def _name(self, number: int) -> str:
        return f"{self._layout.named(f'{_TABLE}{number}')}{self._layout.on_cluster}"

    def _text(self, until_ms: int) -> str:
        return json.dumps({"owner": self._owner, "until_ms": until_ms})
