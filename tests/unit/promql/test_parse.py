from __future__ import annotations

import pytest

from loms.core.errors import QueryError
from loms.promql.parse import MAX_DEPTH, parse, parse_selector
from loms.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Matcher,
    Matching,
    Negation,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
    value_type,
)

X, Y = Selector((Matcher("__name__", "=", "x"),)), Selector((Matcher("__name__", "=", "y"),))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1.5", Number(1.5)),
        ("-(1)", Negation(Number(1.0))),
        ("5m", Number(300.0)),
        ('"a\\"b"', Text('a"b')),
        ("`a\\d\"'`", Text("a\\d\"'")),
        ("(x)", X),
        ("-x", Negation(X)),
        ('x{a=~`\\d+`, b!="`"} # `', Selector((*X.matchers, Matcher("a", "=~", "\\d+"), Matcher("b", "!=", "`")))),
        ("{'x y'}", Selector((Matcher("__name__", "=", "x y"),))),
        ("x[1h30m5ms]", Range(X, 5_400_005)),
        ("x[5m] offset -1m", Range(Selector(X.matchers, -60_000), 300_000)),
        ("x @ 1.5", Selector(X.matchers, 0, 1_500)),
        ("x @ start() offset 1w", Selector(X.matchers, 604_800_000, "start")),
        ("x[5m:]", Subquery(X, 300_000, None)),
        ("x[5m:1m] @ end() offset 2s", Subquery(X, 300_000, 60_000, 2_000, "end")),
        ("x + y", Binary("+", X, Y, Matching())),
        ("x > bool 1", Binary(">", X, Number(1.0), Matching(), returns_bool=True)),
        ("x * on (a) group_left (b) y", Binary("*", X, Y, Matching("many-to-one", True, ("a",), ("b",)))),
        ("x / ignoring (a) group_right () y", Binary("/", X, Y, Matching("one-to-many", False, ("a",)))),
        ("x unless y", Binary("unless", X, Y, Matching("many-to-many"))),
        ("sum(x) by (a, b)", Aggregation("sum", X, ("a", "b"))),
        ("topk without (a) (3, x)", Aggregation("topk", X, ("a",), True, Number(3.0))),
        ("round(x, 5)", Call("round", (X, Number(5.0)), "vector")),
    ],
)
def test_trees(text: str, tree: object) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1 + 1", "scalar"),
        ("-x", "vector"),
        ("1 - x", "vector"),
        ("scalar(x) * 2", "scalar"),
        ("time()", "scalar"),
        ("sum(x)", "vector"),
        ("x[5m]", "matrix"),
        ("x[5m:1m]", "matrix"),
        ('"a"', "string"),
    ],
)
def test_types(text: str, kind: str) -> None:
    assert value_type(parse(text)) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no expression found in input"),
        ("sum(x", "unclosed left parenthesis"),
        ("rate(x)", "expected type matrix in call to function 'rate', got vector"),
        ("x and 1", "set operator 'and' not allowed in binary scalar expression"),
        ("x @ -5", "no time before 1970"),
        ('x{a="1" or b="2"}', "not PromQL"),
        ("x + fill (0) y", "fill modifiers are not supported"),
        ("(" * 200 + "x" + ")" * 200, f"nested more than {MAX_DEPTH} levels deep"),
        ("(" * 3_000, "more than 2000 operators and parentheses"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as error:
        parse(text)
    assert error.value.kind == "bad_data"
    assert error.value.message.startswith("parse error: ")


def test_operators_in_strings_and_comments_do_not_count() -> None:
    parse('x{a="' + "(" * 5_000 + '"} # ' + "(" * 5_000)


def test_selectors_alone() -> None:
    assert parse_selector('x{a="b"}') == (*X.matchers, Matcher("a", "=", "b"))
