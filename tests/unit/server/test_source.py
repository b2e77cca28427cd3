"""Where the series of an expression are read when the rules look at somebody else's Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from loms.core.clock import ManualClock, SystemClock
from loms.core.model import SampleBatch
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.remote import RemotePrometheus
from loms.promql.source import Limits
from loms.rules.evaluate import Evaluator
from loms.rules.read import load_groups
from loms.server.source import Split, TwoPlaces, home_of

AT = 1_800_000_000_000


class Stored(RemotePrometheus):
    """The same calls, answered by an engine in memory."""

    def __init__(self, source: MemorySource) -> None:
        self.engine, self.asked = Engine(source), list[str]()

    @property
    def url(self) -> str:
        return "http://peer"

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int):  # type: ignore[no-untyped-def]
        self.asked.append(expr)
        return self.engine.range(expr, start_ms, end_ms, step_ms)

    def instant(self, expr: str, at_ms: int):  # type: ignore[no-untyped-def]
        self.asked.append(expr)
        return self.engine.instant(expr, at_ms)

    def query(self, expr: str, at_ms: int):  # type: ignore[no-untyped-def]
        self.asked.append(expr)
        return self.engine.query(expr, at_ms)

    def series(self, selectors, start_ms=None, end_ms=None):  # type: ignore[no-untyped-def]
        return self.engine.series(selectors, start_ms, end_ms)


def source_of(samples: Mapping[str, Mapping[str, str]], value: float) -> MemorySource:
    source = MemorySource()
    for name, labels in samples.items():
        own = tuple(sorted({**labels, "__name__": name}.items()))
        source.add(own, np.arange(AT - 60_000, AT + 1, 5000), np.full(13, value))
    return source


@pytest.mark.parametrize(
    ("expr", "home"),
    [
        ("up == 0", "remote"),
        ("1 + 1", "remote"),
        ('{__name__=~"up|loms_scrape_failed"}', "remote"),
        ("sum(increase(loms_dropped_samples_total[5m])) > 0", "own"),
        ('count(ALERTS{alertname="x"})', "own"),
        ('up == 0 unless on (job, instance) ALERTS{alertname=~"A|B"}', "both"),
    ],
)
def test_where_an_expression_is_evaluated(expr: str, home: str) -> None:
    assert home_of(expr) == home


def test_alerts_of_this_process_silence_what_is_asked_of_the_other() -> None:
    there = Stored(source_of({"up": {"job": "j", "instance": "a"}}, 0.0))
    here = source_of({"ALERTS": {"job": "j", "instance": "a", "alertname": "EngineDead", "alertstate": "firing"}}, 1.0)
    both = TwoPlaces(there, Engine(here), Engine(Split(there, here), Limits(), SystemClock()))
    assert len(both.instant("up == 0", AT).labels) == 1
    assert len(both.instant('up == 0 unless on (job, instance) ALERTS{alertname="EngineDead"}', AT).labels) == 0
    assert len(both.instant('up == 0 unless on (job, instance) ALERTS{alertname="Other"}', AT).labels) == 1
    assert len(both.instant("ALERTS", AT).labels) == 1
    frame = both.range("sum(up) or sum(ALERTS)", AT - 10_000, AT, 5000)
    assert frame.values.tolist() == [[0.0, 0.0, 0.0]]
    assert there.asked[0] == "up == 0"
    assert there.asked[1] == '{__name__="up"}[300000ms]'


def test_the_built_in_rules_find_a_dead_target_there() -> None:
    """With an engine's canonical series, as its recording rules give them, and no word of LOMS's own about scrapes."""
    labels = {"job": "j", "instance": "a", "engine": "vllm", "model": "m"}
    source = source_of({"llm_engine_requests_running": labels, "llm_engine_tokens_output_total": labels}, 5.0)
    up = tuple(sorted({"job": "j", "instance": "a", "__name__": "up"}.items()))
    source.add(up, np.arange(AT - 600_000, AT + 120_000, 5000), np.zeros(144))
    there, here, clock = Stored(source), MemorySource(), ManualClock(AT)
    written: list[SampleBatch] = []
    both = TwoPlaces(there, Engine(here), Engine(Split(there, here), Limits(), SystemClock()))
    evaluator = Evaluator(both, load_groups(()), clock, written.append)
    for at in (AT, AT + 65_000):
        results = evaluator.evaluate(at)
    assert [result.error for result in results if result.error] == []
    firing = {dict(alert.labels)["alertname"] for alert in evaluator.alerts() if alert.state == "firing"}
    assert firing == {"TargetDown"}
    assert written
