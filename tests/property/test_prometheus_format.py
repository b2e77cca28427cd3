"""However an expression is written, its usual spelling means the same, on one line and laid out."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loms.core.errors import QueryError
from loms.promql.parse import parse
from loms.server.prometheus.format import flat, pretty
from loms.server.prometheus.tree import tree_of

LABELS = st.sampled_from(["a", "job", '"odd name"', "le"])
STRINGS = st.sampled_from(['"x"', "'it\\'s'", '"back\\\\slash"', '"\\n"', "`raw\\d`", '"é"'])
MATCHERS = st.builds(
    "{}{}{}".format, LABELS, st.sampled_from(["=", "!=", "=~", "!~"]), st.sampled_from(['"x"', '"y.*"'])
)
MODIFIERS = st.sampled_from(["", " offset 1h30m", " offset -8d", " @ 5.25", " @ start()", " @ end() offset 2w"])
SELECTORS = st.builds(
    "{}{{{}}}".format,
    st.sampled_from(["up", "a_metric_with_a_rather_long_name_total"]),
    st.lists(MATCHERS, max_size=2).map(",".join),
)
NUMBERS = st.sampled_from(["1", "0.5", "1e9", "Inf", "NaN", "0x1f", "1e-7"])
GROUPINGS = st.sampled_from(["", "by (a, job)", "without (le)", "without ()"])
OPERATORS = st.sampled_from(["+", "-", "*", "/", "%", "^", "atan2"])
MATCHINGS = st.sampled_from(["", "on (a)", "ignoring (a, job)", "on (a) group_left (le)", "on () group_right ()"])
SETS = st.sampled_from(["and", "or", "unless"])
COMPARED = st.sampled_from(["> bool", "<", "== bool", "!="])
RANGED = st.sampled_from(["rate", "max_over_time", "count_over_time"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({})".format, inner),
        st.builds("-{}".format, inner),
        st.builds("{} {} {} {}".format, inner, OPERATORS, MATCHINGS, inner),
        st.builds("({}) {} ({})".format, inner, OPERATORS, inner),
        st.builds("({}) {} ({} {} {})".format, inner, OPERATORS, inner, OPERATORS, inner),
        st.builds("({} {} {}) {} ({})".format, inner, OPERATORS, inner, OPERATORS, inner),
        st.builds("{} {} {}".format, inner, OPERATORS, NUMBERS),
        st.builds("{} {} {}".format, NUMBERS, OPERATORS, inner),
        st.builds("{} {} {}".format, inner, COMPARED, inner),
        st.builds("{} {} on (a) {}".format, inner, SETS, inner),
        st.builds("sum {} ({})".format, GROUPINGS, inner),
        st.builds("topk {} (3, {})".format, GROUPINGS, inner),
        st.builds("abs({})".format, inner),
        st.builds('label_replace({}, "a", {}, "b", "(.*)")'.format, inner, STRINGS),
        st.builds("{}(({})[1h:{}]{})".format, RANGED, inner, st.sampled_from(["", "5m"]), MODIFIERS),
    )


LEAVES = st.one_of(
    st.builds("{}{}".format, SELECTORS, MODIFIERS),
    st.builds("{}({}[90m]{})".format, RANGED, SELECTORS, MODIFIERS),
    st.sampled_from(["vector(1)", '{__name__=~"u.+"}', "time()", "2"]),
)
EXPRESSIONS = st.recursive(LEAVES, _larger, max_leaves=6)


def _meaning(value: Any) -> Any:
    """The tree with matchers in one order, which is all that a spelling changes."""
    if isinstance(value, dict):
        return {key: _meaning(one) for key, one in value.items()}
    if isinstance(value, list):
        parts = [_meaning(one) for one in value]
        return sorted(parts, key=str) if parts and "value" in parts[0] else parts
    return value


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS)
def test_a_spelling_means_what_was_written(text: str) -> None:
    try:
        tree = parse(text)
    except QueryError:
        assume(False)
    for spelling in (flat(tree), pretty(tree)):
        assert _meaning(tree_of(parse(spelling))) == _meaning(tree_of(tree))
        assert flat(parse(spelling)) == flat(tree)
