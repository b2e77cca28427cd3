"""The store with others who listen: every batch that goes to it is also told to those who send it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loms.core.model import SampleBatch, Sink


class Keeper(Protocol):
    """`loms.store.writer.Writer`."""

    def __call__(self, batch: SampleBatch, /) -> None: ...

    def offer(self, batch: SampleBatch, /) -> bool: ...

    def flush(self, timeout_seconds: float = ..., /) -> bool: ...

    def bounds_ms(self) -> tuple[int, int]: ...


class Tee:
    """Takes the writer's place. What the store has no room for is sent on all the same, but not what it refuses to a
    sender who comes again.
    """

    def __init__(self, keeper: Keeper, listeners: Sequence[Sink]) -> None:
        self._keeper = keeper
        self._listeners = listeners

    def __call__(self, batch: SampleBatch, /) -> None:
        self._keeper(batch)
        for listener in self._listeners:
            listener(batch)

    def offer(self, batch: SampleBatch, /) -> bool:
        if not self._keeper.offer(batch):
            return False
        for listener in self._listeners:
            listener(batch)
        return True

    def flush(self, timeout_seconds: float = 30.0, /) -> bool:
        return self._keeper.flush(timeout_seconds)

    def bounds_ms(self) -> tuple[int, int]:
        return self._keeper.bounds_ms()
