from __future__ import annotations

import re

import pytest

from loms.core.errors import QueryError
from loms.promql.cursor import MAX_DEPTH
from loms.promql.parse import parse, parse_selector
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
from loms.promql.values import Grid


def named(name: str) -> Selector:
    return Selector((Matcher("__name__", "=", name),))


X, Y = Selector((Matcher("__name__", "=", "x"),)), Selector((Matcher("__name__", "=", "y"),))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1.5", Number(1.5)),
        ("-(1)", Number(-1.0)),
        ("-1 ^ 2", Negation(Binary("^", Number(1.0), Number(2.0), Matching()))),
        ("- - x", Negation(Negation(X))),
        ("2 ^ 3 ^ 2", Binary("^", Number(2.0), Binary("^", Number(3.0), Number(2.0), Matching()), Matching())),
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
        ("x @ -1.5", Selector(X.matchers, 0, -1_500)),
        ("x[5m] smoothed", Range(Selector(X.matchers, extension="smoothed"), 300_000)),
        ("x[1m + 2 * (30s - 5)]", Range(X, 110_000)),
        ("x offset -2 ^ 2", Binary("^", Selector(X.matchers, -2_000), Number(2.0), Matching())),
        ("x offset (-2 ^ 2)", Selector(X.matchers, -4_000)),
        ("x[5m:]", Subquery(X, 300_000, None)),
        ("x[5m:1m] @ end() offset 2s", Subquery(X, 300_000, 60_000, 2_000, "end")),
        ("x + y", Binary("+", X, Y, Matching())),
        ("x > bool 1", Binary(">", X, Number(1.0), Matching(), returns_bool=True)),
        ("x * on (a) group_left (b) y", Binary("*", X, Y, Matching("many-to-one", True, ("a",), ("b",)))),
        ("x / ignoring (a) group_right () y", Binary("/", X, Y, Matching("one-to-many", False, ("a",)))),
        ("x + fill_left (1) fill_right (-2) y", Binary("+", X, Y, Matching(fill_left=1.0, fill_right=-2.0))),
        ("fill + by", Binary("+", named("fill"), named("by"), Matching())),
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
        ("rate(x)", 'expected type range vector in call to function "rate", got instant vector'),
        ("x and 1", 'set operator "and" not allowed in binary scalar expression'),
        ('x{a="1" or b="2"}', "not PromQL"),
        ("1 + fill (0) y", "filling in missing series only allowed between instant vectors"),
        ("x </ 2", "native histograms"),
        ("(x)[5m]", "ranges only allowed for vector selectors"),
        ("x offset 1m offset 2m", "offset may not be set multiple times"),
        ("x[0s]", "duration must be greater than 0"),
        ("x[1m/0]", "division by zero"),
        ("x[1m30h]", 'not a valid duration string: "1m30h"'),
        ('{a=~".*"}', "at least one non-empty matcher"),
        ('x{a=~"("}', "error parsing regexp"),
        ('x{__name__="y"}', "metric name must not be set twice"),
        ("topk(x)", "expected 2, got 1"),
        ("round(x, 1, 2)", "expected at most 2 argument"),
        ("1 == 2", "comparisons between scalars must use BOOL modifier"),
        ("x on y", "unexpected identifier"),
        (r'x{a="\xff"}', "no valid UTF-8"),
        ("(" * 200 + "x" + ")" * 200, f"nested more than {MAX_DEPTH} levels deep"),
        ("(" * 3_000 + ")" * 3_000, "levels deep"),
        ("x" + "+x" * 3_000, "levels deep"),
        ("-" * 60_000 + "x", "more than 50000 words"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message) as error:
        parse(text)
    assert error.value.kind == "bad_data"
    assert re.match(r"\d+:\d+: parse error: ", error.value.message)


@pytest.mark.parametrize(
    ("text", "place"),
    [("sum(\n  rate(x))", "2:8"), ("x +", "1:4"), ("x{a=1}", "1:5"), ("1 +\n\n é", "3:2"), ("abs(x[5m])", "1:5")],
)
def test_mistakes_have_a_place(text: str, place: str) -> None:
    with pytest.raises(QueryError) as error:
        parse(text)
    assert error.value.message.startswith(f"{place}: parse error: ")


def test_durations_may_name_the_query() -> None:
    query = Grid(0, 600_000, 30_000)
    assert parse("x[step() * 2] offset range()", query) == Range(Selector(X.matchers, 600_000), 60_000)
    with pytest.raises(QueryError, match="duration must be greater than 0"):
        parse("x[range()]", Grid.instant(0))


@pytest.mark.parametrize(
    ("text", "value"), [(r'"\x41\102\u00e9\n"', "AB\u00e9\n"), ("'\\''", "'"), ("`\\n`", "\\n"), (r'"\xc5"', "\udcc5")]
)
def test_strings(text: str, value: str) -> None:
    assert parse(text) == Text(value)


def test_operators_in_strings_and_comments_do_not_count() -> None:
    parse('x{a="' + "(" * 5_000 + '"} # ' + "(" * 5_000)


def test_selectors_alone() -> None:
    assert parse_selector('x{a="b"}') == (*X.matchers, Matcher("a", "=", "b"))
