"""Attributes, names and values may be any text: they are found as they are, and never become part of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_spans import recorded, table

from loms.core.clock import SystemClock
from loms.core.model import Span
from loms.server.traces.routes import Branch, grown
from loms.store.database import Database
from loms.store.trace_conditions import Condition
from loms.store.traces import TraceTables

TEXT = st.text(max_size=12) | st.sampled_from(
    ["'", "\\", "\\'", "a'b\\", "{p0:String}", "%s", "\0", "\n\t", "\x85", "$1"]
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.open(tmp_path_factory.mktemp("store"), 1e9, SystemClock()) as opened:
        yield opened


@settings(max_examples=25, deadline=None)
@given(TEXT.filter(bool), TEXT, TEXT)
def test_any_text_is_found(database: Database, key: str, value: str, name: str) -> None:
    row = {**recorded_row(), "SpanName": name, "SpanAttributes": [(key, value), (key + "x", value + "x")]}
    row["TraceId"] = f"{next(_numbers):032x}"
    database.insert_arrow("otel_traces", table([row]))
    tables, at = TraceTables(database), row["Timestamp"] // 1_000_000
    asked = [Condition("attribute", "=", value, key), Condition("name", "=", name)]
    assert row["TraceId"] in {one.trace_id for one in tables.search(asked, at, at + 1, limit=1000)}
    (span,) = tables.trace(row["TraceId"]).spans
    assert span.name == name
    assert dict(span.attributes) == dict(row["SpanAttributes"])
    other = [Condition("attribute", "=", value + "'", key)]
    assert row["TraceId"] not in {one.trace_id for one in tables.search(other, at, at + 1, limit=1000)}


_numbers = count(1)


def recorded_row() -> dict[str, object]:
    return recorded("vllm-0.32.0")[0]


Parents = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), max_size=30)


@given(Parents, st.integers(2, 5))
def test_every_span_stands_in_the_tree_once(pairs: list[tuple[int, int]], deepest: int) -> None:
    """Ids repeat, parents are missing, and parents go round in circles."""
    spans = [
        Span("t", f"{own}", f"{parent}" if parent < 9 else "", f"{at}", "Server", "s", at, 1)
        for at, (own, parent) in enumerate(pairs)
    ]
    tops = grown(spans, deepest)
    names, levels = list[str](), 0
    rows = [(top, 1) for top in tops]
    while rows:
        branch, level = rows.pop()
        names.append(branch.span.name)
        levels = max(levels, level)
        rows += [(child, level + 1) for child in branch.children]
    assert sorted(names) == sorted(span.name for span in spans)
    assert levels <= deepest
    known = {span.span_id for span in spans}
    orphans = [bool(top.span.parent_span_id) for top in tops if top.span.parent_span_id not in known]
    assert orphans == sorted(orphans), "roots first"
    assert all(isinstance(top, Branch) for top in tops)
