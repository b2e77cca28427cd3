"""Is an engine slower than it usually is, or slower than anyone should wait?

For each engine and each signal (``e2e``: whole request, ``ttft``: time to first token, ``itl``: inter-token latency)
the P99 of the last minute is compared with the P99s of the last hour, one a minute, the newest five left out so that
a slow rise does not become its own yardstick::

    threshold = median + sigmas · max(1.4826 · MAD, relative_floor · |median|, floor)

The median and the median absolute deviation hold still while up to half of the hour is bad; 1.4826 makes the MAD of
a normal distribution its standard deviation (Rousseeuw and Croux, Alternatives to the Median Absolute Deviation,
JASA 88 (1993) 1273-1283; Leys et al., Detecting outliers, J. Exp. Soc. Psychol. 49 (2013) 764-766). Latencies read
from histogram buckets are often the same number for an hour, their MAD is then 0, and the floors decide.

A minute counts only when at least ``observations_min`` values fell into it, a baseline only when it has ``points_min``
such minutes, and the hard limit only after ``warm_up_points`` of them: a cold start is slow by nature. With less there
is no finding, and neither is there one for an engine at its usual speed.

The hard limit is 2.5 s. It applies to the time to first token, which is what a person waits before anything
happens. It does not apply to whole requests unless configured (``hard_limit_seconds: {e2e: 2.5}``): 500 tokens at a
healthy 20 ms each take 10 s, and how many tokens are asked for is the client's choice, so that a fixed limit would
alarm on long answers; there the baseline judges alone. A gap between tokens is far below it in any case.

Kinds: ``above_hard_limit``, ``above_baseline`` (severity ``warning``). Each finding has the label ``signal``; its
``value`` is the P99 in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from loms.core.model import Bools, Evidence, Finding, Floats, Frame, Labels, labels_of
from loms.core.settings import Section
from loms.core.units import Duration
from loms.detect.detector import Input, detectors

Signal = Literal["e2e", "ttft", "itl"]
FAMILIES: Mapping[Signal, str] = {
    "e2e": "gen_ai_server_request_duration_seconds",
    "ttft": "gen_ai_server_time_to_first_token_seconds",
    "itl": "llm_engine_inter_token_latency_seconds",
}
_WORDS: Mapping[Signal, str] = {"e2e": "a whole request", "ttft": "the first token", "itl": "the next token"}
_APART = "engine_index, granularity"
"""What is summed over; every other label, those of the job included, names the subject."""
_MAD_TO_SIGMA = 1.4826


@detectors.register("latency_baseline")
class LatencyBaseline:
    """P99 latencies against their own last hour and a hard limit; see the module's text."""

    name: ClassVar[str] = "latency_baseline"
    kinds: ClassVar[tuple[str, ...]] = ("above_hard_limit", "above_baseline")
    reports_state: ClassVar[bool] = False

    class Config(Section):
        type: Literal["latency_baseline"] = "latency_baseline"
        signals: tuple[Signal, ...] = ("e2e", "ttft", "itl")
        quantile: float = Field(default=0.99, gt=0, lt=1)
        window_seconds: Duration = Field(default=60.0, gt=0)
        baseline_seconds: Duration = Field(default=3600.0, gt=0)
        exclude_newest_seconds: Duration = 300.0
        sigmas: float = Field(default=3.0, gt=0)
        relative_floor: float = Field(default=0.1, ge=0)
        """Of the median; with three sigmas a rise below 30 % is never reported."""
        floor_seconds: Mapping[Signal, Duration] = {"e2e": 0.25, "ttft": 0.1, "itl": 0.01}
        hard_limit_seconds: Mapping[Signal, Duration] = {"ttft": 2.5}
        observations_min: int = Field(default=20, ge=1)
        points_min: int = Field(default=15, ge=2)
        warm_up_points: int = Field(default=5, ge=0)

    def inputs(self, config: Config) -> Mapping[str, Input]:
        found: dict[str, Input] = {}
        for signal in config.signals:
            expr = f"{_quantile(signal, config)} and {_enough(signal, config)}"
            found[f"{signal}_now"] = Input(expr, 0, min(15.0, config.window_seconds))
            found[f"{signal}_history"] = Input(expr, config.baseline_seconds, config.window_seconds)
        return found

    def detect(self, frames: Mapping[str, Frame], at_ms: int, config: Config) -> list[Finding]:
        return [
            finding
            for signal in config.signals
            for finding in self._of_signal(signal, frames[f"{signal}_now"], frames[f"{signal}_history"], at_ms, config)
        ]

    def _of_signal(self, signal: Signal, now: Frame, history: Frame, at_ms: int, config: Config) -> list[Finding]:
        if now.values.size == 0:
            return []
        past = _aligned(now, history, history.times_ms <= at_ms - config.exclude_newest_seconds * 1000)
        points = np.sum(~np.isnan(past), axis=1)
        centre, scale = _robust(past, points >= max(1, config.points_min))
        floor = config.floor_seconds.get(signal, 0.0)
        threshold = centre + config.sigmas * np.maximum(
            scale, np.maximum(config.relative_floor * np.abs(centre), floor)
        )
        limit = config.hard_limit_seconds.get(signal)
        ever = np.sum(~np.isnan(_aligned(now, history, np.ones(len(history.times_ms), dtype=np.bool_))), axis=1)
        findings = []
        for i, value in enumerate(now.last.tolist()):
            labels = labels_of({**{k: v for k, v in now.labels[i].items() if k != "__name__"}, "signal": signal})
            if limit is not None and value > limit and ever[i] >= config.warm_up_points:
                bound, kind = limit, "above_hard_limit"
            elif value > threshold[i]:
                bound, kind = float(threshold[i]), "above_baseline"
            else:
                continue
            findings.append(
                self._finding(signal, kind, labels, value, bound, (float(centre[i]), int(points[i])), config)
            )
        return findings

    def _finding(
        self,
        signal: Signal,
        kind: str,
        labels: Labels,
        value: float,
        bound: float,
        usual: tuple[float, int],
        config: Config,
    ) -> Finding:
        percent = f"P{100 * config.quantile:g}"
        median, points = usual
        where = ", ".join(f'{k}="{v}"' for k, v in labels if k in ("instance", "job"))
        family = FAMILIES[signal]
        drawn = _quantile(signal, config, where)
        compared = (
            f"hard limit {_seconds(bound)}" if kind == "above_hard_limit" else f"expected at most {_seconds(bound)}"
        )
        evidence = [Evidence(f"{percent} is {_seconds(value)}, {compared}", drawn, value, "seconds")]
        if not np.isnan(median):
            text = f"the median of {points} earlier minutes is {_seconds(median)}"
            evidence.append(Evidence(text, drawn, median, "seconds"))
        evidence.append(Evidence("how many were measured", f"sum(increase({family}_count{{{where}}}[1m]))"))
        return Finding(
            detector=self.name,
            kind=kind,
            severity="warning",
            labels=labels,
            summary=f"{percent} of the wait for {_WORDS[signal]} is {_seconds(value)}, {compared}",
            value=value,
            evidence=tuple(evidence),
        )


