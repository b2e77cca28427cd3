from __future__ import annotations

import pytest
from unit.lint.conftest import Find
from unit.lint.world import written

FIT = [
    "rate(vllm:prompt_tokens_total[5m]) > 1",
    "sum(increase(vllm:request_success_total[1h])) == 0",
    "irate(vllm:prompt_tokens_total[1m]) + resets(vllm:prompt_tokens_total[1h])",
    "changes(vllm:prompt_tokens_total[1h]) > 1",
    "absent(vllm:prompt_tokens_total) or absent_over_time(vllm:prompt_tokens_total[5m])",
    "count(vllm:prompt_tokens_total) > 3 or count_over_time(vllm:prompt_tokens_total[5m]) > 3",
    "group by (instance) (vllm:prompt_tokens_total)",
    "time() - timestamp(vllm:prompt_tokens_total) > 60",
    "vllm:num_requests_running > 3 and on (instance) vllm:prompt_tokens_total",
    "vllm:num_requests_running > 3 unless vllm:prompt_tokens_total offset 1h",
    "max_over_time(rate(vllm:prompt_tokens_total[5m])[1h:1m]) > 3",
    "rate(vllm:prompt_tokens_total[1h:1m]) > 3",
    "rate((vllm:prompt_tokens_total)[1h:1m]) > 3",
    "deriv(vllm:num_requests_waiting[5m]) > 1 or delta(vllm:num_requests_waiting[5m]) > 1",
    "max_over_time(vllm:kv_cache_usage_perc[5m]) > 0.9",
    "histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds_bucket[5m])) > 1",
    "histogram_quantile(0.9, sum by (le) (increase(vllm:e2e_request_latency_seconds_bucket[5m]))) > 1",
    "rate(vllm:reworked_seconds_sum[5m]) / rate(vllm:reworked_seconds_count[5m]) > 1",
    'vllm:reworked_seconds{quantile="0.9"} > 1',
    "node_network_receive_bytes_total > 1",
]


@pytest.mark.parametrize("text", FIT)
def test_what_is_right(text: str, find: Find) -> None:
    assert find(text) == []


GAUGES = {
    "vllm:prompt_tokens_total > 100": "vllm:prompt_tokens_total is a counter and grows until a restart",
    "avg(vllm:prompt_tokens_total) > 100": "is a counter and grows",
    "vllm:e2e_request_latency_seconds_sum / vllm:e2e_request_latency_seconds_count > 5": "is the _sum of a histogram",
    "sum by (le) (vllm:e2e_request_latency_seconds_bucket) > 5": "is the _bucket of a histogram and grows",
    "vllm:reworked_seconds_count > 5": "is the _count of a summary and grows",
    "max_over_time(vllm:prompt_tokens_total[5m]) > 5": "max_over_time() takes vllm:prompt_tokens_total, a counter, for",
    "deriv(vllm:prompt_tokens_total[5m]) > 5": "deriv() takes vllm:prompt_tokens_total, a counter, for a gauge",
    "rate(sum(vllm:prompt_tokens_total)[1h:1m]) > 5": "misses the restarts of vllm:prompt_tokens_total: take the rate",
    "count(vllm:prompt_tokens_total > 5) > 1": "is a counter and grows",
    "topk(scalar(vllm:prompt_tokens_total), vllm:num_requests_running) > 1": "is a counter and grows",
    "vllm:num_requests_running and vllm:prompt_tokens_total > 5": "is a counter and grows",
    'topk(3, {__name__=~"vllm:prompt_tokens_total|vllm:num_requests_running"}) > 5': "vllm:prompt_tokens_total is",
}


@pytest.mark.parametrize("text", GAUGES)
def test_a_counter_taken_for_a_gauge(text: str, find: Find) -> None:
    (one,) = find(text)
    assert (one.kind, one.severity) == ("counter_as_gauge", "error")
    assert GAUGES[text] in one.text


def test_it_weighs_less_where_nobody_is_woken(find: Find) -> None:
    text = "sum(vllm:prompt_tokens_total)"
    weights = {purpose: find(text, purpose=purpose) for purpose in ("panel", "record", "scaler")}
    assert {purpose: one.severity for purpose, (one,) in weights.items()} == {
        "panel": "warning",
        "record": "warning",
        "scaler": "error",
    }
    for text in ("vllm:prompt_tokens_total > 0", "vllm:prompt_tokens_total - vllm:prompt_tokens_total offset 1h > 5"):
        (one,) = find(text)
        assert (one.kind, one.severity) == ("counter_as_gauge", "warning")
    assert find("label_values(vllm:prompt_tokens_total, model_name)", purpose="variable", dialect="variable") == []
    assert find("vllm:prompt_tokens_total", purpose="scaler", dialect="name") == []


def test_a_quantile_of_everything_since_the_start(find: Find) -> None:
    for text in (
        "histogram_quantile(0.9, vllm:e2e_request_latency_seconds_bucket) > 1",
        "histogram_quantile(0.9, sum by (le) (vllm:e2e_request_latency_seconds_bucket)) > 1",
    ):
        (one,) = find(text, purpose="panel")
        assert (one.kind, one.severity) == ("missing_rate", "error")
        assert one.text.endswith("write rate(vllm:e2e_request_latency_seconds_bucket[5m])")


def test_a_rate_of_a_gauge(find: Find) -> None:
    (one,) = find("rate(vllm:num_requests_waiting[5m]) > 1")
    assert (one.kind, one.severity) == ("rate_of_gauge", "warning")
    assert one.text == "rate() takes every fall of vllm:num_requests_waiting, a gauge, for a restart: use deriv()"
    (one,) = find("increase(vllm:num_requests_waiting[1h:1m]) > 1")
    assert one.text.endswith("use delta()")


def test_a_dead_metric_is_judged_as_its_author_meant_it(find: Find) -> None:
    kinds = {one.kind for one in find("vllm:gpu_prefix_cache_hits_total > 5")}
    assert kinds == {"dead_metric", "counter_as_gauge"}
    kinds = {one.kind for one in find("rate(vllm:num_requests_swapped[5m]) > 5")}
    assert kinds == {"dead_metric", "rate_of_gauge"}


def test_what_an_adapter_calls_the_series(find: Find) -> None:
    text = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    (one,) = find(written(text, "scaler", "adapter", series="vllm:prompt_tokens_total"))
    assert (one.kind, one.severity) == ("counter_as_gauge", "error")
    assert one.text.startswith("vllm:prompt_tokens_total is a counter")
    assert find(written(text, "scaler", "adapter", series="vllm:num_requests_running")) == []
    assert find(written(text, "scaler", "adapter")) == []


def test_a_rule_may_hand_a_counter_on_as_one(find: Find) -> None:
    text = "sum without (engine) (vllm:prompt_tokens_total)"
    assert find(written(text, "record", defines="prompt_tokens_total")) == []
    (taken,) = find(written(text, "record", defines="prompt_tokens"))
    assert (taken.kind, taken.severity) == ("counter_as_gauge", "warning")
