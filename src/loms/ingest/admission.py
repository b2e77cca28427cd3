"""Which values of a folded label keep series of their own in one target: at most so many, and rarely others.

The first values to come are taken in as long as there is room, at the first look those with the largest share. After
that, at the end of each window, values change places where one outside has grown clearly more than one inside. A
value's score is its share of what all values grew by, mean over metrics (so that bytes do not outweigh requests), and
fades by half from window to window; a window in which nothing grew does not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

WINDOW_SECONDS = 300.0
_FADING = 0.5
_CLEARLY = 2.0
"""A value takes another's place when its score is more than so many times as large."""


class Admission:
    """The values of one label."""

    def __init__(self, top: int, other: str) -> None:
        self.top = top
        self.other = other
        self.own: dict[str, None] = {}
        """Values that have series of their own, in the order in which they were taken in."""
        self._scores: dict[str, float] = {}

    def shown(self, value: str) -> str:
        """What stands on the stored series."""
        return value if value in self.own else self.other

    def wants(self, values: Collection[str]) -> list[str]:
        """The values that can be taken in at once, if there is room for at least one of them."""
        return [v for v in values if v not in self.own and v != self.other] if len(self.own) < self.top else []

    def admit(self, shares: Mapping[str, float]) -> None:
        """Take in the largest of these as long as there is room."""
        wanted = sorted(self.wants(shares), key=lambda value: (-shares[value], value))
        for value in wanted[: self.top - len(self.own)]:
            self.own[value] = None
            self._scores.setdefault(value, shares[value])

    def restore(self, values: Iterable[str]) -> None:
        """Take in what had series of its own before a restart."""
        self.own = dict.fromkeys([value for value in values if value != self.other][: self.top])

    def reconsider(self, shares: Mapping[str, float]) -> bool:
        """A window has ended, in which values grew by these ``shares``; True when some change places."""
        if not any(shares.values()):
            return False
        known = {*shares, *self.own} - {self.other}
        self._scores = {v: self._scores.get(v, 0.0) * _FADING + shares.get(v, 0.0) for v in known}
        inside = sorted(self.own, key=lambda value: (self._scores[value], value))
        outside = sorted(known - self.own.keys(), key=lambda value: (-self._scores[value], value))
        changed = False
        for old, new in zip(inside, outside, strict=False):
            if self._scores[new] <= _CLEARLY * self._scores[old]:
                break
            del self.own[old]
            self.own[new] = None
            changed = True
        return changed


def shares_of(amounts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metric → value → amount as value → share, mean over the metrics of which there is any amount."""
    out: dict[str, float] = {value: 0.0 for by_value in amounts.values() for value in by_value}
    moved = [(by_value, math.fsum(by_value.values())) for _, by_value in sorted(amounts.items())]
    moved = [(by_value, total) for by_value, total in moved if total > 0]
    for by_value, total in moved:
        for value, amount in by_value.items():
            out[value] += amount / total / len(moved)
    return out
