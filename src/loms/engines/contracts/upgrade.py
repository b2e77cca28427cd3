"""What one target has exposed over its upgrades, and which of it is gone.

The record of a target is the union of all that it exposed under its present version and, for a while, under those
before: some families show themselves with the first request only, so a single scrape does not say what there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loms.engines.contracts.contract import Change, Contract, Exposed, Observed, changes
from loms.engines.contracts.release import parse_release

Releases = tuple[str, str]
"""Oldest and newest release that an engine may be; equal where it says its version, empty where nothing is known."""


@dataclass(frozen=True, slots=True)
class Record:
    """``now``: everything exposed under the present version; ``before``: what the versions before had exposed."""

    releases: Releases
    now: Observed
    since_ms: int
    """When the present version was first seen."""
    before: Observed | None = None
    releases_before: Releases = ("", "")
    rolled_back: bool = False
    """The version before last is back: what came between was there for a while only."""


def follow(record: Record | None, seen: Observed, releases: Releases, at_ms: int, remember_ms: float) -> Record:
    """The record after ``seen``; the very same object where that is no news.

    Another engine begins a new record. Another version moves what was there to ``before``; so that two upgrades in a
    row lose nothing, what is remembered from an earlier one stays there for ``remember_ms`` after it.
    """
    if record is None or record.now.engine != seen.engine:
        return Record(releases, seen, at_ms)
    recent = record.before is not None and at_ms - record.since_ms <= remember_ms
    if not _same(record.releases, releases):
        back = recent and bool(releases[0]) and record.releases_before == releases
        before = _union(record.before, record.now) if recent and record.before else record.now
        return Record(releases, seen, at_ms, before, record.releases, back)
    now = _union(record.now, seen)
    if now.families == record.now.families and releases == record.releases and (recent or record.before is None):
        return record
    narrower = releases if releases[0] else record.releases
    return replace(record, releases=narrower, now=now, before=record.before if recent else None)


def gone(record: Record, seen: Observed, contract: Contract | None) -> list[Change]:
    """What an earlier version of the target's engine exposed, and ``seen`` does not expose as it did."""
    return changes(contract, record.before, seen) if record.before is not None else []


def vanished(record: Record, seen: Observed, contract: Contract | None) -> list[Change]:
    """What this very version has exposed, always exposes by its contract, and does not in ``seen``.

    Other families may come and go under one version: they wait for their first request, or for a flag.
    """
    if contract is None:
        return []
    always = contract.expected(record.releases[0]) & contract.expected(record.releases[1])
    return [c for c in changes(contract, record.now, seen) if c.kind == "lost" and c.certain and c.family in always]


def encode(record: Record) -> str:
    """As JSON; `decode` reads it back."""
    return json.dumps(
        {
            "engine": record.now.engine,
            "releases": record.releases,
            "since_ms": record.since_ms,
            "now": _plain(record.now),
            "before": _plain(record.before) if record.before else None,
            "releases_before": record.releases_before,
            "rolled_back": record.rolled_back,
        },
        separators=(",", ":"),
    )


def decode(text: str) -> Record | None:
    """None for a text that another version of LOMS has written otherwise: then the record begins anew."""
    try:
        fields = json.loads(text)
        engine = fields["engine"]
        before = fields["before"]
        return Record(
            (fields["releases"][0], fields["releases"][1]),
            _observed(engine, fields["now"]),
            int(fields["since_ms"]),
            _observed(engine, before) if before else None,
            (fields["releases_before"][0], fields["releases_before"][1]),
            bool(fields["rolled_back"]),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _same(one: Releases, other: Releases) -> bool:
    """Whether both may be one version. Where nothing is known of one, it may be any."""
    if not one[0] or not other[0] or one == other:
        return True
    first, last, other_first, other_last = map(parse_release, (*one, *other))
    if first is None or last is None or other_first is None or other_last is None:
        return False
    return not (last < other_first or other_last < first)


def _union(one: Observed, other: Observed) -> Observed:
    """Families of both; where both have one, it is as in ``other``."""
    families: dict[str, Exposed] = dict(one.families)
    for name, exposed in other.families.items():
        known = families.get(name)
        if known is not None and known.type == exposed.type:
            exposed = replace(exposed, labels=known.labels | exposed.labels, buckets=exposed.buckets or known.buckets)
        families[name] = exposed
    return replace(other, families=families)


def _plain(observed: Observed) -> dict[str, Any]:
    return {
        "version": observed.version,
        "families": {
            name: [one.type, sorted(one.labels), list(map(str, one.buckets))] for name, one in observed.families.items()
        },
    }


def _observed(engine: str, fields: Mapping[str, Any]) -> Observed:
    families = {
        name: Exposed(kind, frozenset(labels), tuple(map(float, buckets)))
        for name, (kind, labels, buckets) in fields["families"].items()
    }
    return Observed(engine, fields["version"], families)
