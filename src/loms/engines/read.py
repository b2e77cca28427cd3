"""An engine's table applied to a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from loms.core.model import Labels, Shape, labels_of
from loms.engines.contracts.contract import Contract, contract_of, why_absent
from loms.engines.draft import Draft, Terms
from loms.engines.engine import Engine, Identity, Lookup, Row, engines
from loms.engines.plan import Meaning
from loms.engines.source import families_of, parse_source

SIMULATED = "loms_simulated_info"
"""A family that only LOMS's own simulated engine exposes."""

STANDARD = {"model_name": "model", "gpu_uuid": "device_id", "UUID": "device_id", "inference_type": "runtime"}
"""Labels that mean the same whoever writes them."""
AGREEABLE = frozenset({"model", "engine_index", "engine_type"})
_HOPS = ("engine", "frontend", "router")
"""The first that an exposition tells of is what the target is."""


def read(
    name: str, engine: type[Engine], shape: Shape, target: Mapping[str, str], identity: Identity | None
) -> Meaning:
    """What ``shape`` says in canonical terms; ``target`` are the labels of the target, job and instance among them."""
    base = {**target, "engine": name}
    if SIMULATED in shape.types:
        base["simulated"] = "true"
    if engine.identified and identity is None:
        return Meaning(engine=name, labels=labels_of(base))
    families = frozenset(shape.types) | frozenset(shape.names)
    carried = [(other, engines[other]) for other in engine.carries if engines[other].matches(families)]
    rename = {**STANDARD, **{k: v for _, other in carried for k, v in other.rename.items()}, **engine.rename}
    agreed = _agreed(rename, shape)
    if identity is not None and identity.model:
        agreed["model"] = identity.model
    replicas = engine.replicas.union(*(other.replicas for _, other in carried))
    version = (identity.version if identity else "") or _stated_version(engine, shape)
    contract = contract_of(name)
    oldest, newest = (
        contract.span(version, frozenset(map(engine.spell, shape.types))) if contract else (version, version)
    )
    if identity is not None and oldest == newest:
        identity = replace(identity, version=newest)
    draft = Draft(shape, _spelling(engine, carried), rename, replicas, base, agreed)
    for other_name, other in carried:
        draft.speak_for({"runtime": other_name})
        _apply_all(draft, other, identity)
    draft.speak_for({})
    draft.take()
    _apply_all(draft, engine, identity)
    whole = _whole(draft, engine, agreed, base)
    if identity is not None and not engine.device:
        draft.add("llm.engine.info", labels_of({**dict(whole), "version": version}), (), constant=1.0)
    _account(draft, engine, contract, newest)
    return Meaning(
        engine=name,
        version=version,
        model=agreed.get("model", ""),
        labels=whole,
        combinations=tuple(replace(c, early=c.metric in engine.early) for c in draft.combinations.values()),
        progress=_progress(draft, [engine, *(other for _, other in carried)]),
        unavailable=draft.unavailable,
        unmapped=_unmapped(draft, engine, shape),
    )


def spoken_for(engine: type[Engine]) -> frozenset[str]:
    """Canonical names that the engine can fill, or says that it never has."""
    return frozenset(row.canonical for row in engine.table) | engine.computed | frozenset(engine.never)


def _apply_all(draft: Draft, engine: type[Engine], identity: Identity | None) -> None:
    for row in engine.table:
        _apply(draft, row)
    engine.fixup(draft, identity)


def _apply(draft: Draft, row: Row) -> None:
    chosen = False
    for source in row.sources:
        terms = parse_source(source)
        if not all(draft.has(row.canonical, term, row.part) for term in terms):
            continue
        if chosen:
            # A former name beside its successor: known, and not added to it.
            draft.used.update(families_of(source))
            continue
        chosen = True
        draft.add_family(
            row.canonical,
            terms,
            lambda position: _labels(draft, row, position),
            part=row.part,
            only=len(row.sources) == 1,
        )


def _labels(draft: Draft, row: Row, position: int) -> Labels:
    fixed = dict(row.fixed)
    if row.lookup is not None:
        fixed[row.lookup.into] = _looked_up(row.lookup, draft.shape.labels[position])
    return draft.labels(row.canonical, position, fixed, row.rename, row.without)


