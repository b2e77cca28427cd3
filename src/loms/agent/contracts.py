"""Watches what each engine's exposition holds: what its release promises, and what an upgrade has taken away.

What was lost is written as a series, ``loms_contract_lost`` (1 as long as it is missed), with the name of the metric,
its successor, and who used it as labels; a built-in rule makes incidents of it. What is merely odd (a family that the
release should not have, other buckets) is a finding of the engine and no alarm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from loms.core.clock import Clock
from loms.core.model import STALE_NAN, Finding, SampleBatch, Series, Shape, Sink, labels_of
from loms.core.settings import Contracts as Settings
from loms.engines.contracts.contract import Change, Contract, Observed, compare, contract_of, observe
from loms.engines.contracts.upgrade import Record, Releases, decode, encode, follow, gone, vanished
from loms.engines.engine import engines
from loms.engines.plan import Plan
from loms.engines.source import families_of

_log = logging.getLogger("loms.contracts")

LOOK_SECONDS = 5.0
RECALL_SECONDS = 60.0
"""So long what was read from the notes serves for further targets that come."""
LOST = "loms_contract_lost"
_NAMED_USERS = 5
"""So many of a metric's users stand in the alert; the rest is a number."""


class Notes(Protocol):
    """Keeps one text for each (job, instance) over restarts."""

    def load(self) -> Mapping[tuple[str, str], str]: ...

    def save(self, job: str, instance: str, payload: str, /) -> None: ...

    def save_all(self, notes: Mapping[tuple[str, str], str], /) -> None: ...


class Forgetful:
    """Notes of a process that has nowhere to keep them."""

    def load(self) -> Mapping[tuple[str, str], str]:
        return {}

    def save(self, job: str, instance: str, payload: str, /) -> None:
        pass

    def save_all(self, notes: Mapping[tuple[str, str], str], /) -> None:
        pass


Users = Callable[[str, str], Sequence[str]]
"""Engine and raw family → the rules, dashboards and scalers that use it."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A good scrape of one target."""

    job: str
    instance: str
    plan: Plan
    shape: Shape
    worked: bool
    """Whether its engine has counted anything yet."""


@dataclass
class _Watched:
    """What is known of one target."""

    sight: Sight
    record: Record
    findings: tuple[Finding, ...] = ()
    missed: tuple[Change, ...] = ()
    """What an upgrade has taken away."""
    vanished: Mapping[str, tuple[Change, int]] = field(default_factory=dict)
    """Family → what has gone under one and the same version, and since when."""
    reported: dict[str, Series] = field(default_factory=dict)
    """Family → the series that says so. Its texts stay as they were first, since they are its identity."""


