"""A shape's meaning while it is being worked out: canonical series as linear combinations of raw samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loms.core.model import Labels, Shape, labels_of
from loms.core.semconv import CATALOGUE

HISTOGRAM = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Combination:
    """One canonical series: the sum over ``factor * values[position]``, plus a constant."""

    metric: str
    """OpenTelemetry name."""
    name: str
    labels: Labels
    terms: tuple[tuple[int, float], ...]
    constant: float = 0.0

    @property
    def cumulative(self) -> bool:
        return CATALOGUE[self.metric].cumulative

    @property
    def renames(self) -> bool:
        """True where this is one raw series under another name."""
        return len(self.terms) == 1 and self.terms[0][1] == 1.0 and self.constant == 0.0


class Draft:
    """Collects combinations.

    ``spell`` normalises a raw name, ``rename`` maps raw label names to canonical ones. Labels in ``base`` stand on
    every series and win over the exposition's own, which win over those in ``agreed``.
    """

    def __init__(
        self,
        shape: Shape,
        spell: Callable[[str], str],
        rename: Mapping[str, str],
        base: Mapping[str, str],
        agreed: Mapping[str, str],
    ) -> None:
        self.shape = shape
        self.combinations: dict[tuple[str, Labels], Combination] = {}
        self.unavailable: dict[str, str] = {}
        """Canonical Prometheus family → reason."""
        self.used: set[str] = set()
        """Raw families that were made use of."""
        self._rename = rename
        self._base = base
        self._agreed = agreed
        self._positions: dict[str, list[int]] = defaultdict(list)
        for position, name in enumerate(shape.names):
            self._positions[spell(name)].append(position)

    def positions(self, sample: str) -> list[int]:
        """Where the samples of this (normalised) name stand in the shape."""
        return self._positions.get(sample, [])

    def has(self, metric: str, family: str, part: str = "") -> bool:
        """Whether the raw family is there in the form that the canonical metric wants."""
        return any(self.positions(family + suffix) for suffix, _ in _suffixes(metric, part))

    def labels(self, position: int, fixed: Mapping[str, str], rename: Mapping[str, str] | None = None) -> Labels:
        """Canonical labels of a raw sample."""
        names = {**self._rename, **(rename or {})}
        own = {names.get(key, key): value for key, value in self.shape.labels[position]}
        return labels_of({**self._agreed, **own, **fixed, **self._base})

    def add_family(
        self,
        metric: str,
        families: Iterable[str],
        relabel: Callable[[int], Labels],
        *,
        factor: float = 1.0,
        part: str = "",
    ) -> None:
        """Add one canonical series for each label set that all the families have; ``relabel`` gives it by position.

        With ``part`` the families are plain counters, and the only series of the canonical histogram that there is.
        """
        families = tuple(families)
        for raw_suffix, suffix in _suffixes(metric, part):
            found: dict[Labels, list[int]] = defaultdict(list)
            for family in families:
                for position in self.positions(family + raw_suffix):
                    found[relabel(position)].append(position)
            for labels, positions in found.items():
                if len(positions) == len(families):
                    self.add(metric, labels, [(p, factor) for p in positions], suffix=suffix)
        self.used.update(families)

    def add(
        self,
        metric: str,
        labels: Labels,
        terms: Iterable[tuple[int, float]],
        *,
        constant: float = 0.0,
        suffix: str = "",
    ) -> None:
        """Add one canonical series; of two with the same name and labels the first stays."""
        name = CATALOGUE[metric].prometheus + suffix
        self.combinations.setdefault((name, labels), Combination(metric, name, labels, tuple(terms), constant))

    def lacks(self, metric: str, reason: str, *, partly: bool = False) -> None:
        """Say why a canonical metric is not to be had; ``partly``: why some of its series are not.

        The first reason stays, and whatever was added speaks for itself.
        """
        if partly or not any(c.metric == metric for c in self.combinations.values()):
            self.unavailable.setdefault(CATALOGUE[metric].prometheus, reason)


def _suffixes(metric: str, part: str) -> tuple[tuple[str, str], ...]:
    """What follows the family's name in the raw and in the canonical series of this metric."""
    if part:
        return (("", part),)
    return tuple((s, s) for s in HISTOGRAM) if CATALOGUE[metric].instrument == "histogram" else (("", ""),)
