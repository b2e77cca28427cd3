"""What a name in an expression stands for at one target."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loms.core.families import HISTOGRAM, owners
from loms.engines.contracts.contract import Contract, Family, Observed, why_absent
from loms.lint.problem import Severity
from loms.promql.regexes import matches

_FOREIGN = (
    *("http_", "process_", "python_", "go_", "promhttp_", "node_", "kube_", "container_", "scrape_"),
    *("llm_engine_", "gen_ai_", "hw_", "loms_"),
)
"""Names that every other job may have as well, and LOMS's own."""
_ELSEWHERE = "if a recording rule makes it, pass that rule's file as well; if another job has it, ignore it"
TARGET_LABELS = frozenset(
    {"job", "instance", "namespace", "pod", "service", "container", "node", "cluster", "endpoint"}
)
"""Labels that Prometheus or its operator gives to every series of a target."""


@dataclass(frozen=True, slots=True)
class Series:
    """The series of one name. ``part`` is ``_bucket``, ``_sum`` or ``_count``; ``labels`` None where not known."""

    name: str
    family: str
    type: str
    part: str = ""
    labels: frozenset[str] | None = None

    @property
    def cumulative(self) -> bool:
        """Grows until a restart, so that only its increase says something."""
        return self.type == "counter" or (self.type in ("histogram", "summary") and bool(self.part))

    @property
    def quantile(self) -> bool:
        """Has a quantile for its value (a summary)."""
        return self.type == "summary" and not self.part


class Verdict(NamedTuple):
    """Why a name gives nothing; ``new`` is the name to write instead where that is safe, spelled like the old one."""

    severity: Severity
    text: str
    new: str = ""
    meaning: str = ""
    """What to mind where the new name does not say quite the same."""
    spelling: bool = False
    """Only ``_total`` is too much or missing."""


class Promise(NamedTuple):
    """A family of a contract, with the version that the contract is asked for (``""``: not known)."""

    contract: Contract
    family: Family
    version: str


