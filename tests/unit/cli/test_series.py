"""The command before a server that answers as told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import Result
from support.http_host import Host
from typer.testing import CliRunner

from loms.cli.app import app
from loms.core.errors import LomsError

REPORTS: Mapping[str, dict[str, Any]] = {
    "metric": {
        "by": "metric", "since_seconds": 87_000, "series": 12_480, "stored": 9_310, "groups": 321,
        "rows": [{"name": "wait_bucket", "series": 6_600, "share": 6_600 / 12_480}],
    },
    "label": {
        "by": "label", "since_seconds": 87_000, "series": 12_480, "stored": 9_310, "groups": 1,
        "rows": [{"name": "ten[b]ant\x1b", "series": 7_150, "share": 0.573, "values": 1_550, "metric": "wait_bucket"}],
    },
    "target": {
        "by": "target", "since_seconds": 87_000, "series": 12_480, "stored": 9_310, "groups": 1,
        "rows": [{"name": "10.0.0.7:4000", "series": 7_420, "share": 0.595, "job": "gateway", "added": 1_210}],
    },
}  # fmt: skip


class Server(Host):
    """A LOMS that answers with these reports."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        super().__init__(self._answer)

    def _answer(self, path: str) -> tuple[str, bytes]:
        parts = urlsplit(path)
        assert parts.path == "/api/series/top"
        self.asked.append(dict(parse_qsl(parts.query)))
        return "application/json", json.dumps(REPORTS[self.asked[-1]["by"]]).encode()

    def run(self, *arguments: str) -> Result:
        url = f"http://{self.instance}"
        return CliRunner().invoke(app, ["series", *arguments], env={"COLUMNS": "120", "LOMS_URL": url})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


def test_an_overview_has_a_few_of_each_kind(server: Server) -> None:
    lines = [line.split() for line in server.run().stdout.splitlines()]
    assert [(asked["by"], asked["limit"]) for asked in server.asked] == [
        ("metric", "5"),
        ("label", "5"),
        ("target", "5"),
    ]
    assert " ".join(lines[0]) == "12,480 series seen within 1d10m, 9,310 of them with samples of their own"
    assert ["wait_bucket", "6,600", "52.9%"] in lines
    assert ["320", "more"] in lines
    assert ["ten[b]ant�", "1,550", "7,150", "57.3%", "wait_bucket"] in lines
    assert ["gateway", "10.0.0.7:4000", "1,210", "7,420", "59.5%"] in lines


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--top"], {"by": "metric", "limit": "20"}),
        (["--by", "label"], {"by": "label", "limit": "20"}),
        (
            ["--top", "--by", "target", "--limit", "7", "--since", "2d"],
            {"by": "target", "limit": "7", "since": "172800.0"},
        ),
    ],
)
def test_one_kind_can_be_asked_for(server: Server, arguments: list[str], asked: dict[str, str]) -> None:
    assert json.loads(server.run(*arguments, "--json").stdout) == REPORTS[asked["by"]]
    assert server.asked == [asked]


def test_json_of_the_overview_is_a_list(server: Server) -> None:
    assert json.loads(server.run("--json").stdout) == list(REPORTS.values())


def test_a_span_that_is_none_is_said_so(server: Server) -> None:
    error = server.run("--since", "yesterday").exception
    assert isinstance(error, LomsError)
    assert error.message.startswith("--since: 'yesterday' is not a duration")
    assert server.asked == []
