from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loms.engines.engine import Identity, recognise
from loms.engines.triton import Triton


@pytest.fixture
def loaded(scraped, data: Path):
    target = scraped(Identity("2.51.0"))
    target.scrape((data / "triton-2.51.0" / "loaded.txt").read_bytes())
    return target


@pytest.mark.parametrize("model", ["slow_batch", "slow_nocache", "toy_stream"])
def test_durations_and_batches_are_those_of_tritons_own_statistics(loaded, data: Path, model: str) -> None:
    """``/v2/models/stats`` of the same moment, in nanoseconds; the counters are cut off at microseconds."""
    answer = json.loads((data / "triton-2.51.0" / "models_stats.json").read_text())
    told = next(each for each in answer["model_stats"] if each["name"] == model)
    stats = told["inference_stats"]

    def value(name: str) -> float:
        return loaded.value(name, model=model, model_version="1", hop="engine")

    requests = stats["success"]["count"]
    for name, parts in (
        ("gen_ai_server_request_duration_seconds", ("success",)),
        ("llm_engine_request_queue_duration_seconds", ("queue",)),
        ("llm_engine_request_inference_duration_seconds", ("compute_input", "compute_infer", "compute_output")),
    ):
        seconds = sum(stats[part]["ns"] for part in parts) / 1e9
        assert value(f"{name}_sum") == pytest.approx(seconds, abs=1e-6 * requests * len(parts))
        assert value(f"{name}_count") == stats[parts[0]]["count"]
    assert value("llm_engine_iteration_requests_sum") == told["inference_count"]
    assert value("llm_engine_iteration_requests_count") == told["execution_count"]
    assert sum(each["batch_size"] * each["compute_infer"]["count"] for each in told["batch_stats"]) == value(
        "llm_engine_iteration_requests_sum"
    )


def test_what_became_of_the_requests(loaded) -> None:
    """The client had 117 + 1 answers of slow_batch, 76 of them from the cache, 3 time-outs in its queue and 12 in that
    of slow_nocache. What found a queue full (145 requests) is counted nowhere; an answer that is an error, and the
    stream that was left, are successes."""

    def finished(**labels: str) -> float:
        return loaded.value("llm_engine_requests_finished_total", **labels)

    assert finished(model="slow_batch", outcome="success") == 118
    assert finished(model="slow_batch", outcome="rejected", error_type="REJECTED") == 3
    assert finished(model="slow_nocache", outcome="rejected", error_type="REJECTED") == 12
    assert finished(model="slow_nocache", outcome="cancelled", error_type="CANCELED") == 0
    assert finished(model="toy_stream", outcome="error", error_type="BACKEND") == 0
    assert finished(model="toy_stream", outcome="success") == 5
    # 76 of the 118 never computed.
    assert loaded.value("llm_engine_request_inference_duration_seconds_count", model="slow_batch") == 118 - 76
    # Progress: what ended but for rejections, and the executions.
    assert loaded.value("loms_engine_progress_total") == (118 + 3 + 5) + (8 + 2 + 5)


def test_a_full_queue(scraped, data: Path) -> None:
    target = scraped(Identity("2.51.0"))
    target.scrape((data / "triton-2.51.0" / "queued.txt").read_bytes())
    assert target.value("llm_engine_requests_waiting", model="slow_nocache") == 12
    assert target.value("llm_engine_requests_waiting", model="slow_batch") == 0
    assert "llm_engine_requests_running" not in target.names()


def test_without_summaries_all_requests_count_as_computed(scraped) -> None:
    text = (
        "# TYPE nv_inference_request_success counter\n"
        'nv_inference_request_success{model="m",version="1"} 10\n'
        "# TYPE nv_inference_compute_input_duration_us counter\n"
        'nv_inference_compute_input_duration_us{model="m",version="1"} 1000\n'
        "# TYPE nv_inference_compute_infer_duration_us counter\n"
        'nv_inference_compute_infer_duration_us{model="m",version="1"} 2000000\n'
        "# TYPE nv_inference_compute_output_duration_us counter\n"
        'nv_inference_compute_output_duration_us{model="m",version="1"} 500\n'
    )
    target = scraped(Identity("2.37.0"))
    target.scrape(text)
    assert target.value("llm_engine_request_inference_duration_seconds_count") == 10
    assert target.value("llm_engine_request_inference_duration_seconds_sum") == pytest.approx(2.0015)
    assert target.plan.unmapped == ()


