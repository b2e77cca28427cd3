from __future__ import annotations

from unit.lint.world import DATA, FAMILIES, written

from loms.engines.vllm import Vllm
from loms.lint.files import Sources, read
from loms.lint.references import references


def test_who_uses_what() -> None:
    everything = read(
        Sources(
            rules=[str(DATA / "rules.yaml")],
            grafana=[str(DATA / "dashboard.json")],
            keda=[str(DATA / "keda.yaml")],
            hpa=[str(DATA / "hpa.yaml"), str(DATA / "adapter.yaml")],
        )
    )
    used = references(everything.expressions, spell=Vllm.spell)
    assert [place.where for place in used["vllm:generation_tokens_total"]] == [
        "ScaledObject llm-scaler trigger 2",
        "HPA llm metric 2",  # by way of the adapter
        "prometheus-adapter rule 1 seriesQuery",
        "prometheus-adapter rule 1 metricsQuery",
    ]
    assert [place.where for place in used["vllm:time_to_first_token_seconds"]] == [
        "recordings / record job:vllm_ttft_seconds_bucket:rate5m",
        "recordings / record job:vllm_ttft_seconds:p99",
        "recordings / record zone:vllm_ttft_seconds:p99",
        "latency / alert TTFTHigh",
        "latency / alert TTFTMean",
        "dashboard 'vLLM' panel 'TTFT' query A",
        "dashboard 'vLLM' panel 'TTFT' query B",
    ]
    cache = {place.where for place in used["vllm:gpu_cache_usage_perc"]}
    assert {"dashboard 'vLLM' panel 'Other spelling' query A", "HPA llm metric 1"} <= cache
    assert "capacity / alert ByRegex" in cache
    assert [place.where for place in used["ring:a"]] == ["recordings / record ring:a", "recordings / record ring:b"]
    assert "vllm:prompt_tokens_total" in used  # in a rule that does not parse
    assert str(used["up"][0]).endswith("rules.yaml:62: capacity / alert Down")


def test_patterns_count_for_the_families_that_they_match() -> None:
    expressions = [written('{__name__=~"vllm:.*_seconds_bucket"}'), written('{__name__=~"("}'), written("vllm:a_count")]
    assert set(references(expressions)) == {"vllm:a_count", "vllm:a"}
    used = references(expressions, families=FAMILIES)
    assert {name for name, places in used.items() if places} == {
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:reworked_seconds",
        "vllm:a_count",
        "vllm:a",
    }


def test_what_a_variable_leaves_open_is_no_reference() -> None:
    assert dict(references([written("rate(vllm:${kind}_total[$__interval])", "panel", "grafana")])) == {}
    adapter = written("sum(<<.Series>>)", "scaler", "adapter", series="vllm:prompt_tokens_total")
    assert set(references([adapter])) == {"vllm:prompt_tokens_total"}
