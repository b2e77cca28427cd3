"""What an engine exposes over its releases: its contract. The data are ``contracts/<engine>.yaml``."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from loms.core.families import owners
from loms.engines.contracts.release import Release, between, parse_release

Presence = Literal["yes", "no", "maybe", "unknown"]


MISFITS = 0.1
"""Of an exposition's families, the share that may be missing or unfitting in a release that it is taken for."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family of an engine over its releases. Releases are those of the contract unless they had to be wider."""

    name: str
    type: str
    """In the newest release."""
    labels: tuple[str, ...] = ()
    since: str = ""
    """Oldest known release that has it; empty: older than all of them."""
    after: str = ""
    """Newest known release before that, which has it not."""
    until: str = ""
    """Newest known release that has it, if it is gone."""
    gone: str = ""
    """Oldest known release that has it no more; empty: still there."""
    types: tuple[tuple[str, str], ...] = ()
    """(from release, type), oldest first, where the type changed."""
    changes: tuple[tuple[str, str], ...] = ()
    """(from release, what it does since then), as a predicate: ``counts tokens, and counted blocks before``."""
    hidden: str = ""
    """From this release on it takes a flag to be shown."""
    successors: tuple[str, ...] = ()
    """Families of the same meaning that took its place, best first."""
    meaning: str = ""
    """What its name and its successors' do not say of the difference, in words."""
    instead: str = ""
    """Where nothing means the same: what says it now, in PromQL or words."""
    when: str = ""
    """The condition under which it is there, to be read after "only"; empty: always."""
    flag: str = ""
    """The flag, variable or setting that brings it."""
    when_from: str = ""
    """The condition holds from this release on …"""
    when_to: str = ""
    """… and up to this one; empty: for all."""
    lazy: bool = False
    """It appears with the first event that it counts."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of the newest release by default, ``+Inf`` included; empty: not known, or set by the model."""