def _looked_up(lookup: Lookup, labels: Labels) -> str:
    return lookup.values.get(dict(labels).get(lookup.source, ""), lookup.default)


def _spelling(engine: type[Engine], carried: list[tuple[str, type[Engine]]]) -> Callable[[str], str]:
    if not carried:
        return engine.spell
    spellings = [engine.spell, *(other.spell for _, other in carried)]

    def spell(name: str) -> str:
        return next((spelt for each in spellings if (spelt := each(name)) != name), name)

    return spell


def _stated_version(engine: type[Engine], shape: Shape) -> str:
    """The version that stands on one of the engine's own ``…_info`` metrics, where there is one."""
    infos = (
        dict(labels)
        for name, labels in zip(shape.names, shape.labels, strict=True)
        if name.endswith("_info") and engine.spell(name).startswith(engine.prefix)
    )
    return next((version for labels in infos if (version := labels.get("version", ""))), "")


def _agreed(rename: Mapping[str, str], shape: Shape) -> dict[str, str]:
    """Canonical labels of which the exposition knows one value only: they hold for series that leave them out, too."""
    found: dict[str, set[str]] = {}
    for labels in shape.labels:
        for key, value in labels:
            label = rename.get(key, key)
            if label in AGREEABLE:
                found.setdefault(label, set()).add(value)
    return {label: values.pop() for label, values in found.items() if len(values) == 1}


def _whole(draft: Draft, engine: type[Engine], agreed: Mapping[str, str], base: Mapping[str, str]) -> Labels:
    """What every canonical series of the target carries."""
    if engine.device:
        return labels_of(base)
    hops = {hop for c in draft.combinations.values() if (hop := dict(c.labels).get("hop"))}
    hop = next((hop for hop in _HOPS if hop in hops), "engine")
    return labels_of({"model": agreed.get("model", ""), "hop": hop, **base})


def _account(draft: Draft, engine: type[Engine], contract: Contract | None, version: str) -> None:
    """Say of each metric of the table that is not there why it is not.

    The contract's words where the version decides, else the table's own, else the contract's.
    """
    for canonical in dict.fromkeys(row.canonical for row in engine.table):
        rows = [row for row in engine.table if row.canonical == canonical]
        sources = [source for row in rows for source in row.sources]
        told = next((row.absent for row in rows if row.absent), "")
        if contract is not None:
            absence = why_absent(contract, (f for s in sources for f in families_of(s)), version)
            decided = absence.kind == "version" and contract.neighbours(version) is not None
            told = absence.text if decided or not told else told
        draft.lacks(canonical, told or f"this exposition has no {' or '.join(sources)}")
    for metric, reason in engine.never.items():
        draft.lacks(metric, reason)


def _progress(draft: Draft, speaking: Sequence[type[Engine]]) -> tuple[tuple[str, Terms], ...]:
    """Rank and samples of what else shows that the engine works."""
    found: dict[str, list[tuple[int, float]]] = {}
    for engine in speaking:
        for term in (term for source in engine.progress for term in parse_source(source)):
            draft.used.add(term.family)
            for position in draft.matching(term):
                rank = dict(draft.labels("llm.engine.info", position)).get("engine_index", "")
                found.setdefault(rank, []).append((position, term.factor))
    return tuple((rank, tuple(terms)) for rank, terms in found.items())


def _unmapped(draft: Draft, engine: type[Engine], shape: Shape) -> tuple[str, ...]:
    """The engine's own families that neither the table nor the list of those left aside knows."""
    told = {family for row in engine.table for source in row.sources for family in families_of(source)} | draft.used
    known = told | {family.removesuffix("_sum").removesuffix("_count") for family in told} | set(engine.aside)
    families = {engine.spell(family) for family in shape.types}
    return tuple(
        sorted(
            family
            for family in families
            if family.startswith(engine.prefix)
            and not family.endswith("_created")
            and family not in known
            and f"{family}_total" not in known
            and not any(fnmatchcase(name, a) for a in engine.aside for name in (family, f"{family}_total"))
        )
    )
