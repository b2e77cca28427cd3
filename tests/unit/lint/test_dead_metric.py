from __future__ import annotations

from dataclasses import replace

import pytest
from unit.lint.conftest import Find
from unit.lint.world import CONTRACT, OBSERVED, TARGET, written

from loms.lint.check import problems_in

REWRITES = {
    "vllm:gpu_cache_usage_perc > 0.9": "vllm:kv_cache_usage_perc > 0.9",
    "vllm_gpu_cache_usage_perc > 0.9": "vllm_kv_cache_usage_perc > 0.9",
    "ray_vllm_gpu_cache_usage_perc": "ray_vllm_kv_cache_usage_perc",
    "vllm:older_usage_perc": "vllm:kv_cache_usage_perc",
    "rate(vllm:gpu_prefix_cache_hits_total[5m])": "rate(vllm:prefix_cache_hits_total[5m])",
    "rate(vllm:time_per_output_token_seconds_sum[5m])\n  /  rate(vllm:time_per_output_token_seconds_count[5m]) # x": (
        "rate(vllm:inter_token_latency_seconds_sum[5m])\n  /  rate(vllm:inter_token_latency_seconds_count[5m]) # x"
    ),
    "histogram_quantile(0.9, sum by (le) (rate(vllm:time_per_output_token_seconds_bucket[5m])))": (
        "histogram_quantile(0.9, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"
    ),
    "{__name__='vllm:gpu_cache_usage_perc', model_name='vllm:gpu_cache_usage_perc'}": (
        "{__name__='vllm:kv_cache_usage_perc', model_name='vllm:gpu_cache_usage_perc'}"
    ),
    '{"vllm:gpu_cache_usage_perc"}': '{"vllm:kv_cache_usage_perc"}',
    '{__name__=~"vllm:num_requests_running|vllm:gpu_cache_usage_perc"}': (
        '{__name__=~"vllm:num_requests_running|vllm:kv_cache_usage_perc"}'
    ),
    "rate(vllm:prompt_tokens[5m])": "rate(vllm:prompt_tokens_total[5m])",
    "vllm:num_requests_running_total": "vllm:num_requests_running",
    "vllm:gpu_cache_usage_perc + (": "vllm:kv_cache_usage_perc + (",
}


@pytest.mark.parametrize(("old", "new"), REWRITES.items())
def test_only_the_name_changes(old: str, new: str, find: Find) -> None:
    dead = [one for one in find(old) if one.kind == "dead_metric"]
    assert {(one.severity, one.rewrite) for one in dead} == {("error", new)}


def test_the_first_successor_that_the_target_has(find: Find) -> None:
    (one,) = find("vllm:split_perc > 1")
    assert one.rewrite == "vllm:num_requests_running > 1"


def test_what_is_said(find: Find) -> None:
    (cache,) = find("vllm:gpu_cache_usage_perc > 0.9")
    assert cache.text == (
        "vLLM 0.32.0 does not expose vllm:gpu_cache_usage_perc (last seen in 0.11.2, gone in 0.12.0); "
        "vllm:kv_cache_usage_perc took its place"
    )
    (blocks,) = find("rate(vllm:gpu_prefix_cache_hits_total[5m])")
    assert blocks.text.endswith(". Mind the meaning: since 0.9.0 it counts tokens, and counted blocks before")
    (gap,) = find("rate(vllm:time_per_output_token_seconds_sum[5m])")
    assert gap.text.endswith(". Mind the meaning: both are the gap between two steps")


def test_one_problem_for_one_family(find: Find) -> None:
    (one,) = find("rate(vllm:worked_seconds_sum[5m]) / rate(vllm:worked_seconds_count[5m])")
    assert one.text.endswith("took its place, but as a summary instead of a histogram: write it anew")
    assert (one.rewrite, one.edits) == ("", ())
    two = find("vllm:gpu_cache_usage_perc / rate(vllm:gpu_prefix_cache_hits_total[5m])")
    whole = "vllm:kv_cache_usage_perc / rate(vllm:prefix_cache_hits_total[5m])"
    assert [(one.rewrite, len(one.edits)) for one in two] == [(whole, 1), (whole, 1)]


