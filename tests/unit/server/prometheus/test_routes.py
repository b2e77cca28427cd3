"""Prometheus's API over an in-memory source; expected bodies are Prometheus's own for the same data and requests."""

from __future__ import annotations

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from loms.core.clock import ManualClock
from loms.core.model import labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.server.prometheus.answer import Answering
from loms.server.prometheus.routes import router


@pytest.fixture
def client() -> TestClient:
    source = MemorySource()
    times = np.arange(1_000_000, 1_060_001, 15_000, dtype=np.int64)
    for instance, factor in (("a:1", 1.0), ("b:2", 2.0)):
        labels = labels_of({"__name__": "m_total", "instance": instance})
        source.add(labels, times, factor * np.arange(5, dtype=np.float64))
    source.add(labels_of({"__name__": "odd"}), times[:1], np.array([np.inf]))
    app = FastAPI()
    clock = ManualClock(now_ms=1_060_000)
    app.include_router(router(Engine(source, clock=clock), clock, Answering()))
    return TestClient(app)


def test_an_instant_query(client: TestClient) -> None:
    body = client.get("/api/v1/query", params={"query": 'm_total{instance="b:2"}', "time": "1030"}).json()
    assert body == {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [{"metric": {"__name__": "m_total", "instance": "b:2"}, "value": [1030, "4"]}],
        },
    }


def test_now_is_the_default_time(client: TestClient) -> None:
    assert client.get("/api/v1/query", params={"query": "time()"}).json()["data"] == {
        "resultType": "scalar",
        "result": [1060, "1060"],
    }


def test_a_posted_range_query(client: TestClient) -> None:
    form = {"query": "sum(m_total)", "start": "1000", "end": "1970-01-01T00:17:10Z", "step": "15s"}
    assert client.post("/api/v1/query_range", data=form).json()["data"] == {
        "resultType": "matrix",
        "result": [{"metric": {}, "values": [[1000, "0"], [1015, "3"], [1030, "6"]]}],
    }


def test_strings_and_infinities(client: TestClient) -> None:
    assert client.get("/api/v1/query", params={"query": '"x"'}).json()["data"]["result"] == [1060, "x"]
    body = client.get("/api/v1/query", params={"query": "odd", "time": "1000.25"}).json()
    assert body["data"]["result"][0]["value"] == [1000.25, "+Inf"]


def test_bytes_that_are_no_text(client: TestClient) -> None:
    answer = client.get("/api/v1/query", params={"query": r'"\xff"'})
    assert answer.json()["data"]["result"] == [1060, "\ufffd"]
    asked = {"query": r'label_replace(label_join(vector(1), "a", "\xff", "b", "c"), "d", "$0\xff", "a", "(.*)")'}
    answer = client.get("/api/v1/query", params=asked)
    assert answer.json()["data"]["result"] == [{"metric": {"a": "\ufffd", "d": "\ufffd\ufffd"}, "value": [1060, "1"]}]


def test_an_expression_has_a_greatest_length(client: TestClient) -> None:
    for size, status in ((2**20, 200), (2**20 + 1, 400)):
        answer = client.post("/api/v1/query", data={"query": "1".ljust(size)})
        assert answer.status_code == status
    assert "1:1: parse error: an expression of more than 1048576 characters" in answer.json()["error"]


def test_a_lookback_that_is_not_positive_is_the_usual_one(client: TestClient) -> None:
    for lookback, there in (("-5", 2), ("0", 2), ("1", 0)):
        asked = {"query": "m_total", "time": "1100", "lookback_delta": lookback}
        assert len(client.get("/api/v1/query", params=asked).json()["data"]["result"]) == there


