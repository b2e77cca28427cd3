"""The stall detector is right both ways, whatever the rhythm of scrapes, evaluations and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.model import Frame
from loms.detect.stall import Stall

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


def kind(at: float, scrapes: Scrapes, events: np.ndarray, *, running: float = 3.0) -> str:
    """What the detector says at second ``at``."""
    config = Stall.Config()
    frames = {}
    for name, wanted in Stall().inputs(config).items():
        count = round(wanted.window_seconds / wanted.step_seconds) + 1
        grid = at - np.arange(count - 1, -1, -1) * wanted.step_seconds
        newest = np.searchsorted(scrapes.times, grid, "right") - 1
        seen = newest >= 0
        when, bad = scrapes.times[newest], scrapes.failed[newest]
        rows: list[tuple[dict[str, str], np.ndarray]] = []
        if name == "activity":
            total = np.searchsorted(events, when, "right").astype(float)
            rows = [
                ({"__name__": "llm_engine_iteration_tokens_count", **ENGINE}, np.where(bad, np.nan, total)),
                ({"__name__": "llm_engine_requests_running", **ENGINE}, np.where(bad, np.nan, running)),
            ]
        elif name == "contact":
            failure = {"__name__": "loms_scrape_failed", "reason": "timeout", **TARGET}
            rows = [({"__name__": "up", **TARGET}, 1.0 - bad), (failure, np.where(bad, 1.0, np.nan))]
        elif name == "scraped_at":
            rows = [(TARGET, when)]
        values = np.array([np.where(seen, row, np.nan) for _, row in rows]).reshape(len(rows), count)
        frames[name] = Frame(tuple(labels for labels, _ in rows), np.round(grid * 1000).astype(np.int64), values)
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
@given(rhythms(), steps(), st.lists(st.booleans(), min_size=3, max_size=9), st.lists(st.floats(20, END), max_size=8))
def test_scrapes_that_fail_now_and_then_condemn_nobody(times, events, pattern, moments) -> None:
    failed = np.resize(pattern, len(times)) & (np.arange(len(times)) % 2 == 1)  # never two in a row
    for at in moments:
        assert kind(at, Scrapes(times, failed), events) in ("busy", "long_prefill", "unknown")
