"""What holds for every rewrite, whatever the expression."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.lint.world import CONTRACT, TARGET, written

from loms.core.errors import QueryError
from loms.lint.check import problems_in
from loms.lint.mentions import mentions
from loms.lint.patch import patch
from loms.lint.problem import Problem
from loms.lint.query import walk
from loms.promql.parse import parse
from loms.promql.syntax import NAME, Binary, Node, Selector

GAUGES = [
    "vllm:gpu_cache_usage_perc",
    "vllm_gpu_cache_usage_perc",
    "vllm:older_usage_perc",
    "vllm:num_requests_running",
]
COUNTERS = [
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens",
    "http_requests_total",
]
HISTOGRAMS = ["vllm:time_per_output_token_seconds", "vllm_e2e_request_latency_seconds", "vllm:worked_seconds"]
SERIES = [*GAUGES, *COUNTERS, *(name + part for name in HISTOGRAMS for part in ("_bucket", "_sum", "_count")), "up"]

matchers = st.sampled_from(["", "{}", '{job="a"}', "{ model_name =~ 'vllm:gpu_cache_usage_perc|b' , }", '{a!="}"}'])
selectors = st.one_of(
    st.tuples(st.sampled_from(SERIES), matchers).map("".join),
    st.sampled_from(SERIES).map(lambda name: f'{{__name__="{name}", job=~"{name}"}}'),
    st.tuples(st.sampled_from(SERIES), st.sampled_from(SERIES)).map(lambda two: f"{{__name__=~'{two[0]}|{two[1]}'}}"),
)
expressions = st.recursive(
    selectors,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "/", " or\n", " and on (job) ", " > bool "]), inner).map("".join),
        inner.map("sum by (le, job) ({})".format),
        inner.map("avg({}) without (vllm_gpu_cache_usage_perc)".format),
        inner.map("( # vllm:gpu_cache_usage_perc\n{} )".format),
        selectors.map("rate({}[5m] offset 1h)".format),
        inner.map("max_over_time(({})[1h:5m])".format),
        inner.map("label_replace({}, 'a', 'vllm:gpu_cache_usage_perc', 'b', '(.*)')".format),
        inner.map("histogram_quantile(0.9, {})".format),
    ),
    max_leaves=6,
)


def found(text: str) -> list[Problem]:
    return list(problems_in([written(text)], TARGET))


def rewritten(text: str) -> str:
    return next((one.rewrite for one in found(text) if one.rewrite), text)


@settings(deadline=None)
@given(expressions)
def test_rewriting_twice_is_rewriting_once(text: str) -> None:
    once = rewritten(text)
    assert rewritten(once) == once
    assert not any(one.edits for one in found(once))


@settings(deadline=None)
@given(expressions)
def test_all_problems_of_an_expression_tell_one_rewrite(text: str) -> None:
    rewrites = {one.rewrite for one in found(text) if one.rewrite}
    assert len(rewrites) <= 1
    edits = {edit.start: edit for one in found(text) for edit in one.edits}
    patched = text
    for start in sorted(edits, reverse=True):
        patched = patched[:start] + edits[start].new + patched[edits[start].end :]
    assert patched == rewritten(text)


@settings(deadline=None)
@given(expressions)
def test_the_tree_is_the_same_but_for_names(text: str) -> None:
    try:
        before = parse(text)
    except QueryError:
        return
    assert shape(parse(rewritten(text))) == shape(before)


@settings(deadline=None)
@given(expressions)
def test_names_that_are_mentioned_are_those_of_the_tree(text: str) -> None:
    try:
        tree = parse(text)
    except QueryError:
        return
    by_tree = [
        name
        for node, _ in walk(tree)
        if isinstance(node, Selector)
        for matcher in node.matchers
        if matcher.name == NAME
        for name in matcher.value.split("|")
    ]
    assert sorted(one.name for one in mentions(text)) == sorted(by_tree)


@settings(deadline=None)
@given(expressions)
def test_no_signal_is_added_twice_by_a_rewrite(text: str) -> None:
    """A name of the rewrite stands there as often as it and one dead name did."""
    new = rewritten(text)
    for name in {one.name for one in mentions(new)} - {one.name for one in mentions(text)}:
        old = {one.name for one in mentions(text)} - {one.name for one in mentions(new)}
        verdicts = [TARGET.verdict(one) for one in old]
        assert sum(TARGET.spell(one.new) == TARGET.spell(name) for one in verdicts if one is not None) == 1


def shape(tree: Node) -> list[object]:
    """Every node of a tree, selectors without the metric's name."""
    flat: list[object] = []
    for node, above in walk(tree):
        if isinstance(node, Selector):
            others = tuple(matcher for matcher in node.matchers if matcher.name != NAME)
            flat.append((len(above), replace(node, matchers=others)))
        else:
            flat.append((len(above), type(node), node.op if isinstance(node, Binary) else None))
    return flat


def test_the_world_of_these_tests_has_what_they_turn_on() -> None:
    """Else they would hold of nothing."""
    assert rewritten("vllm:older_usage_perc") == "vllm:kv_cache_usage_perc"
    assert {one.name for one in mentions(" + ".join(GAUGES))} == set(GAUGES)
    assert CONTRACT.get("vllm:worked_seconds_bucket") is not None
    assert patch(found("vllm:older_usage_perc")).count("\n+vllm:kv") == 1
