from __future__ import annotations

import pytest

from loms.core.errors import QueryError
from loms.promql import regexes


def test_a_pattern_matches_whole_values() -> None:
    assert regexes.matches("a|b.", ["a", "ab", "bc", "b\n", "", "xa"]) == [True, False, True, True, False, False]


@pytest.mark.parametrize(
    "pattern", ["(", "[" * 100_000, "a" * 100_001, "\udcff", "\\Qa", "a)|(b", "[", "a{2000}", "(?<!a)b", "\\1"]
)
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(QueryError, match="error parsing regexp"):
        regexes.matches(pattern, ["a"])


def test_time_is_linear_in_the_text() -> None:
    assert regexes.matches("(a*)*b", ["a" * 50_000]) == [False]


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("$1-$2", "ab-3"),
        ("${1}x$1x", "abx"),
        ("$name/${name}", "ab/ab"),
        ("$9$none${none}", ""),
        ("$$1", "$1"),
        ("\\1\\", "\\1\\"),
        ("$0", "ab:3"),
        ("", ""),
    ],
)
def test_templates(template: str, result: str) -> None:
    assert regexes.replaced("(?P<name>[(a-z]+):(\\d)", template, ["ab:3", "no"]) == [result, None]


def test_more_groups_than_re2_rewrites() -> None:
    letters = "abcdefghijkl"
    pattern = "".join(f"({letter})" for letter in letters[:-1]) + "(?P<last>l)(m)?"
    filled = regexes.replaced(pattern, "$11,${10},$1,$last,$12,${13},$14,$0,$01,$99999999999", [letters, "x"])
    assert filled == ["k,j,a,l,l,,,abcdefghijkl,,", None]


@pytest.mark.parametrize(
    ("pattern", "text", "first"),
    [
        ("[[:a]([a-z:[]+)", ":x:", "x:"),  # ``[:`` without ``:]`` is just two characters
        ("[[:alpha:](]([]()]+)", "a)](", ")]("),
        ("[^](\\]]([[:digit:]]+)", "x12", "12"),
        ("\\Q(\\E(.)", "(b", "b"),
        ("\\((?i:X(?s)([\\](]))", "(x]", "]"),
    ],
)
def test_what_is_no_group(pattern: str, text: str, first: str) -> None:
    assert regexes.replaced(pattern, "<$1>", [text]) == [f"<{first}>"]


def test_groups_are_counted_as_re2_counts_them() -> None:
    assert regexes.replaced(r"(?:x)([(]\()(?i)(\[)(y)?", "$1|$2|$3", ["x(([", "X(["]) == ["((|[|", None]
