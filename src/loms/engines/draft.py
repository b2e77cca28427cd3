"""A shape's meaning while it is being worked out: canonical series as combinations of raw samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loms.core.families import suffixes
from loms.core.model import Labels, Shape, labels_of
from loms.core.semconv import CATALOGUE
from loms.engines.source import Term

OF_DEVICES = ("hw.", "llm.gpu.", "llm.process.")
"""Metrics of devices and processes: no model and no hop stands on them unless the exposition itself says so."""

Terms = tuple[tuple[int, float], ...]
"""Position in the shape and factor of each summand."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One canonical series: the sum over ``factor * values[position]``, plus a constant.

    Where the exposition tells the same thing several times, ``copies`` are the further tellings; the largest counts.
    The whole may be multiplied by one more sample, or divided by it.
    """

    metric: str
    """OpenTelemetry name."""
    name: str
    labels: Labels
    terms: Terms
    constant: float = 0.0
    copies: tuple[Terms, ...] = ()
    only: bool = True
    """False where another source may take this one's place in another exposition of the same engine."""
    scale: int | None = None
    """Position of the sample by which the sum is multiplied."""
    inverse: bool = False
    """It is divided by that sample."""
    early: bool = False
    """It moves before the engine's core has worked."""

    @property
    def cumulative(self) -> bool:
        return CATALOGUE[self.metric].cumulative

    @property
    def renames(self) -> bool:
        """True where this is one raw series under another name."""
        plain = self.constant == 0.0 and not self.copies and self.scale is None
        return plain and len(self.terms) == 1 and self.terms[0][1] == 1.0


