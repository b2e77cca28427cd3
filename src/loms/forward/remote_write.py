"""Remote write out: what goes to the store is also encoded, compressed, queued on disk and sent to somebody else.

`RemoteWriteOut` is a sink: it notes a batch and returns. A thread of its own turns what was noted into requests once
a second, so a killed process loses what came in that second and nothing else. Under each of its names (the raw one
and its canonical aliases share an id) a series goes out exactly once.
"""

from __future__ import annotations

import logging
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import ConfigError, LomsError
from loms.core.guard import guard
from loms.core.model import SampleBatch, Series
from loms.core.settings import RemoteWrite
from loms.forward.http import HttpDestination, name_of
from loms.forward.queue import DiskQueue
from loms.forward.remote_write_encode import EARLIEST_MS, LATEST_MS, Wire, encode, encode_2
from loms.forward.sender import Sender, Standing

_log = logging.getLogger("loms.forward")

GATHER_SECONDS = 1.0
REQUEST_SAMPLES = 5_000
MEMORY_ROWS = 1_000_000
"""Samples noted and not yet encoded, at most."""
FORGET_SECONDS = 3600.0
"""A series without samples for so long is forgotten, and read from the store when it comes again."""

Resolve = Callable[[Sequence[int]], Iterable[Series]]
"""Ids → the stored series with these ids."""
_ITEM = struct.Struct("<BI")
"""Version of the message and its samples, in front of the compressed message in the queue."""
_HEADERS: Mapping[int, Mapping[str, str]] = {
    1: {"Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"},
    2: {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
}


class RemoteWriteOut:
    """A `loms.core.model.Sink` and its way to one destination. `start` it; `stop` sends what can be sent."""

    def __init__(self, settings: RemoteWrite, directory: Path, clock: Clock, resolve: Resolve) -> None:
        """Queues under ``directory``. Raises `ConfigError` or `StoreError`."""
        http = HttpDestination(settings, clock)
        self.name = http.name
        self._version = int(settings.version[0])
        self._keep = [re.compile(pattern) for pattern in settings.keep]
        self._clock = clock
        self._resolve = resolve
        self._wires = _Wires(self._kept, clock)
        queue = DiskQueue(directory / re.sub(r"[^\w.-]", "_", self.name), settings.queue, clock, self._drop)
        self._sender = Sender(self.name, queue, _Destination(http), clock)
        self._noted: deque[SampleBatch] = deque()
        self._rows = 0
        self._stopping = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"forward-encode-{self.name}", daemon=True)

    def __call__(self, batch: SampleBatch, /) -> None:
        with self._wake:
            if self._stopping or self._rows + len(batch) > MEMORY_ROWS:
                self._drop("stopped" if self._stopping else "memory_full", len(batch))
                return
            self._noted.append(batch)
            self._rows += len(batch)
            if self._rows >= REQUEST_SAMPLES:
                self._wake.notify_all()

    def start(self) -> None:
        self._thread.start()
        self._sender.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Encode and queue what was noted, then send for so long at most."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._sender.stop(timeout_seconds)

    def standing(self) -> Standing:
        return self._sender.standing()

    def encode(self) -> int:
        """Turn what was noted into queued requests; how many samples that were."""
        with self._wake:
            batches = list(self._noted)
            self._noted.clear()
            self._rows = 0
        if not batches:
            return 0
        for batch in batches:
            self._wires.note(batch.series)
        ids = np.concatenate([batch.series_ids for batch in batches])
        times = np.concatenate([batch.timestamps_ms for batch in batches])
        values = np.concatenate([batch.values for batch in batches])
        inside = (times >= EARLIEST_MS) & (times <= LATEST_MS)
        if not inside.all():
            self._drop("out_of_bounds", len(times) - int(inside.sum()))
            ids, times, values = ids[inside], times[inside], values[inside]
        wires: list[Wire] = []
        places: list[int] = []
        for place, named in enumerate(self._wires.of(ids.tolist(), self._stored)):
            if named is None:
                self._drop("unknown_series", 1)
                continue
            for wire in named:
                wires.append(wire)
                places.append(place)
        at = np.array(places, dtype=np.int64)
        write = encode if self._version == 1 else encode_2
        for start in range(0, len(wires), REQUEST_SAMPLES):
            some = slice(start, start + REQUEST_SAMPLES)
            message = write(wires[some], values[at[some]], times[at[some]])
            count = len(wires[some])
            body: bytes = pa.compress(message, codec="snappy", asbytes=True)
            self._sender.put(_ITEM.pack(self._version, count) + body, count)
        return len(wires)

    def _stored(self, ids: Sequence[int]) -> Iterable[Series]:
        """What the store knows of these; nothing where it cannot be asked now."""
        try:
            return self._resolve(ids)
        except LomsError as error:
            _log.warning("%s: %d series have no name, and their samples are not sent: %s", self.name, len(ids), error)
            return ()

    def _run(self) -> None:
        while not self._stopping:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._rows >= REQUEST_SAMPLES, GATHER_SECONDS)
            with guard(f"forward {self.name}"):
                self.encode()
        with guard(f"forward {self.name}"):
            self.encode()

    def _kept(self, series: Series) -> bool:
        return not self._keep or any(pattern.fullmatch(series.name) for pattern in self._keep)

    def _drop(self, reason: str, samples: int) -> None:
        selfmetrics.forward_dropped.labels(self.name, reason).inc(samples)


