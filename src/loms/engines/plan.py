"""What one shape of exposition means: names settled once, values by indexing from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loms.core.model import Floats, Ids, Ints, Labels, Series
from loms.engines.continuity import Summand, Tellings
from loms.engines.draft import Combination, Terms
from loms.engines.watch import progress_totals


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """A shape read by an engine's table."""

    engine: str = ""
    version: str = ""
    model: str = ""
    labels: Labels = ()
    """What every canonical series of the target carries."""
    combinations: tuple[Combination, ...] = ()
    progress: tuple[tuple[str, Terms], ...] = ()
    """Rank and samples of what else shows that the engine works."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Canonical Prometheus family → why it, or a part of it, is not to be had."""
    unmapped: tuple[str, ...] = ()
    """The engine's own families that nobody knows."""


class Plan:
    """Canonical series of one shape. Names, ids and positions are fixed; what probes added may grow (`leave_out`).

    ``derived`` holds the cumulative series first (``[:cumulative]``), because only from those is anything subtracted;
    last comes the engine's progress (`loms.engines.watch`).
    """

    def __init__(
        self,
        meaning: Meaning,
        raw_ids: Ids,
        keep: Ints | None,
        look: Callable[[Floats], None],
        fell: Callable[[Sequence[int]], None],
        *,
        own_counters: bool,
    ) -> None:
        """``look`` sees each exposition's values before they are translated; ``fell`` hears of series whose sum is
        lower than it was, so that nothing is subtracted any more. ``own_counters``: cumulative series get samples of
        their own even where they only rename a raw series; those whose source may change always do."""
        kept = None if keep is None else set(keep.tolist())
        aliases: list[Series] = []
        counters: list[Combination] = []
        others: list[Combination] = []
        for combination in meaning.combinations:
            alias = combination.renames and (kept is None or combination.terms[0][0] in kept)
            if alias and not (combination.cumulative and (own_counters or not combination.only)):
                raw = int(raw_ids[combination.terms[0][0]])
                aliases.append(Series(raw, combination.name, combination.labels))
            else:
                (counters if combination.cumulative else others).append(combination)
        others += progress_totals(meaning.combinations, meaning.progress, meaning.labels)
        self.meaning = meaning
        self.engine, self.version, self.model = meaning.engine, meaning.version, meaning.model
        self.labels, self.unavailable, self.unmapped = meaning.labels, meaning.unavailable, meaning.unmapped
        self.keep = keep
        self.aliases = tuple(aliases)
        self.derived = tuple(Series.of(c.name, c.labels) for c in (*counters, *others))
        self.cumulative = len(counters)
        self.counted = self.derived[: self.cumulative]
        self.values: Floats | None = None
        """The newest exposition's."""
        self.told: Floats | None = None
        """The values of ``counted`` at that exposition, those held back included."""
        self._counters = tuple(counters)
        self._raw_ids = raw_ids
        self._fell = fell
        self._totals: Floats | None = None
        self._look = look
        self._sum = Sums(counters + others)
        self._offsets: Floats | None = None
        self._reference: Floats | None = None

    def derive(self, values: Floats, /) -> Floats:
        """Canonical values; while a probe runs, NaN for the counters that have moved since it began."""
        self._look(values)
        out = self._sum(values)
        counters = out[: self.cumulative]
        if self._offsets is not None:
            if self._totals is not None and (fallen := counters < self._totals).any():
                self._offsets[fallen] = 0.0
                self._fell([self.counted[i].id for i in np.flatnonzero(fallen)])
            self._totals = counters.copy()
            counters -= self._offsets
        self.values, self.told = values, counters
        if self._reference is not None:
            self.told = counters.copy()
            counters[counters != self._reference] = np.nan
        return out

    def totals(self, values: Floats) -> dict[int, float]:
        """Series id → value of every cumulative series with samples of its own, nothing subtracted."""
        totals = self._sum(values)[: self.cumulative]
        return dict(zip((s.id for s in self.counted), totals.tolist(), strict=True))

    def standing(self, values: Floats) -> dict[int, float]:
        """The same with what is subtracted at present, held back or not."""
        totals = self._sum(values)[: self.cumulative]
        left = totals if self._offsets is None else totals - self._offsets
        return dict(zip((s.id for s in self.counted), left.tolist(), strict=True))

    def tellings(self, number: int) -> Tellings:
        """The raw series behind ``counted[number]``, for each time that the exposition tells it."""
        combination = self._counters[number]
        return tuple(
            frozenset(self._summand(combination, *term) for term in terms)
            for terms in (combination.terms, *combination.copies)
        )

    def amount(self, summand: Summand, values: Floats) -> float | None:
        """None where a raw series of the summand is not in this shape."""
        at = [self._positions.get(raw) for raw in summand.ids]
        known = [float(values[position]) for position in at if position is not None]
        if len(known) < len(at):
            return None
        if len(known) == 1:
            return summand.factor * known[0]
        value, scale = known
        if summand.inverse:
            return summand.factor * value / scale if scale else math.nan
        return summand.factor * value * scale

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {raw: position for position, raw in enumerate(self._raw_ids.tolist())}

    def _summand(self, combination: Combination, position: int, factor: float) -> Summand:
        scale = () if combination.scale is None else (int(self._raw_ids[combination.scale]),)
        return Summand((int(self._raw_ids[position]), *scale), factor, combination.inverse)

    def leave_out(self, offsets: Mapping[int, float], reference: Mapping[int, float] | None) -> None:
        """Subtract ``offsets`` (by series id) from now on, and hold back what differs from ``reference``, if given.

        A series that ``reference`` does not know is held back too.
        """
        ids = [s.id for s in self.counted]
        known = any(i in offsets for i in ids)
        self._offsets = np.array([offsets.get(i, 0.0) for i in ids]) if known else None
        self._reference = None if reference is None else np.array([reference.get(i, np.nan) for i in ids])


