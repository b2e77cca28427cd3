"""A simulated engine's text against a recording of the real one: same families, types, labels and bounds."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from loms.lab.exposition import MetricsText
from loms.lab.replay import replay
from loms.lab.scheduler import EngineConfig, Request, Scheduler
from loms.lab.stats import EngineStats

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0" / "hang" / "before.txt"
CONFIG = EngineConfig(max_model_len=1024)


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample; the parser checks the format and the types."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def types(text: str) -> dict[str, str]:
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def test_the_real_engines_series_and_types_are_all_there() -> None:
    recorded = RECORDED.read_text()
    simulated = MetricsText(EngineStats(1024), CONFIG, "smollm2-135m", 1.7e9).render().decode()

    def expected(name: str) -> bool:
        """Estimates for a GPU that does not exist are left out; the cache's description has labels of its own."""
        return name.startswith("vllm:") and not name.startswith(("vllm:estimated_", "vllm:cache_config_info"))

    assert {key for key in parse(simulated) if expected(key[0])} == {key for key in parse(recorded) if expected(key[0])}
    recorded_types = {name: kind for name, kind in types(recorded).items() if expected(name)}
    assert {name: kind for name, kind in types(simulated).items() if expected(name)} == recorded_types


def test_it_says_that_it_is_simulated_and_how_large_its_cache_is() -> None:
    samples = parse(MetricsText(EngineStats(1024), CONFIG, "m", 1.0).render().decode())
    assert samples["loms_simulated_info", frozenset()] == 1
    (info,) = [dict(labels) for name, labels in samples if name == "vllm:cache_config_info"]
    assert (info["num_gpu_blocks"], info["block_size"], info["kv_cache_size_tokens"]) == ("512", "16", "8192")


def test_every_figure_reaches_its_series() -> None:
    scheduler, stats = Scheduler(CONFIG), EngineStats(1024)
    prompt = tuple(range(40))
    requests = [
        Request("a", prompt, tuple(range(30)), 0.0, "length", 30),
        Request("b", prompt, tuple(range(20)), 5.0, "stop", 64),
    ]
    for outcome in replay(scheduler, requests):
        stats.record(outcome, scheduler)
    stats.running, stats.waiting, stats.kv_utilization, stats.preemptions = 3, 4, 0.25, 5
    samples = parse(MetricsText(stats, CONFIG, "m", 1.0).render().decode())

    def value(name: str, **labels: str) -> float:
        return samples[f"vllm:{name}", frozenset({"engine": "0", "model_name": "m", **labels}.items())]

    assert value("num_requests_running") == 3
    assert value("num_requests_waiting") == 4
    assert value("num_requests_waiting_by_reason", reason="capacity") == 4
    assert value("kv_cache_usage_perc") == 0.25
    assert value("num_preemptions_total") == 5
    assert value("prompt_tokens_total") == 80
    assert value("prefix_cache_queries_total") == 80
    assert value("prefix_cache_hits_total") == 32
    assert value("prompt_tokens_cached_total") == 32
    assert value("prompt_tokens_by_source_total", source="local_compute") == 48
    assert value("prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert value("prompt_tokens_cached_by_source_total", source="device") == 32
    assert value("generation_tokens_total") == 50
    assert value("request_success_total", finished_reason="length") == 1
    assert value("request_success_total", finished_reason="stop") == 1
    assert value("request_success_total", finished_reason="abort") == 0
    assert value("request_params_max_tokens_sum") == 94
    assert value("request_prompt_tokens_bucket", le="20.0") == 0
    assert value("request_prompt_tokens_bucket", le="50.0") == 2
    assert value("request_generation_tokens_bucket", le="20.0") == 1
    assert value("inter_token_latency_seconds_count") == 48
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"):
        assert value(f"{name}_seconds_bucket", le="+Inf") == value(f"{name}_seconds_count") == 2
    assert value("e2e_request_latency_seconds_sum") == stats.e2e_seconds.total


def test_odd_model_names_are_escaped() -> None:
    name = 'a "100 %" \\ model\n'
    samples = parse(MetricsText(EngineStats(1024), CONFIG, name, 1.0).render().decode())
    assert {dict(labels).get("model_name", name) for _, labels in samples} == {name}
