"""The batching writer of spans and log records: a queue bounded by bytes, emptied by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

import pyarrow as pa

from loms.core import selfmetrics
from loms.core.errors import LomsError
from loms.core.guard import guard

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0


class Inserter(Protocol):
    """What the writer needs of a database."""

    def insert_arrow(self, table: str, rows: pa.Table) -> None: ...


class TelemetryWriter:
    """Takes rows from any thread and writes them ``flush_seconds`` later, or once ``flush_bytes`` wait.

    At most ``queue_bytes`` wait, those being written included. Beyond that `offer` refuses, and the sender comes again:
    what was taken is not dropped while the process lives. A failed insert is tried again, with longer and longer
    pauses; only when it fails once more at the end are its rows lost, and counted.
    """

    def __init__(
        self,
        database: Inserter,
        *,
        flush_seconds: float = 1.0,
        flush_bytes: int = 16 * 2**20,
        queue_bytes: int = 64 * 2**20,
    ) -> None:
        self._database = database
        self._flush_seconds = flush_seconds
        self._flush_bytes = min(flush_bytes, queue_bytes)
        self._queue_bytes = queue_bytes
        self._queue: deque[tuple[str, pa.Table]] = deque()
        self._bytes = 0
        self._accepted = 0
        self._settled = 0
        self._hurry = 0
        self._closing = False
        self._wake = threading.Condition()
        self.trouble = ""
        """Why the newest insert failed; empty when it went well."""
        self._thread = threading.Thread(target=self._run, name="telemetry-writer", daemon=True)
        self._thread.start()

    def offer(self, table: str, rows: pa.Table) -> bool:
        """Queue ``rows``, whose columns have the table's names. False when there is no room: nothing is taken.

        Rows that are larger than the whole queue are taken when nothing else waits: else they could never come in.
        """
        with self._wake:
            if self._closing or (self._bytes and self._bytes + rows.nbytes > self._queue_bytes):
                return False
            self._queue.append((table, rows))
            self._accepted += 1
            self._bytes += rows.nbytes
            selfmetrics.telemetry_queue.set(self._bytes)
            if len(self._queue) == 1 or self._bytes >= self._flush_bytes:
                self._wake.notify_all()
            return True

    def flush(self, timeout_seconds: float = 30.0) -> bool:
        """Write all that waits now. True when it is written, False when that takes too long."""
        with self._wake:
            target = self._accepted
            self._hurry += 1
            self._wake.notify_all()
            done = self._wake.wait_for(lambda: self._settled >= target, timeout_seconds)
            self._hurry -= 1
            return done

    def close(self) -> None:
        """Write what waits, each insert tried once more at most, then stop. Later offers are refused."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._queue)
                self._wake.wait_for(
                    lambda: self._closing or self._hurry or self._bytes >= self._flush_bytes, self._flush_seconds
                )
                if self._closing and not self._queue:
                    return
                taken = list(self._queue)
                self._queue.clear()
            for table in dict.fromkeys(name for name, _ in taken):
                rows = pa.concat_tables([rows for name, rows in taken if name == table])
                written = False
                with guard("store.telemetry"):
                    written = self._write(table, rows)
                outcome = selfmetrics.telemetry_written if written else selfmetrics.telemetry_lost
                outcome.labels(table).inc(len(rows))
            with self._wake:
                self._settled += len(taken)
                self._bytes -= sum(rows.nbytes for _, rows in taken)
                selfmetrics.telemetry_queue.set(self._bytes)
                self._wake.notify_all()

    def _write(self, table: str, rows: pa.Table) -> bool:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            last_try = self._closing
            try:
                self._database.insert_arrow(table, rows)
            except LomsError as error:
                selfmetrics.telemetry_failures.labels(table).inc()
                self.trouble = error.message
                if last_try:
                    _log.error("%d rows of %s are lost: %s", len(rows), table, error)
                    return False
                _log.warning("%d rows of %s wait: %s", len(rows), table, error)
                with self._wake:
                    self._wake.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            else:
                self.trouble = ""
                return True
