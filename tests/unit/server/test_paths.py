"""Paths with too many slashes lead where they mean."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from loms.server.paths import TidyPaths


@pytest.mark.parametrize("path", ["/api/v1/query", "//api/v1/query", "/api//v1///query/", "/api/v1/query/"])
def test_an_api_is_found_and_keeps_its_form(path: str) -> None:
    app = FastAPI()
    app.add_middleware(TidyPaths)

    @app.post("/api/v1/query")
    async def query(request: Request) -> str:
        return (await request.body()).decode()

    got = TestClient(app, follow_redirects=False).post(f"http://testserver{path}", content=b"query=1")
    assert (got.status_code, got.json()) == (200, "query=1")
