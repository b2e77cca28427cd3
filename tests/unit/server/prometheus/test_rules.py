"""Rules and alerts in Prometheus's form, over an evaluator whose queries answer what is written here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from loms.core.clock import ManualClock
from loms.core.errors import QueryError
from loms.core.model import Frame
from loms.rules.evaluate import Evaluator
from loms.rules.read import read_groups
from loms.server.prometheus import rules as prometheus_rules
from loms.server.prometheus.answer import Answering

NOW = 1_800_000_000_000
RULES = """
groups:
  - name: first
    interval: 30s
    rules:
      - {alert: Full, expr: depth>5, for: 1m, labels: {severity: page}, annotations: {summary: "{{ $value }} wait"}}
      - {alert: Broken, expr: nothing, keep_firing_for: 5m}
      - {alert: Calm, expr: calm}
  - name: second
    rules: [{alert: Stuck, detector: stall, kinds: [stalled]}]
"""


class Querier:
    def instant(self, expr: str, at_ms: int) -> Frame:
        if expr == "nothing":
            raise QueryError("there is nothing")
        rows = ({"__name__": "depth", "job": "a"},) if expr.startswith("depth") else ()
        return Frame(rows, np.array([at_ms]), np.full((len(rows), 1), 7.5))

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        times = np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)
        return Frame((), times, np.empty((0, len(times))))


@pytest.fixture
def evaluator() -> Evaluator:
    return Evaluator(Querier(), read_groups(RULES, "own.yaml"), ManualClock(now_ms=NOW))


@pytest.fixture
def client(evaluator: Evaluator) -> TestClient:
    app = FastAPI()
    app.include_router(prometheus_rules.router(evaluator, Answering()))
    return TestClient(app)


def groups(client: TestClient, **parameters: str) -> Any:
    return client.get("/api/v1/rules", params=parameters).json()["data"]["groups"]


def names(client: TestClient, **parameters: str) -> list[list[str]]:
    return [[rule["name"] for rule in group["rules"]] for group in groups(client, **parameters)]


def test_before_the_first_evaluation_nothing_is_known(client: TestClient) -> None:
    first = groups(client)[0]
    assert (first["lastEvaluation"], first["evaluationTime"]) == ("0001-01-01T00:00:00Z", 0)
    assert {(rule["health"], rule["state"]) for rule in first["rules"]} == {("unknown", "inactive")}
    assert client.get("/api/v1/alerts").json() == {"status": "success", "data": {"alerts": []}}


def test_an_alerting_rule_with_its_alert(client: TestClient, evaluator: Evaluator) -> None:
    evaluator.evaluate(NOW)
    alert = {
        "labels": {"alertname": "Full", "job": "a", "severity": "page"},
        "annotations": {"summary": "7.5 wait"},
        "state": "pending",
        "activeAt": "2027-01-15T08:00:00.000Z",
        "value": "7.5e+00",
    }
    (first, second) = groups(client)
    assert {key: first[key] for key in ("name", "file", "interval", "limit", "lastEvaluation")} == {
        "name": "first",
        "file": "own.yaml",
        "interval": 30,
        "limit": 0,
        "lastEvaluation": "2027-01-15T08:00:00.000Z",
    }
    full, broken, calm = first["rules"]
    assert {**full, "evaluationTime": 0} == {
        "state": "pending",
        "name": "Full",
        "query": "depth > 5",
        "duration": 60,
        "keepFiringFor": 0,
        "labels": {"severity": "page"},
        "annotations": {"summary": "{{ $value }} wait"},
        "alerts": [alert],
        "health": "ok",
        "evaluationTime": 0,
        "lastEvaluation": "2027-01-15T08:00:00.000Z",
        "type": "alerting",
    }
    assert (broken["health"], broken["lastError"], broken["keepFiringFor"]) == ("err", "there is nothing", 300)
    assert (calm["health"], calm["state"], calm["alerts"], "lastError" in calm) == ("ok", "inactive", [], False)
    assert second["rules"][0]["query"] == "detector: stall kinds: stalled"
    assert client.get("/api/v1/alerts").json()["data"]["alerts"] == [alert]
    evaluator.evaluate(NOW + 60_000)
    assert groups(client)[0]["rules"][0]["state"] == "firing"
    assert groups(client, exclude_alerts="true")[0]["rules"][0]["alerts"] is None


def test_rules_are_chosen_by_name_group_file_and_type(client: TestClient) -> None:
    assert names(client) == [["Full", "Broken", "Calm"], ["Stuck"]]
    assert names(client, **{"rule_name[]": "Calm"}) == [["Calm"]]
    assert names(client, **{"rule_group[]": "second"}) == [["Stuck"]]
    assert names(client, **{"file[]": "other.yaml"}) == []
    assert names(client, type="alert") == names(client)
    assert names(client, type="record") == []


def test_groups_come_in_pages(client: TestClient) -> None:
    first = client.get("/api/v1/rules", params={"group_limit": "1"}).json()["data"]
    assert [group["name"] for group in first["groups"]] == ["first"]
    following = {"group_limit": "1", "group_next_token": first["groupNextToken"]}
    second = client.get("/api/v1/rules", params=following).json()["data"]
    assert [group["name"] for group in second["groups"]] == ["second"]
    assert "groupNextToken" not in second


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"type": "odd"}, 'invalid parameter "type": not supported value "odd"'),
        ({"exclude_alerts": "perhaps"}, 'invalid parameter "exclude_alerts"'),
        ({"group_limit": "x"}, "group_limit needs to be a valid number"),
        ({"group_limit": "0"}, "group_limit needs to be greater than 0"),
        ({"group_next_token": "x"}, "group_limit needs to be present"),
        ({"group_limit": "1", "group_next_token": "x"}, "invalid group_next_token 'x'. were rule groups changed?"),
    ],
)
def test_mistakes(client: TestClient, asked: dict[str, str], text: str) -> None:
    got = client.get("/api/v1/rules", params=asked)
    assert (got.status_code, got.json()["errorType"]) == (400, "bad_data")
    assert text in got.json()["error"]
