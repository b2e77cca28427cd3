from __future__ import annotations

import pytest
from unit.lint.conftest import Find


@pytest.mark.parametrize(
    "text",
    [
        "rate(vllm:gpu_prefix_cache_hits_total[5m]) + rate(vllm:prefix_cache_hits_total[5m]) > 1",
        "sum(rate(vllm:prefix_cache_hits_total[5m])) + 2 * sum(rate(vllm:gpu_prefix_cache_hits_total[5m])) > 1",
        'sum(rate({__name__=~"vllm:prefix_cache_hits_total|vllm:gpu_prefix_cache_hits_total"}[5m])) > 1',
        "rate(vllm_gpu_prefix_cache_hits_total[5m]) + rate(vllm:prefix_cache_hits_total[5m]) > 1",
    ],
)
def test_one_signal_added_twice(text: str, find: Find) -> None:
    (one,) = [one for one in find(text) if one.kind == "mixed_old_and_new"]
    assert one.severity == "error"
    assert one.text.startswith("vllm:prefix_cache_hits_total took the place of vllm")


def test_in_several_steps(find: Find) -> None:
    (one,) = [
        one for one in find("vllm:older_usage_perc + vllm:kv_cache_usage_perc > 1") if one.kind == "mixed_old_and_new"
    ]
    assert one.text.startswith("vllm:kv_cache_usage_perc took the place of vllm:older_usage_perc")


@pytest.mark.parametrize(
    "text",
    [
        "vllm:gpu_cache_usage_perc or vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc / vllm:kv_cache_usage_perc",
        "vllm:num_requests_running + vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc + vllm:kv_cache_usage_perc",
        'max({__name__=~"vllm:gpu_cache_usage_perc|vllm:kv_cache_usage_perc"})',
        'sum({__name__=~"vllm:num_requests_running|vllm:num_requests_waiting"})',
    ],
)
def test_what_is_not_added(text: str, find: Find) -> None:
    assert [one for one in find(text) if one.kind == "mixed_old_and_new"] == []