NO_SUCCESSOR = {
    "vllm:num_requests_swapped": ("error", "vLLM has vllm:num_requests_swapped up to 0.8.5; this is 0.32.0"),
    "vllm:spec_decode_num_drafts_total == 0": (
        "warning",
        "needs --speculative-config: it is there only with",
    ),
    "rate(vllm:nixl_xfer_time_seconds_count[5m])": ("info", "appears with the first request"),
    "vllm:num_request_waiting": (
        "error",
        "nor its contract has it; did you mean vllm:num_requests_waiting?",
    ),
    "rate(vllm_prompt_token_total[5m])": ("error", "did you mean vllm_prompt_tokens_total?"),
    "vllm:healthy_pods": ("warning", "vllm:healthy_pods: neither vLLM 0.32.0 nor its contract has it; "),
    "vllm:time_to_first_token_seconds": (
        "error",
        "is a histogram and has no series of its own name; it has vllm:time_",
    ),
    "rate(vllm:num_requests_running_sum[5m])": (
        "error",
        "is a gauge in vLLM 0.32.0 and has no _sum",
    ),
    "sglang:token_usage > 1": ("warning", "sglang:token_usage is a metric of SGLang, and this target is vLLM 0.32.0"),
    '{__name__=~"vllm:num_requests_sw.*"}': (
        "error",
        "exposes nothing that the pattern vllm:num_requests_sw.* matches",
    ),
    '{__name__=~"vllm:router_.*"}': (
        "warning",
        "exposes nothing that the pattern vllm:router_.* matches, and no release of it that is known does; if a ",
    ),
}


@pytest.mark.parametrize("text", NO_SUCCESSOR)
def test_where_nothing_is_safe_nothing_is_rewritten(text: str, find: Find) -> None:
    (one,) = [one for one in find(text) if one.kind == "dead_metric"]
    severity, words = NO_SUCCESSOR[text]
    assert (one.severity, one.rewrite, one.edits) == (severity, "", ())
    assert words in one.text


@pytest.mark.parametrize(
    "text",
    [
        'up == 0 or absent(ALERTS{alertname="x"})',
        "sum(rate(node_cpu_seconds_total[5m])) + kube_pod_info + DCGM_FI_DEV_GPU_UTIL",
        'rate(http_requests_total{code="500"}[5m]) + process_cpu_seconds + python_info',
        "rate(llm_engine_tokens_output_total[5m]) > gen_ai_server_time_to_first_token_seconds_count > loms_up > hw_x",
        "sglang:unheard_of",
        "vllm:ttft_seconds:p99",
        "vllm_num_requests_running + ray_vllm:num_requests_running",
        "rate(vllm:prompt_tokens_total[5m]) / rate(vllm:time_to_first_token_seconds_count[5m])",
        "time() - vllm:prompt_tokens_created",
        "time() - vllm:e2e_request_latency_seconds_created",
        '{__name__=~"vllm:.*_perc"} > 0.9',
        '{__name__=~"vllm_num_.*"}',
        '{__name__!="vllm:gpu_cache_usage_perc", job="vllm"}',
        'vllm:num_requests_running{model_name="vllm:gpu_cache_usage_perc"}',
    ],
)
def test_what_is_alive_or_no_business_of_the_targets(text: str, find: Find) -> None:
    assert [one for one in find(text) if one.kind == "dead_metric"] == []


def test_a_rule_in_the_same_files_makes_its_metric(find: Find) -> None:
    rule = written("sum(vllm:num_requests_running)", "record", defines="vllm:running")
    assert find(rule, "vllm:running > 3") == []
    (alone,) = find("vllm:running > 3")
    assert (alone.kind, alone.severity) == ("dead_metric", "warning")


def test_a_name_that_answers_beside_the_dead_one(find: Find) -> None:
    for text in (
        "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc",
        "max(vllm:gpu_cache_usage_perc) > 0.9 or max(vllm:kv_cache_usage_perc) > 0.9",
        '{__name__=~"vllm:gpu_cache_usage_perc|vllm:kv_cache_usage_perc"}',
        "vllm:kv_cache_usage_perc or (vllm:gpu_cache_usage_perc unless on (job, instance) vllm:kv_cache_usage_perc)",
    ):
        (one,) = find(text)
        assert (one.kind, one.severity, one.rewrite) == ("dead_metric", "info", "")
    (other,) = find("vllm:gpu_cache_usage_perc or vllm:num_requests_running")
    assert (other.severity, other.rewrite) == ("error", "vllm:kv_cache_usage_perc or vllm:num_requests_running")


def test_a_rule_that_makes_a_canonical_series_is_written_for_all_releases(find: Find) -> None:
    (swapped,) = find(written("vllm:num_requests_swapped", "record", defines="llm_engine_requests_waiting"))
    assert (swapped.kind, swapped.severity) == ("dead_metric", "info")
    (other,) = find(written("vllm:num_requests_swapped", "record", defines="swapped"))
    assert other.severity == "error"


def test_a_rewrite_that_would_count_twice_is_none(find: Find) -> None:
    (present,) = find("vllm:gpu_cache_usage_perc / vllm:kv_cache_usage_perc")
    assert (present.severity, present.rewrite) == ("error", "")
    assert present.text.endswith("and stands here already: drop the old")
    both = [one for one in find("vllm:gpu_cache_usage_perc * vllm:older_usage_perc") if one.kind == "dead_metric"]
    assert [(one.severity, one.rewrite) for one in both] == [("error", ""), ("error", "")]


