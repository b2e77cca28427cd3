"""Engines whose canonical series others write: recorded by a Prometheus's rules, rarer and later than its scrapes, or
made here of what is pushed, some seconds after it. In time that only the test lets pass.

Whatever the phases of scrapes, rules and evaluations: a working engine is never condemned, a frozen one is found, and
nothing but its work acquits it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from loms.core.model import Labels, labels_of
from loms.detect.stall import Stall
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource

EVALUATED_SECONDS = 3.0
FREEZE, THAW, END = 150.0, 260.0, 330.0
TARGET = {"job": "llm", "instance": "a:8000"}
ENGINE = {**TARGET, "engine": "vllm", "model": "m"}
Sample = tuple[float, Labels, float, float]
"""When it can be read, series, timestamp, value."""


@dataclass(frozen=True)
class Case:
    scraped: float
    recorded: float = 0.0
    """Seconds between evaluations of the recording rules; 0: the engine's metrics are pushed."""
    late: float = 0.4
    """Seconds until canonical samples can be read, at most."""


def counted(at: float) -> float:
    """Tokens at 20 a second."""
    return 20 * (min(at, FREEZE) + max(0.0, at - THAW))


def world(case: Case, rng: random.Random) -> Iterator[Sample]:
    def series(name: str, own: dict[str, str]) -> Labels:
        return labels_of({**own, "__name__": name})

    def canonical(at: float, scrape: float) -> Iterator[Sample]:
        readable = at + (case.late if case.recorded else rng.uniform(case.late / 3, case.late))
        yield readable, series("llm_engine_tokens_output_total", ENGINE), at, counted(scrape)
        yield readable, series("llm_engine_requests_running", ENGINE), at, 4.0
        yield readable, series("llm_engine_requests_waiting", ENGINE), at, 0.0

    scrapes = np.arange(rng.uniform(0, case.scraped), END, case.scraped).tolist()
    for at in scrapes:
        yield at + 0.05, series("up", TARGET), at, 1.0
        if not case.recorded:
            yield from canonical(at, at)
    for at in np.arange(case.scraped + rng.uniform(0, case.recorded), END, case.recorded) if case.recorded else ():
        yield from canonical(at, max(scrape for scrape in scrapes if scrape + 0.05 <= at))


def watched(case: Case, seed: int) -> list[tuple[float, str]]:
    """What the detector says at each evaluation."""
    rng, source, seen = random.Random(seed), MemorySource(), []
    stall, config, engine = Stall(), Stall.Config(), Engine(source)
    coming = sorted(world(case, rng), reverse=True)
    for at in np.arange(rng.uniform(0, EVALUATED_SECONDS), END, EVALUATED_SECONDS).tolist():
        while coming and coming[-1][0] <= at:
            _, labels, time, value = coming.pop()
            source.add(labels, np.array([round(time * 1000)]), np.array([value]))
        at_ms, frames = round(at * 1000), {}
        for name, wanted in stall.inputs(config).items():
            start_ms, step_ms = at_ms - round(wanted.window_seconds * 1000), round(wanted.step_seconds * 1000)
            expr = "vector(0) < 0" if name == "prefill" else wanted.expr
            frames[name] = engine.range(expr, start_ms, at_ms, step_ms)
        seen += [(at, finding.kind) for finding in stall.detect(frames, at_ms, config)]
    return seen


CASES = [
    Case(scraped=5, recorded=15),
    Case(scraped=5, recorded=5),
    Case(scraped=1, recorded=15),
    Case(scraped=15, recorded=15),
    Case(scraped=10, recorded=30, late=2),
    Case(scraped=2.5, recorded=20),
    Case(scraped=5, late=10),
    Case(scraped=15, late=10),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_frozen_engine_is_found_once(case: Case, seed: int) -> None:
    seen = watched(case, seed)
    rarest = max(case.scraped, case.recorded)
    begun = 2 * rarest + case.scraped + case.late + EVALUATED_SECONDS
    assert {kind for at, kind in seen if begun <= at < FREEZE} == {"busy"}
    worst = case.scraped + case.recorded + 15 + rarest + case.late + EVALUATED_SECONDS
    found = next(at for at, kind in seen if kind == "stalled")
    assert FREEZE + 15 - case.scraped < found <= FREEZE + worst
    assert {kind for at, kind in seen if found <= at < THAW} == {"stalled"}
    over = next(at for at, kind in seen if at > found and kind != "stalled")
    assert over - THAW <= case.scraped + rarest + case.late + EVALUATED_SECONDS
    assert {kind for at, kind in seen if at >= over} == {"busy"}
