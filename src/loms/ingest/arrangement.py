"""How the samples of one shape become those of the shape that is given out; worked out once for each shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from loms.core.model import Exposition, Ints, Shape
from loms.ingest.cap import Cap
from loms.ingest.merging import Groups, Key, Totals, Way, newest, ordered, reduced, way


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Samples that go through as they are, pools of totals, and pools of gauges by the way they are put together."""

    shape: Shape
    taken: Ints
    """Positions of the samples that go through, and where they go."""
    into: Ints
    totals: Groups
    pools: tuple[Key, ...]
    """The pools of totals, and the series that go into each, in the order of ``totals``."""
    members: tuple[tuple[Key, ...], ...]
    gauges: tuple[tuple[Way, Groups], ...]
    counters: Ints
    """Positions of the totals that are in no pool."""
    cut: Mapping[str, int]
    """How many series of each family are beyond the target's limit."""
    quantiles: int
    """How many samples are left out because quantiles cannot be put together."""

    def apply(self, exposition: Exposition, totals: Totals) -> Exposition:
        """The exposition that is given out; ``totals`` has been turned to this arrangement."""
        values = np.empty(len(self.shape.names))
        values[self.into] = exposition.values[self.taken]
        if len(self.totals):
            values[self.totals.into] = totals(exposition.values[self.totals.positions])
        for how, groups in self.gauges:
            values[groups.into] = reduced(groups, exposition.values, how)
        return replace(exposition, shape=self.shape, values=values, timestamps_ms=self._times(exposition.timestamps_ms))

    def _times(self, times_ms: Ints | None) -> Ints | None:
        if times_ms is None:
            return None
        out = np.zeros(len(self.shape.names), np.int64)
        out[self.into] = times_ms[self.taken]
        for groups in (self.totals, *(groups for _, groups in self.gauges)):
            if len(groups):
                out[groups.into] = newest(groups, times_ms)
        return out


def arrange(
    source: Shape,
    shown: Sequence[Key],
    pooled: Collection[int],
    others: Collection[int],
    *,
    gauges: Literal["sum", "max"],
    cap: Cap,
    before: Shape | None,
) -> Arrangement:
    """Put together what is equal in ``shown``, which has the series that the samples of ``source`` are to become.

    ``pooled``: positions that have a governed label; ``others``: those of them that stand for values without series of
    their own. ``before`` is the shape given out last: it is given out again if it has the same series.
    """
    series: list[Key] = list(zip(source.names, source.labels, strict=True))
    members: dict[Key, list[int]] = defaultdict(list)
    for i, key in enumerate(shown):
        members[key].append(i)
    ways: dict[Key, Way] = {}
    for key, at in members.items():
        if len(at) > 1 or at[0] in pooled:
            ways[key] = way(*key, source.types, gauges)
    lost = [key for key, how in ways.items() if how == "none" and (len(members[key]) > 1 or members[key][0] in others)]
    quantiles = sum(len(members.pop(key)) for key in lost)
    kept, cut = cap.choose(list(members), source.types)
    out = _shape(kept, source, before)
    index = {key: i for i, key in enumerate(zip(out.names, out.labels, strict=True))}
    through = [key for key in kept if ways.get(key, "none") == "none"]
    pools: dict[Way, list[Key]] = defaultdict(list)
    for key in kept:
        pools[ways.get(key, "none")].append(key)
    groups = {
        how: Groups([(index[key], ordered(members[key], series)) for key in keys])
        for how, keys in pools.items()
        if how != "none"
    }
    totals = groups.pop("total", Groups(()))
    alone = [members[key][0] for key in through]
    return Arrangement(
        shape=out,
        taken=np.array(alone, np.intp),
        into=np.array([index[key] for key in through], np.intp),
        totals=totals,
        pools=tuple(pools["total"]),
        members=tuple(tuple(series[i] for i in ordered(members[key], series)) for key in pools["total"]),
        gauges=tuple(groups.items()),
        counters=np.array([i for i in alone if way(*series[i], source.types, gauges) == "total"], np.intp),
        cut=cut,
        quantiles=quantiles,
    )


def _shape(kept: Sequence[Key], source: Shape, before: Shape | None) -> Shape:
    if (
        before is not None
        and len(kept) == len(before.names)
        and (before.types, before.help, before.units) == (source.types, source.help, source.units)
        and set(kept) == set(zip(before.names, before.labels, strict=True))
    ):
        return before
    names, labels = tuple(name for name, _ in kept), tuple(labels for _, labels in kept)
    return Shape(names, labels, source.types, source.help, source.units)
