"""What others push: each sample is kept once, however often and in whatever order it comes.

A sender that got no answer sends again, and after a restart of its own sends once more what it had sent. The store
keeps what it is given, so this stands before it: of each series the newest accepted time is known, what is newer
passes at once, and what is not is looked up in the store and taken only if nothing stands at its time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import StoreError
from loms.core.model import Bools, Ids, Ints, SampleBatch

PIECE_ROWS = 20_000
"""Samples offered at once, so that a large request waits for little room."""
ANNOUNCE_MS = 6 * 3_600_000
"""A living series is named again after this time, for its row may have expired meanwhile."""


class Keeper(Protocol):
    """What stands before the store: `loms.store.writer.Writer`, or that with others who listen."""

    def offer(self, batch: SampleBatch, /) -> bool: ...

    def flush(self, timeout_seconds: float = ..., /) -> bool: ...

    def bounds_ms(self) -> tuple[int, int]: ...


class Reader(Protocol):
    def query_columns(self, sql: str, parameters: Mapping[str, Any] | None = None, /) -> dict[str, pa.Array[Any]]: ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a batch. With ``full`` some of it was not taken, and the whole should come again later."""

    accepted: int = 0
    duplicate: int = 0
    """Equal to a sample that is there; nothing is lost."""
    conflicting: int = 0
    """At the time of another sample of the series with another value; the older one stays."""
    out_of_bounds: int = 0
    """Older than the retention, or too far in the future."""
    full: bool = False

    def __add__(self, other: Accepted) -> Accepted:
        return Accepted(
            self.accepted + other.accepted,
            self.duplicate + other.duplicate,
            self.conflicting + other.conflicting,
            self.out_of_bounds + other.out_of_bounds,
            self.full or other.full,
        )