class _Destination:
    """Sends what `RemoteWriteOut` has queued."""

    def __init__(self, http: HttpDestination) -> None:
        self._http = http

    def send(self, item: bytes, /) -> int:
        version, samples = _ITEM.unpack_from(item)
        headers = {"Content-Encoding": "snappy", **_HEADERS[version]}
        self._http.post(item[_ITEM.size :], headers, weight=samples)
        return int(samples)


class _Wires:
    """Series id → what is written for it: one `Wire` for each name that is kept. Two generations, as time goes on."""

    def __init__(self, kept: Callable[[Series], bool], clock: Clock) -> None:
        self._kept = kept
        self._clock = clock
        self._young: dict[int, dict[Series, Wire]] = {}
        self._old: dict[int, dict[Series, Wire]] = {}
        self._turn = clock.monotonic() + FORGET_SECONDS

    def note(self, series: Iterable[Series]) -> None:
        for one in series:
            named = self._find(one.id)
            if named is None:
                named = self._young[one.id] = {}
            if one not in named and self._kept(one):
                named[one] = Wire(one)

    def of(self, ids: Sequence[int], resolve: Resolve) -> list[tuple[Wire, ...] | None]:
        """For each id its wires, None where nobody knows the series."""
        if self._clock.monotonic() >= self._turn:
            self._old, self._young = self._young, {}
            self._turn = self._clock.monotonic() + FORGET_SECONDS
        if unknown := sorted({one for one in ids if one not in self._young and self._find(one) is None}):
            self.note(resolve(unknown))
        found = [self._young.get(one) for one in ids]
        return [None if named is None else tuple(named.values()) for named in found]

    def _find(self, one: int) -> dict[Series, Wire] | None:
        found = self._young.get(one)
        if found is None and (found := self._old.get(one)) is not None:
            self._young[one] = found
        return found


def resolver(query: Callable[[str, Mapping[str, Any]], dict[str, pa.Array[Any]]]) -> Resolve:
    """Reads series from the store, through its ``query_columns``."""

    def resolve(ids: Sequence[int]) -> Iterable[Series]:
        columns = query(
            "SELECT DISTINCT id, name, labels FROM series WHERE id IN {ids:Array(UInt64)}", {"ids": list(ids)}
        )
        rows = zip(*(columns[name].to_pylist() for name in ("id", "name", "labels")), strict=True)
        return [Series(series_id, name, tuple(sorted(labels))) for series_id, name, labels in rows]

    return resolve


def outs_of(settings: Sequence[RemoteWrite], directory: Path, clock: Clock, resolve: Resolve) -> list[RemoteWriteOut]:
    """One for each destination. Raises `ConfigError` where two have one name, `StoreError` for a queue."""
    names = [name_of(one) for one in settings]
    if twice := next((name for name in names if names.count(name) > 1), None):
        hint = "give each a name of its own: remote_write[].name"
        raise ConfigError(f"remote_write: two destinations are named {twice!r}", hint=hint)
    return [RemoteWriteOut(one, directory, clock, resolve) for one in settings]