class ContractWatch:
    """Follows every target that it is shown (`look`), until it is said to be gone (`keep_only`).

    Targets are told apart by whatever the caller likes. The methods that write may wait for the store: call them in a
    thread, one at a time.
    """

    def __init__(self, settings: Settings, sink: Sink, clock: Clock, notes: Notes, users: Users) -> None:
        self._grace_ms = settings.grace * 1000
        self._remember_ms = settings.remember * 1000
        self._sink = sink
        self._clock = clock
        self._notes = notes
        self._users = users
        self._remembered: dict[tuple[str, str], str] = {}
        self._recalled_at: float | None = None
        self._watched: dict[Hashable, _Watched] = {}
        self._unsaved: dict[tuple[str, str], Record] = {}

    def due(self, target: Hashable, sight: Sight | None) -> bool:
        """Whether there is anything to do: another shape or version than before, or something that is missed."""
        watched = self._watched.get(target)
        if watched is None or (sight is not None and not _same(sight, watched.sight)):
            return sight is not None
        return bool(watched.missed or watched.vanished or watched.reported)

    def look(self, target: Hashable, sight: Sight | None) -> None:
        """Compare the newest good scrape, if there is one, with its contract and with what was there before.

        What is missed is told also while the target cannot be scraped.
        """
        watched = self._watched.get(target)
        if sight is not None and (watched is None or not _same(sight, watched.sight)):
            record = self._recall(sight) if watched is None else watched.record
            read = self._read(sight, record)
            if watched is not None:
                read.reported = watched.reported
                read.vanished = {f: watched.vanished.get(f, new) for f, new in read.vanished.items()}
            watched = self._watched[target] = read
        if watched is not None:
            self._report(watched, worked=(sight or watched.sight).worked)

    def keep_only(self, targets: Sequence[Hashable]) -> None:
        """Forget all others; what was said of them ends."""
        for target in self._watched.keys() - set(targets):
            watched = self._watched.pop(target)
            self._remembered[watched.sight.job, watched.sight.instance] = encode(watched.record)
            self._write((), tuple(watched.reported.values()))

    def save(self) -> None:
        """Write down what is new about all targets, at once."""
        if self._unsaved:
            self._notes.save_all({target: encode(record) for target, record in self._unsaved.items()})
            self._unsaved = {}

    def findings(self, target: Hashable) -> tuple[Finding, ...]:
        """What is odd about the target's exposition."""
        watched = self._watched.get(target)
        return watched.findings if watched else ()

    def _recall(self, sight: Sight) -> Record | None:
        """What an earlier process, or an earlier life of the target, has left behind."""
        now = self._clock.monotonic()
        if self._recalled_at is None or now - self._recalled_at > RECALL_SECONDS:
            self._remembered, self._recalled_at = dict(self._notes.load()), now
        text = self._remembered.pop((sight.job, sight.instance), "")
        return decode(text) if text else None

    def _read(self, sight: Sight, before: Record | None) -> _Watched:
        """Read a new shape, or the same one in the light of a new version."""
        now, plan = self._clock.now_ms(), sight.plan
        contract = contract_of(plan.engine)
        seen, releases, against = _observed(sight.shape, plan.engine, plan.version)
        record = follow(before, seen, releases, now, self._remember_ms)
        if record is not before:
            if before is not None and record.before is not None and record.since_ms == now:
                was, now_is = _name(record.releases_before) or "unknown", _name(releases)
                _log.info("%s at %s: version %s, before %s", plan.engine, sight.instance, now_is, was)
            self._unsaved[sight.job, sight.instance] = record
        changes = gone(record, seen, contract)
        odd = (*against, *_meanings(plan.engine, changes))
        missed = tuple(change for change in changes if _is_missed(change, contract))
        if record.rolled_back:  # what was there in between only is missed by those who use it already
            missed = tuple(change for change in missed if self._users(plan.engine, change.family))
        here = {change.family: (change, now) for change in vanished(record, seen, contract)}
        return _Watched(sight, record, odd, missed, here)

    def _report(self, watched: _Watched, *, worked: bool) -> None:
        """Write a sample for each metric that is missed, and end the series of those that are not any more.

        What the contract says is gone since the upgrade is missed at once. Anything else may only wait for its next
        request to show itself, so it is missed after a while in which the engine has worked.
        """
        now = self._clock.now_ms()
        age = now - watched.record.since_ms
        if age > self._remember_ms:
            watched.missed = ()
        waited = worked and age >= self._grace_ms
        due = [change for change in watched.missed if change.certain or waited]
        for change, since in watched.vanished.values():
            if worked and self._grace_ms <= now - since <= self._remember_ms:
                due.append(change)
        before, watched.reported = watched.reported, {}
        for change in due:
            if change.family in watched.reported:
                continue
            series = before.pop(change.family, None) or self._series(change, watched)
            watched.reported[change.family] = series
        self._write(tuple(watched.reported.values()), tuple(before.values()))

    def _write(self, missed: Sequence[Series], ended: Sequence[Series]) -> None:
        everything = (*missed, *ended)
        if everything:
            values = np.array([1.0] * len(missed) + [STALE_NAN] * len(ended))
            times = np.full(len(everything), self._clock.now_ms(), np.int64)
            ids = np.array([one.id for one in everything], np.uint64)
            self._sink(SampleBatch(ids, times, values, tuple(missed)))

    def _series(self, change: Change, watched: _Watched) -> Series:
        plan, record = watched.sight.plan, watched.record
        users = self._users(plan.engine, change.family)
        named = "; ".join(users[:_NAMED_USERS])
        if len(users) > _NAMED_USERS:
            named += f"; and {len(users) - _NAMED_USERS} more"
        own = {
            "metric": change.family,
            "change": "renamed" if change.kind == "renamed" else "lost",
            "successor": change.successor or "none",
            "version_before": _name(record.releases_before if record.before else record.releases) or "unknown",
            "version": _name(record.releases),
            "canonical": _effect(plan, change),
            "used_by": named or "nothing that LOMS knows of",
        }
        _log.warning("%s: %s", watched.sight.instance, change.text)
        return Series.of(LOST, labels_of({**dict(plan.labels), **own}))


@lru_cache(maxsize=32)
def _observed(shape: Shape, name: str, version: str) -> tuple[Observed, Releases, tuple[Finding, ...]]:
    """What a shape exposes, of which releases it may be, and what is odd about it by their contract.

    A fleet of one engine shares its shape, and then this as well.
    """
    engine, contract = engines[name], contract_of(name)
    families = frozenset(map(engine.spell, shape.types))
    releases = contract.span(version, families) if contract else (version, version)
    seen = observe(shape, name, releases[0], engine.spell)
    return seen, releases, tuple(compare(contract, seen)) if contract else ()


def _same(one: Sight, other: Sight) -> bool:
    return one.plan is other.plan and one.shape is other.shape


def _meanings(engine: str, changes: Sequence[Change]) -> list[Finding]:
    """What a family does in another way since the upgrade."""
    return [
        Finding(
            "contract",
            f"contract_changed_{change.kind}",
            "info",
            labels_of({"engine": engine, "family": change.family}),
            change.text,
            1.0,
        )
        for change in changes
        if change.kind in ("type", "meaning")
    ]


def _is_missed(change: Change, contract: Contract | None) -> bool:
    """Whether it took a family away, and not one that only waits for its first request."""
    family = contract.get(change.family) if contract else None
    return change.kind in ("lost", "renamed") and (change.certain or family is None or not family.lazy)


def _name(releases: Releases) -> str:
    """The version in words."""
    oldest, newest = releases
    return oldest if oldest == newest else f"{oldest} to {newest}"


def _effect(plan: Plan, change: Change) -> str:
    """What becomes of the canonical metrics that came from the family, or would come from its successor."""
    engine, names = engines[plan.engine], {change.family, change.successor}
    fed = [row.canonical for row in engine.table if any(names & set(families_of(source)) for source in row.sources)]
    there = {combination.metric for combination in plan.meaning.combinations}
    lost = [metric for metric in fed if metric not in there]
    if lost:
        return f"{', '.join(dict.fromkeys(lost))} is lost with it"
    return f"{', '.join(dict.fromkeys(fed))} goes on" if fed else "no canonical metric came from it"
