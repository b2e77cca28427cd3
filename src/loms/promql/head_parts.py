"""What the head's samples lie in, and how those of some series are taken out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loms.core.model import Floats, Ids, Ints

_ROWS = 32
"""Of a stack's blocks, but for its first ones."""


@dataclass(slots=True)
class Block:
    """Rows in order of arrival; the first ``len(times)`` are there and never change."""

    values: Floats
    times: list[int] = field(default_factory=list)

    @property
    def newest_ms(self) -> int:
        return max(self.times, default=-1)


class Stack:
    """Batches of the very same ids, each with one time for all: a row each."""

    __slots__ = ("blocks", "gone", "ids", "number", "ordered", "places")

    def __init__(self, number: int, ids: Ids, places: Ints) -> None:
        """``ids`` are sorted, and ``places`` says where each stands in a row."""
        self.number = number
        self.ids = ids
        self.places = places
        self.blocks: list[Block] = []
        self.ordered = True
        """Each row is newer than the one before."""
        self.gone = False
        """No row will come any more."""

    def append(self, at_ms: int, values: Floats) -> int:
        """The bytes that this takes more."""
        last, taken = (self.blocks[-1] if self.blocks else None), 0
        if last is not None:
            self.ordered &= at_ms > last.times[-1]
        if last is None or len(last.times) == len(last.values):
            rows = 4 if last is None else min(2 * len(last.values), _ROWS)
            last = Block(np.empty((rows, len(values))))
            taken = last.values.nbytes
            last.values[0] = values
            last.times.append(at_ms)
            self.blocks = [*self.blocks, last]
        else:
            last.values[len(last.times)] = values
            last.times.append(at_ms)
        return taken

    @property
    def nbytes(self) -> int:
        """Without its blocks."""
        return 2_000 + 3 * self.ids.nbytes

    def count(self, start_ms: int, end_ms: int) -> int:
        """How many rows there are after ``start_ms`` up to ``end_ms``, near enough if they are out of order."""
        return sum(bisect_right(one.times, end_ms) - bisect_right(one.times, start_ms) for one in self.blocks)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples by id and time; those of ``ids[i]`` are ``starts[i]`` to ``starts[i + 1]``."""

    ids: Ids
    starts: Ints
    times: Ints
    values: Floats
    oldest_ms: int
    newest_ms: int
    level: int
    """How often its samples have been put together with others."""

    @classmethod
    def of(cls, ids: Ids, times: Ints, values: Floats, level: int = 0) -> Chunk:
        """From samples in any order."""
        order = np.lexsort((times, ids))
        ids, times, values = ids[order], times[order], values[order]
        first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        starts = np.append(first, len(ids))
        return cls(ids[first], starts, times, values, int(times.min()), int(times.max()), level)

    @classmethod
    def merged(cls, chunks: Sequence[Chunk], after_ms: int) -> Chunk | None:
        """One of several, without what is not after ``after_ms``; None if that is nothing."""
        ids = np.concatenate([np.repeat(one.ids, np.diff(one.starts)) for one in chunks])
        times = np.concatenate([one.times for one in chunks])
        values = np.concatenate([one.values for one in chunks])
        kept = times > after_ms
        return cls.of(ids[kept], times[kept], values[kept], chunks[-1].level + 1) if kept.any() else None

    @property
    def nbytes(self) -> int:
        return 500 + self.times.nbytes + self.values.nbytes + self.ids.nbytes + self.starts.nbytes


@dataclass(frozen=True, slots=True)
class Meeting:
    """Which values of a stack's rows belong to which series of an answer."""

    stack: Stack
    places: Ints
    rows: Ints


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the ids of a `Wanted` are in the stacks up to number ``seen``."""

    seen: int = 0
    meetings: tuple[Meeting, ...] = ()


class Wanted:
    """Series to read, each with the ids that its samples stand under. To be kept as long as they are asked for."""

    def __init__(self, ids: Sequence[tuple[int, ...]]) -> None:
        flat = np.fromiter((one for own in ids for one in own), np.uint64)
        rows = np.repeat(np.arange(len(ids)), [len(own) for own in ids])
        order = np.argsort(flat, kind="stable")
        self.ids: Ids = flat[order]
        """Sorted; one may be there for several series."""
        self.rows: Ints = rows[order]
        self.series = len(ids)
        self.plan = Plan()

    def extended(self, plan: Plan, stacks: Sequence[Stack]) -> Plan:
        """The plan with stacks that are newer, the oldest first."""
        if not stacks:
            return plan
        meetings = [one for one in plan.meetings if not one.stack.gone]
        for stack in stacks:
            mine, there = _meeting(self.ids, stack.ids)
            if len(mine):
                meetings.append(Meeting(stack, stack.places[there], self.rows[mine]))
        return Plan(stacks[-1].number, tuple(meetings))


def _meeting(wanted: Ids, there: Ids) -> tuple[Ints, Ints]:
    """Places of equal ids in ``wanted`` (sorted, may repeat) and in ``there`` (sorted, each once)."""
    if not len(wanted) or wanted[0] > there[-1] or wanted[-1] < there[0]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if len(wanted) <= len(there):
        places = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
        mine = np.flatnonzero(there[places] == wanted)
        return mine, places[mine]
    low, high = np.searchsorted(wanted, there, "left"), np.searchsorted(wanted, there, "right")
    sizes = high - low
    return _spread(low, sizes), np.repeat(np.arange(len(there)), sizes)


def _spread(starts: Ints, sizes: Ints) -> Ints:
    """The numbers from each of ``starts`` on, as many as its ``sizes`` says."""
    numbers: Ints = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return numbers


@dataclass(frozen=True, slots=True)
class Columns:
    """Samples of several series: those of series ``i`` are ``offsets[i]`` to ``offsets[i + 1]``, by time."""

    offsets: Ints
    times_ms: Ints
    values: Floats


class Gathering:
    """Collects the samples of a `Wanted` after ``start_ms`` up to ``end_ms``; ``newest``: only each series' last."""

    def __init__(self, wanted: Wanted, start_ms: int, end_ms: int, newest: bool) -> None:
        self._wanted = wanted
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._newest = newest
        # Segments, each of one series: its row, its length, and one after the other their samples.
        self._rows: list[Ints] = []
        self._lengths: list[Ints] = []
        self._times: list[Ints] = []
        self._values: list[Floats] = []

    def add_stack(self, meeting: Meeting, blocks: Sequence[Block], filled: int) -> None:
        """Rows of ``blocks``, of the last of them only the first ``filled``."""
        matrices: list[Floats] = []
        times: list[int] = []
        ordered = meeting.stack.ordered
        for block in reversed(blocks):
            count = filled if block is blocks[-1] else len(block.values)
            if ordered:
                low = bisect_right(block.times, self._start_ms, 0, count)
                high = bisect_right(block.times, self._end_ms, low, count)
                if self._newest:
                    low = max(low, high - 1)
                if low < high:
                    matrices.append(block.values[low:high])
                    times[:0] = block.times[low:high]
                    if self._newest:
                        break
            elif inside := [i for i in range(count) if self._start_ms < block.times[i] <= self._end_ms]:
                matrices.append(block.values[inside])
                times[:0] = [block.times[i] for i in inside]
        if not times:
            return
        matrix = matrices[0] if len(matrices) == 1 else np.concatenate(matrices[::-1])
        series, length = len(meeting.rows), len(times)
        self._rows.append(meeting.rows)
        self._lengths.append(np.full(series, length))
        if length == 1:
            self._times.append(np.full(series, times[0]))
            self._values.append(matrix[0].take(meeting.places))
        else:
            self._times.append(np.broadcast_to(np.array(times), (series, length)).ravel())
            self._values.append(matrix.take(meeting.places, axis=1).T.ravel())

    def add_chunk(self, chunk: Chunk) -> None:
        if chunk.newest_ms <= self._start_ms or chunk.oldest_ms > self._end_ms:
            return
        mine, there = _meeting(self._wanted.ids, chunk.ids)
        if not len(mine):
            return
        sizes = chunk.starts[there + 1] - chunk.starts[there]
        places = _spread(chunk.starts[there], sizes)
        times = chunk.times[places]
        inside = (times > self._start_ms) & (times <= self._end_ms)
        self._rows.append(np.repeat(self._wanted.rows[mine], sizes)[inside])
        self._lengths.append(np.ones(len(self._rows[-1]), np.int64))
        self._times.append(times[inside])
        self._values.append(chunk.values[places[inside]])

    def columns(self) -> Columns | None:
        """What was collected; None when two samples of a series have the same time."""
        series = self._wanted.series
        if not self._rows:
            return Columns(np.zeros(series + 1, np.int64), np.empty(0, np.int64), np.empty(0))
        rows, lengths, times = (np.concatenate(parts) for parts in (self._rows, self._lengths, self._times))
        values = np.concatenate(self._values)
        order = np.argsort(rows, kind="stable")
        starts, rows, lengths = (np.cumsum(lengths) - lengths)[order], rows[order], lengths[order]
        places = _spread(starts, lengths)
        times, values = times[places], values[places]
        counts = np.zeros(series, np.int64)
        np.add.at(counts, rows, lengths)
        offsets = np.append(0, np.cumsum(counts))
        back = np.flatnonzero(times[1:] <= times[:-1]) + 1
        if len(back) and not np.isin(back, offsets).all():
            order = np.lexsort((times, np.repeat(np.arange(series), counts)))
            times, values = times[order], values[order]
            if not np.isin(np.flatnonzero(times[1:] <= times[:-1]) + 1, offsets).all():
                return None
        if self._newest:
            last, some = offsets[1:] - 1, counts > 0
            return Columns(np.append(0, np.cumsum(some)), times[last[some]], values[last[some]])
        return Columns(offsets, times, values)
