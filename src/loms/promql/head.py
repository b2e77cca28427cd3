"""The newest samples in memory, all of them since a known moment: what rules and dashboards ask for most often.

A batch whose ids come again and again, as those of a target's scrapes do, is one row of a stack: nine to eleven bytes a
sample. Others are sorted by id, and put together from time to time: 24 bytes a sample.
"""

from __future__ import annotations

import threading
from itertools import takewhile

import numpy as np

from loms.core.clock import Clock
from loms.core.model import Ids, SampleBatch
from loms.promql.head_parts import Chunk, Columns, Gathering, Plan, Stack, Wanted

_FUTURE_MS = 600_000
"""The store takes nothing that lies further ahead (`loms.store.writer`) when it is written, which may be later."""
_DOUBTFUL_MS = 3_600_000
"""Nothing waits for longer than this to be written."""
_TOGETHER = 8
"""So many chunks become one, as long as that has at most `_CHUNK_ROWS`: a merge must not take long."""
_CHUNK_ROWS = 200_000
_SEEN = 50_000
"""Sets of ids of which it is known that they came once."""
_SWEEP_MS = 5_000
_FULL = 0.9
"""What is left of the room when the oldest samples had to go."""
_MINUTE_MS = 60_000


class Head:
    """A `loms.core.model.Sink`, fed and read by any threads. A batch is seen whole or not at all.

    Everything that was accepted with a time after ``from_ms`` is here, for ``seconds`` and as far as ``size`` bytes
    reach. What is let go of moves on the moment since which that is so.
    """

    def __init__(self, clock: Clock, *, size: int, seconds: float, from_ms: int) -> None:
        """``from_ms``: nothing newer came to the store but through here."""
        self._clock = clock
        self._size = size
        self._kept_ms = round(seconds * 1000)
        self._since_ms = from_ms
        self._stacks: dict[bytes, Stack] = {}
        """The oldest first."""
        self._made = 0
        self._seen: dict[int, None] = {}
        self._chunks: tuple[Chunk, ...] = ()
        self._doubtful: frozenset[int] = frozenset()
        """Minutes with samples of which it is unknown whether the store takes them."""
        self._bytes = 0
        self._swept_ms = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """What the samples take."""
        return self._bytes

    def __call__(self, batch: SampleBatch, /) -> None:
        """Keep what the store has accepted."""
        if not len(batch):
            return
        now_ms, at_ms = self._clock.now_ms(), int(batch.timestamps_ms[0])
        stacked = at_ms <= now_ms + _FUTURE_MS and bool((batch.timestamps_ms == at_ms).all())
        key = batch.series_ids.tobytes() if stacked else b""
        with self._lock:
            stack = self._stack(key, batch.series_ids) if stacked else None
            if stack is None:
                self._add_chunk(batch, now_ms)
            elif at_ms > self._since_ms:
                self._bytes += stack.append(at_ms, batch.values)
            if self._bytes > self._size:
                self._shrink()
            if not 0 <= now_ms - self._swept_ms < _SWEEP_MS:
                self._swept_ms = now_ms
                self._let_go(now_ms - self._kept_ms)

    def holds(self, start_ms: int, end_ms: int) -> bool:
        """Whether all samples after ``start_ms`` up to ``end_ms`` are here."""
        if start_ms < self._since_ms or start_ms < self._clock.now_ms() - self._kept_ms:
            return False
        doubtful = self._doubtful
        return not doubtful or not any(start_ms // _MINUTE_MS <= one <= end_ms // _MINUTE_MS for one in doubtful)

    def count(self, wanted: Wanted, start_ms: int, end_ms: int) -> int:
        """About how many samples `read` would give."""
        meetings = self._planned(wanted).meetings
        return sum(len(meeting.rows) * meeting.stack.count(start_ms, end_ms) for meeting in meetings)

    def read(self, wanted: Wanted, start_ms: int, end_ms: int, newest: bool = False) -> Columns | None:
        """The samples after ``start_ms`` up to ``end_ms``, or of each series the ``newest`` one of them.

        None when not all of them are here, or two of a series have the same time.
        """
        plan = self._planned(wanted)
        with self._lock:
            plan = wanted.extended(plan, self._newer(plan))
            seen = [(one, one.stack.blocks) for one in plan.meetings if one.stack.blocks]
            filled = [len(blocks[-1].times) for _, blocks in seen]
            chunks = self._chunks
            if not self.holds(start_ms, end_ms):
                return None
        gathering = Gathering(wanted, start_ms, end_ms, newest)
        for (meeting, blocks), rows in zip(seen, filled, strict=True):
            gathering.add_stack(meeting, blocks, rows)
        for chunk in chunks:
            gathering.add_chunk(chunk)
        return gathering.columns()

    def _planned(self, wanted: Wanted) -> Plan:
        """The plan that was last made, brought up to date; outside the lock, since a large one takes a while."""
        plan = wanted.plan
        if plan.seen < self._made:
            with self._lock:
                newer = self._newer(plan)
            plan = wanted.plan = wanted.extended(plan, newer)
        return plan

    def _newer(self, plan: Plan) -> list[Stack]:
        return list(takewhile(lambda stack: stack.number > plan.seen, reversed(self._stacks.values())))[::-1]

    def _stack(self, key: bytes, ids: Ids) -> Stack | None:
        """The stack of these ids, made when they come for the second time; None for the first time."""
        stack = self._stacks.get(key)
        if stack is not None:
            return stack
        digest = hash(key)
        if digest not in self._seen:
            if len(self._seen) >= _SEEN:
                del self._seen[next(iter(self._seen))]
            self._seen[digest] = None
            return None
        places = np.argsort(ids)
        own = ids[places]
        if (own[1:] == own[:-1]).any():
            return None
        self._made += 1
        stack = self._stacks[key] = Stack(self._made, own, places)
        self._bytes += stack.nbytes
        return stack

    def _add_chunk(self, batch: SampleBatch, now_ms: int) -> None:
        ids, times, values = batch.series_ids, batch.timestamps_ms, batch.values
        ahead = times - now_ms - _FUTURE_MS
        kept = (times > self._since_ms) & (ahead <= 0)
        if not kept.all():
            doubtful = times[(ahead > 0) & (ahead <= _DOUBTFUL_MS)] // _MINUTE_MS
            if len(doubtful):
                self._doubtful |= set(doubtful.tolist())
            ids, times, values = ids[kept], times[kept], values[kept]
            if not len(ids):
                return
        chunks = [*self._chunks, Chunk.of(ids, times, values)]
        self._bytes += chunks[-1].nbytes
        while len(chunks) >= _TOGETHER and chunks[-_TOGETHER].level == chunks[-1].level:
            last = chunks[-_TOGETHER:]
            if sum(len(one.times) for one in last) > _CHUNK_ROWS:
                break
            merged = Chunk.merged(last, self._since_ms)
            chunks[-_TOGETHER:] = [merged] if merged else []
            self._bytes += (merged.nbytes if merged else 0) - sum(one.nbytes for one in last)
        self._chunks = tuple(chunks)

    def _shrink(self) -> None:
        """Let go of the oldest samples, so that there is room."""
        held = [(block.newest_ms, block.values.nbytes) for stack in self._stacks.values() for block in stack.blocks]
        held += [(chunk.newest_ms, chunk.nbytes) for chunk in self._chunks]
        left, until_ms = self._bytes, self._since_ms
        for newest_ms, size in sorted(held):
            if left <= _FULL * self._size:
                break
            left, until_ms = left - size, max(until_ms, newest_ms)
        self._let_go(until_ms)

    def _let_go(self, until_ms: int) -> None:
        """Of blocks and chunks in which nothing is newer."""
        self._since_ms = max(self._since_ms, until_ms)
        for key, stack in list(self._stacks.items()):
            old = [block for block in stack.blocks if block.newest_ms <= until_ms]
            if old:
                self._bytes -= sum(block.values.nbytes for block in old)
                stack.blocks = [block for block in stack.blocks if block.newest_ms > until_ms]
            if not stack.blocks:
                stack.gone = True
                self._bytes -= stack.nbytes
                del self._stacks[key]
        self._bytes -= sum(chunk.nbytes for chunk in self._chunks if chunk.newest_ms <= until_ms)
        self._chunks = tuple(chunk for chunk in self._chunks if chunk.newest_ms > until_ms)
        if self._doubtful:
            self._doubtful = frozenset(one for one in self._doubtful if one >= until_ms // _MINUTE_MS)