def test_names_of_an_autoscaler_may_lack_what_an_adapter_cuts_off(find: Find) -> None:
    assert find("vllm:prompt_tokens", "vllm_request_success", "queue-depth", dialect="name", purpose="scaler") == []
    (dead,) = find("vllm_gpu_cache_usage_perc", dialect="name", purpose="scaler")
    assert dead.rewrite == "vllm_kv_cache_usage_perc"


def test_a_grafana_variable(find: Find) -> None:
    text = 'label_values(vllm:gpu_cache_usage_perc{job="$job"}, model_name)'
    (one,) = find(text, purpose="variable", dialect="variable")
    assert one.rewrite == 'label_values(vllm:kv_cache_usage_perc{job="$job"}, model_name)'
    (one,) = find("query_result(max(vllm:gpu_cache_usage_perc) by ($x))", purpose="variable", dialect="variable")
    assert one.rewrite == "query_result(max(vllm:kv_cache_usage_perc) by ($x))"
    assert find("metrics(vllm:gpu.*)", "label_values(model_name)", purpose="variable", dialect="variable") == []


def test_a_name_that_a_variable_completes_is_not_judged(find: Find) -> None:
    assert find("rate(vllm:${kind}_total[$__interval])", "$metric", purpose="panel", dialect="grafana") == []


def test_without_a_contract_and_without_a_version(find: Find) -> None:
    bare = replace(TARGET, known=None)
    (typo, gone, alive, other) = (
        list(problems_in([written(text)], bare))
        for text in (
            "vllm:num_request_waiting",
            "vllm:gpu_cache_usage_perc",
            "vllm:num_requests_waiting",
            "num_requests",
        )
    )
    assert [one.severity for one in typo] == ["error"]
    assert [(one.severity, one.rewrite) for one in gone] == [("error", "")]
    assert gone[0].text.endswith("did you mean vllm:kv_cache_usage_perc?")
    assert alive == other == []
    unknown = replace(TARGET, observed=replace(OBSERVED, version=""))
    (one,) = problems_in([written("vllm:gpu_cache_usage_perc")], unknown)
    assert one.rewrite == "vllm:kv_cache_usage_perc"
    assert one.text.startswith("vLLM does not expose")


def test_an_older_release_than_the_author_had(find: Find) -> None:
    families = {name: there for name, there in OBSERVED.families.items() if name != "vllm:kv_cache_usage_perc"}
    families["vllm:gpu_cache_usage_perc"] = OBSERVED.families["vllm:kv_cache_usage_perc"]
    old = replace(TARGET, observed=replace(OBSERVED, version="0.8.5", families=families))
    fits, both = (
        list(problems_in([written(text)], old))
        for text in ("vllm:gpu_cache_usage_perc", "vllm:gpu_cache_usage_perc or vllm:kv_cache_usage_perc")
    )
    assert fits == []
    assert [(one.kind, one.severity) for one in both] == [("dead_metric", "info")]


def test_a_metric_that_changed_its_meaning() -> None:
    (one,) = problems_in([written("vllm:num_requests_waiting + vllm_num_requests_waiting > 1")], TARGET)
    assert (one.kind, one.severity) == ("changed_meaning", "info")
    assert one.text == "vllm:num_requests_waiting changed: since 0.9.0 it counts deferred requests, too"
    unknown = replace(TARGET, observed=replace(OBSERVED, version="main"))
    assert [one.kind for one in problems_in([written("vllm:num_requests_waiting > 1")], unknown)] == ["changed_meaning"]
    before = replace(TARGET, observed=replace(OBSERVED, version="0.8.5"))
    assert list(problems_in([written("vllm:num_requests_waiting > 1")], before)) == []
    retyped = {
        **CONTRACT.families,
        "vllm:num_requests_running": replace(
            CONTRACT.families["vllm:num_requests_running"], types=(("0.8.5", "counter"), ("0.12.0", "gauge"))
        ),
    }
    after = replace(TARGET, known=replace(CONTRACT, families=retyped))
    (one,) = problems_in([written("vllm:num_requests_running > 1")], after)
    assert one.text == "vllm:num_requests_running changed: since 0.12.0 it is a gauge"


def test_what_is_no_promql(find: Find) -> None:
    (one,) = find("sum(vllm:num_requests_running")
    assert (one.kind, one.severity, one.text) == ("parse_error", "error", "not PromQL: 1:30: unclosed left parenthesis")
    (guess,) = find("vllm:num_requests_running $op 3", purpose="panel", dialect="grafana")
    assert (guess.kind, guess.severity) == ("parse_error", "info")
    (macro,) = find("rate(vllm:prompt_tokens_total[$__rate_interval])")
    assert (macro.kind, macro.severity) == ("parse_error", "error")
    for pattern in ("vllm:(", "(?x)vllm:a"):  # no regex at all, and one that RE2 does not know
        (broken,) = find(f'{{__name__=~"{pattern}"}} + {{__name__=~"vllm:.*"}}')
        assert (broken.kind, broken.severity) == ("parse_error", "error")
