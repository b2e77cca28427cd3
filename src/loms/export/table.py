"""Which rows, labels and families the rules of one engine are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loms.engines.contracts.contract import contract_of
from loms.engines.draft import OF_DEVICES
from loms.engines.engine import Engine, Row, engines
from loms.engines.read import AGREEABLE, STANDARD
from loms.engines.source import Term
from loms.export.expression import Step, copy

DEVICE = "device_id"
LASTING = ("model", "engine_index")
"""Labels that a family has had from its first release on, if it has them at all."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One recording rule; ``labels`` are set on its series."""

    record: str
    expr: str
    labels: Mapping[str, str]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """An engine's rows as they are to be read in its own group, or in that of an engine that passes them on."""

    group: str
    """The engine of whose targets the rules speak."""
    owner: str
    """The engine whose rows these are."""
    engine: type[Engine]
    """The owner's class."""
    rename: Mapping[str, str]
    """Raw label → canonical label."""
    replicas: frozenset[str]
    shared: bool
    """Whether other engines' targets have the owner's families, too."""

    @property
    def carried(self) -> bool:
        return self.owner != self.group

    def sources(self, label: str) -> list[str]:
        """Raw labels that say what this canonical one does, its own name first; of several the last one counts."""
        return [label, *sorted({raw for raw, into in self.rename.items() if into == label} - {label})]

    def agreeable(self, label: str) -> bool:
        """Whether any of the owner's families may have this canonical label."""
        sources, contract = self.sources(label), contract_of(self.owner)
        if contract is None:
            return label == "model" or len(sources) > 1
        return any(not set(family.labels).isdisjoint(sources) for family in contract.families.values())

    def knows(self, family: str) -> bool:
        """Whether the owner's contract has this family."""
        contract = contract_of(self.owner)
        return contract is not None and contract.get(family) is not None

    def says(self, family: str, label: str) -> bool:
        """Whether this family is known to have this canonical label itself, in every release that has the family."""
        contract = contract_of(self.owner)
        known = contract.get(family) if contract and label in LASTING else None
        return known is not None and not set(known.labels).isdisjoint(self.sources(label))

    def foreign(self, term: Term) -> bool:
        """Whether what has this family need not be a target of this group."""
        return self.shared or not term.family.startswith(self.engine.prefix)

    def renames(self, row: Row) -> tuple[list[Step], set[str]]:
        """The steps that give this row's series their canonical labels, and the raw labels to take off then."""
        rename = {raw: into for raw, into in {**self.rename, **row.rename}.items() if raw != into}
        if not row.canonical.startswith(OF_DEVICES):
            rename = {raw: into for raw, into in rename.items() if into != DEVICE}
        targets = set(rename.values())
        steps = []
        for raw in sorted(rename, key=lambda raw: (raw not in targets, raw)):
            steps.append(copy(rename[raw], raw))
            if raw in targets:  # its place is wanted for what another label says
                steps.append(Step(raw, ""))
        return steps, set(rename) - targets


def agreeable(tables: Sequence[Table]) -> list[str]:
    """Canonical labels that may hold for a whole target: they may come from some of its series only."""
    return [label for label in sorted(AGREEABLE) if any(table.agreeable(label) for table in tables)]


def tables_of(name: str, engine: type[Engine]) -> list[Table]:
    """The engine's tables, those that it passes on first: where they speak, its own is silent."""
    carried = [
        Table(
            group=name,
            owner=other,
            engine=engines[other],
            rename={**_standard(other), **engines[other].rename, **engine.rename},
            replicas=engines[other].replicas | engine.replicas,
            shared=True,
        )
        for other in engine.carries
    ]
    own = Table(
        group=name,
        owner=name,
        engine=engine,
        rename={**_standard(name), **engine.rename},
        replicas=engine.replicas,
        shared=bool(rivals(name, engine)),
    )
    return [*carried, own]


def rivals(name: str, engine: type[Engine]) -> list[str]:
    """Engines whose targets may have this engine's families and are not its own: they pass them on, or come first."""
    return [
        other for other, known in engines.items() if name in known.carries or (known.declared and not engine.declared)
    ]


def _standard(owner: str) -> dict[str, str]:
    """The labels that mean the same whoever writes them, without those that this engine is known not to write."""
    contract = contract_of(owner)
    if contract is None:
        return dict(STANDARD)
    written = {label for family in contract.families.values() for label in family.labels}
    return {raw: into for raw, into in STANDARD.items() if raw in written}
