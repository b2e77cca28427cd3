"""A scraped world in memory, cut into the frames that a detector asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from loms.core.model import Finding, Frame, Labels, labels_of
from loms.detect.stall import Stall

DATA = Path(__file__).parents[2] / "data"
LOOKBACK_MS = 300_000
ENGINE = {"job": "llm", "instance": "a:8000", "engine": "vllm", "model": "m", "deployment_zone": "z"}
SCRAPED = {"job": "llm", "instance": "a:8000"}
STALE = None


class World:
    """Samples by series; `frame` reads them as Prometheus does: the newest one within five minutes, unless stale."""

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
            mine = labels.items() <= dict(found).items() and not name.startswith(("up", "loms_probe"))
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
        for name in ("loms_probe_success", "loms_probe_duration_seconds"):
            self.add(seconds, name, engine, STALE)

    def frame(self, names: str, at_ms: int, window: float, step: float, *, timestamps: bool = False) -> Frame:
        count = round(window / step) + 1
        times = at_ms - np.arange(count - 1, -1, -1, dtype=np.int64) * round(step * 1000)
        labels, rows = [], []
        for (name, found), samples in self.series.items():
            if re.fullmatch(names, name):
                row = [self._at(samples, int(t), timestamps) for t in times]
                if not np.all(np.isnan(row)):
                    rows.append(row)
                    labels.append(dict(found) if timestamps else {"__name__": name, **dict(found)})
        return Frame(tuple(labels), times, np.array(rows, dtype=np.float64).reshape(len(rows), count))

    @staticmethod
    def _at(samples: list[tuple[int, float | None]], at_ms: int, timestamps: bool) -> float:
        past = [sample for sample in samples if sample[0] <= at_ms]
        if not past or past[-1][1] is STALE or past[-1][0] <= at_ms - LOOKBACK_MS:
            return np.nan
        return past[-1][0] / 1000 if timestamps else past[-1][1]

    def stall_frames(
        self, seconds: float, config: Stall.Config, prefill: Mapping[str, float] | None = None
    ) -> dict[str, Frame]:
        at_ms = round(seconds * 1000)
        frames = {}
        for name, wanted in Stall().inputs(config).items():
            if name == "prefill":
                owners = tuple({"job": "llm", "instance": instance} for instance in prefill or {})
                values = np.array(list((prefill or {}).values()), dtype=np.float64).reshape(-1, 1)
                frames[name] = Frame(owners, np.array([at_ms]), values)
                continue
            stamps = re.fullmatch(r"timestamp\((\w+)\)", wanted.expr)
            names = stamps[1] if stamps else re.search(r'__name__=~"([^"]+)"', wanted.expr)[1]
            frames[name] = self.frame(names, at_ms, wanted.window_seconds, wanted.step_seconds, timestamps=bool(stamps))
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