class Arrivals:
    """Takes batches from any thread, large ones piece by piece and in turn with others; may wait for the database."""

    def __init__(
        self,
        writer: Keeper,
        database: Reader,
        clock: Clock,
        *,
        most_series: int = 2_000_000,
    ) -> None:
        self._writer = writer
        self._database = database
        self._clock = clock
        self._newest = _Newest(most_series)
        self._unwritten = False
        """Something was accepted since the last flush."""
        self._lock = threading.Lock()
        self._next = threading.Lock()
        """Held by who is the next to have ``_lock``: so a batch of many pieces does not have it again at once."""

    def accept(self, batch: SampleBatch) -> Accepted:
        """Keep what is new of ``batch``, whose ``series`` name at least those that this object has not seen.

        Raises `StoreError` when the store cannot be asked.
        """
        done = Accepted()
        for start in range(0, len(batch), PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            some = SampleBatch(batch.series_ids[piece], batch.timestamps_ms[piece], batch.values[piece], batch.series)
            with self._next:
                self._lock.acquire()
            try:
                done += self._accept(some)
            finally:
                self._lock.release()
            if done.full:
                break
        for reason, count in (("duplicate", done.duplicate), ("conflicting", done.conflicting)):
            if count:
                selfmetrics.samples_dropped.labels(reason).inc(count)
        if done.out_of_bounds:
            selfmetrics.samples_dropped.labels("out_of_bounds").inc(done.out_of_bounds)
        return done

    def _accept(self, batch: SampleBatch) -> Accepted:
        oldest_ms, newest_ms = self._writer.bounds_ms()
        inside = (batch.timestamps_ms >= oldest_ms) & (batch.timestamps_ms <= newest_ms)
        outside = len(batch) - int(inside.sum())
        if outside:
            batch = _some(batch, inside)
        if not len(batch):
            return Accepted(out_of_bounds=outside)
        batch, duplicate, conflicting = _once(batch)
        known, announced = self._newest.find(batch.series_ids, self._clock.now_ms() - ANNOUNCE_MS)
        if (known < 0).any():
            known = self._ask(batch, known)
        late = batch.timestamps_ms <= known
        if late.any():
            there, equal = self._there(batch, late)
            duplicate += int((there & equal).sum())
            conflicting += int((there & ~equal).sum())
            batch, known, announced = _some(batch, ~there), known[~there], announced[~there]
        refused = Accepted(0, duplicate, conflicting, outside)
        if not len(batch):
            return refused
        return refused + self._offer(batch, known, announced)

    def _offer(self, batch: SampleBatch, known: Ints, announced: Bools) -> Accepted:
        series: tuple[Any, ...] = ()
        if not announced.all():
            unnamed = set(batch.series_ids[~announced].tolist())
            series = tuple(one for one in batch.series if one.id in unnamed)
        if not self._writer.offer(SampleBatch(batch.series_ids, batch.timestamps_ms, batch.values, series)):
            return Accepted(full=True)
        self._unwritten = True
        self._newest.put(batch.series_ids, np.maximum(batch.timestamps_ms, known), announced, self._clock.now_ms())
        return Accepted(accepted=len(batch))

    def _ask(self, batch: SampleBatch, known: Ints) -> Ints:
        """The newest stored time of series that are not known, as far as it is not before what comes now."""
        unknown = known < 0
        since_ms = int(batch.timestamps_ms[unknown].min())
        if self._newest.forgot:
            self._flush()
        columns = self._database.query_columns(
            "SELECT series_id AS id, toUnixTimestamp64Milli(max(ts)) AS t FROM samples"
            " WHERE series_id IN {ids:Array(UInt64)} AND ts >= fromUnixTimestamp64Milli({since:Int64})"
            " GROUP BY series_id",
            {"ids": np.unique(batch.series_ids[unknown]).tolist(), "since": since_ms},
        )
        stored = dict(zip(columns["id"].to_pylist(), columns["t"].to_pylist(), strict=True))
        found = [stored.get(one, since_ms - 1) for one in batch.series_ids[unknown].tolist()]
        answer = known.copy()
        answer[unknown] = found
        return answer

    def _there(self, batch: SampleBatch, late: Bools) -> tuple[Bools, Bools]:
        """Of each sample of ``batch``: something is stored at its time (never so but for ``late``), and equal to it."""
        self._flush()
        times = np.unique(batch.timestamps_ms[late])
        columns = self._database.query_columns(
            "SELECT series_id AS id, toUnixTimestamp64Milli(ts) AS t, reinterpretAsInt64(value) AS v FROM samples"
            " WHERE series_id IN {ids:Array(UInt64)} AND ts >= fromUnixTimestamp64Milli({since:Int64})"
            " AND ts <= fromUnixTimestamp64Milli({until:Int64}) AND t IN {times:Array(Int64)}",
            {
                "ids": np.unique(batch.series_ids[late]).tolist(),
                "since": int(times[0]),
                "until": int(times[-1]),
                "times": times.tolist(),
            },
        )
        ids, stored, values = (columns[name].to_pylist() for name in ("id", "t", "v"))
        bits = dict(zip(zip(ids, stored, strict=True), values, strict=True))
        there, equal = np.zeros((2, len(batch)), dtype=np.bool_)
        for i in np.flatnonzero(late).tolist():
            value = bits.get((int(batch.series_ids[i]), int(batch.timestamps_ms[i])))
            there[i] = value is not None
            equal[i] = value == int(batch.values[i : i + 1].view(np.int64)[0])
        return there, equal

    def _flush(self) -> None:
        """What was accepted must be in the store before it can be asked."""
        if self._unwritten:
            if not self._writer.flush():
                raise StoreError("the store does not write what waits, so it cannot be asked for what is there")
            self._unwritten = False


class _Newest:
    """Series id → newest accepted time, and when the series was last named; 24 bytes each, sorted by id."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.forgot = False
        """A series that is not known may have been."""
        self._ids: Ids = np.empty(0, dtype=np.uint64)
        self._times: Ints = np.empty(0, dtype=np.int64)
        self._named: Ints = np.empty(0, dtype=np.int64)

    def find(self, ids: Ids, named_since_ms: int) -> tuple[Ints, Bools]:
        """Per id the newest time (-1: unknown), and whether it was named since then."""
        if not len(self._ids):
            return np.full(len(ids), -1, dtype=np.int64), np.zeros(len(ids), dtype=np.bool_)
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        there = self._ids[places] == ids
        return np.where(there, self._times[places], -1), there & (self._named[places] >= named_since_ms)

    def put(self, ids: Ids, times: Ints, named: Bools, now_ms: int) -> None:
        """``ids`` are sorted and may repeat; those not ``named`` before have been named now."""
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        ids, times, named = ids[starts], np.maximum.reduceat(times, starts), named[starts]
        places = np.searchsorted(self._ids, ids)
        there = np.zeros(len(ids), dtype=np.bool_)
        inside = places < len(self._ids)
        there[inside] = self._ids[places[inside]] == ids[inside]
        at = places[there]
        self._times[at] = times[there]
        self._named[at[~named[there]]] = now_ms
        new = ~there
        if new.any():
            self._ids = np.insert(self._ids, places[new], ids[new])
            self._times = np.insert(self._times, places[new], times[new])
            self._named = np.insert(self._named, places[new], now_ms)
            if len(self._ids) > self._most:
                self._forget()

    def _forget(self) -> None:
        """Of too many series, the half that was silent for longest."""
        self.forgot = True
        kept = np.sort(np.argsort(self._times, kind="stable")[-max(1, self._most // 2) :])
        self._ids, self._times, self._named = self._ids[kept], self._times[kept], self._named[kept]


def _once(batch: SampleBatch) -> tuple[SampleBatch, int, int]:
    """Sorted by series and time, the first of each; how many others were equal to it, and how many not."""
    order = np.lexsort((batch.timestamps_ms, batch.series_ids))
    batch = _some(batch, order)
    ids, times = batch.series_ids, batch.timestamps_ms
    again = np.r_[False, (ids[1:] == ids[:-1]) & (times[1:] == times[:-1])]
    if not again.any():
        return batch, 0, 0
    first = np.maximum.accumulate(np.where(again, 0, np.arange(len(ids))))
    bits = batch.values.view(np.int64)
    equal = int((again & (bits == bits[first])).sum())
    return _some(batch, ~again), equal, int(again.sum()) - equal


def _some(batch: SampleBatch, which: Bools | Ints) -> SampleBatch:
    return SampleBatch(batch.series_ids[which], batch.timestamps_ms[which], batch.values[which], batch.series)
