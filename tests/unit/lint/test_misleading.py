from __future__ import annotations

import pytest
from unit.lint.world import written

from loms.engines.contracts.contract import Exposed, Observed
from loms.lint.check import problems_in, target_of
from loms.lint.expression import Purpose


def said(engine: str, name: str, type_: str, text: str, purpose: Purpose = "panel") -> list[tuple[str, str, str]]:
    target = target_of(Observed(engine, "", {name: Exposed(type_, frozenset({"model"}))}), None)
    return [(one.kind, one.severity, one.text) for one in problems_in([written(text, purpose)], target)]


@pytest.mark.parametrize(
    ("engine", "name", "type_", "words"),
    [
        ("sglang", "sglang:cache_hit_rate", "gauge", "of the last prefill batch, and 0 while decoding"),
        ("sglang", "sglang:gen_throughput", "gauge", "left standing when idle"),
        ("sglang", "sglang:spec_accept_rate", "gauge", "what the last interval looked like"),
        ("llama.cpp", "llamacpp:predicted_tokens_seconds", "gauge", "a mean over the time since the last scrape"),
        ("llama.cpp", "llamacpp:n_busy_slots_per_decode", "gauge", "a mean since start"),
        ("vllm", "vllm:gpu_prefix_cache_hit_rate", "gauge", "a mean since start, and -1 where caching is off"),
        ("triton", "nv_inference_request_summary_us", "summary", "quantiles of a sliding window"),
    ],
)
def test_the_engines_own_rates_and_means(engine: str, name: str, type_: str, words: str) -> None:
    (one,) = said(engine, name, type_, f"max({name})") if type_ == "gauge" else said(engine, name, type_, name)
    assert one[:2] == ("misleading_metric", "info")
    assert one[2].startswith(f"{name} misleads: ")
    assert words in one[2]


@pytest.mark.parametrize(
    ("engine", "name", "type_", "text"),
    [
        ("sglang", "sglang:page_size", "gauge", "sglang:page_size"),
        ("vllm", "vllm:mm_cache_hits_total", "counter", "rate(vllm:mm_cache_hits_total[5m])"),
        ("vllm", "vllm:num_requests_waiting_by_reason", "gauge", "vllm:num_requests_waiting_by_reason"),
        ("triton", "nv_inference_request_summary_us", "summary", "rate(nv_inference_request_summary_us_sum[5m])"),
        ("sglang", "sglang:cache_hit_rate", "gauge", '{__name__=~"sglang:.*"}'),
    ],
)
def test_what_is_left_aside_for_other_reasons(engine: str, name: str, type_: str, text: str) -> None:
    assert said(engine, name, type_, text) == []


def test_a_variable_shows_no_value() -> None:
    assert said("sglang", "sglang:cache_hit_rate", "gauge", "sglang:cache_hit_rate", "variable") == []
