"""Regular expressions in sources mean what they mean in PromQL, which has RE2's."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from loms.engines.source import Matcher
from loms.promql.regexes import matches

PIECES = st.sampled_from([".", ".*", ".+", "|", *'ab_-/é\n!"', r"\.", r"\*", r"\[", r"\]", r"\?", r"\|", r"\\"])
VALUES = st.lists(st.text("ab_-/é\n!.*[]?|\\", max_size=8), min_size=1)


def found(expression: str, values: list[str]) -> list[bool]:
    hits = [Matcher("x", "=~", expression).matches({"x": value}) for value in values]
    assert [Matcher("x", "!~", expression).matches({"x": value}) for value in values] == [not hit for hit in hits]
    return hits


@given(st.lists(PIECES, max_size=8).map("".join), VALUES)
def test_an_expression_means_the_same_to_re2(expression: str, values: list[str]) -> None:
    assert found(expression, values) == matches(expression, values)


@given(st.text('ab.*+?()[]{}|^$\\dQEé"', max_size=8), VALUES)
def test_what_is_not_refused_means_the_same_to_re2(expression: str, values: list[str]) -> None:
    with suppress(ValueError):
        assert found(expression, values) == matches(expression, values)
