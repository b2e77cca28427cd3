from __future__ import annotations

import pytest

from loms.core.errors import QueryError
from loms.lint.templates import readings
from loms.promql.parse import parse

CASES = {
    "rate(a[$__rate_interval])": "rate(a[1m])",
    "rate(a[${window}] offset $shift)": "rate(a[1m] offset 1m)",
    "rate(a[[[window]]])": "rate(a[1m])",
    "max_over_time(a[$__range:$step])": "max_over_time(a[1m:1m])",
    "rate(a[${__range_s}s])": "rate(a[1s])",
    "rate(a[5$unit])": "rate(a[5m])",
    "increase(a[1h]) / $__range_s": "increase(a[1h]) / 1",
    "a @ ${__to:date:seconds}": "a @ 1",
    "topk($n, a)": "topk(1, a)",
    "histogram_quantile(${q}, a)": "histogram_quantile(1, a)",
    "clamp_max(a, $limit)": "clamp_max(a, 1)",
    "a > $threshold": "a > 1",
    'a{b=~"$b", c="[[c]]"}': 'a{b=~"$b", c="[[c]]"}',
    "a{b=~${b:doublequote}}": 'a{b=~"zZzZzZzZzZzZzZ"}',
    'a{$filters, b="c"}': 'a{b="c"}',
    'a{b="c", $filters}': 'a{b="c"}',
    "a{$filters}": "a",
    'a{$label="b"}': 'a{zZzZzZ="b"}',
    "sum by (le, $group) (a)": "sum by (le, zZzZzZ) (a)",
    "vllm:${kind}_total": "vllm:zZzZzZz_total",
    "$metric": "zZzZzZz",
    "$agg(a)": "max(a)",
    "$agg by (b) (a)": "max by (b) (a)",
    "$func(a[5m])": "rate(a[5m])",
    "quantile_over_time($q, a[$w])": "quantile_over_time(1, a[1m])",
    "$__range_s * rate(a[5m])": "1 * rate(a[5m])",
    "$a / $b": "zZ / 1",
    "round($ratio, 1) + a": "round(zZzZzZ, 1) + a",
}


@pytest.mark.parametrize(("text", "meaning"), CASES.items())
def test_the_first_reading_that_parses(text: str, meaning: str) -> None:
    """The right side is what the template would be with values filled in, so both must have one tree."""
    found = []
    for reading in readings(text):
        assert len(reading) == len(text)
        try:
            found.append(parse(reading))
        except QueryError:
            continue
    assert found
    assert found[0] == parse(meaning)


def test_what_has_no_variables_stays() -> None:
    assert readings("sum(a{b='$1'})") == ("sum(a{b='$1'})",)
    assert readings("label_replace(a, 'b', '${1}', 'c', '(.*)')") == ("label_replace(a, 'b', '${1}', 'c', '(.*)')",)
