"""Is the engine idle, busy, in a long prefill, stalled or dead?

A frozen engine core leaves ``/health`` at 200 and ``/metrics`` answering with the old numbers. What it cannot do is
make progress, so progress is what this detector looks at:

======================  ==============================================================================================
state                   when
======================  ==============================================================================================
``idle``                nothing runs or waits, and no synthetic request has failed since the last progress
``busy``                requests run or wait, and a counter moved a moment ago, however slowly the queue drains
``long_prefill``        requests run or wait, no counter has moved for a while, and the allowance is not used up
``stalled``             requests run or wait and the allowance is used up; or a synthetic request failed and no
                        counter has moved since it was sent (with nothing running: an engine frozen while idle shows
                        exactly that); or scrapes are connected and get no answer, two at least and one after the
                        other, the newest one the allowance or more after the last good one
``dead``                connections are refused or break, ``dead_after_scrapes`` times in a row
``unknown``             the data do not tell: never scraped well, scrapes stopped, unreadable metrics, no way to the
                        target (name, route), or LOMS itself was too late to see an answer
======================  ==============================================================================================

Progress is any movement of ``loms_engine_progress_total``, the sum of the counters of tokens, scheduler steps and
finished requests (`loms.engines.watch`), or, where a remote Prometheus scrapes, of those counters; a reset (restart)
included. A synthetic request that was answered counts as a sign of life too. Time without progress runs from the
newest of: the last progress, the last sign of life, and the moment when requests began to run or wait, so that the
first request after an idle night is not held against the engine. A single failed scrape says nothing, and the engine is
judged by the one before.

The allowance is ``stall_after_seconds``, raised to twice the engine's own P99 prefill time of the last hour, at most
``stall_after_max_seconds``. The P99 counts from ``prefill_requests_min`` requests on; with fewer it is their maximum,
and one earlier freeze would decide it. With scrapes every 5 s and evaluations every 3 s a stall under load is known
5 + 15 + 3 s after the last progress at the latest, one while idle (synthetic request every 15 s, deadline 8 s) after
15 + 8 + 3 s.

Severity is ``critical`` for stalled and dead, else ``none``. ``value`` is the number of seconds without progress.

The method is LOMS's own; that running counts and health checks say nothing about a frozen engine core was recorded on
vLLM 0.32.0 (``tests/data/vllm-0.32.0/hang``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from loms.core.clock import iso_utc
from loms.core.model import Evidence, Finding, Frame, Severity, labels_of
from loms.core.settings import Section
from loms.core.units import Duration
from loms.detect.detector import UNKNOWN, Input, detectors
from loms.detect.engine_view import (
    PROGRESS,
    RUNNING,
    WAITING,
    Contact,
    EngineView,
    engine_views,
    target_labels,
    target_of,
)

State = Literal["idle", "busy", "long_prefill", "stalled", "dead", "unknown"]
_WORST: tuple[State, ...] = ("dead", "stalled", "unknown", "long_prefill", "busy", "idle")
"""Worst first."""
_BY = "job, instance"
_PREFILL = "llm_engine_request_prefill_duration_seconds"


class _Verdict(NamedTuple):
    state: State
    seconds: float
    """Without progress; NaN when the data do not tell."""
    summary: str


@detectors.register("stall")
class Stall:
    """Tells a frozen or dead engine from an idle, a busy and a patient one; see the module's text."""

    name: ClassVar[str] = "stall"
    kinds: ClassVar[tuple[str, ...]] = _WORST
    reports_state: ClassVar[bool] = True

    class Config(Section):
        type: Literal["stall"] = "stall"
        stall_after_seconds: Duration = Field(default=15.0, gt=0)
        stall_after_max_seconds: Duration = Field(default=120.0, gt=0)
        busy_within_seconds: Duration = Field(default=5.0, gt=0)
        """Progress this recent is *busy*; two scrape intervals where that is longer."""
        dead_after_scrapes: int = Field(default=2, ge=1)
        prefill_quantile: float = Field(default=0.99, gt=0, le=1)
        prefill_requests_min: int = Field(default=100, ge=1)
        step_seconds: Duration = Field(default=2.0, gt=0)

    def inputs(self, config: Config) -> Mapping[str, Input]:
        window, step = max(config.stall_after_max_seconds, config.stall_after_seconds) + 60, config.step_seconds
        enough = f"sum by ({_BY}) (increase({_PREFILL}_count[1h])) >= {config.prefill_requests_min}"
        buckets = f"sum by ({_BY}, le) (rate({_PREFILL}_bucket[1h]))"
        each = f"[{round(step * 1000)}ms]"
        grid = {  # how scrapes went comes first: a scrape may be stored while this is asked for
            "scraped_at": "timestamp(up)",
            "measured_at": f"max by ({_BY}) (timestamp({RUNNING}) or timestamp({WAITING}))",
            "contact": _named("up", "loms_scrape_failed"),
            "answered": f"max_over_time(up{each})",
            "failures": f"count_over_time(loms_scrape_failed{each})",
            "activity": f"last_over_time({_named(*PROGRESS, RUNNING, WAITING)}{each})",
            "least_running": f"min_over_time({RUNNING}{each})",
            "least_waiting": f"min_over_time({WAITING}{each})",
            "probe": _named("loms_probe_success", "loms_probe_duration_seconds"),
            "probed_at": "timestamp(loms_probe_success)",
        }
        return {name: Input(expr, window, step) for name, expr in grid.items()} | {
            "prefill": Input(f"histogram_quantile({config.prefill_quantile}, {buckets}) and {enough}", 0, 120)
        }

    def detect(self, frames: Mapping[str, Frame], at_ms: int, config: Config) -> list[Finding]:
        """One finding for every engine: of its ranks the worst one speaks."""
        findings, own = [], target_labels(frames)
        for labels, ranks in groupby(engine_views(frames), key=lambda view: view.labels):
            judged = [(view, _judge(view, at_ms, config)) for view in ranks]
            view, verdict = min(judged, key=lambda pair: (_WORST.index(pair[1].state), -_finite(pair[1].seconds)))
            severity: Severity = "critical" if verdict.state in ("stalled", "dead") else "none"
            rank = f" (rank {view.rank})" if view.ranks > 1 and severity != "none" else ""
            findings.append(
                Finding(
                    detector=self.name,
                    kind=verdict.state,
                    severity=severity,
                    labels=labels_of({**own.get(target_of(dict(labels)), {}), **dict(labels)}),
                    summary=verdict.summary + rank,
                    value=verdict.seconds,
                    evidence=tuple(_evidence(view)),
                )
            )
        return findings