class Sums:
    """Many combinations of one vector, evaluated together: ``out[i] = Σ factor · values[position] + constant``.

    Those of one term are a gather; only the others are added up, only what is told several times is compared, and only
    what has a scale is multiplied or divided by it (NaN where that is 0).
    """

    def __init__(self, combinations: Sequence[Combination]) -> None:
        plain = [(i, c) for i, c in enumerate(combinations) if not c.copies]
        single = [(i, c.terms[0]) for i, c in plain if len(c.terms) == 1 and not c.constant]
        several = [(i, c.terms) for i, c in plain if len(c.terms) > 1 or (c.terms and c.constant)]
        told = [(i, (c.terms, *c.copies)) for i, c in enumerate(combinations) if c.copies]
        self._constants = np.array([c.constant for c in combinations], dtype=np.float64)
        self._into = np.array([i for i, _ in single], dtype=np.intp)
        self._positions = np.array([term[0] for _, term in single], dtype=np.intp)
        factors = np.array([term[1] for _, term in single], dtype=np.float64)
        self._factors = None if (factors == 1.0).all() else factors
        self._several_into = np.array([i for i, _ in several], dtype=np.intp)
        self._several = _Added([terms for _, terms in several])
        self._told_into = np.array([i for i, _ in told], dtype=np.intp)
        self._told = _Added([terms for _, copies in told for terms in copies])
        self._told_starts = _starts(len(copies) for _, copies in told)
        self._multiplied, self._times = _scales(combinations, inverse=False)
        self._divided, self._by = _scales(combinations, inverse=True)

    def __call__(self, values: Floats) -> Floats:
        out = self._constants.copy()
        picked = values[self._positions]
        out[self._into] = picked if self._factors is None else picked * self._factors
        if len(self._several_into):
            out[self._several_into] += self._several(values)
        if len(self._told_into):
            out[self._told_into] += np.fmax.reduceat(self._told(values), self._told_starts)
        if len(self._multiplied):
            out[self._multiplied] *= values[self._times]
        if len(self._divided):
            by = values[self._by]
            out[self._divided] /= np.where(by == 0.0, np.nan, by)
        return out


class _Added:
    """Σ factor · values[position] for each of several lists of terms."""

    def __init__(self, lists: Sequence[Terms]) -> None:
        flat = [term for terms in lists for term in terms]
        self._positions = np.array([position for position, _ in flat], dtype=np.intp)
        self._factors = np.array([factor for _, factor in flat], dtype=np.float64)
        self._starts = _starts(len(terms) for terms in lists)

    def __call__(self, values: Floats) -> Floats:
        return np.add.reduceat(values[self._positions] * self._factors, self._starts)


def _scales(combinations: Sequence[Combination], *, inverse: bool) -> tuple[Ints, Ints]:
    """Which combinations have a scale of this kind, and the positions of those."""
    found = [(i, c.scale) for i, c in enumerate(combinations) if c.scale is not None and c.inverse == inverse]
    return np.array([i for i, _ in found], dtype=np.int64), np.array([scale for _, scale in found], dtype=np.int64)


def _starts(lengths: Iterable[int]) -> Ints:
    return np.cumsum([0, *lengths], dtype=np.int64)[:-1]
