from __future__ import annotations

import pytest

from loms.engines.engine import Row
from loms.engines.source import Matcher, Term, families_of, parse_source


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("vllm:x_total", (Term("vllm:x_total"),)),
        ("a_ms * 0.001", (Term("a_ms", factor=0.001),)),
        ("a_ms / 1000", (Term("a_ms", factor=0.001),)),
        ("a * 2 * .5e1", (Term("a", factor=10.0),)),
        ("a + b*2", (Term("a"), Term("b", factor=2.0))),
        (
            'a{x="1", y!~"b|c"} + a{x=""}',
            (Term("a", (Matcher("x", "=", "1"), Matcher("y", "!~", "b|c"))), Term("a", (Matcher("x", "=", ""),))),
        ),
        ("a * size", (Term("a", scale=Term("size")),)),
        ("a * 2 * size", (Term("a", factor=2.0, scale=Term("size")),)),
        ('used / k{t="max"}', (Term("used", scale=Term("k", (Matcher("t", "=", "max"),)), inverse=True),)),
        ("a * size + b * size", (Term("a", scale=Term("size")), Term("b", scale=Term("size")))),
    ],
)
def test_what_sources_mean(text: str, terms: tuple[Term, ...]) -> None:
    assert parse_source(text) == terms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a metric's name is expected at ''"),
        ("a +", "a metric's name is expected at ''"),
        ("a * ", "a metric's name is expected at ''"),
        ("a b", "cannot read 'b'"),
        ("a - b", "cannot read '- b'"),
        ("a * 1.2.3", "cannot read '.3'"),
        ("a / 0", "a factor must not be 0"),
        ('a{x>"1"}', "cannot read"),
        ('a{x=~"("}', "'(': cannot read '('; an expression may have"),
        ('a{x=~"(?!warm).+"}', "cannot read '(?!warm).+'"),
        ('a{x!~"(a+)+$"}', "cannot read '(a+)+$'"),
        ('a{x=~"ab*"}', "cannot read '*'"),
        ('a{x=~"a.*?"}', "cannot read '?'"),
        (r'a{x=~"\\d"}', r"cannot read '\\d'"),
        (r'a{x=~"\\“"}', "cannot read"),
        ("a * b * c", "one family only"),
        ("a * size + b", "one and the same family"),
        ("a * size + b / size", "one and the same family"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_source(text)
    assert message in str(error.value)


def test_families_of_a_source_are_named_once() -> None:
    assert families_of('a{x="1"} * size + a{x="2"} * size + b * size') == ("a", "size", "b")


def test_matchers_are_anchored_and_a_missing_label_is_empty() -> None:
    [term] = parse_source('a{path=~"/v1/.+", priority=""}')
    assert term.matches({"path": "/v1/completions"})
    assert not term.matches({"path": "/api/v1/completions"})
    assert not term.matches({"path": "/v1/completions", "priority": "1"})


def test_no_expression_takes_long() -> None:
    """A backtracking search would try 16384 ** 6 ways."""
    [term] = parse_source('a{x=~".*a.*a.*a.*a.+a.+b"}')
    assert not term.matches({"x": "a" * 16_384})
    assert term.matches({"x": "a" * 16_384 + "b"})


def test_a_row_refuses_sources_that_cannot_make_its_metric() -> None:
    with pytest.raises(ValueError, match="is no counter"):
        Row("llm.engine.tokens.output", ("a_total / b",))
    with pytest.raises(ValueError, match="bounds cannot be multiplied"):
        Row("llm.engine.iteration.tokens", ("a * b",))
    with pytest.raises(ValueError, match="cannot read"):
        Row("llm.engine.tokens.output", ("a b",))
    assert Row("llm.engine.iteration.tokens", ("a * b",), part="_sum").part == "_sum"
