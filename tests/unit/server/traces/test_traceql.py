from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loms.core.errors import QueryError
from loms.server.traces.traceql import duration_ns, parse_traceql
from loms.store.trace_conditions import Condition


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", []),
        ("{}", []),
        ("{ }", []),
        (
            '{ span.foo="x" && duration>1s && status=error && resource.service.name=~"a|b" && name="n" }',
            [
                Condition("attribute", "=", "x", "foo", "span"),
                Condition("duration", ">", 10**9),
                Condition("status", "=", "Error"),
                Condition("service", "=~", "a|b"),
                Condition("name", "=", "n"),
            ],
        ),
        ("{.http.status_code>=500}", [Condition("attribute", ">=", 500.0, "http.status_code", "any")]),
        ("{ resource.k8s.pod.name != `a\\b` }", [Condition("attribute", "!=", "a\\b", "k8s.pod.name", "resource")]),
        ('{ span."a b" = "q\\"\\n" }', [Condition("attribute", "=", 'q"\n', "a b", "span")]),
        ("{ span.x != nil }", [Condition("attribute", "exists", key="x", scope="span")]),
        ("{ span.cached = true && kind != server }", [
            Condition("attribute", "=", "true", "cached", "span"),
            Condition("kind", "!=", "Server"),
        ]),
        ("{ span:duration <= 1m1.5s && trace:duration > 250us}", [
            Condition("duration", "<=", 61_500_000_000),
            Condition("trace_duration", ">", 250_000),
        ]),
        ('{ .service.name = "s" && span.service.name = "t" }', [
            Condition("service", "=", "s"),
            Condition("attribute", "=", "t", "service.name", "span"),
        ]),
        ("{ span.n = -3 }", [Condition("attribute", "=", "-3", "n", "span")]),
    ],
)  # fmt: skip
def test_what_is_read(text: str, conditions: list[Condition]) -> None:
    assert parse_traceql(text) == conditions


@pytest.mark.parametrize(
    "text",
    [
        'name="x"',
        '{ name="x" || name="y" }',
        '{ name="x" } && { name="y" }',
        '{ name="x" } | count() > 2',
        '{ (name="x") }',
        '{ name="x" name="y" }',
        '{ name="x" && }',
        "{ name }",
        "{ && }",
        "{ duration > 3 }",
        '{ duration =~ "1s" }',
        "{ status = broken }",
        '{ status = "error" }',
        "{ nestedSetParent < 0 }",
        "{ span.x > abc }",
        '{ name > "x" }',
        '{ name =~ "(" }',
        '{ name = "x',
        "{ span. = 1 }",
        "{ name = nil }",
        "{ 1 = 1 }",
        "{ span.a = span.b } { }",
    ],
)
def test_the_rest_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_traceql(text)
    assert "\n" not in caught.value.message


@settings(deadline=None)
@given(st.text(alphabet='{}()&|=!~<>".`\\ name1sé', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(QueryError):
        parse_traceql(text)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "-1s", "1s2", "1.2.3s", "1week"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(QueryError, match="is not a duration"):
        duration_ns(text)
