"""An engine held against its contract: what is missing or new, what an upgrade took away, why something is not there.

Everything here is a pure function of what a target exposes and of the contract, which knows what each release of its
engine exposes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from loms.core.model import Finding, Severity, labels_of
from loms.engines.contracts.exposed import Exposed, Observed, observe
from loms.engines.contracts.family import Contract, Family, Presence
from loms.engines.contracts.read import contract_names, contract_of
from loms.engines.contracts.release import parse_release, previous_minor

__all__ = [
    "Absence",
    "Change",
    "Contract",
    "Exposed",
    "Family",
    "Observed",
    "Presence",
    "changes",
    "compare",
    "contract_names",
    "contract_of",
    "observe",
    "why_absent",
]

_NAME = re.compile(r"[a-zA-Z_:][\w:]*")
_ALIKE = {"gaugehistogram": "gauge"}
"""A gauge histogram of the client library, where several processes share one page, is written as a gauge."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two looks at the same target."""

    kind: Literal["lost", "renamed", "type", "buckets", "meaning"]
    family: str
    successor: str
    """The family that means the same and is exposed now, for "renamed"."""
    text: str
    certain: bool
    """Not to be explained by an idle engine, a flag or a release that is not known: the contract says that it is so,
    or both looks do."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why none of some families is exposed. ``flag`` is what brings it, where that is known."""

    kind: Literal["flag", "version", "conditional", "lazy", "unknown"]
    text: str
    flag: str = ""


def compare(contract: Contract, seen: Observed) -> list[Finding]:
    """Findings of kind contract_missing, contract_unknown, contract_changed_type and contract_changed_buckets.

    A version that cannot be read is judged by what holds for all releases; nothing is missing then.
    """
    return [
        _finding(seen, kind, severity, family, text + _by_newest(contract, seen.version))
        for kind, severity, family, text in (
            *_missing(contract, seen),
            *_unknown(contract, seen),
            *_changed_types(contract, seen),
            *_changed_buckets(contract, seen),
        )
    ]


def changes(contract: Contract | None, before: Observed, now: Observed) -> list[Change]:
    """What is different since ``before``, sorted by family; new families are no difference."""
    found: list[Change] = []
    for name in sorted(before.families):
        old, new = before.families[name], now.families.get(name)
        if new is None:
            found.append(_lost(contract, name, before, now))
            continue
        if "untyped" not in (old.type, new.type) and _kind(old.type) != _kind(new.type):
            text = (
                f"{name} is a {new.type} in {_named(contract, now)}, and was a {old.type} in {_named(contract, before)}"
            )
            found.append(Change("type", name, "", text, certain=True))
        elif old.buckets and new.buckets and old.buckets != new.buckets:
            bounds = f"{_bounds(old.buckets)} before, {_bounds(new.buckets)} now"
            text = f"{name} has other bounds in {_named(contract, now)}: {bounds}"
            found.append(Change("buckets", name, "", text, certain=True))
        if contract is not None:
            found += _meanings(contract, name, before.version, now.version)
    return found


def why_absent(contract: Contract, families: Iterable[str], version: str) -> Absence:
    """Why none of these families, which are alternatives, is exposed by this version: the reason that is easiest to act
    on. ``version`` may be empty."""
    reasons = [_reason(contract, name, version) for name in families]
    nothing = _Reason(9, Absence("unknown", f"{contract.title} has no family for it"))
    return min(reasons, key=lambda reason: reason.rank, default=nothing).absence


_Report = tuple[str, Severity, str, str]
"""Kind, severity, family, text."""


def _missing(contract: Contract, seen: Observed) -> Iterator[_Report]:
    for name in sorted(contract.expected(seen.version) - seen.families.keys()):
        yield "contract_missing", "warning", name, _reason(contract, name, seen.version).absence.text


def _unknown(contract: Contract, seen: Observed) -> Iterator[_Report]:
    for name in filter(contract.owns, seen.families):
        family, presence = contract.get(name), contract.presence(name, seen.version)
        if family is None:
            yield "contract_unknown", "info", name, f"no known release of {contract.title} has {name}"
        elif presence == "no":
            span = f"only from {family.since} on" if _early(family, seen.version) else f"only up to {family.until}"
            text = f"{contract.title} {seen.version} exposes {name}, which by its contract it has {span}"
            yield "contract_unknown", "info", name, text


def _changed_types(contract: Contract, seen: Observed) -> Iterator[_Report]:
    for name, exposed in seen.families.items():
        types = contract.types(name, seen.version) if name in contract.families else frozenset()
        if types and exposed.type != "untyped" and _kind(exposed.type) not in types:
            told = f"by the contract of {contract.title} a {' or a '.join(sorted(types))}"
            yield "contract_changed_type", "warning", name, f"{name} is a {exposed.type} here, and {told}"


def _changed_buckets(contract: Contract, seen: Observed) -> Iterator[_Report]:
    """Bounds are known of the newest release only."""
    around = contract.neighbours(seen.version)
    if around is None or around[0] != len(contract.releases) - 1:
        return
    for name, exposed in seen.families.items():
        family = contract.families.get(name)
        if family is not None and family.buckets and exposed.buckets and exposed.buckets != family.buckets:
            by_default = f"by default it is {_bounds(family.buckets)}"
            yield "contract_changed_buckets", "info", name, f"{name} has {_bounds(exposed.buckets)}; {by_default}"


def _finding(seen: Observed, kind: str, severity: Severity, family: str, text: str) -> Finding:
    return Finding("contract", kind, severity, labels_of({"engine": seen.engine, "family": family}), text, 1.0)


