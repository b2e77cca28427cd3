from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from loms.core import config
from loms.core.clock import ManualClock
from loms.core.model import SampleBatch, Series
from loms.promql.values import VectorResult
from loms.server.runtime import Server

NOW_MS = 1_800_000_000_000
UP = Series.of("up", (("job", "a"),))


@contextmanager
def serving(path: Path, **environ: str) -> Iterator[Server]:
    """A server that writes when it is told to."""
    settings = {"LOMS__STORE__PATH": str(path), "LOMS__STORE__FLUSH_INTERVAL": "1h", **environ}
    server = Server(config.load(None, settings), ManualClock(NOW_MS), "http://127.0.0.1:8090")
    try:
        yield server
    finally:
        server.__exit__()


def sample(at_ms: int, value: float) -> SampleBatch:
    return SampleBatch(np.array([UP.id], np.uint64), np.array([at_ms]), np.array([value]), (UP,))


def value(server: Server, at_ms: int = NOW_MS) -> list[float]:
    found = server.engine.query("up", at_ms)
    assert isinstance(found, VectorResult)
    return [float(one) for one in found.values]


def test_what_was_accepted_is_answered_before_it_is_written(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.sink(sample(NOW_MS - 20_000, 1.0))
        assert server.writer.flush()
        assert value(server) == [1.0]
        server.sink(sample(NOW_MS - 10_000, 2.0))
        assert server.arrivals.accept(sample(NOW_MS - 5_000, 3.0)).accepted == 1
        assert value(server) == [3.0]
        assert value(server, NOW_MS - 10_000) == [2.0]


def test_without_memory_the_store_answers(tmp_path: Path) -> None:
    with serving(tmp_path, LOMS__QUERY__RECENT="0") as server:
        server.sink(sample(NOW_MS - 20_000, 1.0))
        assert server.writer.flush()
        server.sink(sample(NOW_MS - 10_000, 2.0))
        assert value(server) == [1.0]
        assert server.writer.flush()
        assert value(server) == [2.0]


def test_after_a_restart_the_store_answers_for_what_was_before(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.sink(sample(NOW_MS - 20_000, 1.0))
    with serving(tmp_path) as server:
        assert value(server) == [1.0]
        server.sink(sample(NOW_MS - 10_000, 2.0))
        assert value(server, NOW_MS - 15_000) == [1.0]
        assert server.writer.flush()
        assert value(server) == [2.0]
