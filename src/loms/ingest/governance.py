"""Which labels and how many series a target may bring: a stage between its reader and whoever uses the exposition.

An exposition comes in and an exposition goes out. Refused labels are taken off; of a folded label at most so many
values keep series of their own (`loms.ingest.admission`), the others are added up; what becomes equal is put together
by the type of its metric (`loms.ingest.merging`); and series beyond the target's limit are left out
(`loms.ingest.cap`). Where nothing of that applies, the very same object comes back.
"""

from __future__ import annotations

import threading
from typing import Protocol

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.model import Exposition, Shape
from loms.core.settings import Labels as Policy
from loms.ingest.arrangement import Arrangement, arrange
from loms.ingest.cap import Cap
from loms.ingest.folding import Folding
from loms.ingest.lifetime import Lifetime
from loms.ingest.memory import Memory
from loms.ingest.merging import Groups, Key, Totals


class Reader(Protocol):
    """What `Governed` stands behind, and what it is itself."""

    def read(self, body: bytes, content_type: str, /) -> Exposition: ...


class Governed:
    """Satisfies `loms.collect.protocols.Reader`. One per target."""

    def __init__(self, reader: Reader, policy: Policy, clock: Clock, *, memory: str = "") -> None:
        """``memory`` is what `memory` said before a restart of LOMS."""
        self._reader = reader
        self._policy = policy
        self._folding = Folding(policy, clock)
        self._totals = Totals()
        self._lifetime = Lifetime()
        self._cap = Cap(policy.max_series)
        self._source: Shape | None = None
        self._arrangement: Arrangement | None = None
        self._remembered = Memory.read(memory) if memory else None
        """Until the target has been seen."""
        if self._remembered:
            self._folding.restore(self._remembered.own)
        self._lock = threading.Lock()  # a large exposition is read in a thread

    def read(self, body: bytes, content_type: str, /) -> Exposition:
        """The governed exposition. As long as its series are the same, so is its `Shape` object."""
        exposition = self._reader.read(body, content_type)
        if exposition.shape is self._source and self._arrangement is None:
            return exposition
        with self._lock:
            return self._govern(exposition)

    def remark(self) -> str:
        """What is to be said about series that are left out; empty when none are."""
        return self._cap.remark(self._arrangement.cut) if self._arrangement else ""

    @property
    def changes(self) -> int:
        """Grows whenever `memory` has something new to say."""
        return self._folding.changes + self._totals.changes

    def memory(self) -> str:
        """What is needed to go on after a restart of LOMS, as text."""
        with self._lock:
            life, totals = self._lifetime, self._totals
            now = Memory(life.started, life.counted, self._folding.own, totals.base, totals.gone)
            return (self._remembered or now).text()

    def _govern(self, exposition: Exposition) -> Exposition:
        if self._folding.reconsider(exposition) or exposition.shape is not self._source:
            self._turn_to(exposition)
        arrangement = self._arrangement
        if arrangement is None:
            return exposition
        values = exposition.values
        if self._lifetime.restarted(values, self._totals.fallen(values[arrangement.totals.positions])):
            self._totals.restart()
            self._folding.restart()
        self._recall()
        if arrangement.cut:
            selfmetrics.samples_dropped.labels("series_cap").inc(sum(arrangement.cut.values()))
        if arrangement.quantiles:
            selfmetrics.samples_dropped.labels("merged_quantile").inc(arrangement.quantiles)
        return arrangement.apply(exposition, self._totals)

    def _turn_to(self, exposition: Exposition) -> None:
        """Work out what becomes of the exposition's shape."""
        shape = exposition.shape
        governed = [i for i, labels in enumerate(shape.labels) if self._folding.governed(labels)]
        shown: list[Key] = list(zip(shape.names, shape.labels, strict=True))
        if not governed and not self._cap.choose(shown, shape.types)[1]:
            self._source, self._arrangement = shape, None
            self._totals.turn_to((), (), Groups(()))
            return
        self._folding.admit(exposition, governed)
        others = set()
        for i in governed:
            labels, shared = self._folding.shown(shape.labels[i])
            shown[i] = (shape.names[i], labels)
            if shared:
                others.add(i)
        arrangement = arrange(
            shape,
            shown,
            frozenset(governed),
            others,
            gauges=self._policy.gauges,
            cap=self._cap,
            before=self._arrangement.shape if self._arrangement else None,
        )
        self._totals.turn_to(arrangement.pools, arrangement.members, arrangement.totals)
        self._lifetime.turn_to(shape, arrangement.counters)
        self._source, self._arrangement = shape, arrangement

    def _recall(self) -> None:
        """Go on where the process before this one stopped, unless the target has begun anew since."""
        remembered, self._remembered = self._remembered, None
        if remembered and remembered.same_life(self._lifetime):
            self._totals.recall(remembered.base, remembered.gone)
