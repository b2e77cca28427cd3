"""One target's translator: raw samples → canonical ones, scrape after scrape.

The meaning of a shape is worked out once (`loms.engines.read`); from then on a scrape is a few numpy operations. What
stays between scrapes is little: which engine this is, who it says it is, the counters that show a restart, where the
canonical counters stand (`loms.engines.continuity`), and the amounts that LOMS's own probes have added to them.

**Probes and counters.** A probe is a real request, so the engine counts it. Cumulative canonical series of an engine
that can be asked for tokens therefore have samples of their own, whether or not it is asked at present, from which
the probes are subtracted. `hold` says that a probe begins: series that move from then on are held back, because part
of the movement may be the probe's. `settle` compares what moved with what the probe's answer says it used. If that is
all (one request ended, exactly those tokens, nothing runs or waits), the whole movement is subtracted from then on,
histograms included. If users' requests came in between, only the amounts that are known are subtracted, tokens and
one finished request; the histograms keep the probe.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from loms.core.model import Exposition, Floats, Ids, Ints, Labels, Series, Shape
from loms.core.semconv import CATALOGUE
from loms.engines.continuity import Continuity, Summand, Tellings, offset
from loms.engines.engine import Identity, engines, recognise
from loms.engines.plan import Meaning, Plan
from loms.engines.read import read
from loms.engines.watch import Watch

Verdict = Literal["pending", "exact", "mixed"]
OUTPUT, PREEMPTED = "llm.engine.tokens.output", "llm.engine.requests.preempted"
Samples = Mapping[int, tuple[int, float]]
"""Series id → (time in ms, value) of one sample."""


class Translator:
    """Satisfies `loms.collect.protocols.Translator` and `loms.collect.probe.Subject`."""

    def __init__(self, target: Labels, *, drop: Sequence[str] = (), restoring: bool = False) -> None:
        """``target``: the target's labels, job and instance among them. ``drop``: regular expressions, matched against
        whole names, of raw metrics that are not stored. ``restoring``: `restore` will be called with what the store
        remembers; until then counters are held back.
        """
        self._target = dict(target)
        self._drop = re.compile("|".join(f"(?:{pattern})" for pattern in drop)) if drop else None
        self._restoring = restoring
        self.identity: Identity | None = None
        """None until somebody has asked the engine."""
        self.unidentified = asyncio.Event()
        """Set when somebody should ask the engine who it is (`loms.engines.identity`)."""
        self.asking = False
        """Somebody does."""
        self._shape: Shape | None = None
        self._raw_ids: Ids | None = None
        self._families: frozenset[str] = frozenset()
        self._plan: Plan | None = None
        self._watch = Watch()
        self._continuity = Continuity()
        self._held: dict[int, float] | None = None
        """Where the canonical counters stood when a probe began."""
        self._held_progress: Mapping[str, float] = {}

    # Translation

    def plan(self, shape: Shape, raw_ids: Ids, /) -> Plan:
        """The meaning of ``shape``; the same object until the shape or what is known of the engine changes."""
        if self._plan is not None and shape is self._shape and raw_ids is self._raw_ids:
            return self._plan
        meaning = self._read(shape)
        if self._plan is not None and self._plan.engine and meaning.engine != self._plan.engine:
            self.identity, self._watch = None, Watch()
            self._forget()
            meaning = self._read(shape)
        families = frozenset(shape.types)
        if meaning.engine and (self.identity is None or (self._families and families != self._families)):
            self.unidentified.set()  # other families: it may be another version
        self._shape, self._raw_ids, self._families = shape, raw_ids, families
        old = self._plan
        self._plan = Plan(meaning, raw_ids, self._kept(shape), self.look, self._fell, own_counters=_openai(meaning))
        if old is not None:
            self._continuity.turn(old, self._plan)
        self._watch.turn_to(shape, raw_ids, meaning.combinations)
        self._apply()
        return self._plan

    def identified(self, identity: Identity) -> None:
        """Take what the engine says of itself; if that is news, the next `plan` is a new one."""
        self.unidentified.clear()
        if identity != self.identity:
            self.identity = identity
            self._shape = None

    @property
    def settled(self) -> bool:
        """Whether it is known who the engine is, as far as it says so."""
        return self.identity is not None and not self.asking and not self.unidentified.is_set()

    @property
    def newest(self) -> Plan | None:
        """The plan of the last good scrape; it stays while scrapes fail."""
        return self._plan

    @property
    def engine(self) -> str:
        """The engine's name; empty before one was recognised."""
        return self._plan.engine if self._plan else ""

    def look(self, values: Floats) -> None:
        """Notice a restart of the engine: nothing is left to subtract from its new counters, and it may be another."""
        if self._watch.restarted(values):
            self._forget()
            self.unidentified.set()
        elif self._plan is not None and self._continuity.go_on(self._plan, values):
            self._apply()

    # Probes

    @property
    def openai(self) -> bool:
        """Whether this is an engine that answers ``POST /v1/completions``."""
        return self._plan is not None and _openai(self._plan.meaning) and bool(self._plan.meaning.combinations)

    @property
    def labels(self) -> Labels:
        """What every canonical series of the target carries."""
        return self._plan.labels if self._plan else ()

    @property
    def model(self) -> str:
        return self._plan.model if self._plan else ""

    def progress(self, exposition: Exposition) -> Mapping[str, float]:
        """Totals of the counters that only a working engine moves, by canonical name; empty for a shape not planned."""
        if self._plan is None or exposition.shape is not self._shape:
            return {}
        return self._watch.progress(exposition.values)

    def hold(self, before: Exposition) -> bool:
        """A probe begins after this exposition. False: the exposition is not of the shape planned last."""
        if self._plan is None or before.shape is not self._shape:
            return False
        self._held = self._plan.standing(before.values)
        self._held_progress = self.progress(before)
        self._apply()
        return True

    def settle(self, after: Exposition, used: Mapping[str, float], finish_reason: str, *, last: bool) -> Verdict:
        """Compare what moved since `hold` with what the probe ``used`` (canonical name → amount), and subtract it.

        ``exact``: only the probe moved the counters; every movement is subtracted, and the holding back ends.
        ``mixed``: users' requests did as well; the amounts in ``used`` are subtracted, and it ends.
        ``pending``: the counters do not show all of the probe yet, or something runs. When there will be no later look
        (``last``), it ends as ``mixed`` instead; what the counters do not show is not subtracted.
        """
        verdict, covered = self._judge(after, used)
        if verdict == "pending" and not last:
            return verdict
        if verdict == "exact":
            self._subtract_movement(after)
        elif covered:
            self._subtract_amounts(after, used, finish_reason)
        self.release()
        return "exact" if verdict == "exact" else "mixed"

    def release(self) -> None:
        """Hold nothing back any more."""
        self._held = None
        self._apply()

    def _judge(self, after: Exposition, used: Mapping[str, float]) -> tuple[Verdict, bool]:
        """The verdict, and whether every amount in ``used`` is to be seen in the movement."""
        now = self.progress(after)
        if self._held is None or OUTPUT not in now or not used:
            return "mixed", False
        moved = {name: total - self._held_progress.get(name, 0.0) for name, total in now.items()}
        expected = {PREEMPTED: 0.0, **used}
        differences = [moved[name] - amount for name, amount in expected.items() if name in moved]
        covered = all(difference >= 0 for difference in differences)
        if covered and any(differences):
            return "mixed", True
        return ("exact" if covered and not self._watch.busy(after.values) else "pending"), covered

    def _subtract_movement(self, after: Exposition) -> None:
        for series, total, _, stood in self._moved(after):
            self._continuity.offsets[series.id] = offset(total, stood)

    def _subtract_amounts(self, after: Exposition, used: Mapping[str, float], finish_reason: str) -> None:
        """Where it is clear to which series an amount belongs; with several engine ranks it may not be."""
        moved = self._moved(after)
        for metric, amount in used.items():
            name = CATALOGUE[metric].prometheus
            fitting = [
                (series, total, now - amount)
                for series, total, now, stood in moved
                if series.name == name
                and now - stood >= amount
                and dict(series.labels).get("finish_reason", finish_reason) == finish_reason
                and dict(series.labels).get("outcome") != "rejected"
            ]
            if len(fitting) == 1:
                series, total, left = fitting[0]
                self._continuity.offsets[series.id] = offset(total, left)

    def _moved(self, after: Exposition) -> list[tuple[Series, float, float, float]]:
        """Every cumulative series that has grown since `hold`: its sum, its value now, and its value then."""
        if self._held is None or self._plan is None or after.shape is not self._shape:
            return []
        totals, standing = self._plan.totals(after.values), self._plan.standing(after.values)
        found = [(s, totals[s.id], standing[s.id], self._held.get(s.id, 0.0)) for s in self._plan.counted]
        return [(series, total, now, stood) for series, total, now, stood in found if now > stood]

    # After a restart of LOMS

    @property
    def to_recall(self) -> tuple[int, ...]:
        """Ids whose newest stored samples `restore` wants; empty when there is nothing to wait for."""
        if not self._restoring or self._plan is None or not self._plan.cumulative:
            return ()
        raw = (raw for _, tellings in self._counters() for raw in _raw(tellings))
        return tuple(dict.fromkeys((*(s.id for s in self._plan.counted), *raw, *self._watch.ids)))

    def behind(self, last: Samples) -> Mapping[int, tuple[int, ...]]:
        """Time in ms → raw series of which `restore` also wants the samples of that time.

        Where LOMS ended while a probe was under way, the newest canonical samples are older than the newest raw ones.
        """
        wanted: dict[int, set[int]] = {}
        for series, tellings in self._counters():
            at_ms = last[series.id][0] if series.id in last else 0
            raw = _raw(tellings)
            if any(i in last and last[i][0] > at_ms > 0 for i in raw):
                wanted.setdefault(at_ms, set(self._watch.ids)).update(raw)
        return {at_ms: tuple(ids) for at_ms, ids in wanted.items()}

    def restore(self, last: Samples, earlier: Mapping[int, Samples] | None = None) -> None:
        """Take up the subtraction where the last process left it: the difference of raw and canonical in the store.

        ``last`` has the newest samples, ``earlier`` by time those that `behind` asked for; ids without one are missing.
        Only samples of one and the same scrape are compared: what users did between two scrapes is not a probe's. And
        nothing is taken up when the engine has been restarted since.
        """
        known = {at_ms: samples for at_ms, samples in (earlier or {}).items() if not self._restarted_since(samples)}
        if not self._restarted_since(last):
            for series, tellings in self._counters():
                if series.id not in last:
                    continue
                at_ms, canonical = last[series.id]
                samples = (last, known.get(at_ms, {}))
                found = [_total_of_time(at_ms, telling, *samples, whole=self._drop is None) for telling in tellings]
                total = max((value for value in found if value is not None), default=canonical)
                if total != canonical:
                    self._continuity.offsets[series.id] = offset(total, canonical)
        self._restoring = False
        self._apply()

    def _counters(self) -> Iterator[tuple[Series, Tellings]]:
        """Each cumulative series with the raw ones that it is made of, for each time that it is told."""
        if self._plan is not None:
            yield from ((series, self._plan.tellings(number)) for number, series in enumerate(self._plan.counted))

    def _restarted_since(self, samples: Samples) -> bool:
        return self._watch.restarted_since({i: value for i, (_, value) in samples.items()})

    def _read(self, shape: Shape) -> Meaning:
        name = recognise(frozenset(shape.types) | frozenset(shape.names))
        return read(name, engines[name], shape, self._target, self.identity) if name else Meaning()

    def _kept(self, shape: Shape) -> Ints | None:
        if self._drop is None:
            return None
        drop = self._drop
        kept = [i for i, name in enumerate(shape.names) if not drop.fullmatch(name)]
        return None if len(kept) == len(shape.names) else np.array(kept, dtype=np.int64)

    def _forget(self) -> None:
        """Drop all that was to be subtracted or gone on from, and a holding back that compares with the time before."""
        self._continuity.forget()
        self._held = None
        self._apply()

    def _fell(self, ids: Sequence[int]) -> None:
        """One series of raw counters has begun anew, which nothing else told."""
        for series_id in ids:
            self._continuity.offsets.pop(series_id, None)

    def _apply(self) -> None:
        if self._plan is not None:
            self._plan.leave_out(self._continuity.offsets, {} if self._restoring else self._held)


def _openai(meaning: Meaning) -> bool:
    return bool(meaning.engine) and engines[meaning.engine].openai


def _raw(tellings: Tellings) -> list[int]:
    """The raw ids in it."""
    return [raw for telling in tellings for summand in telling for raw in summand.ids]


def _total_of_time(at_ms: int, telling: frozenset[Summand], *samples: Samples, whole: bool) -> float | None:
    """The sum over the raw samples of one and the same time; None where one is missing.

    Where the ``whole`` exposition is stored, a raw series of which nothing is there had not shown itself yet.
    """
    total, known = 0.0, 0
    for summand in telling:
        values = [_of_time(at_ms, raw, *samples) for raw in summand.ids]
        if whole and not any(raw in each for raw in summand.ids for each in samples):
            continue
        if None in values:
            return None
        numbers = [value for value in values if value is not None]
        total += (numbers[0] / numbers[1] if summand.inverse else math.prod(numbers)) * summand.factor
        known += 1
    return total if known else None


def _of_time(at_ms: int, source: int, *samples: Samples) -> float | None:
    return next((each[source][1] for each in samples if source in each and each[source][0] == at_ms), None)
