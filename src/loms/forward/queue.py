"""A queue on disk: what waits for one destination survives ``kill -9``, in a bounded space.

A directory holds numbered segments of records and the file ``position``, which says how far they have been read. A
record is written by one call, so it outlives the process at once; the disk is made to keep it (fsync) at least every
second as long as somebody calls `sync`. A record that was cut off by a power cut is cut away when the queue is opened.
"""

from __future__ import annotations

import fcntl
import os
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
_SEGMENT_BYTES = 16 * 2**20
SYNC_SECONDS = 1.0

Drop = Callable[[str, int], None]


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
        self._head: tuple[int, int, int, bytes, int] | None = None
        """Segment, offset, end, data and time of the item that `peek` showed."""
        self._unsynced_since: float | None = None
        self._reader: tuple[int, int] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._position = os.open(directory / "position", os.O_RDWR | os.O_CREAT, 0o600)
            self._lock_directory()
            self._open_segments()
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
            return head[4] if head else None

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

    def peek(self) -> bytes | None:
        """The first item, which stays; None when nothing waits."""
        with self._lock:
            head = self._first()
            return head[3] if head else None

    def done(self) -> None:
        """The item that `peek` showed goes, if it is still there."""
        with self._lock:
            if self._head is None:
                return
            self._offset = self._head[2]
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
            os.close(self._position)
            hint = "two processes of LOMS need a store.path each"
            raise StoreError(f"the queue {self._directory} is used by another process", hint=hint) from None

    def _open_segments(self) -> None:
        numbers = sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}"))
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
            last.size = _sound_bytes(self._path(last.number), last.size)
            os.truncate(self._path(last.number), last.size)
            self._writer = os.open(self._path(last.number), os.O_WRONLY | os.O_APPEND)
            if self._segments[0].number == first:
                self._offset = min(offset, self._segments[0].size)
        else:
            self._begin(first + 1)
        self._settle()

    def _begin(self, number: int) -> None:
        if self._segments:
            os.fsync(self._writer)
            os.close(self._writer)
        self._writer = os.open(self._path(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._segments.append(_Segment(number, 0))

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020d}{_SUFFIX}"

    def _first(self) -> tuple[int, int, int, bytes, int] | None:
        """The item at the head, read and checked once."""
        while self._head is None and self._waiting() > 0:
            segment = self._segments[0]
            if self._offset < segment.size:
                head = os.pread(self._reading(segment.number), _HEAD.size, self._offset)
                length, crc, time_ms, _ = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 1, 0, 0)
                start = self._offset + _HEAD.size
                data = os.pread(self._reading(segment.number), length, start) if start + length <= segment.size else b""
                if len(data) == length and zlib.crc32(data) == crc:
                    self._head = (segment.number, self._offset, start + length, data, time_ms)
                    break
                self._dropped("corrupt", 1)
                self._offset = segment.size
            self._settle()
        return self._head

    def _reading(self, number: int) -> int:
        if self._reader is None or self._reader[0] != number:
            if self._reader:
                os.close(self._reader[1])
            self._reader = (number, os.open(self._path(number), os.O_RDONLY))
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
            os.close(self._reader[1])
            self._reader = None
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


def _sound_bytes(path: Path, size: int) -> int:
    """Up to where a segment's records are whole."""
    at = 0
    with path.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, crc, _, _ = _HEAD.unpack(head)
            if at + _HEAD.size + length > size or zlib.crc32(file.read(length)) != crc:
                break
            at += _HEAD.size + length
    return at


def _unusable(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"the queue {directory} cannot be used: {error.strerror or error}")
