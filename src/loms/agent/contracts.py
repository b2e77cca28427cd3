"""Watches what each engine's exposition holds: what its release promises, and what an upgrade has taken away.

What was lost is written as a series, ``loms_contract_lost`` (1 as long as it is missed), with the name of the metric,
its successor, and who used it as labels; a built-in rule makes incidents of it. What is merely odd (a family that the
release should not have, other buckets) is a finding of the engine and no alarm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from loms.collect.scrape import Scraper
from loms.core.clock import Clock
from loms.core.config import Contracts as Settings
from loms.core.model import STALE_NAN, Finding, SampleBatch, Series, Shape, Sink, labels_of
from loms.engines.contract import Change, Contract, Observed, compare, contract_of, observe
from loms.engines.engine import engines
from loms.engines.plan import Plan
from loms.engines.source import families_of
from loms.engines.translate import Translator
from loms.engines.upgrade import Record, Releases, decode, encode, follow, gone

_log = logging.getLogger("loms.contracts")

LOOK_SECONDS = 5.0
LOST = "loms_contract_lost"
_NAMED_USERS = 5
"""So many of a metric's users stand in the alert; the rest is a number."""


class Notes(Protocol):
    """Keeps one text for each (job, instance) over restarts."""

    def load(self) -> Mapping[tuple[str, str], str]: ...

    def save(self, job: str, instance: str, payload: str, /) -> None: ...


class Forgetful:
    """Notes of a process that has nowhere to keep them."""

    def load(self) -> Mapping[tuple[str, str], str]:
        return {}

    def save(self, job: str, instance: str, payload: str, /) -> None:
        pass


Users = Callable[[str, str], Sequence[str]]
"""Engine and raw family → the rules, dashboards and scalers that use it."""


@dataclass
class _Watched:
    """What is known of one target."""

    record: Record | None = None
    plan: Plan | None = None
    shape: Shape | None = None
    seen: Observed | None = None
    findings: tuple[Finding, ...] = ()
    missed: dict[str, Change] = field(default_factory=dict)
    """Family → what happened to it."""
    reported: dict[Series, None] = field(default_factory=dict)


class ContractWatch:
    """Looks at every target now and then (`look`); `findings` says what is odd about one."""

    def __init__(self, settings: Settings, sink: Sink, clock: Clock, notes: Notes, users: Users) -> None:
        self._grace_ms = settings.grace * 1000
        self._remember_ms = settings.remember * 1000
        self._sink = sink
        self._clock = clock
        self._notes = notes
        self._users = users
        self._remembered: dict[tuple[str, str], str] | None = None
        self._watched: dict[tuple[str, str], _Watched] = {}

    def due(self, scraper: Scraper, translator: Translator) -> bool:
        """Whether there is anything to look at: another shape or version than before, or something that is missed."""
        last, plan = scraper.last, translator.newest
        if last is None or last.exposition is None or plan is None or not plan.engine or not translator.settled:
            return False
        watched = self._watched.get((scraper.target.job, scraper.target.instance))
        known = watched is not None and watched.plan is plan and watched.shape is last.exposition.shape
        return not known or (watched is not None and bool(watched.missed or watched.reported))

    def look(self, scraper: Scraper, translator: Translator) -> None:
        """Compare the newest exposition with its contract and with what was there before. Call it in a thread."""
        last, plan = scraper.last, translator.newest
        if last is None or last.exposition is None or plan is None:
            return
        key = (scraper.target.job, scraper.target.instance)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(self._recall(key))
        if watched.plan is not plan or watched.shape is not last.exposition.shape:
            self._turn_to(watched, key, plan, last.exposition.shape)
        if watched.missed or watched.reported:
            self._report(watched, plan, worked=any(translator.progress(last.exposition).values()))

    def findings(self, job: str, instance: str) -> tuple[Finding, ...]:
        """What is odd about the target's exposition, and what it has lost."""
        watched = self._watched.get((job, instance))
        return watched.findings if watched else ()

    def _recall(self, key: tuple[str, str]) -> Record | None:
        if self._remembered is None:
            self._remembered = dict(self._notes.load())
        text = self._remembered.pop(key, "")
        return decode(text) if text else None

    def _turn_to(self, watched: _Watched, key: tuple[str, str], plan: Plan, shape: Shape) -> None:
        """Read a new shape, or the same one in the light of a new version."""
        now = self._clock.now_ms()
        engine, contract = engines[plan.engine], contract_of(plan.engine)
        families = frozenset(map(engine.spell, shape.types))
        releases = contract.span(plan.version, families) if contract else (plan.version, plan.version)
        seen = observe(shape, plan.engine, releases[0], engine.spell)
        record = follow(watched.record, seen, releases, now, self._remember_ms)
        if record is not watched.record:
            if watched.record is not None and record.before is not None and record.since_ms == now:
                _log.info("%s at %s: now %s, before %s", plan.engine, key[1], _name(releases), record.before.version)
            self._notes.save(*key, encode(record))
        watched.missed = {c.family: c for c in gone(record, seen, contract) if _is_missed(c, contract)}
        watched.findings = tuple(compare(contract, seen)) if contract else ()
        watched.record, watched.plan, watched.shape, watched.seen = record, plan, shape, seen

    def _report(self, watched: _Watched, plan: Plan, *, worked: bool) -> None:
        """Write a sample for each metric that is missed, and end the series of those that are not any more.

        What the contract says is gone is missed at once. Of anything else it may be that it only shows itself with the
        next request, so it is missed after a while in which the engine has worked.
        """
        now, record = self._clock.now_ms(), watched.record
        assert record is not None
        age = now - record.since_ms
        waited = worked and age >= self._grace_ms
        due = [c for c in watched.missed.values() if (c.certain or waited) and age <= self._remember_ms]
        series = dict.fromkeys(self._series(change, plan, record) for change in due)
        ended = [one for one in watched.reported if one not in series]
        fresh = tuple(one for one in series if one not in watched.reported)
        for one in fresh:
            labels = dict(one.labels)
            _log.warning("%s: %s is %s", labels["instance"], labels["metric"], labels["change"])
        everything = [*series, *ended]
        if everything:
            values = np.array([1.0] * len(series) + [STALE_NAN] * len(ended))
            times = np.full(len(everything), now, np.int64)
            ids = np.array([one.id for one in everything], np.uint64)
            self._sink(SampleBatch(ids, times, values, fresh))
        watched.reported = series

    def _series(self, change: Change, plan: Plan, record: Record) -> Series:
        users = self._users(plan.engine, change.family)
        named = "; ".join(users[:_NAMED_USERS])
        if len(users) > _NAMED_USERS:
            named += f"; and {len(users) - _NAMED_USERS} more"
        before = record.before.version if record.before else ""
        own = {
            "metric": change.family,
            "change": "renamed" if change.kind == "renamed" else "lost",
            "successor": change.successor or "none",
            "version_before": before or "unknown",
            "version": _name(record.releases),
            "canonical": _effect(plan, change),
            "used_by": named or "nothing that LOMS knows of",
        }
        return Series.of(LOST, labels_of({**dict(plan.labels), **own}))


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
