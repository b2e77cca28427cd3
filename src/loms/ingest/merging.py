"""What becomes of series that are put together, by the type of their metric.

Counters, and the sums and counts of histograms and summaries, are totals: they are added up, and `Totals` sees to it
that they do not go back when a member comes, goes or moves. Gauges are added too, unless their name says that a sum
of them means nothing. A quantile cannot be computed from other quantiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from loms.core.model import Bools, Floats, Ints, Labels

Key = tuple[str, Labels]
"""A series: name and labels."""
Way = Literal["total", "sum", "largest", "smallest", "none"]

_TOTALS = ("_total", "_bucket", "_sum", "_count")
_PARTS = (*_TOTALS, "_created", "_info", "_gcount", "_gsum")
_LARGEST = ("_info", "_ratio", "_perc", "_percent", "_utilization", "_timestamp", "_timestamp_seconds", "_time_seconds")
_REMEMBERED = 5_000
"""How many series and pools of one target that are gone are still known when they come back."""


def family(name: str, types: Mapping[str, str]) -> str:
    """The family that the sample ``name`` belongs to, as ``types`` spells it; the name itself where it is not typed.

    >>> family("x_bucket", {"x": "histogram"}), family("x_total", {"x_total": "counter"}), family("y", {})
    ('x', 'x_total', 'y')
    """
    if name in types:
        return name
    return next((name.removesuffix(p) for p in _PARTS if name.endswith(p) and name.removesuffix(p) in types), name)


def way(name: str, labels: Labels, types: Mapping[str, str], gauges: Literal["sum", "max"]) -> Way:
    """How series of this name are put together. ``gauges`` says what becomes of those that can be added up."""
    kind = types.get(family(name, types), "untyped")
    if name.endswith("_created"):
        return "smallest"
    if kind in ("counter", "histogram") or (kind not in ("gauge", "gaugehistogram") and name.endswith(_TOTALS)):
        return "total"
    if any(label == "quantile" for label, _ in labels):
        return "none"
    if kind in ("info", "stateset") or name.endswith(_LARGEST):
        return "largest"
    return "sum" if gauges == "sum" or kind == "gaugehistogram" else "largest"


class Groups:
    """Pools of samples by position: member ``positions`` pool after pool, the first of each in ``starts``."""

    def __init__(self, pools: Sequence[tuple[int, Sequence[int]]]) -> None:
        """``pools``: where the pool's value goes, and the positions of its members."""
        self.into: Ints = np.array([into for into, _ in pools], np.intp)
        self.positions: Ints = np.array([i for _, members in pools for i in members], np.intp)
        self.starts: Ints = np.cumsum([0, *(len(members) for _, members in pools)], dtype=np.intp)[:-1]

    def __len__(self) -> int:
        return len(self.into)

    def sum(self, values: Floats) -> Floats:
        """Sums of what is a number; NaN where nothing is. ``values`` has the shape of ``positions``."""
        nan = np.isnan(values)
        with np.errstate(invalid="ignore", over="ignore"):  # +Inf and -Inf make NaN, as in PromQL
            out = np.add.reduceat(np.where(nan, 0.0, values), self.starts)
        out[np.logical_and.reduceat(nan, self.starts)] = np.nan
        return out