@dataclass(frozen=True, eq=False)
class Contract:
    """All families of one engine.

    A version that is none of `releases` is judged by its two neighbours, and where they differ the answer is "maybe";
    one that is newer than all is judged by the newest.
    """

    engine: str
    title: str
    """The engine's name in a sentence."""
    releases: tuple[str, ...]
    """Those that were looked at, oldest first."""
    families: Mapping[str, Family] = field(repr=False)
    own: tuple[str, ...] = ()
    """Starts of the engine's own names; whatever else stands in an exposition is not judged."""
    aside: tuple[str, ...] = ()
    """Starts of own names that come and go and are not judged either."""
    flag: str = ""
    """What switches the whole endpoint on; empty: it is on."""
    show_hidden: str = ""
    """The flag that shows what a release hides; ``{previous}`` stands for the minor release before the running one."""

    @cached_property
    def _known(self) -> tuple[Release, ...]:
        return tuple(release for release in map(parse_release, self.releases) if release is not None)

    @cached_property
    def _expected(self) -> tuple[frozenset[str], ...]:
        return tuple(self._with("yes", i) for i in range(len(self.releases)))

    @cached_property
    def _possible(self) -> tuple[frozenset[str], ...]:
        return tuple(self._with("yes", i) | self._with("maybe", i) for i in range(len(self.releases)))

    def get(self, name: str) -> Family | None:
        """The family of a name, also of a sample's (``…_bucket``) and of one with a ``_total`` too many or too few."""
        if name in self.families:
            return self.families[name]
        for base, _, types in owners(name):
            family = self.families.get(base)
            if family is not None and not types.isdisjoint((family.type, *(t for _, t in family.types))):
                return family
        return self.families.get(name.removesuffix("_total") if name.endswith("_total") else f"{name}_total")

    def neighbours(self, version: str) -> tuple[int | None, int | None] | None:
        """Positions in `releases` between which the version lies (see `release.between`); None if it cannot be read."""
        release = parse_release(version)
        return None if release is None else between(release, self._known)

    def presence(self, name: str, version: str) -> Presence:
        """Whether this version has the family: "unknown" if the contract does not know the name."""
        family = self.get(name)
        if family is None:
            return "unknown"
        around = self.neighbours(version)
        if around is None:
            return "maybe"
        lower, upper = around
        if lower is None:
            return "no" if family.since else "maybe"
        states = {self._at(family, i) for i in (lower, lower if upper is None else upper)}
        return states.pop() if len(states) == 1 else "maybe"

    def expected(self, version: str) -> frozenset[str]:
        """Families that are certainly there: without a condition, and even before the first request."""
        return frozenset(name for name in self.families if self.presence(name, version) == "yes")

    def possible(self, version: str) -> frozenset[str]:
        """Families that this version may have."""
        return frozenset(name for name in self.families if self.presence(name, version) != "no")

    def span(self, version: str, families: frozenset[str]) -> tuple[str, str]:
        """Oldest and newest release that an engine may be, by what it says of itself, else by its families.

        Both are ``version`` where that tells its age, and where nothing does.
        """
        if self.neighbours(version) is not None:
            return version, version
        return self.fingerprint(families) or (version, version)

    def fingerprint(self, families: frozenset[str]) -> tuple[str, str] | None:
        """Oldest and newest known release that could expose these (foreign and unknown ones aside), if any.

        Where none fits exactly, those count from which least is missing or too much, if that is little: a patched
        engine, or a proxy that hides a family, is still the release that it is.
        """
        found = {family.name for family in map(self.get, families) if family is not None}
        misfits = [
            len(expected - found) + len(found - possible)
            for expected, possible in zip(self._expected, self._possible, strict=True)
        ]
        least = min(misfits, default=0)
        if not found or least > MISFITS * len(found):
            return None
        fitting = [release for release, misfit in zip(self.releases, misfits, strict=True) if misfit == least]
        return fitting[0], fitting[-1]

    def successors(self, name: str, version: str) -> tuple[str, ...]:
        """What took the family's place and this version has, in one step or several, nearest and best first."""
        family = self.get(name)
        found: dict[str, None] = {}
        waiting = deque(family.successors if family else ())
        while waiting:
            successor = waiting.popleft()
            if successor not in found and successor != name:
                found[successor] = None
                waiting += self.families[successor].successors if successor in self.families else ()
        return tuple(successor for successor in found if self.presence(successor, version) not in ("no", "unknown"))

    def types(self, name: str, version: str) -> frozenset[str]:
        """The types that the family may have in this version."""
        family = self.get(name)
        if family is None:
            return frozenset()
        if not family.types:
            return frozenset({family.type})
        around = self.neighbours(version)
        if around is None:
            return frozenset(type_ for _, type_ in family.types)
        known = [(_release(since), type_) for since, type_ in family.types]
        return frozenset(
            next((type_ for since, type_ in reversed(known) if since <= self._known[i]), known[0][1])
            for i in around
            if i is not None
        )

    def hides(self, family: Family, version: str) -> bool:
        """Whether this version shows the family only on demand."""
        release = parse_release(version)
        return bool(family.hidden) and release is not None and release >= _release(family.hidden)

    def conditional(self, family: Family, version: str) -> bool:
        """Whether the family's condition holds in this version, or in one of its neighbours.

        Of a version that is not known, only what the newest release still asks for.
        """
        around = self.neighbours(version)
        if around is None:
            return self._conditional(family, self._known[-1])
        return any(self._conditional(family, self._known[i]) for i in around if i is not None)

    def owns(self, name: str) -> bool:
        """Whether a name is the engine's own and to be judged."""
        return name.startswith(self.own) and not name.startswith(self.aside)

    def _with(self, presence: Presence, position: int) -> frozenset[str]:
        return frozenset(f.name for f in self.families.values() if self._at(f, position) == presence)

    def _at(self, family: Family, position: int) -> Presence:
        """In one of the known releases."""
        release = self._known[position]
        if (family.after and release <= _release(family.after)) or (family.gone and release >= _release(family.gone)):
            return "no"
        uncertain = (
            (family.since and release < _release(family.since))
            or (family.until and release > _release(family.until))
            or (family.hidden and release >= _release(family.hidden))
        )
        return "maybe" if uncertain or family.lazy or self._conditional(family, release) else "yes"

    def _conditional(self, family: Family, release: Release) -> bool:
        begun = not family.when_from or release >= _release(family.when_from)
        return bool(family.when) and begun and (not family.when_to or release <= _release(family.when_to))


def _release(version: str) -> Release:
    release = parse_release(version)
    assert release is not None, version
    return release