def test_the_story_with_the_tensorrt_llm_back_end(scraped, data: Path) -> None:
    """tests/data/written/README.md"""
    target = scraped(Identity("2.64.0"))
    target.scrape((data / "written" / "triton-2.64.0-tensorrtllm.txt").read_bytes())
    inside = {"runtime": "tensorrt-llm", "model": "tensorrt_llm", "hop": "engine"}
    assert target.value("llm_engine_requests_running", **inside) == 3
    assert target.value("llm_engine_requests_waiting", **inside) == 2
    assert target.value("llm_engine_requests_waiting", model="llama") == 0
    assert target.value("llm_engine_tokens_input_total", **inside) == 12345
    assert target.value("llm_engine_tokens_output_total", **inside) == 6789
    assert target.value("llm_engine_kv_cache_utilization_ratio", **inside) == 0.42
    assert target.value("llm_engine_kv_cache_usage", **inside) == 13440
    assert target.value("llm_engine_kv_cache_capacity", **inside) == 32000
    assert target.value("llm_engine_gpu_memory_usage_bytes", **inside) == 60000 * 2**20
    assert target.value("llm_engine_iteration_duration_seconds_count", **inside) == 2500
    ttft = "gen_ai_server_time_to_first_token_seconds"
    assert target.value(f"{ttft}_sum", model="llama") == 50
    assert target.value(f"{ttft}_count", model="llama") == 100
    # 500 ms: 60 of 100.
    assert target.value(f"{ttft}_bucket", model="llama", le="0.5") == 60
    assert target.value("llm_engine_request_queue_duration_seconds_sum") == 10
    assert target.value("llm_engine_request_inference_duration_seconds_sum") == pytest.approx(240.67)
    assert target.value("gen_ai_server_request_duration_seconds_sum") == pytest.approx(250.67)
    assert target.value("hw_power_watts") == 350.5
    assert target.value("hw_gpu_memory_utilization_ratio") == pytest.approx(60000 / 81559)
    assert not any("model" in dict(labels) for name, labels in target.values if name.startswith("hw_"))


def test_older_tensorrt_llm_back_ends_have_no_fraction(scraped) -> None:
    family = "nv_trt_llm_kv_cache_block_metrics"
    target = scraped(Identity("2.40.0"))
    target.scrape(
        '# TYPE nv_inference_count counter\nnv_inference_count{model="m",version="1"} 1\n'
        + f"# TYPE {family} gauge\n"
        + "".join(
            f'{family}{{model="m",version="1",kv_cache_block_type="{kind}"}} {blocks}\n'
            for kind, blocks in (("max", 200), ("free", 150), ("used", 50), ("tokens_per", 64))
        )
    )
    assert target.value("llm_engine_kv_cache_utilization_ratio") == 0.25
    assert target.value("llm_engine_kv_cache_usage") == 50 * 64
    assert target.value("llm_engine_kv_cache_capacity") == 200 * 64


def test_the_story_with_the_vllm_back_end(scraped, data: Path) -> None:
    """vLLM's own families win over Triton's counters of the same, and are never added to them."""
    target = scraped(Identity("2.64.0"))
    target.scrape((data / "written" / "triton-2.64.0-vllm.txt").read_bytes())
    assert target.plan.engine == "triton"
    inside = {"runtime": "vllm", "model": "llama", "model_version": "1"}
    duration = "gen_ai_server_request_duration_seconds"
    assert target.value(f"{duration}_sum") == target.value(f"{duration}_sum", **inside) == 250.67
    assert target.value(f"{duration}_bucket", le="5") == 95
    assert target.value("gen_ai_server_time_to_first_token_seconds_sum", **inside) == 50
    assert target.value("llm_engine_inter_token_latency_seconds_count", granularity="step", **inside) == 6689
    assert target.value("llm_engine_tokens_input_total", **inside) == 12345
    assert target.value("llm_engine_tokens_output_total", **inside) == 6789
    assert target.value("llm_engine_requests_finished_total", outcome="success") == 100
    assert target.value("llm_engine_request_queue_duration_seconds_sum", model="llama") == 10
    assert not any(target.plan.unavailable.get(name) for name in (duration, "llm_engine_tokens_input_total"))


def test_identity() -> None:
    def answering(answers: dict[str, Any]) -> Any:
        async def get(path: str) -> Any:
            return answers.get(path)

        return get

    assert asyncio.run(Triton.identify(answering({"/v2": {"name": "lab", "version": "2.51.0"}}))) == Identity("2.51.0")
    assert asyncio.run(Triton.identify(answering({}))) == Identity()


def test_it_is_recognised_by_its_inference_counters() -> None:
    assert recognise(frozenset({"nv_inference_count", "nv_cpu_utilization", "vllm:prompt_tokens"})) == "triton"
    assert recognise(frozenset({"nv_cpu_utilization"})) is None
