"""A scraped world in memory, cut into the frames that a detector asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from loms.core.model import STALE_NAN, Finding, Frame, Labels, labels_of
from loms.detect.stall import Stall
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource

DATA = Path(__file__).parents[2] / "data"
ENGINE = {"job": "llm", "instance": "a:8000", "engine": "vllm", "model": "m", "deployment_zone": "z"}
SCRAPED = {"job": "llm", "instance": "a:8000"}
STALE = None
PROBE = ("loms_probe_success", "loms_probe_duration_seconds")
"""What the prober writes; a failed scrape does not end it, see ``tests/unit/collect/test_probe.py``."""


class World:
    """Samples by series, of which the detector's own queries are asked."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, Labels], list[tuple[int, float | None]]] = {}

    def add(self, seconds: float, name: str, labels: Mapping[str, str], value: float | None) -> None:
        self.series.setdefault((name, labels_of(labels)), []).append((round(seconds * 1000), value))

    def good(
        self, seconds: float, values: Mapping[str, float], engine: Mapping[str, str] = ENGINE, **more: float
    ) -> None:
        """A scrape that brought these canonical values."""
        labels = {k: engine[k] for k in ("job", "instance")}
        self.add(seconds, "up", labels, 1)
        for (name, found), samples in self.series.items():
            if name == "loms_scrape_failed" and labels.items() <= dict(found).items() and samples[-1][1] is not STALE:
                samples.append((round(seconds * 1000), STALE))
        for name, value in {**values, **more}.items():
            self.add(seconds, name, engine, value)

    def bad(self, seconds: float, reason: str, engine: Mapping[str, str] = ENGINE) -> None:
        """A scrape that failed: ``up`` 0, and everything the target had is stale."""
        labels = {k: engine[k] for k in ("job", "instance")}
        for (name, found), samples in self.series.items():
            mine = labels.items() <= dict(found).items() and name != "up" and name not in PROBE
            if mine and samples[-1][1] is not STALE and ("reason", reason) not in found:
                samples.append((round(seconds * 1000), STALE))
        self.add(seconds, "up", labels, 0)
        self.add(seconds, "loms_scrape_failed", {**labels, "reason": reason}, 1)

    def probe(self, sent: float, took: float, outcome: str, engine: Mapping[str, str] = ENGINE) -> None:
        """A synthetic request that ended ``took`` seconds after it was sent."""
        done = sent + took
        if outcome != "http":  # an API server that answers 401 says nothing about the engine
            self.add(done, "loms_probe_success", engine, float(outcome == "ok"))
            self.add(done, "loms_probe_duration_seconds", engine, took)

    def probe_outdated(self, seconds: float, engine: Mapping[str, str] = ENGINE) -> None:
        """The engine moved by itself: the verdict of the last probe ends."""
        for name in PROBE:
            self.add(seconds, name, engine, STALE)

    def stall_frames(
        self, seconds: float, config: Stall.Config, prefill: Mapping[str, float] | None = None
    ) -> dict[str, Frame]:
        at_ms, source = round(seconds * 1000), MemorySource()
        for (name, found), samples in self.series.items():
            times = np.array([at for at, _ in samples], dtype=np.int64)
            values = np.array([STALE_NAN if value is STALE else value for _, value in samples])
            past = times <= at_ms
            source.add(tuple(sorted((*found, ("__name__", name)))), times[past], values[past])
        engine, frames = Engine(source), {}
        for name, wanted in Stall().inputs(config).items():
            if name == "prefill":
                owners = tuple({"job": "llm", "instance": instance} for instance in prefill or {})
                values = np.array(list((prefill or {}).values()), dtype=np.float64).reshape(-1, 1)
                frames[name] = Frame(owners, np.array([at_ms]), values)
                continue
            start_ms, step_ms = at_ms - round(wanted.window_seconds * 1000), round(wanted.step_seconds * 1000)
            frames[name] = engine.range(wanted.expr, start_ms, at_ms, step_ms)
        return frames

    def stall(self, seconds: float, *, prefill: Mapping[str, float] | None = None, **config: float) -> list[Finding]:
        settings = Stall.Config(**config)
        return Stall().detect(self.stall_frames(seconds, settings, prefill), round(seconds * 1000), settings)


_CANONICAL = {
    "vllm:num_requests_running": "llm_engine_requests_running",
    "vllm:num_requests_waiting": "llm_engine_requests_waiting",
    "vllm:generation_tokens_total": "llm_engine_tokens_output_total",
    "vllm:prompt_tokens_total": "llm_engine_tokens_input_total",
    "vllm:iteration_tokens_total_count": "llm_engine_iteration_tokens_count",
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def recorded() -> Callable[[str], dict[str, float]]:
    """Canonical values of one recorded exposition of vLLM 0.32.0 around a SIGSTOP of its engine core."""

    def read(name: str) -> dict[str, float]:
        values: dict[str, float] = {}
        for line in (DATA / "vllm-0.32.0" / "hang" / f"{name}.txt").read_text().splitlines():
            found = re.fullmatch(r"(vllm:\w+)\{[^}]*\} (\S+)", line)
            if found and found[1] in _CANONICAL:
                values[_CANONICAL[found[1]]] = float(found[2])
            elif found and found[1] == "vllm:request_success_total":
                name_ = "llm_engine_requests_finished_total"
                values[name_] = values.get(name_, 0.0) + float(found[2])
        return values

    return read
