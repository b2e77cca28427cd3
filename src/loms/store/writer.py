"""The one batching writer: a bounded queue in front of the database, emptied by a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.core.guard import guard
from loms.core.model import Ids, Ints, SampleBatch, Series, Sink
from loms.store.series import SeriesRegister, pieces, series_rows
from loms.store.sifting import sift

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 15.0
_SIFT_AFTER = 4
"""Tries that fail before the rows are tried apart; then again after twice as many."""
_UNEXPECTED = "an error that nobody expected; the log has it"
_FUTURE_MS = 600_000
"""How far ahead of this machine's clock a sample may lie."""


class Inserter(Protocol):
    """What the writer needs of a database."""

    @property
    def retention_seconds(self) -> float: ...

    def insert_arrow(self, table: str, rows: pa.Table) -> None: ...


class Writer:
    """A `loms.core.model.Sink`: takes batches from any thread at once and writes them ``flush_seconds`` later.

    A flush happens that long after the first waiting row, or as soon as ``flush_rows`` wait. The queue holds up to
    ``queue_rows`` samples, those being written included; a batch that does not fit is dropped (``queue_full``). A
    failed insert is tried again, with longer and longer pauses, until the queue has overflowed; then its rows are
    dropped (``insert_failed``) to make room for newer ones. What is refused again and again while other rows pass is
    dropped (``unwritable``), so that it does not keep those waiting. Else new series are never dropped: their rows are
    written before their samples, once each per process and again once a day.
    """

    def __init__(
        self,
        database: Inserter,
        clock: Clock,
        *,
        flush_seconds: float = 1.0,
        flush_rows: int = 250_000,
        queue_rows: int = 2_000_000,
        before: Callable[[Ids, Ints], None] | None = None,
        accepted: Sink | None = None,
    ) -> None:
        """``before`` is told ids and times (ms) before each try to write them; a `LomsError` of its fails the try.

        ``accepted`` is told of every batch that is queued, and of none that is dropped then.
        """
        self._database = database
        self._before = before
        self._told = accepted
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._flush_rows = flush_rows
        self._queue_rows = queue_rows
        self._retention_ms = round(database.retention_seconds * 1000)
        self._register = SeriesRegister(database.retention_seconds, clock.now_ms())
        self._queue: deque[SampleBatch] = deque()
        self._rows = 0
        self._accepted = 0
        self._settled = 0
        self._hurry = 0
        self._overflowed = False
        self._closing = False
        self._wake = threading.Condition()
        self.trouble = ""
        """Why the newest insert failed; empty when it went well."""
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def __call__(self, batch: SampleBatch, /) -> None:
        """Queue ``batch``, or drop and count it. Never waits for the database."""
        with self._wake:
            if self._closing:
                selfmetrics.samples_dropped.labels("closed").inc(len(batch))
                return
            if batch.series:
                self._register.add(batch.series)
            if self._rows + len(batch) > self._queue_rows:
                selfmetrics.samples_dropped.labels("queue_full").inc(len(batch))
                self._overflowed = True
                self._wake.notify_all()
            else:
                self._append(batch)

    def offer(self, batch: SampleBatch, /) -> bool:
        """Queue ``batch`` if there is room; else nothing of it is taken, and its sender may come again."""
        with self._wake:
            if self._closing or self._rows + len(batch) > self._queue_rows:
                return False
            self._register.add(batch.series)
            self._append(batch)
            return True

    def bounds_ms(self) -> tuple[int, int]:
        """The oldest and the newest time that a sample may have now; others are dropped (``out_of_bounds``)."""
        now_ms = self._clock.now_ms()
        return now_ms - self._retention_ms, now_ms + _FUTURE_MS

    def _append(self, batch: SampleBatch) -> None:
        self._queue.append(batch)
        if self._told is not None:
            self._told(batch)
        self._accepted += 1
        self._rows += len(batch)
        selfmetrics.write_queue.set(self._rows)
        if len(self._queue) == 1 or self._rows >= self._flush_rows:
            self._wake.notify_all()

    def flush(self, timeout_seconds: float = 30.0) -> bool:
        """Write all that waits now. True when each batch is written or dropped, False when that takes too long."""
        with self._wake:
            target = self._accepted
            self._hurry += 1
            self._wake.notify_all()
            done = self._wake.wait_for(lambda: self._settled >= target, timeout_seconds)
            self._hurry -= 1
            return done

    def close(self) -> None:
        """Write what waits, each insert tried once more at most, then stop. Later batches are dropped and counted."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._queue or len(self._register))
                self._wake.wait_for(
                    lambda: self._closing or self._hurry or self._rows >= self._flush_rows, self._flush_seconds
                )
                if self._closing and not self._queue and not len(self._register):
                    return
                series, batches = self._register.take(), self._take()
                self._overflowed = False
            left = _Left(series, batches)
            self._write(left)
            if left.batches:
                selfmetrics.samples_dropped.labels("insert_failed").inc(sum(map(len, left.batches)))
            with self._wake:
                if not self._closing:
                    self._register.add(left.series)
                self._settled += left.taken
                self._rows -= left.rows
                selfmetrics.write_queue.set(self._rows)
                self._wake.notify_all()

    def _take(self) -> list[SampleBatch]:
        """Batches from the head of the queue, up to about ``flush_rows``; they still count as queued."""
        batches: list[SampleBatch] = []
        rows = 0
        while self._queue and rows < self._flush_rows:
            batches.append(self._queue.popleft())
            rows += len(batches[-1])
        return batches

    def _write(self, left: _Left) -> None:
        """Write what is ``left``, or give up: then that is what stays in it."""
        pause = _FIRST_PAUSE_SECONDS
        for attempt in count(1):
            last_try = self._closing
            with selfmetrics.write_seconds.time():
                trouble = self._try(partial(self._insert, left))
                if trouble is _UNEXPECTED or (trouble and attempt >= _SIFT_AFTER and attempt.bit_count() == 1):
                    self._sift(left, sure=trouble is _UNEXPECTED)
                    trouble = trouble if left.series or left.batches else ""
            self.trouble = trouble
            if not left.batches and not (left.series and trouble):
                return
            rows = sum(map(len, left.batches))
            if trouble is _UNEXPECTED or last_try or not self._worth_another_try(pause):
                _log.error("%d samples are lost: %s", rows, trouble)
                return
            _log.warning("%d samples wait: %s", rows, trouble)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _try(self, insert: Callable[[], None]) -> str:
        """Why it went wrong; empty when it did not."""
        trouble = _UNEXPECTED
        with guard("store.writer"):
            try:
                insert()
                trouble = ""
            except LomsError as error:
                selfmetrics.write_failures.inc()
                trouble = error.message
        return trouble

    def _insert(self, left: _Left) -> None:
        self._insert_series(left.series)
        left.series = ()
        self._insert_samples(left.batches)
        left.batches = []

    def _sift(self, left: _Left, *, sure: bool) -> None:
        """Write all that can be written. What is refused alone, while others pass, is given up: it would be refused for
        ever, and keep the others waiting. ``sure``: it is not the store that is away.
        """
        with self._wake:
            left.add(self._take())  # a batch alone says nothing of whether it is the one that is wrong
        series = sift(left.series, lambda some: not self._try(partial(self._insert_series, some)))
        batches = sift(left.batches, lambda some: not self._try(partial(self._insert_samples, some)))
        passed = sure and bool(series.passed or batches.passed)
        if series.refused and (passed or series.passed):
            selfmetrics.series_dropped.labels("unwritable").inc(len(series.refused))
            _log.error("%d series cannot be written; the first: %.200s", len(series.refused), series.refused[0])
            series.refused = []
        if batches.refused and (passed or batches.passed):
            lost = sum(map(len, batches.refused))
            selfmetrics.samples_dropped.labels("unwritable").inc(lost)
            _log.error("%d samples cannot be written", lost)
            batches.refused = []
        left.series = [*series.refused, *series.untried]
        left.batches = [*batches.refused, *batches.untried]

    def _insert_series(self, series: Sequence[Series]) -> None:
        now_ms = self._clock.now_ms()
        for piece in pieces(series):
            self._database.insert_arrow("series", series_rows(piece, now_ms))
            self._register.wrote(piece, now_ms)
            selfmetrics.series_written.inc(len(piece))

    def _insert_samples(self, batches: Sequence[SampleBatch]) -> None:
        """One insert, unsorted: the engine's sort costs no more than one here would.

        A sample older than the retention or more than ten minutes ahead would make a part of its own for a day that
        is gone or not yet come, or be no date at all: it is dropped (``out_of_bounds``).
        """
        if not any(map(len, batches)):
            return
        ids = np.concatenate([batch.series_ids for batch in batches])
        times = np.concatenate([batch.timestamps_ms for batch in batches])
        values = np.concatenate([batch.values for batch in batches])
        oldest_ms, newest_ms = self.bounds_ms()
        kept = (times >= oldest_ms) & (times <= newest_ms)
        if not kept.all():
            selfmetrics.samples_dropped.labels("out_of_bounds").inc(len(times) - int(kept.sum()))
            ids, times, values = ids[kept], times[kept], values[kept]
        if self._before is not None:
            self._before(ids, times)
        columns: dict[str, Any] = {"series_id": ids, "ts": times.view("datetime64[ms]"), "value": values}
        self._database.insert_arrow("samples", pa.table(columns))
        selfmetrics.samples_written.inc(len(ids))
        living = self._register.observe(ids, self._clock.now_ms())
        if living:
            with self._wake:
                self._register.add(living)

    def _worth_another_try(self, pause_seconds: float) -> bool:
        """Wait, then say whether the queue still has room for what failed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._overflowed, pause_seconds)
            overflowed, self._overflowed = self._overflowed, False
            return self._closing or not overflowed


class _Left:
    """What one flush has still to write."""

    def __init__(self, series: Sequence[Series], batches: Sequence[SampleBatch]) -> None:
        self.series = series
        self.batches: list[SampleBatch] = []
        self.taken = 0
        """Batches that were taken from the queue, and their rows."""
        self.rows = 0
        self.add(batches)

    def add(self, batches: Sequence[SampleBatch]) -> None:
        self.batches += batches
        self.taken += len(batches)
        self.rows += sum(map(len, batches))