@dataclass(frozen=True, slots=True)
class Target:
    """One target with the contract of its engine, and those of other engines."""

    observed: Observed
    known: Contract | None = None
    carried: tuple[Contract, ...] = ()
    """Contracts of engines whose families this one passes on; their versions are not known here."""
    others: tuple[Contract, ...] = ()
    own: tuple[str, ...] = ()
    """Starts of the engine's names where there is no contract to say so."""
    spell: Callable[[str], str] = str
    extra_labels: frozenset[str] = frozenset()
    values: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """(family, label) → all values that it has, where they are known."""
    replicas: frozenset[str] = frozenset()
    """Labels over which the engine tells the same thing several times."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Family, or a pattern with ``*`` → why the engine's table makes no use of it."""
    ignored: tuple[str, ...] = ()
    """Regular expressions for names that are somebody else's."""

    @property
    def title(self) -> str:
        engine = self.known.title if self.known else self.observed.engine
        return f"{engine} {self.observed.version}".strip() or "the target"

    def promised(self, name: str) -> Promise | None:
        """What the contracts say of a name."""
        for contract in (self.known, *self.carried):
            family = contract.get(self.spell(name)) if contract else None
            if contract is not None and family is not None:
                return Promise(contract, family, self.observed.version if contract is self.known else "")
        return None

    def exposed(self, name: str) -> Series | None:
        """The series that the target has under this name, in any of its engine's spellings."""
        spelled = self.spell(name)
        family = self.observed.families.get(spelled)
        if family is not None and family.type != "histogram":
            labels = family.labels | {"quantile"} if family.type == "summary" else family.labels
            return self._labelled(Series(spelled, spelled, family.type, "", labels))
        for base, part, types in owners(spelled):
            family = self.observed.families.get(base)
            if family is not None and family.type in types:
                labels = family.labels | {"le"} if part == "_bucket" else family.labels
                kind = "gauge" if part == "_created" else family.type
                return self._labelled(Series(spelled, base, kind, part.replace("_created", ""), labels))
        return None

    def meant(self, name: str) -> Series | None:
        """What the author meant: the exposed series, its successor's, or at least what the contract says of it."""
        if not self.belongs(name):
            return None
        found = self.exposed(name)
        if found is None:
            verdict = self.verdict(name)
            found = self.exposed(verdict.new) if verdict and verdict.new else None
        promise = self.promised(name) if found is None else None
        if promise is not None:
            spelled, family = self.spell(name), promise.family
            found = Series(spelled, family.name, family.type, _part(spelled, family))
        return found

    def belongs(self, name: str) -> bool:
        """Whether this name is the target's business at all."""
        if self._is_foreign(name):
            return False
        known = self.exposed(name) is not None or self.spell(name) in self.observed.families
        return known or self.promised(name) is not None or self._owns(self.spell(name))

    def verdict(self, name: str) -> Verdict | None:
        """Why this name gives nothing at the target; None where it gives something or is not the target's business."""
        if self._is_foreign(name) or self.exposed(name) is not None:
            return None
        spelled, promise = self.spell(name), self.promised(name)
        return (
            self._miswritten(name, spelled)
            or (self._gone(name, spelled, promise) if promise is not None else None)
            or self._elsewhere(name)
            or self._unheard(name, spelled)
        )

    def pattern(self, pattern: str) -> Verdict | None:
        """The same for a regular expression over names. Raises `QueryError` for one that is none."""
        if _any_matches(pattern, self._live()):
            return None
        if not self._owns(self.spell(pattern.removeprefix("^").lstrip("(?:"))) or self._is_foreign(pattern):
            return None
        text = f"{self.title} exposes nothing that the pattern {pattern} matches"
        families = self.known.families if self.known else ()
        if _any_matches(pattern, [family + part for family in families for part in ("", *HISTOGRAM)]):
            return Verdict("error", text)
        return Verdict("warning", f"{text}, and no release of it that is known does; {_ELSEWHERE}")

    def succeeds(self, new: str, old: str) -> bool:
        """Whether one name's family took the other's place, in one or several steps."""
        found: set[str] = set()
        waiting = [old]
        while waiting:
            promise = self.promised(waiting.pop())
            later = [name for name in promise.family.successors if name not in found] if promise else []
            found.update(later)
            waiting += later
        promise = self.promised(new)
        return promise is not None and promise.family.name in found

    def _is_foreign(self, name: str) -> bool:
        """Whether it is certainly another job's."""
        return name.startswith(_FOREIGN) or any(any(matches(one, [name, self.spell(name)])) for one in self.ignored)

    def _owns(self, spelled: str) -> bool:
        own = self.known.owns(spelled) if self.known else bool(self.own) and spelled.startswith(self.own)
        return own or any(contract.owns(spelled) for contract in self.carried)

    def _live(self) -> list[str]:
        """The names of all series that the target has."""
        names = [family + part for family in self.observed.families for part in ("", *HISTOGRAM)]
        return [name for name in names if self.exposed(name) is not None]

    def _labelled(self, series: Series) -> Series:
        """With the labels that scraping adds; none where no series of the family is there to show its own."""
        labels = series.labels or frozenset()
        if not labels - {"le", "quantile"}:
            promise = self.promised(series.name)
            if promise is None:
                return replace(series, labels=None)
            labels |= frozenset(promise.family.labels)
        moved = {f"exported_{label}" for label in labels}
        return replace(series, labels=labels | moved | TARGET_LABELS | self.extra_labels)

    def _miswritten(self, name: str, spelled: str) -> Verdict | None:
        family = self.observed.families.get(spelled)
        if family is not None:
            parts = ", ".join(name + part for part in HISTOGRAM)
            return Verdict("error", f"{name} is a histogram and has no series of its own name; it has {parts}")
        for part in HISTOGRAM:
            base = self.observed.families.get(spelled.removesuffix(part)) if spelled.endswith(part) else None
            if base is not None:
                return Verdict("error", f"{name.removesuffix(part)} is a {base.type} in {self.title} and has no {part}")
        other = spelled.removesuffix("_total") if spelled.endswith("_total") else f"{spelled}_total"
        if other in self.observed.families and self.observed.families[other].type != "histogram":
            new = _respelled(name, spelled, other)
            return Verdict("error", f"{self.title} does not expose {name}; it is spelled {new}", new, spelling=True)
        return None

    def _gone(self, name: str, spelled: str, promise: Promise) -> Verdict:
        contract, family, version = promise
        part = _part(spelled, family)
        absent = f"{self.title} does not expose {name.removesuffix(part)}"
        for successor in contract.successors(family.name, version):
            there = self.observed.families.get(successor)
            if there is None:
                continue
            new = _respelled(name, spelled, successor + part)
            fact = f"{absent}{_end(family)}; {_respelled(name, spelled, successor)} took its place"
            if there.type != family.type:
                return Verdict("error", f"{fact}, but as a {there.type} instead of a {family.type}: write it anew")
            if self.exposed(new) is None:
                return Verdict("error", f"{fact}: write {', '.join(new + part for part in HISTOGRAM)}")
            later = contract.get(successor)
            changes = [
                f"since {since} it {says}" for since, says in (*family.changes, *(later.changes if later else ()))
            ]
            changes += [family.meaning] if family.meaning else []
            return Verdict("error", fact, new, "; ".join(changes))
        reason = why_absent(contract, [family.name], version)
        severities: dict[str, Severity] = {"lazy": "info", "flag": "warning", "conditional": "warning"}
        return Verdict(severities.get(reason.kind, "error"), reason.text)

    def _elsewhere(self, name: str) -> Verdict | None:
        for other in self.others:
            if other.owns(name) and other.get(name) is not None:
                return Verdict("warning", f"{name} is a metric of {other.title}, and this target is {self.title}")
        return None

    def _unheard(self, name: str, spelled: str) -> Verdict | None:
        """A name of the engine's own that no release has. Two colons in it are the mark of a recording rule."""
        if not self._owns(spelled) or spelled.count(":") > 1:
            return None
        lacking = f"neither {self.title} nor its contract has it" if self.known else f"{self.title} has it not"
        near = difflib.get_close_matches(spelled, self._live(), n=1, cutoff=0.85)
        if near:
            return Verdict("error", f"{name}: {lacking}; did you mean {_respelled(name, spelled, near[0])}?")
        return Verdict("warning", f"{name}: {lacking}; {_ELSEWHERE}")


def _any_matches(pattern: str, names: Sequence[str]) -> bool:
    """Also with underscores for colons."""
    return any(matches(pattern, names)) or any(matches(pattern, [name.replace(":", "_") for name in names]))


def _part(name: str, family: Family) -> str:
    return next((part for part in HISTOGRAM if name == family.name + part), "")


def _end(family: Family) -> str:
    if family.gone:
        return f" (last seen in {family.until}, gone in {family.gone})"
    return f" (hidden since {family.hidden})" if family.hidden else ""


def _respelled(name: str, spelled: str, new: str) -> str:
    """A new name with the start that the author gave the old one: ``vllm_`` for ``vllm:``, or Ray's ``ray_vllm_``."""
    same = 0
    while same < min(len(name), len(spelled)) and name[-1 - same] == spelled[-1 - same]:
        same += 1
    start = spelled[: len(spelled) - same]
    return name[: len(name) - same] + new[len(start) :] if new.startswith(start) else new
