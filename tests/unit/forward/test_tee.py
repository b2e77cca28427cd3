from __future__ import annotations

import numpy as np

from loms.core.model import SampleBatch
from loms.forward.tee import Tee

BATCH = SampleBatch(np.array([1], dtype=np.uint64), np.array([2]), np.array([3.0]))


class Keeper:
    def __init__(self) -> None:
        self.taken: list[SampleBatch] = []
        self.room = True

    def __call__(self, batch: SampleBatch, /) -> None:
        self.taken.append(batch)

    def offer(self, batch: SampleBatch, /) -> bool:
        if self.room:
            self.taken.append(batch)
        return self.room

    def flush(self, timeout_seconds: float = 1.0, /) -> bool:
        return timeout_seconds == 7.0

    def bounds_ms(self) -> tuple[int, int]:
        return 1, 2


def test_what_is_stored_is_told_to_all_and_what_is_refused_to_nobody() -> None:
    keeper = Keeper()
    told: list[SampleBatch] = []
    tee = Tee(keeper, [told.append, told.append])
    tee(BATCH)
    assert (len(keeper.taken), len(told)) == (1, 2)
    assert tee.offer(BATCH)
    assert (len(keeper.taken), len(told)) == (2, 4)
    keeper.room = False
    assert not tee.offer(BATCH)
    assert (len(keeper.taken), len(told)) == (2, 4)
    assert (tee.flush(7.0), tee.bounds_ms()) == (True, (1, 2))
