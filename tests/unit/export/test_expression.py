"""PromQL text: parentheses where they are needed, and nothing that a parser would read in another way."""

from __future__ import annotations

import re

import pytest

from loms.export.expression import Step, aggregated, copy, joined, literal, replaced
from loms.promql.parse import parse


@pytest.mark.parametrize(
    ("operator", "parts", "text"),
    [
        ("or", ["a"], "a"),
        ("or", ["a", 'b{x=~"(y)|z"}'], 'a or b{x=~"(y)|z"}'),
        ("*", ["a + b", "0.001"], "(a + b) * 0.001"),
        ("*", ["a", "1e-06"], "a * 1e-06"),
        ("+", ["sum without (x) (a)", "rate(b[5m])"], "sum without (x) (a) + rate(b[5m])"),
        ("or", ["(a) and (b)", "c"], "((a) and (b)) or c"),
        ("or", ['label_replace(a, ")", "(", "", "")', "c"], 'label_replace(a, ")", "(", "", "") or c'),
        ("or", ["sum without (x) (a) == 1", "c"], "(sum without (x) (a) == 1) or c"),
    ],
)
def test_operands_are_enclosed_where_they_are_not_alone(operator: str, parts: list[str], text: str) -> None:
    assert joined(operator, parts) == text


def test_a_long_expression_is_broken_into_lines_and_means_the_same() -> None:
    steps = [copy("engine_index", "engine"), copy("model", "model_name"), Step("outcome", "error"), Step("a", "")]
    laid_out = aggregated(
        "sum", replaced('vllm:request_success_total{model_name!=""}', steps), ["engine", "model_name"]
    )
    assert max(map(len, laid_out.splitlines())) < 100
    assert laid_out.splitlines()[0] == "sum without (engine, model_name) ("
    flat = (
        "sum without (engine, model_name) (label_replace(label_replace(label_replace(label_replace("
        'vllm:request_success_total{model_name!=""}, "engine_index", "$1", "engine", "(.+)"), '
        '"model", "$1", "model_name", "(.+)"), "outcome", "error", "", ""), "a", "", "", ""))'
    )
    assert parse(laid_out) == parse(flat)


def test_nothing_is_aggregated_without_labels() -> None:
    assert aggregated("max", "a", []) == "a"


@pytest.mark.parametrize(
    "value", ["stop", "a.b", "a|b", "[x]", "^$", "back\\slash", "(a)*+?{2}", "with space-and:colon"]
)
def test_a_literal_matches_its_own_text_only(value: str) -> None:
    assert re.fullmatch(literal(value), value)
    assert not re.fullmatch(literal(value), f"{value}x")
    assert not re.fullmatch(literal("a.b"), "axb")