class Draft:
    """Collects combinations.

    ``spell`` normalises a raw name, ``rename`` maps raw label names to canonical ones, ``replicas`` are raw labels over
    which the same is told several times. Labels in ``base`` stand on every series and win over the exposition's own,
    which win over those in ``agreed``.
    """

    def __init__(
        self,
        shape: Shape,
        spell: Callable[[str], str],
        rename: Mapping[str, str],
        replicas: frozenset[str],
        base: Mapping[str, str],
        agreed: Mapping[str, str],
    ) -> None:
        self.shape = shape
        self.combinations: dict[tuple[str, Labels], Combination] = {}
        self.unavailable: dict[str, str] = {}
        """Canonical Prometheus family → reason."""
        self.used: set[str] = set()
        """Raw families that were made use of."""
        self.taken: frozenset[tuple[str, str, str]] = frozenset()
        """Metric, hop and model (in small letters, as some write it) of which nothing is added any more, because a
        better table has spoken."""
        self._rename = rename
        self._replicas = replicas
        self._base = base
        self._agreed = agreed
        self._fixed: dict[str, str] = {}
        self._positions: dict[str, list[int]] = defaultdict(list)
        for position, name in enumerate(shape.names):
            self._positions[spell(name)].append(position)

    def speak_for(self, labels: Mapping[str, str]) -> None:
        """Labels that every series added from now on carries."""
        self._fixed = dict(labels)

    def positions(self, sample: str) -> list[int]:
        """Where the samples of this (normalised) name stand in the shape."""
        return self._positions.get(sample, [])

    def has(self, metric: str, term: Term | str, part: str = "") -> bool:
        """Whether the raw family is there in the form that the canonical metric wants, and what multiplies it, too."""
        term = Term(term) if isinstance(term, str) else term
        if term.scale is not None and not self.matching(term.scale):
            return False
        return any(self.matching(term, suffix) for suffix, _ in suffixes(metric, part))

    def labels(
        self,
        metric: str,
        position: int,
        fixed: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        without: Iterable[str] = (),
    ) -> Labels:
        """Canonical labels of a raw sample."""
        names = {**self._rename, **(rename or {})}
        gone = self._replicas.union(without)
        own = {names.get(key, key): value for key, value in self.shape.labels[position] if key not in gone}
        agreed = {} if metric.startswith(OF_DEVICES) else {"hop": "engine", **self._agreed}
        return labels_of({**agreed, **own, **self._fixed, **(fixed or {}), **self._base})

    def add_family(
        self,
        metric: str,
        terms: Sequence[Term],
        relabel: Callable[[int], Labels],
        *,
        part: str = "",
        only: bool = True,
    ) -> None:
        """Add one canonical series for each label set that all the terms have; ``relabel`` gives it by position.

        With ``part`` the families are plain counters, and the only series of the canonical histogram that there is.
        Where the terms are multiplied by another family, label sets for which that has no sample are left out.
        """
        scale, inverse = terms[0].scale, terms[0].inverse
        scales = [(position, relabel(position)) for position in self.matching(scale)] if scale else []
        for raw_suffix, suffix in suffixes(metric, part):
            found: dict[Labels, dict[Labels, dict[int, list[tuple[int, float]]]]] = {}
            for number, term in enumerate(terms):
                factor = 1.0 if suffix in ("_bucket", "_count") else term.factor
                for position in self.matching(term, raw_suffix):
                    labels = relabel(position)
                    if suffix == "_bucket" and term.factor != 1.0:
                        labels = _scaled(labels, term.factor)
                    copies = found.setdefault(labels, {})
                    summands = copies.setdefault(self._replica(position), {})
                    summands.setdefault(number, []).append((position, factor))
            for labels, copies in found.items():
                whole = [tuple(t for ts in c.values() for t in ts) for c in copies.values() if len(c) == len(terms)]
                by = next((position for position, own in scales if set(own) <= set(labels)), None)
                if whole and (by is not None or scale is None):
                    self.add(
                        metric,
                        labels,
                        whole[0],
                        suffix=suffix,
                        copies=tuple(whole[1:]),
                        only=only,
                        scale=by,
                        inverse=inverse,
                    )
        self.used.update(term.family for term in (*terms, scale) if term is not None)

    def add(
        self,
        metric: str,
        labels: Labels,
        terms: Iterable[tuple[int, float]],
        *,
        constant: float = 0.0,
        suffix: str = "",
        copies: tuple[Terms, ...] = (),
        only: bool = True,
        scale: int | None = None,
        inverse: bool = False,
    ) -> None:
        """Add one canonical series; of two with the same name and labels the first stays."""
        if self.taken and _subject(metric, labels) in self.taken:
            return
        name = CATALOGUE[metric].prometheus + suffix
        combination = Combination(metric, name, labels, tuple(terms), constant, copies, only, scale, inverse)
        self.combinations.setdefault((name, labels), combination)

    def take(self) -> None:
        """What has been added so far is not added to by what comes: a better table has spoken."""
        self.taken = frozenset(_subject(c.metric, c.labels) for c in self.combinations.values())

    def lacks(self, metric: str, reason: str, *, partly: bool = False) -> None:
        """Say why a canonical metric is not to be had; ``partly``: why some of its series are not.

        The first reason stays, and whatever was added speaks for itself.
        """
        if partly or not any(c.metric == metric for c in self.combinations.values()):
            self.unavailable.setdefault(CATALOGUE[metric].prometheus, reason)

    def matching(self, term: Term, suffix: str = "") -> list[int]:
        """Where the samples of this term stand, of its series with this suffix."""
        found = self.positions(term.family + suffix)
        if not term.matchers:
            return found
        return [position for position in found if term.matches(dict(self.shape.labels[position]))]

    def _replica(self, position: int) -> Labels:
        if not self._replicas:
            return ()
        return tuple(pair for pair in self.shape.labels[position] if pair[0] in self._replicas)


def _subject(metric: str, labels: Labels) -> tuple[str, str, str]:
    own = dict(labels)
    return metric, own.get("hop", ""), own.get("model", "").lower()


def _scaled(labels: Labels, factor: float) -> Labels:
    """The same labels with the bound in the canonical unit."""
    return tuple(
        (key, f"{float(value) * factor:.12g}" if key == "le" and value != "+Inf" else value) for key, value in labels
    )
