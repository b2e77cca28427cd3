"""Whatever is typed, the parser answers with a tree or one `QueryError`, as another parser of PromQL does."""

from __future__ import annotations

import re

import promql_parser
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from loms.core.errors import QueryError
from loms.promql.parse import parse

WORDS = [
    "sum",
    "by",
    "without",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    "=",
    "!=",
    "=~",
    "!~",
    ">",
    "<",
    "==",
    "+",
    "-",
    "*",
    "/",
    "%",
    "^",
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "group_left",
    "bool",
    "offset",
    "@\n",
    "",
    "",
    "",
    "start()",
    "end()",
    "rate",
    "up",
    "vllm:x",
    '"a"',
    "'b'",
    "`c\\d`",
    "5m",
    "1h30m",
    "0",
    "1.5",
    "1e3",
    "-1",
    "NaN",
    "Inf",
    "0x1f",
    "#",
    "\n",
    "time()",
    "topk",
    "quantile",
    "1ms",
    ":",
    "\\",
    "é",
]


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)))
@example("(" * 100_000)
@example("x" + "+x" * 100_000)
@example("-" * 100_000 + "x")
@example("(" * 1_000 + "x" + ")" * 1_000)
@example("x @ -1")
@example("x @ 1e30")
@example("x @ 99999999999999")
@example("x[5m:1m] offset 99999999999999y")
@example("\ud800")
@example("0x" + "f" * 400)
@example("1e999")
@example("9" * 5_000)
@example("9" * 5_000 + "d")
@example("x offset " + "9" * 400 + "d")
@example("x[" + "9" * 400 + "y]")
@example("x" * (2**20 + 1))
def test_parse_answers_or_refuses(text: str) -> None:
    try:
        parse(text)
    except QueryError as error:
        said = error.kind, re.sub(r"^\d+:\d+(: parse error): .*", r"\1", error.message, flags=re.DOTALL)
    else:
        said = "bad_data", ": parse error"
    assert said == ("bad_data", ": parse error")


NOT_THEIRS = ("`c\\d`", "'b'", '"a"', "@\n")
"""Raw strings and signs before strings, of which promql-parser has another opinion; it takes no time before 1970."""


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from([word for word in WORDS if word not in NOT_THEIRS]), min_size=1, max_size=9))
def test_what_is_promql_is_what_another_parser_takes(words: list[str]) -> None:
    text = " ".join(words)
    try:
        promql_parser.parse(text)
    except ValueError as error:
        assume("inside brackets" not in str(error))  # durations that are calculated
        with pytest.raises(QueryError):
            parse(text)
    except BaseException as error:  # its panics are no Exception
        assume(type(error).__name__ != "PanicException")
        raise
    else:
        parse(text)
