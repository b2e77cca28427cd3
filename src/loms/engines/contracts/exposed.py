"""What a target exposes: families, their types, label names and bucket bounds, without any values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from loms.core.families import family_of
from loms.core.model import Shape

_SPELLED = {"unknown": "untyped", "": "untyped", "info": "gauge", "stateset": "gauge"}
"""OpenMetrics types that the text format 0.0.4 writes in another way."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """One family as a target exposes it. Neither ``le`` nor ``quantile`` counts as a label."""

    type: str
    labels: frozenset[str] = frozenset()
    buckets: tuple[float, ...] = ()
    """Upper bounds, ``+Inf`` included; empty if it is no histogram or has no series yet."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one target exposes, with the engine and version that it was taken for (empty: not known)."""

    engine: str
    version: str
    families: Mapping[str, Exposed]
    """By name as the text format 0.0.4 spells it: counters of OpenMetrics with their ``_total``."""


def observe(shape: Shape, engine: str, version: str, spell: Callable[[str], str]) -> Observed:
    """The families of a shape; ``spell`` gives a name the engine's own spelling.

    A family with a ``# TYPE`` line and no series counts as exposed; the client libraries' ``_created`` do not.
    """
    types = {spell(name): type_ for name, type_ in shape.types.items()}
    samples = {name: spell(name) for name in dict.fromkeys(shape.names)}
    families = {name: _family(sample, types) for name, sample in samples.items()}
    labels: dict[str, set[str]] = defaultdict(set)
    bounds: dict[str, set[float]] = defaultdict(set)
    for name, pairs in zip(shape.names, shape.labels, strict=True):
        family = families[name]
        for label, value in pairs:
            if label == "le" and name.endswith("_bucket"):
                bounds[family].add(float(value))
            elif label not in ("le", "quantile"):
                labels[family].add(label)
    names = set(families.values()) - {""}
    names |= _without_series(types, names)
    return Observed(
        engine,
        version,
        {
            name: Exposed(_type(name, types), frozenset(labels[name]), tuple(sorted(bounds[name])))
            for name in sorted(names)
        },
    )


def _family(sample: str, types: Mapping[str, str]) -> str:
    """The family of a sample; nothing for the time at which a series was created."""
    family, part = family_of(sample, types)
    return "" if part == "_created" else family


def _without_series(types: Mapping[str, str], names: Set[str]) -> set[str]:
    """Families of which only the ``# TYPE`` line is there; OpenMetrics leaves the ``_total`` of counters out of it."""
    openmetrics = any(type_ == "counter" and f"{name}_total" in names for name, type_ in types.items())
    return {
        f"{name}_total" if openmetrics and type_ == "counter" else name
        for name, type_ in types.items()
        if _family(name, types) and not (type_ == "info" and f"{name}_info" in names)
    }


def _type(name: str, types: Mapping[str, str]) -> str:
    written = types.get(name) or types.get(name.removesuffix("_total")) or types.get(name.removesuffix("_info"), "")
    return _SPELLED.get(written, written)
