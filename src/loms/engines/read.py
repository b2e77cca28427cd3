"""An engine's table applied to a shape."""

from __future__ import annotations

from collections.abc import Mapping

from loms.core.model import Labels, Shape, labels_of
from loms.engines.draft import Draft
from loms.engines.engine import Engine, Identity, Lookup, Row
from loms.engines.plan import Meaning

SIMULATED = "loms_simulated_info"
"""A family that only LOMS's own simulated engine exposes."""


def read(
    name: str, engine: type[Engine], shape: Shape, target: Mapping[str, str], identity: Identity | None
) -> Meaning:
    """What ``shape`` says in canonical terms; ``target`` are the labels of the target, job and instance among them."""
    base = {**target, "engine": name}
    if SIMULATED in shape.types:
        base["simulated"] = "true"
    agreed = _agreed(engine, shape)
    if identity is not None and identity.model:
        agreed["model"] = identity.model
    model = agreed.get("model", "")
    if engine.identified and identity is None:
        return Meaning(engine=name, labels=labels_of(base))
    draft = Draft(shape, engine.spell, engine.rename, base, agreed)
    for row in engine.table:
        _apply(draft, row)
    engine.fixup(draft, identity)
    whole = labels_of({"model": model, **base})
    if identity is not None:
        draft.add("llm.engine.info", labels_of({**dict(whole), "version": identity.version}), (), constant=1.0)
    for row in engine.table:
        draft.lacks(row.canonical, row.absent or f"this exposition has no {' or '.join(row.sources)}")
    for metric, reason in engine.never.items():
        draft.lacks(metric, reason)
    return Meaning(
        engine=name,
        version=identity.version if identity else "",
        model=model,
        labels=whole,
        combinations=tuple(draft.combinations.values()),
        unavailable=draft.unavailable,
        unmapped=_unmapped(engine, shape, draft.used),
    )


def spoken_for(engine: type[Engine]) -> frozenset[str]:
    """Canonical names that the engine can fill, or says that it never has."""
    return frozenset(row.canonical for row in engine.table) | engine.computed | frozenset(engine.never)


def _apply(draft: Draft, row: Row) -> None:
    chosen = False
    for source in row.sources:
        families = source.split(" + ")
        if not all(draft.has(row.canonical, family, row.part) for family in families):
            continue
        if chosen:
            # A former name beside its successor: known, and not added to it.
            draft.used.update(families)
            continue
        chosen = True
        draft.add_family(row.canonical, families, lambda position: _labels(draft, row, position), part=row.part)


def _labels(draft: Draft, row: Row, position: int) -> Labels:
    fixed = dict(row.fixed)
    if row.lookup is not None:
        fixed[row.lookup.into] = _looked_up(row.lookup, draft.shape.labels[position])
    return draft.labels(position, fixed, row.rename)


def _looked_up(lookup: Lookup, labels: Labels) -> str:
    return lookup.values.get(dict(labels).get(lookup.source, ""), lookup.default)


def _agreed(engine: type[Engine], shape: Shape) -> dict[str, str]:
    """Canonical labels of which the exposition knows one value only: they hold for series that leave them out, too."""
    found: dict[str, set[str]] = {}
    for labels in shape.labels:
        for key, value in labels:
            if key in engine.rename:
                found.setdefault(engine.rename[key], set()).add(value)
    return {label: values.pop() for label, values in found.items() if len(values) == 1}


def _unmapped(engine: type[Engine], shape: Shape, used: set[str]) -> tuple[str, ...]:
    """The engine's own families that neither the table nor the list of those left aside knows."""
    known = {family.removesuffix("_sum") for family in used} | used | set(engine.aside)
    families = {engine.spell(family) for family in shape.types}
    return tuple(
        sorted(
            family
            for family in families
            if family.startswith(engine.prefix)
            and not family.endswith("_created")
            and family not in known
            and f"{family}_total" not in known
        )
    )
