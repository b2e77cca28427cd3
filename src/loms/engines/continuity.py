"""How canonical counters go on when what they are made of changes while the engine runs.

A canonical counter is a sum over raw series, less an offset. Which raw series these are changes with the exposition:

- Another label value shows itself for the first time: it has counted from nothing, so all of it counts.
- A summand goes: what it had counted stays. If it comes back, only what it has grown by since is added.
- Another source takes over, because a metric was renamed or has other labels now: the counter goes on from where it
  stood, by what the old source has grown by if it is still to be seen, and then by what the new one grows by.

So a canonical counter never falls by itself, and nothing is counted twice. It falls where the engine begins anew: then
everything here is forgotten, or, where only one raw counter tells of it, the offset of its series.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from loms.core.model import Floats, Series

REMEMBERED = 10_000
"""So many summands and series that are gone are remembered; the oldest are forgotten first."""


K = TypeVar("K")


class Summand(NamedTuple):
    """A raw series times a factor, and times (or over) the raw series of its scale where it has one."""

    ids: tuple[int, ...]
    factor: float
    inverse: bool


Tellings = tuple[frozenset[Summand], ...]
"""What a canonical series is the sum of, for each time that the exposition tells the same; the largest counts."""


class Counters(Protocol):
    """The cumulative series of one shape (`loms.engines.plan.Plan`)."""

    @property
    def counted(self) -> tuple[Series, ...]: ...

    @property
    def values(self) -> Floats | None:
        """The newest exposition's; None before the first."""

    @property
    def told(self) -> Floats | None:
        """The canonical values of `counted` at that exposition."""

    def totals(self, values: Floats) -> Mapping[int, float]:
        """Series id → sum, nothing subtracted."""

    def tellings(self, number: int) -> Tellings:
        """Of ``counted[number]``."""

    def amount(self, summand: Summand, values: Floats) -> float | None:
        """None where a raw series of the summand is not in this shape."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """Where a canonical series stood when what it is made of changed."""

    canonical: float
    tellings: tuple[Mapping[Summand, float], ...]
    """Each summand with its amount."""


class Continuity:
    """Of one target. `turn` when its shape changes, `go_on` with the first values after that."""

    def __init__(self) -> None:
        self.offsets: dict[int, float] = {}
        """Series id → what is subtracted from its sum."""
        self._parted: dict[tuple[int, Summand], float] = {}
        """A summand that has gone → the amount that it had."""
        self._away: dict[int, _Standing] = {}
        """Series that the present shape does not have."""
        self._last: dict[int, _Standing] = {}
        """Series of the present shape as they stood before it came, until there are values."""
        self._changed: set[int] = set()
        """Those of them that are made of other summands now."""

    def forget(self) -> None:
        """The engine has begun anew."""
        self.offsets.clear()
        self._parted.clear()
        self._away.clear()
        self._last.clear()
        self._changed.clear()

    def turn(self, old: Counters, new: Counters) -> None:
        """From the next exposition on, ``new`` says what the series are made of."""
        before = self._last if old.told is None else _standings(old)
        self._last, self._changed = {}, set()
        for number, series in enumerate(new.counted):
            standing = before.pop(series.id, None) or self._away.pop(series.id, None)
            if standing is None:
                continue
            self._last[series.id] = standing
            if tuple(map(frozenset, standing.tellings)) != new.tellings(number):
                self._changed.add(series.id)
        self._away |= before
        for series_id in _oldest(self._away):
            del self._away[series_id]
            self.offsets.pop(series_id, None)

    def go_on(self, counters: Counters, values: Floats) -> bool:
        """With the first values after a turn, set the offsets of the series that have changed; whether any did.

        A series without a number at this exposition waits for the next one. One of which a summand is lower than it was
        has begun anew.
        """
        if not self._last:
            return False
        last, self._last = self._last, {}
        totals, changed = counters.totals(values), False
        for number, series in enumerate(counters.counted):
            standing = last.get(series.id)
            if standing is None or (series.id not in self._changed and series.id not in self.offsets):
                continue
            if math.isnan(totals[series.id]):
                self._last[series.id] = standing
                continue
            if any(self._fell(telling, counters, values) for telling in standing.tellings):
                self.offsets.pop(series.id, None)
            elif series.id not in self._changed:
                continue
            else:
                now = [{s: counters.amount(s, values) or 0.0 for s in telling} for telling in counters.tellings(number)]
                canonical = self._canonical(series.id, standing, now, counters, values)
                self.offsets[series.id] = offset(totals[series.id], canonical)
            changed = True
        self._changed &= self._last.keys()
        for key in _oldest(self._parted):
            del self._parted[key]
        return changed

    @staticmethod
    def _fell(telling: Mapping[Summand, float], counters: Counters, values: Floats) -> bool:
        amounts = ((counters.amount(summand, values), before) for summand, before in telling.items())
        return any(amount is not None and amount < before for amount, before in amounts)

    def _canonical(
        self,
        series_id: int,
        standing: _Standing,
        now: list[dict[Summand, float]],
        counters: Counters,
        values: Floats,
    ) -> float:
        """The value from which the series goes on."""
        if len(now) == len(standing.tellings) == 1 and now[0].keys() & standing.tellings[0].keys():
            return standing.canonical + self._grown(series_id, standing.tellings[0], now[0])
        growth = []
        for before in standing.tellings:  # as far as the old summands are all still to be seen
            amounts = [counters.amount(summand, values) for summand in before]
            known = [amount for amount in amounts if amount is not None and not math.isnan(amount)]
            if len(known) == len(amounts):
                growth.append(math.fsum(known) - math.fsum(before.values()))
        return standing.canonical + max(0.0, max(growth, default=0.0))

    def _grown(self, series_id: int, before: Mapping[Summand, float], now: Mapping[Summand, float]) -> float:
        """By what the summands have grown; one that shows itself for the first time counts as a whole."""
        for summand in before.keys() - now.keys():
            self._parted[series_id, summand] = before[summand]
        grown = 0.0
        for summand, amount in now.items():
            known = before.get(summand)
            grown += amount - (self._parted.pop((series_id, summand), 0.0) if known is None else known)
        return max(0.0, grown)


def offset(total: float, canonical: float) -> float:
    """What to subtract from ``total`` so that ``canonical`` remains, and never less.

    A counter that fell by a rounding error would look like a restart, and count all over again.
    """
    difference = total - canonical
    while total - difference < canonical:
        difference = math.nextafter(difference, -math.inf)
    return difference


def _standings(counters: Counters) -> dict[int, _Standing]:
    """Where the series stand that have a number now."""
    told, values = counters.told, counters.values
    assert told is not None
    assert values is not None
    return {
        series.id: _Standing(
            canonical, tuple({s: counters.amount(s, values) or 0.0 for s in t} for t in counters.tellings(number))
        )
        for number, (series, canonical) in enumerate(zip(counters.counted, told.tolist(), strict=True))
        if not math.isnan(canonical)
    }


def _oldest(remembered: Mapping[K, object]) -> list[K]:
    return list(remembered)[: max(0, len(remembered) - REMEMBERED)]
