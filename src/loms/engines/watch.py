"""The few raw counters of an engine that tell whether it works, and whether it has been restarted.

Their sum is written at every scrape as ``loms_engine_progress_total``, one series for each engine rank with the labels
of its canonical series. Nothing is ever subtracted from it and it is never held back, LOMS's own probes included: the
canonical counters stand still while a probe is under way, and who asks whether the engine works must not be blind then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loms.core.model import Floats, Ids, Labels, Shape, labels_of
from loms.engines.draft import Combination, Terms
from loms.engines.engine import PROGRESS

START_TIME = "process_start_time_seconds"
PROGRESS_TOTAL = "loms_engine_progress_total"
REMEMBERED = 10_000
"""Counters that have gone, at most."""
_OCCUPIED = ("llm.engine.requests.running", "llm.engine.requests.waiting")


class Watch:
    """Follows one target over changing shapes; raw series are known again by their ids."""

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()
        """Raw ids of the watched counters and of the start time, where there is one."""
        self._counters = _Picked((), ())
        self._occupied = _Picked((), ())
        self._start = -1
        self._positions = np.empty(0, dtype=np.intp)
        self._left: dict[int, float] = {}
        """Last values of counters that the present shape does not have; they may come back after a restart."""
        self._seen = np.empty(0)

    def turn_to(self, shape: Shape, raw_ids: Ids, combinations: Sequence[Combination]) -> None:
        """Watch these from the next exposition on, which has this shape."""
        before = self._left | self._last()
        self._counters = _Picked(_progress(combinations), PROGRESS)
        self._occupied = _Picked([c for c in combinations if c.metric in _OCCUPIED], _OCCUPIED)
        self._start = next((i for i, name in enumerate(shape.names) if name == START_TIME), -1)
        positions = [*self._counters.positions.tolist(), *([self._start] if self._start >= 0 else [])]
        self._positions = np.array(positions, dtype=np.intp)
        self.ids = tuple(int(raw_ids[position]) for position in positions)
        self._seen = np.array([before.pop(i, np.nan) for i in self.ids])
        self._left = dict(list(before.items())[-REMEMBERED:])

    def restarted(self, values: Floats) -> bool:
        """Whether a counter is lower than at the last call, or the process has another start time."""
        now = values[self._positions]
        restarted = self._is_restart(self._seen, now)
        self._seen = now
        if restarted:
            self._left = {}
        return restarted

    def restarted_since(self, last: Mapping[int, float]) -> bool:
        """The same against values from elsewhere, by raw id; what is missing there says nothing."""
        return self._is_restart(np.array([last.get(i, np.nan) for i in self.ids]), self._seen)

    def progress(self, values: Floats) -> dict[str, float]:
        """Totals by canonical name."""
        return self._counters.totals(values)

    def busy(self, values: Floats) -> bool:
        """Whether anything runs or waits."""
        return any(total > 0 for total in self._occupied.totals(values).values())

    def _is_restart(self, before: Floats, now: Floats) -> bool:
        # Comparisons with NaN (not known before) are false.
        if (now < before).any():  # a start time that went back is a restart, too
            return True
        return bool(self._start >= 0 and now[-1] > before[-1])

    def _last(self) -> dict[int, float]:
        return {i: value for i, value in zip(self.ids, self._seen.tolist(), strict=True) if value == value}


class _Picked:
    """Sums of chosen samples, grouped by canonical name."""

    def __init__(self, combinations: Sequence[Combination], names: Sequence[str]) -> None:
        terms = [(names.index(c.metric), position, factor) for c in combinations for position, factor in c.terms]
        self.names = [(i, name) for i, name in enumerate(names) if any(group == i for group, _, _ in terms)]
        self._groups = np.array([group for group, _, _ in terms], dtype=np.intp)
        self.positions = np.array([position for _, position, _ in terms], dtype=np.intp)
        self._factors = np.array([factor for _, _, factor in terms], dtype=np.float64)

    def totals(self, values: Floats) -> dict[str, float]:
        sums = np.bincount(self._groups, values[self.positions] * self._factors, minlength=1)
        return {name: float(sums[i]) for i, name in self.names}


def progress_totals(
    combinations: Sequence[Combination], further: Sequence[tuple[str, Terms]], labels: Labels
) -> list[Combination]:
    """`PROGRESS_TOTAL` of each engine rank: the canonical counters and what ``further`` shows of the rank's work.

    ``labels``: what every canonical series of the target carries. What is told several times is added up several times:
    only the movement is looked at, and any of the tellers may have gone silent.
    """
    terms: dict[str, list[tuple[int, float]]] = {}
    for combination in _progress(combinations):
        told = [*combination.terms, *(term for copy in combination.copies for term in copy)]
        terms.setdefault(dict(combination.labels).get("engine_index", ""), []).extend(told)
    for rank, more in further:
        terms.setdefault(rank, []).extend(more)
    return [
        Combination(
            "", PROGRESS_TOTAL, labels_of({**dict(labels), **({"engine_index": rank} if rank else {})}), tuple(t)
        )
        for rank, t in terms.items()
    ]


def _progress(combinations: Sequence[Combination]) -> list[Combination]:
    return [
        c
        for c in combinations
        if c.metric in PROGRESS
        and not c.name.endswith(("_bucket", "_sum"))
        and ("outcome", "rejected") not in c.labels
        and not c.early
    ]
