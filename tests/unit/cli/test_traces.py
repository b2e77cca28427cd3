from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from loms.cli.traces import bar, drawn, lasting


def span(name: str, offset: float, duration: float, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
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
