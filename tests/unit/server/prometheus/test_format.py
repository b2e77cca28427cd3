"""Expressions as text. Expected spellings are those of Prometheus 2.42's ``/api/v1/format_query``."""

from __future__ import annotations

import pytest

from loms.promql.parse import parse
from loms.server.prometheus.format import flat, pretty
from loms.server.prometheus.tree import tree_of


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ('sum by(a,b)(x{a=~"2",b="1"})', 'sum by (a, b) (x{a=~"2",b="1"})'),
        ("rate(x[5m] offset 1m)/on(a)group_left(c) y", "rate(x[5m] offset 1m) / on (a) group_left (c) y"),
        ("x*ignoring(a)y", "x * ignoring (a) y"),
        ("-x+3", "-x + 3"),
        ("topk(3,x)", "topk(3, x)"),
        ("sum without()(x)", "sum without () (x)"),
        ("(1+2)*x @ 5", "(1 + 2) * x @ 5.000"),
        ("a - (b - c)", "a - (b - c)"),
        ("(2 ^ 3) ^ x", "(2 ^ 3) ^ x"),
        ("-(x + 1)", "-(x + 1)"),
        ("(-1) ^ 2", "(-1) ^ 2"),
        ("x ^ -2", "x ^ -2"),
        ("(a or b) and c", "(a or b) and c"),
        ("x[5m:]", "x[5m:]"),
        ("(a+b)[90m:30s] @ end()", "(a + b)[1h30m:30s] @ end()"),
        ("x @ start() offset -5m", "x @ start() offset -5m"),
        ("x offset 1w", "x offset 1w"),
        ("x offset 8d", "x offset 8d"),
        ("'a\\'b'", '"a\'b"'),
        ("x == bool 1", "x == bool 1"),
        ('{__name__=~"a.*"}', '{__name__=~"a.*"}'),
        ('{__name__="up"}', "up"),
        ("1e-3", "0.001"),
        ("time()", "time()"),
    ],
)
def test_one_line(text: str, spelling: str) -> None:
    assert flat(parse(text)) == spelling
    assert parse(spelling) == parse(text)


def test_long_expressions_are_laid_out() -> None:
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    text = f'histogram_quantile(0.95, sum by (le, instance, zone) (rate({name}{{engine="vllm",job="a"}}[5m]))) > bool 0'
    assert pretty(parse(text)) == (
        "  histogram_quantile(\n"
        "    0.95,\n"
        "    sum by (le, instance, zone) (\n"
        f'      rate({name}{{engine="vllm",job="a"}}[5m])\n'
        "    )\n"
        "  )\n"
        "> bool\n"
        "  0"
    )
    product = f"({name} + {name} + {name}) * 2"
    assert pretty(parse(product)) == (f"  (\n      {name} + {name}\n    +\n      {name}\n  )\n*\n  2")
    for one in (text, product):
        assert parse(pretty(parse(one))) == parse(one)


def test_the_tree_of_an_aggregation() -> None:
    assert tree_of(parse('sum by (a) (rate(x{b!="c"}[5m] offset 1m))')) == {
        "type": "aggregation",
        "op": "sum",
        "param": None,
        "grouping": ["a"],
        "without": False,
        "expr": {
            "type": "call",
            "func": {"name": "rate", "argTypes": ["matrix"], "variadic": 0, "returnType": "vector"},
            "args": [
                {
                    "type": "matrixSelector",
                    "name": "x",
                    "range": 300_000,
                    "rangeExpr": None,
                    "offset": 60_000,
                    "offsetExpr": None,
                    "matchers": [
                        {"name": "__name__", "value": "x", "type": "="},
                        {"name": "b", "value": "c", "type": "!="},
                    ],
                    "timestamp": None,
                    "startOrEnd": None,
                    "anchored": False,
                    "smoothed": False,
                }
            ],
        },
    }


def test_the_tree_of_other_nodes() -> None:
    subquery = tree_of(parse("max_over_time(x[1h:1m] @ end())"))["args"][0]
    assert (subquery["type"], subquery["step"], subquery["startOrEnd"]) == ("subquery", 60_000, "end")
    both = tree_of(parse('-(x @ 5) and on (a) label_join(y, "z", "-", "a")'))
    assert both["matching"] == {
        "card": "many-to-many",
        "labels": ["a"],
        "on": True,
        "include": [],
        "fillValues": {"lhs": None, "rhs": None},
    }
    assert (both["lhs"]["op"], both["lhs"]["expr"]["timestamp"]) == ("-", 5_000)
    assert both["rhs"]["func"]["variadic"] == -1
    assert both["rhs"]["args"][1] == {"type": "stringLiteral", "val": "z"}
    product = tree_of(parse("x * 2.5"))
    assert (product["matching"], product["rhs"]) == (None, {"type": "numberLiteral", "val": "2.5"})