def _by_newest(contract: Contract, version: str) -> str:
    around = contract.neighbours(version)
    newer = around is not None and around[1] is None
    return f" (judged by {contract.releases[-1]}, the newest release that is known)" if newer else ""


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why a family is not there. The lower the rank, the easier to act on."""

    rank: int
    absence: Absence
    certain: bool = False


def _reason(contract: Contract, name: str, version: str, it: str = "") -> _Reason:
    """``it``: what to call the family in the text, if not by its name."""
    it, title, family = it or name, contract.title, contract.get(name)
    if family is None:
        text = f"no known release of {title} has {it}"
        return _Reason(8, Absence("unknown", text), certain=_is_known(contract, version))
    presence = contract.presence(name, version)
    if presence == "no":
        if _early(family, version):
            text = f"{title} has {it} from {family.since} on; this is {version}"
            return _Reason(6, Absence("version", text), certain=True)
        text = f"{title} has {it} up to {family.until}; this is {version}"
        return _Reason(7, Absence("version", text + _place(contract, family, version)), certain=True)
    if contract.hides(family, version):
        flag = contract.show_hidden.format(previous=previous_minor(version))
        condition = f", {family.when}" if contract.conditional(family, version) else ""
        text = f"{title} hides {it} from {family.hidden} on; {flag} brings it back{condition}"
        return _Reason(0, Absence("flag", text, flag), certain=True)
    if contract.conditional(family, version):
        if family.flag:
            text = f"{it} needs {family.flag}: it is there only {family.when}"
            return _Reason(0, Absence("flag", text, family.flag))
        return _Reason(2, Absence("conditional", f"{it} is there only {family.when}"))
    if family.lazy:
        return _Reason(1, Absence("lazy", f"{it} appears with the first request"))
    if presence == "yes":
        text = f"{title} {version} should expose {it}, and this target does not"
        return _Reason(3, Absence("unknown", text), certain=True)
    return _Reason(5, Absence("version", _in_between(contract, family, version, it)))


def _in_between(contract: Contract, family: Family, version: str, it: str) -> str:
    """Words for a version of which the contract does not say whether it has the family."""
    title, around = contract.title, contract.neighbours(version)
    if around is None:
        return f"not all releases of {title} have {it}, and which one this is, is not known"
    if around[0] is None:
        return f"{title} {version} is older than the releases that are known, and whether it has {it} is not known"
    if _early(family, version):
        return f"{title} has {it} in {family.since} and not in {family.after}; this is {version}"
    if family.gone and around[1] is not None and contract.releases[around[1]] == family.gone:
        return f"{title} has {it} in {family.until} and no more in {family.gone}; this is {version}"
    return f"the releases of {title} before and after {version} differ in {it}"


def _early(family: Family, version: str) -> bool:
    """Whether the version is older than the first release with the family."""
    since, release = parse_release(family.since), parse_release(version)
    return since is not None and release is not None and release < since


def _place(contract: Contract, family: Family, version: str) -> str:
    """Words for what says the same in this version, if anything does."""
    successors = contract.successors(family.name, version)
    if successors:
        return f"; {successors[0]} takes its place"
    named = [f for f in map(contract.get, _NAME.findall(family.instead)) if f is not None]
    there = all(contract.presence(f.name, version) != "no" for f in named)
    return f"; instead there is {family.instead}" if family.instead and there else ""


def _is_known(contract: Contract, version: str) -> bool:
    """Whether the version lies among the known releases."""
    around = contract.neighbours(version)
    return around is not None and None not in around


def _lost(contract: Contract | None, name: str, before: Observed, now: Observed) -> Change:
    if contract is None:
        return Change("lost", name, "", f"{name} is lost: {_named(contract, now)} does not expose it", certain=False)
    if contract.get(name) is None and not contract.owns(name):
        text = f"{name} is lost: {_named(contract, now)} does not expose it, and its contract says nothing of it"
        return Change("lost", name, "", text, certain=False)
    reason = _reason(contract, name, now.version, "it")
    # A name that the contract has never heard of is the upgrade's doing only if there was one.
    certain = reason.certain and (contract.get(name) is not None or before.version != now.version)
    successor = next((s for s in contract.successors(name, now.version) if s in now.families), "")
    if successor:
        text = f"{name} is now {successor}: {reason.absence.text.removesuffix(f'; {successor} takes its place')}"
        return Change("renamed", name, successor, text, certain)
    return Change("lost", name, "", f"{name} is lost: {reason.absence.text}", certain)


def _meanings(contract: Contract, name: str, before: str, now: str) -> Iterator[Change]:
    """What a family does in another way, since a release between the two."""
    family, old, new = contract.families.get(name), parse_release(before), parse_release(now)
    if family is None or old is None or new is None:
        return
    for since, predicate in family.changes:
        release = parse_release(since)
        if release is None or not min(old, new) < release <= max(old, new):
            continue
        earlier = contract.releases[max(contract.releases.index(since) - 1, 0)]
        certain = min(old, new) <= (parse_release(earlier) or old)
        text = f"from {contract.title} {since} on {name} {predicate}; this is {now}, and was {before}"
        yield Change("meaning", name, "", text, certain)


def _named(contract: Contract | None, observed: Observed) -> str:
    title = contract.title if contract is not None else observed.engine or "the target"
    return f"{title} {observed.version}".rstrip()


def _kind(type_: str) -> str:
    return _ALIKE.get(type_, type_)


def _bounds(buckets: tuple[float, ...]) -> str:
    """Finite bounds in words, shortened."""
    finite = [f"{bound:g}" for bound in buckets if bound != float("inf")]
    shown = finite if len(finite) <= 6 else [*finite[:3], "…", *finite[-2:]]
    return f"{len(finite)} bounds ({', '.join(shown)})"
