from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from loms.cli.app import app
from loms.cli.traces import bar, drawn, lasting
from loms.core.errors import QueryError


def span(name: str, offset: float, duration: float, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "level": 1,
        "name": name,
        "service": "api",
        "status": "Unset",
        "status_message": "",
        "offset_ms": offset,
        "duration_ms": duration,
        "children": [*children],
        **more,
    }


def test_a_trace_is_drawn_as_a_tree() -> None:
    failed = span("decode [red]", 40, 60, service="engine", status="Error", status_message="out of \x1b[2J memory")
    trace = {
        "trace_id": "ab" * 16,
        "start_ms": 1_800_000_000_000.0,
        "duration_ms": 100.0,
        "spans": 3,
        "errors": 1,
        "cut": True,
        "roots": [span("request", 0, 100, span("tokenize", 0, 10), failed)],
    }
    console = Console(file=StringIO(), width=120)
    console.print(drawn(trace))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = text.splitlines()
    assert lines[0].startswith("ab" * 16 + "  100 ms, 3 spans, 1 with errors, there are more than are shown")
    assert lines[2].startswith("└── api request  100 ms  " + "━" * 24)
    assert lines[3].startswith("    ├── tokenize  10 ms  ━━" + "·" * 22)
    assert lines[4].startswith("    └── engine decode [red]  60 ms  " + "·" * 9 + "━" * 14 + "·")
    assert lines[4].endswith("out of �[2J memory")


@pytest.mark.parametrize(
    ("offset", "duration", "whole", "expected"),
    [(0, 100, 100, "━━━━"), (0, 0, 100, "━···"), (100, 0, 100, "···━"), (50, 25, 100, "··━·"), (0, 0, 0, "━━━━")],
)
def test_where_a_span_lies(offset: float, duration: float, whole: float, expected: str) -> None:
    assert bar(offset, duration, whole, 4) == expected


def test_durations_are_short() -> None:
    assert [lasting(ms) for ms in (0, 0.0005, 1, 999, 1000, 59_000, 61_000)] == [
        "0 µs",
        "0 µs",
        "1 ms",
        "999 ms",
        "1 s",
        "59 s",
        "1 min 1 s",
    ]
    day = 86_400_000
    assert [lasting(ms) for ms in (5_400_000, day - 60_000, day, 3 * day, 3 * day + 7_200_000)] == [
        "1 h 30 min",
        "23 h 59 min",
        "1 d 0 h",
        "3 d 0 h",
        "3 d 2 h",
    ]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.9996, "1 ms"), (999.6, "1 s"), (59_996, "1 min 0 s"), (119_600, "2 min 0 s"), (3_599_600, "1 h 0 min")],
)
def test_what_is_rounded_up_to_the_next_unit_has_that_unit(ms: float, text: str) -> None:
    assert lasting(ms) == text


@pytest.mark.parametrize("width", [80, 160])
def test_a_deep_trace_stays_readable_and_shows_its_levels(width: int) -> None:
    chain = span("s300", 0, 100, level=300)
    for level in range(299, 0, -1):
        chain = span(f"s{level}", 0, 100, chain, level=level)
    trace = {"trace_id": "ab" * 16, "start_ms": 0.0, "duration_ms": 100.0, "spans": 300, "errors": 0, "cut": False}
    console = Console(file=StringIO(), width=width)
    console.print(drawn({**trace, "roots": [chain]}, width))
    lines = console.file.getvalue().splitlines()[2:]  # type: ignore[attr-defined]
    assert [line.count("━" * 24) for line in lines] == [1] * 300, "each span has one line with its whole bar"
    assert max(len(line) - len(line.lstrip("│├└─ ")) for line in lines) <= width // 3
    assert lines[-1].endswith("level 300: s300  100 ms  " + "━" * 24)
    assert "level" not in lines[1]


@pytest.mark.parametrize("text", ["services", "", "../incidents", "0" * 33])
def test_what_is_no_trace_id_is_not_asked_for(text: str) -> None:
    result = CliRunner().invoke(app, ["traces", text], env={"LOMS_URL": "http://127.0.0.1:1"})
    assert isinstance(result.exception, QueryError)
    assert result.exception.message == f"{text!r} is no trace id: it has up to 32 hexadecimal digits"
