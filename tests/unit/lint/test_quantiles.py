from __future__ import annotations

import pytest
from unit.lint.conftest import Find
from unit.lint.world import written

P99 = "histogram_quantile(0.99, sum by (le, instance) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))"


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (f"avg({P99}) > 1", "warning"),
        (f"sum by (instance) ({P99}) > 1", "warning"),
        (f"avg_over_time({P99}[1h:1m]) > 1", "warning"),
        (f"quantile(0.5, {P99}) > 1", "warning"),
        (f"avg({P99} * 1000) > 1", "warning"),
        (f"avg(label_replace({P99}, 'a', '$1', 'instance', '(.*)')) > 1", "warning"),
        (f"avg(max by (instance) ({P99})) > 1", "warning"),
        ('avg(vllm:reworked_seconds{quantile="0.9"}) > 1', "warning"),
        ('avg_over_time(vllm:reworked_seconds{quantile="0.9"}[1h]) > 1', "warning"),
        (f"max({P99}) > 1", "info"),
        (f"max_over_time({P99}[1h:1m]) > 1", "info"),
    ],
)
def test_quantiles_are_not_averaged(text: str, severity: str, find: Find) -> None:
    kinds = [(one.kind, one.severity) for one in find(text) if one.severity == severity]
    assert kinds == [("average_of_quantiles", severity)]


def test_what_to_do_instead_is_what_there_is(find: Find) -> None:
    (buckets,) = find(f"avg({P99}) > 1")
    assert buckets.text.endswith("; sum the buckets' rates by (le) and take one")
    alias = written("max(vllm:reworked_seconds)", "record", defines="worst")
    for text in ("avg(vllm:reworked_seconds) > 1", "avg(-worst) > 1"):
        (summary,) = [one for one in find(alias, text) if one.severity == "warning"]
        assert summary.text == (
            "avg of quantiles: quantiles cannot be averaged; vllm:reworked_seconds is a summary and has no buckets: "
            "take the mean, sum(rate(vllm:reworked_seconds_sum[5m])) / sum(rate(vllm:reworked_seconds_count[5m])), "
            "or a histogram if the engine has one"
        )


@pytest.mark.parametrize(
    "text",
    [
        f"{P99} > 1",
        f"count({P99} > 1) > 2",
        f"sum({P99} > bool 1) > 2",
        f"{P99} / {P99.replace('0.99', '0.5')} > 10",
        "avg(vllm:num_requests_running) > 1",
        "sum(rate(vllm:reworked_seconds_sum[5m])) > 1",
        "avg(vllm:num_requests_running unless " + P99 + ") > 1",
    ],
)
def test_what_may_be_done_with_quantiles(text: str, find: Find) -> None:
    assert find(text) == []


def test_through_recording_rules(find: Find) -> None:
    rule = written(P99, "record", defines="instance:latency:p99")
    alias = written("instance:latency:p99 > 0", "record", defines="instance:latency:p99_busy")
    (one,) = find(rule, alias, "avg(instance:latency:p99) > 1")
    assert (one.kind, one.severity) == ("average_of_quantiles", "warning")
    (one,) = find(rule, alias, "avg_over_time(instance:latency:p99_busy[1h]) > 1")
    assert (one.kind, one.severity) == ("average_of_quantiles", "warning")
    assert find("avg(instance:latency:p99) > 1") == []


def test_rules_in_a_ring_end(find: Find) -> None:
    a, b = written("avg(ring:b)", "record", defines="ring:a"), written("ring:a", "record", defines="ring:b")
    assert find(a, b, "histogram_quantile(0.9, sum(ring:a)) > avg(ring:b)") == []


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        ("sum by (instance) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))", "write sum by (le, instance)"),
        ("sum(rate(vllm:e2e_request_latency_seconds_bucket[5m]))", "write sum by (le)"),
        ("sum without (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))", "sum leaves le out"),
        ("2 * sum(rate(vllm:e2e_request_latency_seconds_bucket[5m]))", "write sum by (le)"),
        ("sum by (le) (avg(rate(vllm:e2e_request_latency_seconds_bucket[5m])))", "write avg by (le)"),
    ],
)
def test_bounds_that_are_summed_away(operand: str, words: str, find: Find) -> None:
    (one,) = [one for one in find(f"histogram_quantile(0.9, {operand})") if one.kind != "unknown_label"]
    assert (one.kind, one.severity) == ("quantile_without_le", "error")
    assert one.text.endswith(words)


@pytest.mark.parametrize(
    "operand",
    [
        "sum by (le, instance) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))",
        "sum without (instance) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))",
        "rate(vllm:e2e_request_latency_seconds_bucket[5m])",
        "sum by (job) (rate(apiserver_latency_bucket[5m]))",
        "sum by (job) (rate(native_seconds[5m]))",
    ],
)
def test_bounds_that_stay_or_are_not_known(operand: str, find: Find) -> None:
    assert find(f"histogram_quantile(0.9, {operand})") == []


def test_bounds_that_a_rule_loses(find: Find) -> None:
    buckets = "rate(vllm:e2e_request_latency_seconds_bucket[5m])"
    good = written(f"sum by (le, job) ({buckets})", "record", defines="job:b:rate5m")
    bad = written(f"sum by (job) ({buckets})", "record", defines="job:c:rate5m")
    assert find(good, bad, "histogram_quantile(0.9, sum by (le) (job:b:rate5m))") == []
    (one,) = find(good, bad, "histogram_quantile(0.9, sum by (job) (job:b:rate5m))")
    assert (one.kind, one.text) == (
        "quantile_without_le",
        "histogram_quantile finds no buckets: sum leaves le out: write sum by (le, job)",
    )
    (one,) = find(good, bad, "histogram_quantile(0.9, job:c:rate5m)")
    assert one.text.endswith("in the rule job:c:rate5m, sum leaves le out: write sum by (le, job)")