def test_series_labels_and_values(client: TestClient) -> None:
    span = {"start": "0", "end": "2000"}
    series = client.get("/api/v1/series", params={"match[]": "m_total", **span}).json()["data"]
    assert series == [{"__name__": "m_total", "instance": i} for i in ("a:1", "b:2")]
    assert client.get("/api/v1/labels", params=span).json()["data"] == ["__name__", "instance"]
    assert client.get("/api/v1/label/instance/values", params=span).json()["data"] == ["a:1", "b:2"]
    assert client.get("/api/v1/label/__name__/values", params=span).json()["data"] == ["m_total", "odd"]
    only_odd = {"match[]": "odd", **span}
    assert client.get("/api/v1/labels", params=only_odd).json()["data"] == ["__name__"]


@pytest.mark.parametrize(
    ("path", "parameters", "status", "kind", "text"),
    [
        ("query", {"query": "m_total +"}, 400, "bad_data", "parse error"),
        ("query", {}, 400, "bad_data", 'invalid parameter "query"'),
        (
            "query",
            {"query": "1e999"},
            400,
            "bad_data",
            "1:1: parse error: error parsing number: strconv.ParseFloat: pars",
        ),
        (
            "query",
            {"query": "0x" + "f" * 20},
            400,
            "bad_data",
            f'strconv.ParseFloat: parsing "0x{"f" * 20}": invalid syntax',
        ),
        ("query", {"query": "m_total[5000y]"}, 400, "bad_data", "1:9: parse error: duration out of range"),
        ("query", {"query": f"m_total offset {'9' * 5000}d"}, 400, "bad_data", "parse error: duration out of range"),
        ("query", {"query": "m_total @ 1e19"}, 400, "bad_data", "for @ modifier: 10000000000000000000.000000"),
        ("query", {"query": "atan2"}, 400, "bad_data", '1:1: parse error: unexpected identifier "atan2"'),
        (
            "query",
            {"query": 'label_replace(m_total, "a", "", "b", "\\xff")'},
            422,
            "execution",
            "in label_replace(): \ufffd",
        ),
        ("query", {"query": "m_total", "lookback_delta": "1e400"}, 400, "bad_data", "error parsing lookback delta"),
        ("query", {"query": "m_total", "lookback_delta": "1e18"}, 400, "bad_data", "It overflows int64"),
        ("query", {"query": "1", "limit": "9" * 20}, 400, "bad_data", f'parsing "{"9" * 20}": value out of range'),
        ("query", {"query": "1", "timeout": "0"}, 503, "timeout", "query timed out in query queue"),
        ("label/U__/values", {}, 400, "bad_data", 'invalid label name: ""'),
        ("query", {"query": "m_total", "time": "noon"}, 400, "bad_data", 'invalid parameter "time"'),
        ("query", {"query": "m_total + on() m_total"}, 422, "execution", "many-to-many"),
        ("query_range", {"query": "m_total", "start": "1", "end": "2", "step": "0"}, 400, "bad_data", "step"),
        ("query_range", {"query": "m_total", "start": "2", "end": "1", "step": "1"}, 400, "bad_data", "end timestamp"),
        (
            "query_range",
            {"query": "m_total", "start": "0", "end": "1e6", "step": "1"},
            400,
            "bad_data",
            "11,000 points",
        ),
        (
            "query_range",
            {"query": "m_total[1m]", "start": "1", "end": "2", "step": "1"},
            400,
            "bad_data",
            'invalid parameter "query": invalid expression type "range vector" for range query',
        ),
        ("series", {}, 400, "bad_data", "no match[] parameter provided"),
        ("series", {"match[]": "{"}, 400, "bad_data", "parse error"),
    ],
)
def test_errors_are_prometheus_errors(
    client: TestClient, path: str, parameters: dict[str, str], status: int, kind: str, text: str
) -> None:
    answer = client.get(f"/api/v1/{path}", params=parameters)
    body = answer.json()
    assert (answer.status_code, body["status"], body["errorType"]) == (status, "error", kind)
    assert text in body["error"]


