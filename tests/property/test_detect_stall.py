"""The stall detector is right both ways, whatever the rhythm of scrapes, evaluations and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.model import STALE_NAN, labels_of
from loms.detect.stall import Stall
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource

TARGET = {"job": "llm", "instance": "a:1"}
ENGINE = {**TARGET, "engine": "vllm", "model": "m"}
END = 260.0


@dataclass(frozen=True)
class Scrapes:
    """When the target was scraped, and which scrapes failed."""

    times: np.ndarray
    failed: np.ndarray


@st.composite
def rhythms(draw: st.DrawFn) -> np.ndarray:
    """Scrape times: every one to five seconds, each a little early or late."""
    interval = draw(st.floats(1, 5))
    times = np.arange(draw(st.floats(0, 5)), END, interval)
    jitter = draw(st.lists(st.floats(-0.05, 0.05), min_size=1, max_size=7))
    return times + interval * np.resize(jitter, len(times))


@st.composite
def steps(draw: st.DrawFn) -> np.ndarray:
    """Moments of progress, never more than 13.5 s apart."""
    gaps = draw(st.lists(st.floats(0.05, 13.5), min_size=1, max_size=12))
    times = np.cumsum(np.resize(gaps, int(END / np.mean(gaps) + 1) + len(gaps)))
    return np.concatenate(([0.0], times[times < END]))


def kind(at: float, scrapes: Scrapes, events: np.ndarray, *, running: float = 3.0, reason: str = "timeout") -> str:
    """What the detector says at second ``at``."""
    config, source = Stall.Config(), MemorySource()
    past = scrapes.times <= at
    times, failed = np.round(scrapes.times[past] * 1000).astype(np.int64), scrapes.failed[past]
    total = np.searchsorted(events, scrapes.times[past], "right").astype(float)
    ended = failed & ~np.concatenate(([False], failed[:-1]))  # stale markers, as the scrape loop writes them
    began = ~failed & np.concatenate(([False], failed[:-1]))

    def add(name: str, labels: dict[str, str], values: np.ndarray, there: np.ndarray, end: np.ndarray) -> None:
        key = labels_of({"__name__": name, **labels})
        source.add(key, times[there | end], np.where(end, STALE_NAN, values)[there | end])

    add("llm_engine_iteration_tokens_count", ENGINE, total, ~failed, ended)
    add("llm_engine_requests_running", ENGINE, np.full(len(times), running), ~failed, ended)
    add("up", TARGET, 1.0 - failed, failed | True, failed & False)
    add("loms_scrape_failed", {**TARGET, "reason": reason}, np.ones(len(times)), failed, began)
    at_ms, frames = round(at * 1000), {}
    for name, wanted in Stall().inputs(config).items():
        start_ms = at_ms - round(wanted.window_seconds * 1000)
        frames[name] = Engine(source).range(wanted.expr, start_ms, at_ms, round(wanted.step_seconds * 1000))
    found = Stall().detect(frames, round(at * 1000), config)
    return found[0].kind if found else "nothing"


def sound(times: np.ndarray) -> Scrapes:
    return Scrapes(times, np.zeros(len(times), dtype=bool))


@settings(max_examples=60, deadline=None)
@given(rhythms(), steps(), st.lists(st.floats(20, END), min_size=1, max_size=8))
def test_an_engine_that_moves_is_never_condemned(times, events, moments) -> None:
    for at in moments:
        assert kind(at, sound(times), events) in ("busy", "long_prefill")


@settings(max_examples=60, deadline=None)
@given(rhythms(), steps(), st.floats(30, 200), st.floats(0, 5))
def test_a_frozen_engine_is_found_within_half_a_minute(times, events, freeze, late) -> None:
    events = events[events <= freeze]
    evaluated = events[-1] + 25 + late  # at the latest, with an evaluation every five seconds
    assert kind(evaluated, sound(times), events) == "stalled"


@settings(max_examples=40, deadline=None)
@given(rhythms(), steps(), st.lists(st.floats(20, END), min_size=1, max_size=8))
def test_an_engine_with_nothing_to_do_is_idle(times, events, moments) -> None:
    events = events[: len(events) // 3 + 1]
    for at in moments:
        assert kind(at, sound(times), events, running=0.0) == "idle"


@settings(max_examples=60, deadline=None)
@given(
    rhythms(),
    steps(),
    st.lists(st.booleans(), min_size=3, max_size=9),
    st.lists(st.floats(20, END), max_size=8),
    st.sampled_from(["timeout", "refused", "connection", "late", "http"]),
)
def test_single_scrapes_that_fail_change_nothing(times, events, pattern, moments, reason) -> None:
    failed = np.resize(pattern, len(times)) & (np.arange(len(times)) % 2 == 1)  # never two in a row
    for at in moments:
        assert kind(at, Scrapes(times, failed), events, reason=reason) in ("busy", "long_prefill")


@settings(max_examples=30, deadline=None)
@given(rhythms(), steps(), st.lists(st.booleans(), min_size=3, max_size=9), st.floats(40, 200), st.floats(0, 5))
def test_a_frozen_engine_is_found_though_scrapes_fail_now_and_then(times, events, pattern, freeze, late) -> None:
    failed = np.resize(pattern, len(times)) & (np.arange(len(times)) % 2 == 1)
    events = events[events <= freeze]
    assert kind(events[-1] + 32 + late, Scrapes(times, failed), events) == "stalled"


@settings(max_examples=30, deadline=None)
@given(rhythms(), steps(), st.floats(40, 200), st.sampled_from([("timeout", "stalled"), ("refused", "dead")]))
def test_an_engine_that_answers_no_scrape_is_found_and_not_at_the_first_try(times, events, freeze, expected) -> None:
    reason, wanted = expected
    scrapes = Scrapes(times, times > freeze)
    first = times[times > freeze][0]
    assert kind(first + 0.1, scrapes, events, reason=reason) in ("busy", "long_prefill")
    assert kind(times[times <= freeze][-1] + 22, scrapes, events, reason=reason) == wanted
