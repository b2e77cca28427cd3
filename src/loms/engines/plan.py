"""What one shape of exposition means: names settled once, values by indexing from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loms.core.model import Floats, Ids, Ints, Labels, Series
from loms.engines.draft import Combination
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
        *,
        own_counters: bool,
    ) -> None:
        """``look`` sees each exposition's values before they are translated. ``own_counters``: cumulative series get
        samples of their own even where they only rename a raw series."""
        kept = None if keep is None else set(keep.tolist())
        aliases: list[Series] = []
        counters: list[Combination] = []
        others: list[Combination] = []
        for combination in meaning.combinations:
            alias = combination.renames and (kept is None or combination.terms[0][0] in kept)
            if alias and not (own_counters and combination.cumulative):
                raw = int(raw_ids[combination.terms[0][0]])
                aliases.append(Series(raw, combination.name, combination.labels))
            else:
                (counters if combination.cumulative else others).append(combination)
        others += progress_totals(meaning.combinations, meaning.labels)
        self.meaning = meaning
        self.engine, self.version, self.model = meaning.engine, meaning.version, meaning.model
        self.labels, self.unavailable, self.unmapped = meaning.labels, meaning.unavailable, meaning.unmapped
        self.keep = keep
        self.aliases = tuple(aliases)
        self.derived = tuple(Series.of(c.name, c.labels) for c in (*counters, *others))
        self.cumulative = len(counters)
        self.sources: tuple[tuple[tuple[int, float], ...], ...] = tuple(
            tuple((int(raw_ids[position]), factor) for position, factor in c.terms) for c in counters
        )
        """Raw series id and factor of each term, for each cumulative series."""
        self._look = look
        self._sum = Sums(counters + others)
        self._offsets: Floats | None = None
        self._reference: Floats | None = None

    def derive(self, values: Floats, /) -> Floats:
        """Canonical values; while a probe runs, NaN for the counters that have moved since it began."""
        self._look(values)
        out = self._sum(values)
        counters = out[: self.cumulative]
        moved = None if self._reference is None else counters != self._reference
        if self._offsets is not None:
            counters -= self._offsets
        if moved is not None:
            counters[moved] = np.nan
        return out

    def counters(self, values: Floats) -> dict[int, float]:
        """Series id → value of every cumulative series with samples of its own, nothing subtracted."""
        totals = self._sum(values)[: self.cumulative]
        return dict(zip((s.id for s in self.derived), totals.tolist(), strict=False))

    def leave_out(self, offsets: Mapping[int, float], reference: Mapping[int, float] | None) -> None:
        """Subtract ``offsets`` (by series id) from now on, and hold back what differs from ``reference``, if given.

        A series that ``reference`` does not know is held back too.
        """
        ids = [s.id for s in self.derived[: self.cumulative]]
        known = any(i in offsets for i in ids)
        self._offsets = np.array([offsets.get(i, 0.0) for i in ids]) if known else None
        self._reference = None if reference is None else np.array([reference.get(i, np.nan) for i in ids])


class Sums:
    """Many linear combinations of one vector, evaluated together: ``out[i] = Σ factor · values[position] + constant``.

    Those of one term are a gather; only the others are added up.
    """

    def __init__(self, combinations: Sequence[Combination]) -> None:
        single = [(i, c.terms[0]) for i, c in enumerate(combinations) if len(c.terms) == 1]
        several = [(i, c.terms) for i, c in enumerate(combinations) if len(c.terms) > 1]
        self._constants = np.array([c.constant for c in combinations], dtype=np.float64)
        self._into = np.array([i for i, _ in single], dtype=np.intp)
        self._positions = np.array([term[0] for _, term in single], dtype=np.intp)
        factors = np.array([term[1] for _, term in single], dtype=np.float64)
        self._factors = None if (factors == 1.0).all() else factors
        self._sum_into = np.array([i for i, _ in several], dtype=np.intp)
        flat = [term for _, terms in several for term in terms]
        self._sum_positions = np.array([position for position, _ in flat], dtype=np.intp)
        self._sum_factors = np.array([factor for _, factor in flat], dtype=np.float64)
        self._starts = np.cumsum([0, *(len(terms) for _, terms in several)])[:-1]

    def __call__(self, values: Floats) -> Floats:
        out = self._constants.copy()
        picked = values[self._positions]
        out[self._into] += picked if self._factors is None else picked * self._factors
        if len(self._sum_into):
            terms = values[self._sum_positions] * self._sum_factors
            out[self._sum_into] += np.add.reduceat(terms, self._starts)
        return out
