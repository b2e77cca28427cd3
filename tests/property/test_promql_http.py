"""Whatever is asked over HTTP, the answer is a value or an error that tells what is wrong with the question."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from promql.embedded import Embedded
from starlette.testclient import TestClient

from loms.core.clock import ManualClock
from loms.core.model import Series
from loms.promql.engine import Engine
from loms.server.prometheus.answer import Answering
from loms.server.prometheus.routes import router

WORDS = (
    *(
        "m_total",
        "sum(",
        "rate(",
        "m_total[5m]",
        "[5m]",
        "[9e9s:]",
        "[290y:1y]",
        "offset",
        "@",
        "start()",
        "-",
        "+",
        "/",
    ),
    *(
        "1",
        "1e999",
        "0x" + "f" * 40,
        "9" * 400,
        "9" * 400 + "d",
        "290y",
        "1e18",
        "9e18",
        "NaN",
        "Inf",
        ")",
        "(",
        ",",
        "{",
    ),
    *(
        '"\\xff"',
        '"("',
        '"$10${1}$"',
        "label_replace(m_total,",
        '"i"',
        "}",
        'i=~"',
        "[[",
        '"',
        "atan2",
        "by (i)",
        "topk(",
    ),
    *("timestamp(", "year(", "vector(", "time()", "absent(", "limit_ratio(", "quantile_over_time(", "info(", "\0", "é"),
    *(
        "label_join(m_total,",
        "predict_linear(m_total[5m],",
        "last_over_time(m_total",
        "or",
        "bool",
        "==",
        "count_values(",
    ),
)
TIMES = (
    "0",
    "1030",
    "-9e9",
    "9.2e9",
    "1e400",
    "-1e400",
    "NaN",
    "1970-01-01T00:17:10Z",
    "x",
    "0001-01-01T00:00:00+14:00",
)
LENGTHS = ("", "0", "-5", "1", "15s", "1e18", "1e400", "9" * 400 + "d", "1e9", "290y", "e", "NaN")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    embedded, clock = Embedded(tmp_path_factory.mktemp("http")), ManualClock(now_ms=1_060_000)
    times = np.arange(1_000_000, 1_060_001, 15_000, dtype=np.int64)
    embedded.write((Series.of("m_total", (("i", str(i)),)), times, np.arange(5.0) * i) for i in range(3))
    app = FastAPI()
    app.include_router(router(Engine(embedded.source, clock=clock), clock, Answering()))
    yield TestClient(app, raise_server_exceptions=False)
    embedded.close()


texts = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS), min_size=1, max_size=7).map(" ".join))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts, st.sampled_from(TIMES), st.sampled_from(TIMES), *(st.sampled_from(LENGTHS),) * 3)
@example("m_total @ 1795984980037", "1030", "1030", "15s", "-5", "")
@example("m_total", "1030", "1030", "15s", "1e9", "")
@example("max_over_time(m_total[290y]) offset -200y", "9.2e9", "9.2e9", "15s", "1e9", "")
@example("m_total offset 290y", "-9e9", "9.2e9", "290y", "290y", "")
@example("sum(m_total offset -290y)", "-9e9", "9.2e9", "290y", "290y", "")
@example("last_over_time(m_total[290y:1y] offset 290y)", "-9e9", "9.2e9", "290y", "", "")
@example("sum_over_time(vector(1)[5m:1m] @ 9e18)", "0", "1030", "15s", "", "")
@example("predict_linear(m_total[5m], 1e400)", "0", "1030", "15s", "", "")
@example("rate(m_total[5m] @ 1e13) or time() or year(vector(1e300))", "0", "1030", "15s", "", "")
def test_no_question_is_a_fault_of_the_server(
    client: TestClient, query: str, start: str, end: str, step: str, lookback: str, timeout: str
) -> None:
    asked = {"query": query, "lookback_delta": lookback, "timeout": timeout}
    for path, more in (
        ("query", {"time": start}),
        ("query_range", {"start": start, "end": end, "step": step}),
        ("format_query", {}),
        ("series", {"match[]": query, "start": start, "end": end}),
        ("label/i/values", {"match[]": query, "start": start}),
    ):
        answer = (
            client.post(f"/api/v1/{path}", data=asked | more)
            if "label" not in path
            else client.get(f"/api/v1/{path}", params=asked | more)
        )
        assert answer.status_code in (200, 400, 422, 503), (path, answer.text)
        body = answer.json()
        assert body["status"] == ("success" if answer.status_code == 200 else "error")
        assert not any(word in answer.text for word in ("ClickHouse", "SELECT", "DB::", "Code:"))
