from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from starlette.testclient import TestClient

from loms.server.auth import COOKIE, OwnPages, TokenGate


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    for path in ("/", "/api/engines", "/healthz", "/-/healthy", "/-/ready", "/metrics"):
        app.get(path)(lambda: PlainTextResponse("ok"))
    app.add_middleware(TokenGate, token="right")
    return TestClient(app)


def test_health_needs_no_token(client: TestClient) -> None:
    for path in ("/healthz", "/-/healthy", "/-/ready"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/engines", "/metrics"])
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic right", "Bearer ", "right"])
def test_without_the_right_token_nothing_is_told(client: TestClient, path: str, header: str | None) -> None:
    answer = client.get(path, headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.json()["errorType"] == "unauthorized"
    assert "ok" not in answer.text.split('"error"')[0]


def test_the_token_opens_as_header_or_cookie(client: TestClient) -> None:
    assert client.get("/metrics", headers={"Authorization": "bearer right"}).status_code == 200
    client.cookies.set(COOKIE, "right")
    assert client.get("/api/engines").status_code == 200


def test_the_token_in_a_query_counts_for_the_page_only(client: TestClient) -> None:
    assert client.get("/?token=right").status_code == 200
    assert client.get("/api/engines?token=right").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:8090"}, 200),
        ({"Origin": "http://127.0.0.1:8090", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_may_ask_but_not_write(headers: dict[str, str], status: int) -> None:
    app = FastAPI()
    for path in ("/api/v1/write", "/v1/metrics", "/v1/logs", "/api/v1/query"):
        app.post(path)(lambda: PlainTextResponse("ok"))
    app.add_middleware(OwnPages)
    client = TestClient(app, base_url="http://127.0.0.1:8090")
    for path in ("/api/v1/write", "/v1/metrics", "/v1/logs"):
        answer = client.post(path, headers=headers)
        assert answer.status_code == status, path
        assert status == 200 or "another site" in answer.json()["error"]
    assert client.post("/api/v1/query", headers=headers).status_code == 200
