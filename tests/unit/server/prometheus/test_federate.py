"""The federation endpoint; expected text is what Prometheus 2.42 writes for the same samples."""

from __future__ import annotations

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.server.prometheus import federate as prometheus_federate
from loms.server.prometheus.answer import Answering

NOW = 1_800_000_000_000


@pytest.fixture
def client() -> TestClient:
    source = MemorySource()
    times = np.array([NOW - 20_000, NOW - 10_000], np.int64)
    source.add(labels_of({"__name__": "up", "job": "a", "instance": "h:1"}), times, np.array([1.0, 0.5]))
    source.add(labels_of({"__name__": "up", "job": "ended"}), times, np.array([1.0, STALE_NAN]))
    source.add(labels_of({"__name__": "old"}), times - 300_000, np.ones(2))
    source.add(labels_of({"__name__": "depth", "q": 'a"b\\c\nd'}), times, np.array([1.0, np.nan]))
    source.add(labels_of({"__name__": "my.metric", "my.label": "x"}), times, np.array([1.0, 1e21]))
    app = FastAPI()
    clock = ManualClock(now_ms=NOW)
    app.include_router(prometheus_federate.router(Engine(source, clock=clock), clock, 300_000, Answering()))
    return TestClient(app)


def test_the_newest_samples_that_are_not_stale(client: TestClient) -> None:
    got = client.get("/federate", params={"match[]": ["up", '{__name__=~"depth|old|my.+"}', '{job="a"}']})
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert got.text == (
        "# TYPE depth untyped\n"
        'depth{instance="",q="a\\"b\\\\c\\nd"} NaN 1799999990000\n'
        '# TYPE "my.metric" untyped\n'
        '{"my.metric",instance="","my.label"="x"} 1000000000000000000000 1799999990000\n'
        "# TYPE up untyped\n"
        'up{instance="h:1",job="a"} 0.5 1799999990000\n'
    )


def test_without_selectors_there_is_nothing_and_wrong_ones_are_refused(client: TestClient) -> None:
    assert client.get("/federate").text == ""
    for selector in ("up{", '{job=~".*"}'):
        got = client.get("/federate", params={"match[]": selector})
        assert (got.status_code, got.headers["content-type"]) == (400, "text/plain; charset=utf-8")
