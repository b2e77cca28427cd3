from __future__ import annotations

from collections.abc import Mapping

import pytest
from unit.lint.world import written

from loms.engines.contracts.contract import Exposed, Observed
from loms.lint.check import problems_in, target_of
from loms.lint.problem import Problem

LABELS = frozenset({"model_name", "tp_rank", "dp_rank"})
OBSERVED = Observed(
    "sglang",
    "0.5.23",
    {
        "sglang:num_running_reqs": Exposed("gauge", LABELS),
        "sglang:token_usage": Exposed("gauge", LABELS),
        "sglang:realtime_tokens_total": Exposed("counter", LABELS),
        "sglang:cached_tokens_total": Exposed("counter", LABELS),
        "sglang:time_to_first_token_seconds": Exposed("histogram", LABELS),
        "sglang:num_requests_total": Exposed("counter", frozenset({"model_name"})),
    },
)


def find(text: str, values: Mapping[tuple[str, str], frozenset[str]] | None = None) -> list[Problem]:
    return list(problems_in([written(text, "panel")], target_of(OBSERVED, None, values=values)))


@pytest.mark.parametrize(
    "text",
    [
        "sum(sglang:num_running_reqs)",
        "avg by (model_name) (sglang:token_usage)",
        "sum without (dp_rank, tp_rank) (sglang:num_running_reqs)",
        "sum by (model_name) (rate(sglang:realtime_tokens_total[5m])) > 10",
        "sum(topk(3, sglang:num_running_reqs))",
        "sum(max without (dp_rank) (sglang:num_running_reqs))",
        "sum(sglang:num_running_reqs / 2)",
        'sum(sglang:num_running_reqs{tp_rank=~".*"})',
        "sum(rate(sglang:realtime_tokens_total[5m])) / sum(max without (tp_rank) (sglang:token_usage))",
        "sum(rate(sglang:realtime_tokens_total[5m])) / sum(rate(sglang:num_requests_total[5m]))",
    ],
)
def test_ranks_are_not_added_up(text: str) -> None:
    (one,) = find(text)
    assert (one.kind, one.severity) == ("replicas_added", "warning")
    assert " over tp_rank, whose series tell the same thing several times: put max without (tp_rank) " in one.text


@pytest.mark.parametrize(
    "text",
    [
        "sglang:num_running_reqs",
        "max(sglang:num_running_reqs)",
        "sum(max without (tp_rank) (sglang:num_running_reqs))",
        "sum(max by (dp_rank) (rate(sglang:realtime_tokens_total[5m])))",
        'sum(sglang:num_running_reqs{tp_rank="0"})',
        "sum by (tp_rank) (sglang:num_running_reqs)",
        "sum without (dp_rank) (sglang:num_running_reqs)",
        "sum(rate(sglang:num_requests_total[5m]))",
        "count(sglang:num_running_reqs)",
        "sum(up unless on (instance) sglang:num_running_reqs)",
        "sum(absent(sglang:num_running_reqs))",
        "sum(sglang:num_running_reqs > on (dp_rank) max by (dp_rank) (sglang:token_usage))",
        "sum(rate(sglang:cached_tokens_total[5m])) / sum(rate(sglang:realtime_tokens_total[5m]))",
        "histogram_quantile(0.9, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket[5m])))",
    ],
)
def test_what_may_be_done_with_ranks(text: str) -> None:
    assert find(text) == []


def test_a_single_rank_may_be_added_up() -> None:
    family = ("sglang:num_running_reqs", "tp_rank")
    assert find("sum(sglang:num_running_reqs)", {family: frozenset({"0"})}) == []
    assert len(find("sum(sglang:num_running_reqs)", {family: frozenset({"0", "1"})})) == 1