def _judge(view: EngineView, at_ms: int, config: Stall.Config) -> _Verdict:
    contact = view.contact
    if contact is None:
        return _Verdict(UNKNOWN, math.nan, "there is no record of scrapes of this target")
    age = (at_ms - contact.last_ms) / 1000
    if age > max(30.0, 3 * contact.interval_seconds):
        return _Verdict(UNKNOWN, math.nan, f"it was last scraped {_words(age)} ago")
    verdict = None if contact.up else _judge_silent(view, contact, at_ms, config)
    if verdict and (verdict.state != UNKNOWN or contact.failures > 1 or not view.current):
        return verdict
    if not view.current or view.last_ms is None:
        return _Verdict(UNKNOWN, math.nan, "it answers, but none of the metrics that show progress")
    return _judge_answering(view, contact, view.last_ms, config)


def _judge_silent(view: EngineView, contact: Contact, at_ms: int, config: Stall.Config) -> _Verdict:
    """Scrapes fail. The window's length is a lower bound of the silence when no scrape in it was good."""
    bound = max(config.stall_after_max_seconds, config.stall_after_seconds) + 60
    tried = f"{contact.failures} scrape{'s' if contact.failures > 1 else ''}"
    since = bound if contact.good_ms is None else (at_ms - contact.good_ms) / 1000
    # Only what was tried counts: between the newest attempt and now LOMS may have been away itself.
    silence = bound if contact.good_ms is None else (contact.last_ms - contact.good_ms) / 1000
    if not view.known:
        return _Verdict(UNKNOWN, math.nan, f"it has not answered yet ({contact.reason or 'scrapes fail'})")
    if contact.refused >= config.dead_after_scrapes:
        how = "connections are refused" if contact.reason == "refused" else "connections break"
        return _Verdict(
            "dead", since, f"{how}: {tried} in {'the last ' if contact.good_ms is None else ''}{_words(since)}"
        )
    granted = _allowance(view, config) if contact.unanswered >= 2 else config.stall_after_max_seconds
    if contact.unanswered + contact.unconnected >= 2 and silence + _jitter(contact) >= granted:
        least = "at least " if contact.good_ms is None else ""
        return _Verdict("stalled", silence, f"no scrape has been answered for {least}{_words(silence)}")
    return _Verdict(UNKNOWN, silence, f"{tried} failed ({contact.reason or 'reason not recorded'})")


