"""Which canonical signals a target gives, which it does not, and what would bring them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loms.core.families import family_of
from loms.core.model import Shape
from loms.core.semconv import CATALOGUE
from loms.engines.contracts.contract import Contract, why_absent
from loms.engines.draft import Combination
from loms.engines.engine import DEVICE_NAMES, ENGINE_NAMES, engines
from loms.engines.plan import Meaning
from loms.engines.source import families_of

Status = Literal["available", "derived", "partial", "absent"]

INSTEAD = {
    "gen_ai.server.time_to_first_token": (
        "measure it at the client or a proxy, or take LOMS's own one-token request as a lower bound: "
        "loms_probe_duration_seconds"
    ),
    "llm.engine.inter_token.latency": "measure it at the client or a proxy, from the gaps in the stream",
    "gen_ai.server.request.duration": "measure it at the client or a proxy in front of the engine",
    "llm.engine.request.queue.duration": (
        "the mean of llm_engine_requests_waiting over the rate of requests is its mean (Little's law)"
    ),
    "llm.engine.requests.finished": "count answers by status at the proxy in front of the engine",
}
"""What to do where an engine lacks a signal that people ask for; only said where nothing better is known."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One canonical metric at one target."""

    canonical: str
    """OpenTelemetry name."""
    prometheus: str
    status: Status
    """``available``: a family of the engine under another name; ``derived``: worked out from one or several;
    ``partial``: some of its series are missing; ``absent``."""
    sources: tuple[str, ...] = ()
    """Raw families that it comes from."""
    reason: str = ""
    """Why it is not there or not whole; or how it is worked out, where that is from no values."""
    kind: str = ""
    """Of an absent one: ``never`` (the engine has no such thing), ``flag``, ``version``, ``conditional``, ``lazy``,
    ``unknown``."""
    flag: str = ""
    """The exact setting that brings it."""
    instead: str = ""


def signals(meaning: Meaning, shape: Shape, contract: Contract | None, version: str) -> list[Signal]:
    """One row for each canonical metric that an engine (or a device exporter) may have, in the catalogue's order."""
    engine = engines[meaning.engine]
    by_metric: dict[str, list[Combination]] = {}
    for combination in meaning.combinations:
        by_metric.setdefault(combination.metric, []).append(combination)
    names = DEVICE_NAMES if engine.device else (*ENGINE_NAMES, *(n for n in DEVICE_NAMES if n in by_metric))
    speaking = (engine, *(engines[other] for other in engine.carries))
    exposed = {one.spell(family) for one in speaking for family in shape.types}
    telling = {name: told for one in speaking for name, told in one.labels_tell.items() if told in exposed}
    found = []
    for name in names:
        spelt = CATALOGUE[name].prometheus
        reason = meaning.unavailable.get(spelt, "")
        if name in by_metric:
            combinations = by_metric[name]
            renamed = all(c.renames for c in combinations)
            status: Status = "partial" if reason else "available" if renamed else "derived"
            known = _families(combinations, shape)
            if told := telling.get(name, ""):
                known, reason = (*known, told), reason or f"labels of {told}"
            elif not known:
                reason = reason or "what the engine says of itself"
            found.append(Signal(name, spelt, status, known, reason))
            continue
        kind, flag = ("never", "") if name in engine.never else ("unknown", "")
        rows = [row for row in engine.table if row.canonical == name]
        sources = [family for row in rows for source in row.sources for family in families_of(source)]
        if contract is not None and sources:
            absence = why_absent(contract, sources, version)
            kind, flag = absence.kind, absence.flag
        found.append(Signal(name, spelt, "absent", (), reason, kind, flag, "" if flag else INSTEAD.get(name, "")))
    return found


def _families(combinations: Iterable[Combination], shape: Shape) -> tuple[str, ...]:
    """The raw families behind these series."""
    added = [p for c in combinations for terms in (c.terms, *c.copies) for p, _ in terms]
    scales = [c.scale for c in combinations if c.scale is not None]
    return tuple(dict.fromkeys(family_of(shape.names[p], shape.types)[0] for p in (*added, *scales)))
