"""A queue on disk: what waits for one destination survives ``kill -9``, in a bounded space.

A directory holds numbered segments of records and the file ``position``, which says how far they have been read. A
record is written by one call, so it outlives the process at once; the disk is made to keep it (fsync) at least every
second as long as somebody calls `sync`. A record that was cut off by a power cut is cut away when the queue is opened;
one whose bytes have changed is passed over.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loms.core.clock import Clock
from loms.core.errors import StoreError

_HEAD = struct.Struct("<IIQI")
"""Length and CRC-32 of the data, time of its arrival (ms), its weight."""
_POSITION = struct.Struct("<QQI")
"""Segment, offset in it, CRC-32 of both."""
_SUFFIX = ".segment"
_NAME = re.compile(rf"[0-9]{{20}}{re.escape(_SUFFIX)}")
_SEGMENT_BYTES = 16 * 2**20
SYNC_SECONDS = 1.0

Drop = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Item:
    """What stands at the head of the queue."""

    data: bytes
    arrived_ms: int
    segment: int
    end: int
    """Where in the segment the next one stands."""


@dataclass(slots=True)
class _Segment:
    number: int
    size: int


class DiskQueue:
    """First in, first out, from any thread; one process at a time has the directory.

    ``weight`` is what an item counts for (samples, spans, …). Beyond ``max_bytes`` whole segments of the oldest items
    go, and ``dropped`` is told a reason and their weight: ``queue_full``, or ``corrupt`` for what cannot be read.
    """

    def __init__(self, directory: Path, max_bytes: int, clock: Clock, dropped: Drop | None = None) -> None:
        """Opens the queue or creates it. Raises `StoreError` when the directory cannot be used."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(1, max_bytes // 8))
        self._clock = clock
        self._dropped: Drop = (lambda reason, weight: None) if dropped is None else dropped
        self._lock = threading.Lock()
        self._segments: deque[_Segment] = deque()
        self._offset = 0
        """Where the first segment is read next."""
        self._head: Item | None = None
        """The item that `peek` showed."""
        self._unsynced_since: float | None = None
        self._reader: tuple[int, int] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._position = os.open(directory / "position", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._lock_directory()
                self._open_segments()
            except (OSError, StoreError):
                os.close(self._position)
                raise
        except OSError as error:
            raise _unusable(directory, error) from None

    @property
    def size(self) -> int:
        """Bytes that wait, headers included."""
        with self._lock:
            return self._waiting()

    def oldest_ms(self) -> int | None:
        """When the first item arrived; None when nothing waits."""
        with self._lock:
            head = self._first()
            return head.arrived_ms if head else None

    def append(self, data: bytes, weight: int = 1) -> None:
        """Raises `StoreError` when the disk does not take it. What is larger than the whole queue is dropped."""
        if _HEAD.size + len(data) > self._max_bytes:
            self._dropped("queue_full", weight)
            return
        record = _HEAD.pack(len(data), zlib.crc32(data), self._clock.now_ms(), weight) + data
        with self._lock:
            try:
                if self._segments[-1].size + len(record) > self._segment_bytes and self._segments[-1].size:
                    self._begin(self._segments[-1].number + 1)
                while self._waiting() + len(record) > self._max_bytes and len(self._segments) > 1:
                    self._give_up_oldest()
                last = self._segments[-1]
                written = os.write(self._writer, record)
                if written < len(record):  # a full disk takes a part; what is half there must not be read
                    os.ftruncate(self._writer, last.size)
                    raise OSError(28, os.strerror(28))
                last.size += len(record)
                if self._unsynced_since is None:
                    self._unsynced_since = self._clock.monotonic()
                self._sync_if_due()
            except OSError as error:
                raise _unusable(self._directory, error) from None

    def peek(self) -> Item | None:
        """The first item, which stays; None when nothing waits."""
        with self._lock:
            return self._first()

    def done(self, item: Item) -> None:
        """``item``, which `peek` showed, goes; unless it is gone, for the queue had no more room for it."""
        with self._lock:
            if self._head is not item:
                return
            self._offset = item.end
            self._head = None
            self._settle()

    def sync(self) -> None:
        """Make the disk keep what was appended, if that was not done in the last second. To be called now and then."""
        with self._lock:
            self._sync_if_due()

    def close(self) -> None:
        with self._lock:
            os.fsync(self._writer)
            os.close(self._writer)
            os.close(self._position)
            if self._reader:
                os.close(self._reader[1])

    def _waiting(self) -> int:
        return sum(segment.size for segment in self._segments) - self._offset

    def _lock_directory(self) -> None:
        try:
            fcntl.flock(self._position, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "two processes of LOMS need a store.path each"
            raise StoreError(f"the queue {self._directory} is used by another process", hint=hint) from None

    def _open_segments(self) -> None:
        numbers = sorted(int(path.stem) for path in self._directory.iterdir() if _NAME.fullmatch(path.name))
        raw = os.pread(self._position, _POSITION.size, 0)
        first, offset = 0, 0
        if len(raw) == _POSITION.size:
            first, offset, crc = _POSITION.unpack(raw)
            if zlib.crc32(raw[:16]) != crc:
                first, offset = 0, 0
        for number in numbers:
            if number < first:
                self._path(number).unlink()
            else:
                self._segments.append(_Segment(number, self._path(number).stat().st_size))
        if self._segments:
            last = self._segments[-1]
            whole = _whole_bytes(self._path(last.number), last.size)
            if whole < last.size:
                self._dropped("corrupt", 1)
            last.size = whole
            os.truncate(self._path(last.number), last.size)
            self._writer = os.open(self._path(last.number), os.O_WRONLY | os.O_APPEND)
            if self._segments[0].number == first:
                self._offset = min(offset, self._segments[0].size)
        else:
            self._begin(first + 1)
        self._settle()

    def _begin(self, number: int) -> None:
        fresh = os.open(self._path(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        full = self._writer if self._segments else None
        # Only now: a number of a file that is closed and goes on being used is soon another file's.
        self._writer = fresh
        self._segments.append(_Segment(number, 0))
        if full is not None:
            try:
                os.fsync(full)
            finally:
                os.close(full)

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020d}{_SUFFIX}"

    def _first(self) -> Item | None:
        """The item at the head, read and checked once."""
        while self._head is None and self._waiting() > 0:
            segment = self._segments[0]
            if self._offset < segment.size:
                record = _record(self._reading(segment.number), self._offset, segment.size)
                if record is not None and record.sound:
                    self._head = Item(record.data, record.arrived_ms, segment.number, record.end)
                    break
                self._dropped("corrupt", record.weight if record else 1)
                self._offset = record.end if record else segment.size
            self._settle()
        return self._head

    def _reading(self, number: int) -> int:
        if self._reader is None or self._reader[0] != number:
            opened, before = os.open(self._path(number), os.O_RDONLY), self._reader
            self._reader = (number, opened)
            if before:
                os.close(before[1])
        return self._reader[1]

    def _settle(self) -> None:
        """Remove a segment that has been read to its end; note the position."""
        while len(self._segments) > 1 and self._offset >= self._segments[0].size:
            self._remove_first()
        raw = struct.pack("<QQ", self._segments[0].number, self._offset)
        os.pwrite(self._position, raw + struct.pack("<I", zlib.crc32(raw)), 0)

    def _remove_first(self) -> None:
        gone = self._segments.popleft()
        self._offset = 0
        if self._reader and self._reader[0] == gone.number:
            opened, self._reader = self._reader[1], None
            os.close(opened)
        self._path(gone.number).unlink(missing_ok=True)

    def _give_up_oldest(self) -> None:
        segment = self._segments[0]
        weight, at = 0, self._offset
        while len(head := os.pread(self._reading(segment.number), _HEAD.size, at)) == _HEAD.size:
            length, _, _, one = _HEAD.unpack(head)
            weight += one
            at += _HEAD.size + length
        self._head = None
        self._remove_first()
        self._settle()
        self._dropped("queue_full", weight)

    def _sync_if_due(self) -> None:
        since = self._unsynced_since
        if since is not None and self._clock.monotonic() - since >= SYNC_SECONDS:
            os.fsync(self._writer)
            self._unsynced_since = None


@dataclass(frozen=True, slots=True)
class _Record:
    data: bytes
    arrived_ms: int
    weight: int
    end: int
    sound: bool


def _record(file: int, at: int, size: int) -> _Record | None:
    """What stands at a place of a segment of ``size`` bytes; None where even its length cannot be believed: nothing
    sound follows it.
    """
    record = _read(file, at, size)
    if record is None or record.sound or record.end == size:
        return record
    following = _read(file, record.end, size)
    return record if following is not None and following.sound else None


def _read(file: int, at: int, size: int) -> _Record | None:
    head = os.pread(file, _HEAD.size, at)
    if len(head) < _HEAD.size:
        return None
    length, crc, arrived_ms, weight = _HEAD.unpack(head)
    start = at + _HEAD.size
    if start + length > size:
        return None
    data = os.pread(file, length, start)
    return _Record(data, arrived_ms, weight, start + length, len(data) == length and zlib.crc32(data) == crc)


def _whole_bytes(path: Path, size: int) -> int:
    """Up to where a segment has one record behind the other."""
    at = 0
    file = os.open(path, os.O_RDONLY)
    try:
        while at < size and (record := _record(file, at, size)) is not None:
            at = record.end
    finally:
        os.close(file)
    return at


def _unusable(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"the queue {directory} cannot be used: {error.strerror or error}")