def _judge_answering(view: EngineView, contact: Contact, now_ms: int, config: Stall.Config) -> _Verdict:
    """Scrapes succeed. ``now_ms`` is the newest one's timestamp."""
    probe, load = view.probe, _load_words(view)
    signs = [view.first_ms, view.progress_ms, view.loaded_ms]
    if probe and (view.ranks == 1 or view.loaded_ms is None):
        signs.append(probe.answered_ms)
    since_ms = max(ms for ms in signs if ms is not None)
    quiet = max(0.0, (now_ms - since_ms) / 1000)
    # What began before the oldest scrape in the window may have gone on for any time.
    silent = f"no progress for {'at least ' if since_ms == view.first_ms else ''}{_words(quiet)}"
    unmoved = probe is not None and probe.failed and (view.progress_ms or 0) <= probe.sent_ms < now_ms
    # Requests that come to an engine already found frozen show as load, and do not start its allowance anew.
    if probe and unmoved and (view.loaded_ms is None or view.loaded_ms > (probe.failing_ms or probe.done_ms)):
        waited = _words((probe.done_ms - probe.sent_ms) / 1000)
        return _Verdict(
            "stalled",
            quiet,
            f"{silent}: a synthetic request for one token failed after {waited}, though "
            f"{load or 'nothing runs or waits'}; /health may still say 200",
        )
    if view.loaded_ms is not None:
        if quiet + _jitter(contact) >= _allowance(view, config):
            return _Verdict("stalled", quiet, f"{silent} while {load}; /health may still say 200")
        if quiet > max(config.busy_within_seconds, 2 * contact.interval_seconds):
            return _Verdict("long_prefill", quiet, f"{silent} while {load}; within its allowance")
        return _Verdict("busy", quiet, f"{load}, progress {_words(quiet)} ago")
    return _Verdict("idle", quiet, "nothing to do")


def _jitter(contact: Contact) -> float:
    """Three scrapes of 5 s are 14.99 s as often as 15.01 s."""
    return min(1.0, contact.interval_seconds / 10)


def _allowance(view: EngineView, config: Stall.Config) -> float:
    """Seconds without progress that are granted to this engine."""
    own = 2 * (view.prefill_seconds or 0.0)
    return max(config.stall_after_seconds, min(own, config.stall_after_max_seconds))


def _evidence(view: EngineView) -> Iterable[Evidence]:
    where = ", ".join(f'{k}="{v}"' for k, v in view.labels if k in ("instance", "job"))
    progress = f"sum by (__name__) ({_named(*PROGRESS, where=where)})"
    if view.progress_ms is not None:
        text = f"last progress at {iso_utc(view.progress_ms)}"
        yield Evidence(text, progress, view.progress_ms / 1000, "timestamp")
    elif view.first_ms is not None:
        yield Evidence(f"no counter has moved since {iso_utc(view.first_ms)} at the latest", progress)
    for name, count, verb in ((RUNNING, view.running, "run"), (WAITING, view.waiting, "wait")):
        if count is not None:
            yield Evidence(
                f"{_count(count)} {verb}{'s' if count == 1 else ''}", f"{name}{{{where}}}", count, "requests"
            )
    if view.probe:
        took = (view.probe.done_ms - view.probe.sent_ms) / 1000
        said = (
            "failed"
            if view.probe.failed
            else "was answered"
            if view.probe.done_ms == view.probe.answered_ms
            else "ended"
        )
        text = f"the synthetic request of {iso_utc(view.probe.sent_ms)} {said} after {_words(took)}"
        yield Evidence(text, f"loms_probe_success{{{where}}}", float(not view.probe.failed))
    if view.contact:
        state = "was answered" if view.contact.up else f"failed ({view.contact.reason or 'reason not recorded'})"
        text = f"the scrape of {iso_utc(view.contact.last_ms)} {state}"
        yield Evidence(text, f"up{{{where}}}", float(view.contact.up))


def _load_words(view: EngineView) -> str:
    parts = [(view.running or 0, "run"), (view.waiting or 0, "wait")]
    return " and ".join(f"{_count(n)} {verb}{'s' if n == 1 else ''}" for n, verb in parts if n > 0)


def _count(number: float) -> str:
    return f"{number:.0f} request{'' if number == 1 else 's'}"


def _words(seconds: float) -> str:
    """17 s, 4 min 10 s, 3 h 5 min."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _named(*names: str, where: str = "") -> str:
    """A selector of several metrics at once."""
    return f'{{__name__=~"{"|".join(names)}"{", " if where else ""}{where}}}'


def _finite(seconds: float) -> float:
    return 0.0 if math.isnan(seconds) else seconds
