"""What must be known of a target's governed labels to go on after the process has ended, however it ended.

Between two changes nothing needs to be remembered: a pool shows ``base + Σ values``, and the target itself tells the
values. A change is stored before the samples that show it (`WriteAhead`), so what is remembered is never older than
what is stored; if it is newer, the samples in between are lost and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loms.core.guard import guard
from loms.core.model import SampleBatch, Sink, labels_of
from loms.ingest.lifetime import Lifetime
from loms.ingest.merging import Key

PAUSE_SECONDS = 1.0
"""Between two savings of one target."""
RENEW_SECONDS = 86_400.0
"""After so long it is saved anew, because a store forgets what is old."""
_MOST_WAITING = 60
"""Batches; more would fill the memory where a saving does not come to an end."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Which values have series of their own, what pools show beside the sum of their members, and how to tell that the
    target's counters have not begun anew since."""

    started: float
    counted: float
    own: Mapping[str, Sequence[str]]
    base: Mapping[Key, float]
    gone: Mapping[Key, float]

    def text(self) -> str:
        return json.dumps([self.started, self.counted, self.own, list(self.base.items()), list(self.gone.items())])

    @classmethod
    def read(cls, text: str) -> Memory | None:
        """None for what another version of LOMS wrote."""
        try:
            started, counted, own, *amounts = json.loads(text)
            base, gone = (
                {(str(name), labels_of(map(tuple, labels))): float(amount) for (name, labels), amount in each}
                for each in amounts
            )
            return cls(float(started), float(counted), dict(own), base, gone)
        except (ValueError, TypeError):
            return None

    def same_life(self, now: Lifetime) -> bool:
        if math.isnan(self.started) and math.isnan(now.started):
            return now.counted >= self.counted
        return self.started == now.started


class Remembering(Protocol):
    """Something with a memory (`loms.ingest.governance.Governed`)."""

    @property
    def changes(self) -> int: ...

    def memory(self) -> str: ...


class WriteAhead:
    """A target's `Sink`: passes batches on once the memory that they rest on is stored; at once if that is unchanged.

    Batches keep their order. While a saving fails they are passed on all the same, and it is tried again with the next.
    `run` does the saving; when it has ended, everything is passed on at once.
    """

    def __init__(
        self,
        subject: Remembering,
        sink: Sink,
        save: Callable[[str], object],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        """``save`` is called in a thread, and has stored the text when it returns."""
        self._subject = subject
        self._sink = sink
        self._save = save
        self._sleep = sleep
        self._renew_seconds = renew_seconds
        self._saved = 0
        self._waiting: deque[tuple[int, SampleBatch]] = deque()
        """Each with the number of changes that it shows."""
        self._changed = asyncio.Event()
        self._ended = False

    def __call__(self, batch: SampleBatch, /) -> None:
        changes = self._subject.changes
        if self._ended or (changes == self._saved and not self._waiting):
            self._sink(batch)
            return
        self._waiting.append((changes, batch))
        self._changed.set()
        if len(self._waiting) > _MOST_WAITING:
            self._pass_on(changes)

    async def run(self) -> None:
        """Save at once after a change, at most once a second, once a day, and at the end; until cancelled."""
        try:
            while True:
                await self._wait()
                await self._keep()
                await self._sleep(PAUSE_SECONDS)
        finally:
            self._ended = True
            if self._subject.changes != self._saved:
                with guard("labels"):
                    self._save(self._subject.memory())
            self._pass_on(self._subject.changes)

    async def _wait(self) -> None:
        """Until there is something to save."""
        while not self._changed.is_set():
            waiting = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait((waiting,), timeout=self._renew_seconds)
            finally:
                waiting.cancel()
            if self._saved:
                return

    async def _keep(self) -> None:
        self._changed.clear()
        changes = self._subject.changes
        saving = asyncio.ensure_future(asyncio.to_thread(lambda: self._save(self._subject.memory())))
        try:
            with guard("labels"):
                await asyncio.shield(saving)
                self._saved = changes
        finally:
            await asyncio.wait((saving,))  # the store must not be closed under it
        self._pass_on(changes)

    def _pass_on(self, changes: int) -> None:
        """Whatever shows no more than so many changes."""
        while self._waiting and self._waiting[0][0] <= changes:
            self._sink(self._waiting.popleft()[1])