class Totals:
    """Cumulative series added up in pools. A pool shows what its members have grown by while they were in it.

    With ``base`` the amounts that former members left behind, less what present ones brought with them from another
    pool, that is ``base + Σ values``. So a pool is the plain sum until something moves; a member that leaves takes
    nothing away; one that moves over counts from then on; and one that falls alone has begun anew.
    """

    def __init__(self) -> None:
        self.base: dict[Key, float] = {}
        self.gone: dict[Key, float] = {}
        """Last values of series that are not exposed any more."""
        self.changes = 0
        """Grows whenever one of the two changes."""
        self._members: dict[Key, int] = {}
        self._pool_of: list[Key] = []
        """Of each member."""
        self._last: Floats = np.empty(0)
        self._pools: list[Key] = []
        self._groups = Groups(())
        self._shown: Floats = np.empty(0)
        self._added: tuple[int, Floats] = (-1, self._shown)
        """``base`` of ``_pools``, and the number of changes that it knows."""

    def turn_to(self, pools: Sequence[Key], members: Sequence[Sequence[Key]], groups: Groups) -> None:
        """From the next values on there are these ``pools`` with these ``members``, whose samples are in ``groups``."""
        shown = dict(zip(self._pools, self._shown.tolist(), strict=True))
        flat = [key for each in members for key in each]
        pool_of = [pool for pool, each in zip(pools, members, strict=True) for _ in each]
        now = {key: i for i, key in enumerate(flat)}
        last = np.zeros(len(flat))
        for key, i in self._members.items():
            if key not in now:
                self._add(self._pool_of[i], self._last[i])
                self.gone[key] = float(self._last[i])
        for key, i in now.items():
            if (before := self._members.get(key)) is not None:
                last[i] = self._last[before]
                if self._pool_of[before] != pool_of[i]:
                    self._add(self._pool_of[before], last[i])
                    self._add(pool_of[i], -last[i])
            elif key in self.gone:
                last[i] = self.gone.pop(key)
                self._add(pool_of[i], -last[i])
        self._members, self._pool_of, self._last = now, pool_of, last
        self._pools, self._groups = list(pools), groups
        self._shown = np.array([shown.get(pool, -np.inf) for pool in pools])
        self._added = (-1, self._shown)
        self._forget()

    def __call__(self, values: Floats) -> Floats:
        """Totals of the pools; ``values`` has the shape of the groups' positions. What is not a number is as it was."""
        known = np.isfinite(values)
        if not known.all():
            values = np.where(known, values, self._last)
        fell = values < self._last
        for i in np.flatnonzero(fell):
            self._add(self._pool_of[i], self._last[i])
        self._last = values
        with np.errstate(over="ignore"):
            out = np.add.reduceat(values, self._groups.starts)
        if self.base:
            if self._added[0] != self.changes:
                self._added = (self.changes, np.array([self.base.get(pool, 0.0) for pool in self._pools]))
            out += self._added[1]
        # What is exact on paper is rounded here: a total that fell by that would look like a restart.
        self._shown = np.maximum(out, self._shown)
        return self._shown.copy()

    def fallen(self, values: Floats) -> Bools:
        """Of each member that has counted anything: whether it is lower now. ``values`` as in a call."""
        return (values < self._last)[self._last > 0]

    def restart(self) -> None:
        """The target's counters have begun anew, and so do the totals."""
        self.changes += 1
        self.base.clear()
        self.gone.clear()
        self._last = np.zeros(len(self._last))
        self._shown = np.full(len(self._shown), -np.inf)

    def recall(self, base: Mapping[Key, float], gone: Mapping[Key, float]) -> None:
        """Go on with what another object had come to, before the first values."""
        for pool, amount in base.items():
            self._add(pool, amount)
        for key, last in gone.items():
            i = self._members.get(key)
            if i is None:
                self.gone[key] = last
            else:
                self._last[i] = last
                self._add(self._pool_of[i], -last)

    def _add(self, pool: Key, amount: float) -> None:
        if amount:
            self.base[pool] = self.base.pop(pool, 0.0) + float(amount)  # the newest at the end
            self.changes += 1

    def _forget(self) -> None:
        """Keep what is known of the gone within bounds, the newest."""
        for key in list(self.gone)[: max(0, len(self.gone) - _REMEMBERED)]:
            del self.gone[key]
        exposed = set(self._pools)
        idle = [pool for pool in self.base if pool not in exposed]
        for pool in idle[: max(0, len(idle) - _REMEMBERED)]:
            del self.base[pool]


def reduced(groups: Groups, values: Floats, how: Way) -> Floats:
    """One number for each pool of gauges: their sum, or the largest or smallest of those that are numbers."""
    picked = values[groups.positions]
    if how == "sum":
        return groups.sum(picked)
    return (np.fmax if how == "largest" else np.fmin).reduceat(picked, groups.starts)


def newest(groups: Groups, times_ms: Ints) -> Ints:
    """Timestamps of the pools: the newest of the members', 0 where one of them has none."""
    picked = times_ms[groups.positions]
    return np.where(np.minimum.reduceat(picked, groups.starts) == 0, 0, np.maximum.reduceat(picked, groups.starts))


def ordered(members: Iterable[int], series: Sequence[Key]) -> list[int]:
    """Positions in the order of their series, so that sums do not depend on the order of the text."""
    return sorted(members, key=lambda i: series[i])
