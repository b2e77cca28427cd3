"""Which series of a target are stored when there are more than it may have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from loms.ingest.merging import Key, family

Unit = tuple[str, tuple[tuple[str, str], ...]]
"""Family, and labels but for ``le`` and ``quantile``: a histogram is stored as a whole or not at all."""
_NAMED = 5
"""How many families a message lists."""


class Cap:
    """Holds a target to ``limit`` series (0: no limit). Who was there first stays; of what is new the smallest families
    come first, so that one that explodes displaces nothing but itself."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: frozenset[Unit] = frozenset()
        self._before: tuple[Sequence[Key], Mapping[str, str]] = ((), {})
        """What was stored last, where that was all."""

    def choose(self, series: Sequence[Key], types: Mapping[str, str]) -> tuple[list[Key], Counter[str]]:
        """The series that are stored, in their order, and how many of each family are not."""
        if not self._limit or len(series) <= self._limit:
            self._before, self._kept = (series, types), frozenset()
            return list(series), Counter()
        if not self._kept:
            self._kept = frozenset(_unit(key, self._before[1]) for key in self._before[0])
        units: dict[Unit, int] = Counter(_unit(key, types) for key in series)
        sizes: dict[str, int] = defaultdict(int)
        for unit, size in units.items():
            sizes[unit[0]] += size
        room = self._limit
        kept: set[Unit] = set()
        for unit in sorted(units, key=lambda unit: (unit not in self._kept, sizes[unit[0]], unit)):
            if units[unit] <= room:
                kept.add(unit)
                room -= units[unit]
        self._kept = frozenset(kept)
        cut: Counter[str] = Counter()
        for unit, size in units.items():
            if unit not in kept:
                cut[unit[0]] += size
        return [key for key in series if _unit(key, types) in kept], cut

    def remark(self, cut: Mapping[str, int]) -> str:
        """What is to be said about the families that were cut."""
        if not cut:
            return ""
        largest = sorted(cut.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{name} ({count})" for name, count in largest[:_NAMED])
        more = f" and {len(largest) - _NAMED} more families" if len(largest) > _NAMED else ""
        return (
            f"{sum(cut.values())} series beyond the limit of {self._limit} (labels.max_series) are not stored: "
            f"{named}{more}"
        )


def _unit(key: Key, types: Mapping[str, str]) -> Unit:
    name, labels = key
    return family(name, types), tuple(pair for pair in labels if pair[0] not in ("le", "quantile"))
