from __future__ import annotations

import pytest

from loms.lint.mentions import mentions

CASES = {
    "a": ["a"],
    "sum by (a, b) (rate(vllm:c_total{d='e'}[5m])) / ignoring (f) group_left (g) h offset 5m": ["vllm:c_total", "h"],
    "sum(a) by (b) + topk without (c) (3, d) and on (e) f": ["a", "d", "f"],
    "histogram_quantile(0.9, a) > bool 1": ["a"],
    "max_over_time(sum(a)[1h:5m] @ end()) unless b @ start()": ["a", "b"],
    "a # b\n+ c": ["a", "c"],
    "'a' == \"b\"": [],
    "1e3 * Inf + nan - 0x1F": [],
    "{__name__='a', b='c'}": ["a"],
    '{"a", b="c", "d"="e"}': ["a"],
    '{__name__=~"a|b:c|d_total"}': ["a", "b:c", "d_total"],
    '{__name__=~"^(a|b)$"} + {__name__=~"^c$"} + {__name__=~`(?:d)`}': ["a", "b", "c", "d"],
    '{__name__!="a", __name__!~"b", c="d"}': [],
    "label_replace(a, 'b', '$1', 'c', '(.*)')": ["a"],
    "sum": ["sum"],
    "rate(a[5m": ["a"],
    "a}}] + b": ["a", "b"],
}


@pytest.mark.parametrize(("text", "names"), CASES.items())
def test_names_with_their_places(text: str, names: list[str]) -> None:
    found = mentions(text)
    assert [one.name for one in found] == names
    assert [text[one.start : one.end] for one in found] == names
    assert not any(one.pattern for one in found)


def test_names_of_one_regex_are_a_choice() -> None:
    found = mentions('{__name__=~"a|b"} or {__name__=~"c|d"} or e')
    first, second = found[0].choice, found[2].choice
    assert [one.choice for one in found] == [first, first, second, second, -1]
    assert first != second


def test_any_other_regex_is_a_pattern() -> None:
    (plain,) = mentions('{__name__=~"vllm:.*_total"}')
    assert (plain.name, plain.pattern) == ("vllm:.*_total", True)
    (quoted,) = mentions('{__name__=~"vllm:\\\\w+"}')
    assert (quoted.name, quoted.pattern) == ("vllm:\\w+", True)
