"""Samples become rows of a minute and of an hour, a little after these have ended.

Measured against materialized views: a view sees each insert apart, so that a minute of a series becomes a row per
flush, and it cannot order neighbours over inserts, which counters need. A roller reads each sample once more instead,
in the order of the table, and writes each bucket once (`benchmarks/rollups.py` has the cost).

All work is cut into jobs of bounded size. A job is repeated whole when it did not come to its end, which a table
tells; the rows that it writes replace those of a first try.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.core.guard import guard
from loms.core.model import Ids, Ints
from loms.store.rollup_sql import HOUR_MS, MINUTE_MS, between, from_minutes, from_samples

_log = logging.getLogger(__name__)

SETTLED_MS = 180_000
"""A minute is rolled so long after its end. What is stored up to then needs no note."""
NOTED_MS = 60_000
"""A sample older than this when it is written is noted as late. An insert may take the time between the two."""
PENDING_MS = 300_000
"""Minutes are rolled so many at a time: fewer, larger parts."""
JOB_SAMPLES = 2_000_000
"""About so many samples (or rows of minutes) are read by one statement, so that the next one is not far."""
SAMPLES_PER_HOUR = 720
"""Of one series, for a guess at the size of late work: one in 5 s."""
AGAIN_MS = 3_600_000
"""What was rolled last before a start is rolled again: a power cut may have taken it."""
DAY_MS = 86_400_000
_IDLE_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 5.0


class Store(Protocol):
    """What the roller needs of a database."""

    @property
    def retention_seconds(self) -> float: ...

    def query_columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Mapping[str, Any]: ...

    def insert_arrow(self, table: str, rows: pa.Table) -> None: ...

    def command(self, sql: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """Buckets of ``width_ms`` in (``start_ms``, ``end_ms``], written in ``slices`` by id, ``done`` of them so far."""

    width_ms: int
    start_ms: int
    end_ms: int
    slices: int
    done: int = 0
    late: tuple[int, int] | None = None
    """Only series noted as late after the first and up to the second time (ms), in the hour up to ``hour_ms``."""
    hour_ms: int = 0

    @property
    def condition(self) -> str:
        """Which series the next slice is about."""
        texts = []
        if self.slices > 1:
            bounds = [2**64 * place // self.slices for place in (self.done, self.done + 1)]
            texts.append(f"series_id >= {bounds[0]} AND series_id <= {bounds[1] - 1}")
        if self.late:
            hour = f"hour = toDateTime({self.hour_ms // 1000}, 'UTC')"
            texts.append(f"series_id IN (SELECT series_id FROM rollup_late WHERE {hour} AND {_noted(*self.late)})")  # noqa: S608
        return " AND ".join(texts) or "1"


class Roller:
    """Keeps the rollups of a store up to date, in a thread of its own once it is started.

    `note` may be called from any thread; `roll` is for that thread, or for a caller that starts none. One roller at a
    time may work on a store.
    """

    def __init__(self, store: Store, clock: Clock, *, job_samples: int = JOB_SAMPLES) -> None:
        """Raises `StoreError` when the store cannot tell how far the rollups are."""
        self._store = store
        self._job_samples = job_samples
        self._clock = clock
        self._retention_ms = round(store.retention_seconds * 1000)
        self._jobs: deque[Job] = deque()
        self._late_until_ms: int | None = None
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.trouble = ""
        """Why the newest work failed; empty when it went well."""
        known = store.query_columns("SELECT key, value, version FROM rollup_progress FINAL")
        self._at: dict[str, int] = dict(zip(known["key"].to_pylist(), known["value"].to_pylist(), strict=True))
        self._version = max(known["version"].to_pylist(), default=0)
        for key in ("minute", "hour"):
            if key in self._at:
                self._at[key] -= AGAIN_MS

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rollups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the statement that is running. Calling again does nothing."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def note(self, ids: Ids, times_ms: Ints) -> None:
        """Samples are about to be written: those that come late have their hours made again. To be called before each
        insert into ``samples``, and before each new try. Raises `StoreError`; then the insert should wait.
        """
        now_ms = self._clock.now_ms()
        if not len(times_ms) or times_ms.min() > now_ms - NOTED_MS:
            return
        late = times_ms <= now_ms - NOTED_MS
        hours = -(-times_ms[late] // HOUR_MS) * (HOUR_MS // 1000)
        pairs = np.unique(np.stack((hours.astype(np.uint64), ids[late])), axis=1)
        columns: dict[str, Any] = {
            "hour": pa.array(pairs[0].astype(np.uint32)),
            "series_id": pairs[1],
            "noted": np.full(pairs.shape[1], now_ms, "datetime64[ms]"),
        }
        self._store.insert_arrow("rollup_late", pa.table(columns))
        selfmetrics.rollup_late.inc(pairs.shape[1])

    def roll(self) -> bool:
        """Do the next piece of work, if there is one; True when more may wait. Raises `LomsError`."""
        now_ms = self._clock.now_ms()
        if not self._jobs and not self._late(now_ms) and not self._hours() and not self._minutes(now_ms):
            self._tell(now_ms)
            return False
        job = self._jobs[0]
        self._write(job)
        job = replace(job, done=job.done + 1)
        if job.done < job.slices:
            self._jobs[0] = job
        else:
            self._jobs.popleft()
            self._ended(job)
        self._tell(now_ms)
        return True

    def _run(self) -> None:
        while True:
            begin, more = self._clock.monotonic(), False
            with guard("store.rollups"):
                more = self._tried()
            # Half the time belongs to the writer, which waits while a statement of ours runs.
            pause = min(self._clock.monotonic() - begin, _LONGEST_PAUSE_SECONDS) if more else _IDLE_SECONDS
            with self._wake:
                if self._wake.wait_for(lambda: self._closing, pause):
                    return

    def _tried(self) -> bool:
        try:
            more = self.roll()
        except LomsError as error:
            selfmetrics.rollup_failures.inc()
            if not self.trouble:
                _log.warning("rollups wait: %s", error)
            self.trouble = error.message
            return False
        self.trouble = ""
        return more

    def _write(self, job: Job) -> None:
        self._next_version()
        statement = from_samples if job.width_ms == MINUTE_MS else from_minutes
        self._store.command(statement(job.condition, job.start_ms, job.end_ms, self._version))

    def _next_version(self) -> None:
        """Greater than that of any row, also of a process that did not live to tell."""
        self._version = max(self._version + 1, self._clock.now_ms())

    def _ended(self, job: Job) -> None:
        if job.late is None:
            self._reached("minute" if job.width_ms == MINUTE_MS else "hour", job.end_ms)
        elif not self._jobs and self._late_until_ms is not None:
            self._reached("late", self._late_until_ms)

    def _reached(self, key: str, value: int) -> None:
        self._at[key] = value
        self._next_version()
        columns: dict[str, Any] = {
            "key": pa.array([key]),
            "value": np.array([value], np.int64),
            "version": np.array([self._version], np.uint64),
        }
        self._store.insert_arrow("rollup_progress", pa.table(columns))

    def _minutes(self, now_ms: int) -> bool:
        """Queue the minutes that have ended since the last job, up to a day (a partition) of them."""
        start_ms = self._at.get("minute")
        if start_ms is None:
            start_ms = self._first("samples", "toUnixTimestamp64Milli(min(ts))")
        until_ms = (now_ms - SETTLED_MS) // MINUTE_MS * MINUTE_MS
        if start_ms is None or until_ms - start_ms < PENDING_MS:
            return False
        start_ms = max(start_ms, -((self._retention_ms - now_ms) // MINUTE_MS) * MINUTE_MS)  # before, some may be gone
        end_ms = min(until_ms, (start_ms // DAY_MS + 1) * DAY_MS)
        self._queue(MINUTE_MS, start_ms, end_ms, f"samples WHERE {between('ts', start_ms, end_ms)}")
        return True

    def _first(self, table: str, time_ms: str) -> int | None:
        """Where to begin with what was never rolled: the hour of the first row."""
        found = self._store.query_columns(f"SELECT {time_ms} AS first, count() AS n FROM {table}")  # noqa: S608 - fixed
        return (found["first"][0].as_py() - 1) // HOUR_MS * HOUR_MS if found["n"][0].as_py() else None

    def _hours(self) -> bool:
        """Queue the hours of which all minutes are there, up to a day of them."""
        until_ms = self._at.get("minute", 0) // HOUR_MS * HOUR_MS
        start_ms = self._at.get("hour")
        if start_ms is None and until_ms:
            start_ms = self._first("rollup_minute", "toUnixTimestamp(min(bucket)) * 1000")
        if start_ms is None or start_ms >= until_ms:
            return False
        end_ms = min(until_ms, (start_ms // DAY_MS + 1) * DAY_MS)
        self._queue(HOUR_MS, start_ms, end_ms, f"rollup_minute WHERE {between('bucket', start_ms, end_ms)}")
        return True

    def _queue(self, width_ms: int, start_ms: int, end_ms: int, what: str) -> None:
        count = self._store.query_columns(f"SELECT count() AS n FROM {what}")["n"][0].as_py()  # noqa: S608 - numbers
        self._jobs.append(Job(width_ms, start_ms, end_ms, -(-count // self._job_samples) or 1))

    def _late(self, now_ms: int) -> bool:
        """Queue what late samples have changed, as far as it was rolled and raw samples are still kept."""
        after_ms, until_ms = self._at.get("late", 0), now_ms - NOTED_MS
        if "minute" not in self._at:
            return False
        found = self._store.query_columns(
            "SELECT toUnixTimestamp(hour) * 1000 AS hour, uniqExact(series_id) AS n FROM rollup_late"  # noqa: S608
            f" WHERE {_noted(after_ms, until_ms)} GROUP BY hour ORDER BY hour"
        )
        late, oldest_ms = (after_ms, until_ms), now_ms - self._retention_ms
        for hour_ms, series in zip(found["hour"].to_pylist(), found["n"].to_pylist(), strict=True):
            start_ms, end_ms = hour_ms - HOUR_MS, min(hour_ms, self._at["minute"])
            if oldest_ms <= start_ms < end_ms:
                slices = -(-series * SAMPLES_PER_HOUR // self._job_samples)
                job = Job(MINUTE_MS, start_ms, end_ms, slices, late=late, hour_ms=hour_ms)
                self._jobs.append(job)
                if hour_ms <= self._at.get("hour", 0):
                    self._jobs.append(replace(job, width_ms=HOUR_MS))
        self._late_until_ms = until_ms
        if len(found["hour"]) and not self._jobs:
            self._reached("late", until_ms)
        return bool(self._jobs)

    def _tell(self, now_ms: int) -> None:
        for key in ("minute", "hour"):
            if key in self._at:
                selfmetrics.rollup_lag.labels(key).set((now_ms - self._at[key]) / 1000)


def _noted(after_ms: int, until_ms: int) -> str:
    return between("noted", after_ms, until_ms)