def _quantile(signal: Signal, config: LatencyBaseline.Config, where: str = "") -> str:
    selector = f"{FAMILIES[signal]}_bucket{{{where}}}" if where else f"{FAMILIES[signal]}_bucket"
    return f"histogram_quantile({config.quantile}, sum without ({_APART}) (rate({selector}[{_range(config)}])))"


def _enough(signal: Signal, config: LatencyBaseline.Config) -> str:
    return f"sum without ({_APART}) (increase({FAMILIES[signal]}_count[{_range(config)}])) >= {config.observations_min}"


def _range(config: LatencyBaseline.Config) -> str:
    return f"{round(config.window_seconds * 1000)}ms"


def _aligned(now: Frame, history: Frame, columns: Bools) -> Floats:
    """History in the order of the series in ``now``, NaN where it has none. Shape [series of now, chosen columns]."""
    rows = {labels_of(row): i for i, row in enumerate(history.labels)}
    out = np.full((len(now.labels), int(columns.sum())), np.nan)
    for i, row in enumerate(now.labels):
        found = rows.get(labels_of(row))
        if found is not None:
            out[i] = history.values[found, columns]
    return out


def _robust(past: Floats, enough: Bools) -> tuple[Floats, Floats]:
    """Median and scaled MAD of each row, NaN where there is not ``enough``. Shapes [series]."""
    centre, scale = np.full(len(past), np.nan), np.full(len(past), np.nan)
    if enough.any():
        centre[enough] = np.nanmedian(past[enough], axis=1)
        scale[enough] = _MAD_TO_SIGMA * np.nanmedian(np.abs(past[enough] - centre[enough, None]), axis=1)
    return centre, scale


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