def test_limits_cut_and_say_so(client: TestClient) -> None:
    warning = ["results truncated due to limit"]
    span = {"start": "0", "end": "2000", "limit": "1"}
    got = client.get("/api/v1/query", params={"query": "m_total", "time": "1030", "limit": "1"}).json()
    assert ([row["metric"]["instance"] for row in got["data"]["result"]], got["warnings"]) == (["a:1"], warning)
    asked = {"query": "m_total", "start": "1000", "end": "1030", "step": "15", "limit": "1"}
    got = client.get("/api/v1/query_range", params=asked).json()
    assert ([row["metric"]["instance"] for row in got["data"]["result"]], got["warnings"]) == (["a:1"], warning)
    for path in ("series", "labels", "label/instance/values"):
        got = client.get(f"/api/v1/{path}", params={"match[]": "m_total", **span}).json()
        assert (len(got["data"]), got["warnings"]) == (1, warning)
    assert "warnings" not in client.get("/api/v1/labels", params={"limit": "2"}).json()


def test_statistics_of_a_query_are_told_when_asked_for(client: TestClient) -> None:
    data = client.get("/api/v1/query", params={"query": "m_total", "time": "1030", "stats": "all"}).json()["data"]
    assert data["stats"]["timings"].keys() >= {"evalTotalTime", "execTotalTime", "execQueueTime"}
    assert data["stats"]["samples"].keys() >= {"totalQueryableSamples", "peakSamples"}
    assert "stats" not in client.get("/api/v1/query", params={"query": "m_total"}).json()["data"]


def test_a_query_has_its_own_lookback_and_time(client: TestClient) -> None:
    asked = {"query": "m_total", "time": "1100"}
    assert len(client.get("/api/v1/query", params=asked).json()["data"]["result"]) == 2
    assert client.get("/api/v1/query", params={**asked, "lookback_delta": "39s"}).json()["data"]["result"] == []
    got = client.get("/api/v1/query", params={**asked, "lookback_delta": "x"})
    assert got.json()["error"] == 'error parsing lookback delta duration: cannot parse "x" to a valid duration'
    got = client.get("/api/v1/query", params={**asked, "timeout": "x"})
    assert got.json()["error"] == 'invalid parameter "timeout": cannot parse "x" to a valid duration'
    assert client.get("/api/v1/query", params={**asked, "timeout": "5s"}).status_code == 200


def test_exemplars_are_none(client: TestClient) -> None:
    span = {"start": "1795990000000", "end": "1795992000000"}  # milliseconds, as Grafana sends them
    assert client.get("/api/v1/query_exemplars", params={"query": "test", **span}).json()["data"] == []
    assert client.post("/api/v1/query_exemplars", data={"query": "1 + 1"}).status_code == 204


def test_series_without_times_are_all_there_are(client: TestClient) -> None:
    assert client.get("/api/v1/labels").json()["data"] == ["__name__", "instance"]
    later = {"match[]": "m_total", "start": "5000"}
    assert client.get("/api/v1/series", params=later).json()["data"] == []
    assert client.get("/api/v1/label/U__instance/values").json()["data"] == ["a:1", "b:2"]


def test_what_is_odd_about_a_query_is_told(client: TestClient) -> None:
    got = client.get("/api/v1/query", params={"query": "quantile(2, m_total)", "time": "1030"}).json()
    assert got["warnings"] == ["PromQL warning: quantile value should be between 0 and 1, got 2 (1:10)"]
    assert "infos" not in got
    source = MemorySource()
    source.add(labels_of({"__name__": "depth"}), np.arange(0, 60_001, 15_000, dtype=np.int64), np.arange(5.0))
    app, clock = FastAPI(), ManualClock(now_ms=60_000)
    app.include_router(router(Engine(source, clock=clock), clock, Answering()))
    for path, more in (("query", {}), ("query_range", {"start": "0", "end": "60", "step": "15"})):
        got = TestClient(app).get(f"/api/v1/{path}", params={"query": "rate(depth[1m])", **more}).json()
        (info,) = got["infos"]
        assert info.startswith("PromQL info: metric might not be a counter, name does not end in _total/_sum/_count")
        assert "warnings" not in got
