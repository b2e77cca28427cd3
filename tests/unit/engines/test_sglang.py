from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from loms.engines.engine import Identity, engines, recognise

SCHEDULER = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0"'


def family(name: str, kind: str, *samples: tuple[str, float]) -> str:
    lines = "".join(f"{name}{{{labels}}} {value}\n" for labels, value in samples)
    return f"# TYPE {name} {kind}\n{lines}"


def histogram(name: str, count: int, total: float, labels: str = 'model_name="m"', bound: str = "1.0") -> str:
    return (
        f"# TYPE {name} histogram\n"
        f'{name}_bucket{{{labels},le="{bound}"}} {count - 1}\n'
        f'{name}_bucket{{{labels},le="+Inf"}} {count}\n'
        f"{name}_sum{{{labels}}} {total}\n"
        f"{name}_count{{{labels}}} {count}\n"
    )


def rank(tp: int, more: str = "") -> str:
    return f'{SCHEDULER},tp_rank="{tp}"' + (f",{more}" if more else "")


# What was recorded


def test_what_ended_in_the_recording_against_the_clients_log(scraped, data: Path) -> None:
    """40 calls: 3 refused with 400; of the other 37 one was left by its client and one had n = 2, which counts as 3."""
    target = scraped(Identity("0.5.23"))
    target.scrape((data / "sglang-0.5.23" / "loaded.txt").read_bytes())
    assert target.value("llm_engine_requests_started_total") == 36 + 4
    assert target.value("llm_engine_requests_finished_total") == 37 + 2
    assert target.value("gen_ai_server_request_duration_seconds_count") == 39
    # Streamed: one alone, sixteen together, and the one that was left.
    assert target.value("gen_ai_server_time_to_first_token_seconds_count") == 1 + 16 + 1
    assert target.value("llm_engine_tokens_input_total") == 1487 + 860
    assert target.value("llm_engine_tokens_output_total") == 615 + 1255
    assert target.value("llm_engine_tokens_input_cached_total", cache_tier="device") == 1512
    # One token of the warm-up was looked up, too.
    assert target.value("llm_engine_prefix_cache_lookup_tokens_total") == 2347 + 1
    assert target.value("llm_engine_prefix_cache_hit_tokens_total") == 1512
    assert target.value("llm_engine_iteration_duration_seconds_count") == 23 + 540
    assert target.value("llm_engine_gpu_memory_usage_bytes", purpose="weights") == 0.24900054931640625 * 2**30
    assert {dict(labels)["model"] for _, labels in target.values} == {"smollm2-135m"}
    assert not any(math.isnan(value) for value in target.values.values())


def test_load_of_the_recordings_against_their_text(scraped, data: Path) -> None:
    target = scraped(Identity("0.5.23"))
    target.scrape((data / "sglang-0.5.23" / "queued.txt").read_bytes())
    assert target.value("llm_engine_requests_running") == 8
    assert waiting(target) == 8
    assert target.value("llm_engine_kv_cache_usage") == 251
    assert target.value("llm_engine_kv_cache_utilization_ratio") == 0.03
    target = scraped(Identity("0.5.23"))
    target.scrape((data / "sglang-0.5.23" / "retracted.txt").read_bytes())
    assert target.value("llm_engine_requests_preempted_total") == 15
    assert target.value("llm_engine_requests_running") == 5
    # The one that its client has just left is counted in both families; it ended once.
    assert target.value("llm_engine_requests_finished_total") == 1
    assert target.value("llm_engine_kv_cache_capacity") == 2000


def test_before_the_first_request_what_is_missing_has_a_reason(scraped, data: Path) -> None:
    target = scraped(Identity("0.5.23"))
    target.scrape((data / "sglang-0.5.23" / "idle.txt").read_bytes())
    assert target.plan.unmapped == ()
    assert "no streamed request" in target.plan.unavailable["gen_ai_server_time_to_first_token_seconds"]
    assert "llm_engine_requests_finished_total" in target.plan.unavailable
    assert target.value("llm_engine_requests_running") == 0


# Ranks


def test_tensor_parallel_ranks_say_the_same_and_the_largest_counts(scraped) -> None:
    target = scraped()
    target.scrape(
        family("sglang:num_running_reqs", "gauge", (rank(0), 3), (rank(1), 2))
        + family("sglang:num_paused_reqs", "gauge", (rank(0, 'pid="7"'), 0), (rank(0, 'pid="8"'), 4))
        + family("sglang:num_retracted_requests_total", "counter", (rank(0), 5), (rank(1), 6))
        + histogram("sglang:queue_time_seconds", 4, 2.0, rank(0))
        + histogram("sglang:queue_time_seconds", 5, 1.0, rank(1)).partition("\n")[2]
    )
    assert target.value("llm_engine_requests_running") == 3
    assert target.value("llm_engine_requests_waiting", reason="paused") == 4
    assert target.value("llm_engine_requests_preempted_total") == 6
    assert target.value("llm_engine_request_queue_duration_seconds_count") == 5
    assert target.value("llm_engine_request_queue_duration_seconds_sum") == 2


def test_memory_is_in_gib_and_of_the_fullest_gpu(scraped) -> None:
    phases = [
        (rank(r, f'phase="{phase}"'), r + gib) for r in (0, 1) for phase, gib in (("decode", 1.5), ("prefill", 2))
    ]
    target = scraped()
    target.scrape(family("sglang:graph_memory_usage_gb", "gauge", *phases))
    assert target.value("llm_engine_gpu_memory_usage_bytes", purpose="graphs") == (2.5 + 3) * 2**30


def test_look_ups_of_ranks_are_taken_and_not_the_prompts_beside_them(scraped) -> None:
    """The two have other labels, and would stand side by side."""
    looked_up = [
        (rank(0, f'dp_rank="{dp}",mode="{mode}"'), n) for dp in (0, 1) for mode, n in (("input", 7), ("device_hit", 2))
    ]
    prompts = family("sglang:prompt_tokens_total", "counter", ('model_name="m"', 20))
    cached = family("sglang:cached_tokens_total", "counter", ('model_name="m",cache_source="device"', 5))
    target = scraped()
    target.scrape(family("sglang:prefill_effective_tokens_total", "counter", *looked_up) + prompts + cached)
    name = "llm_engine_prefix_cache_lookup_tokens_total"
    assert {dict(ls).get("engine_index"): v for (n, ls), v in target.values.items() if n == name} == {"0": 9, "1": 9}
    assert target.value("llm_engine_prefix_cache_hit_tokens_total", engine_index="1") == 2
    assert target.value("llm_engine_tokens_input_total") == 20


# Splits


def test_the_total_of_priorities_is_taken_and_not_their_sum(scraped) -> None:
    parts = [(f'{rank(0)},priority="{priority}"', count) for priority, count in (("", 5), ("1", 2), ("2", 3))]
    target = scraped()
    target.scrape(family("sglang:num_queue_reqs", "gauge", *parts) + family("sglang:num_running_reqs", "gauge", *parts))
    assert target.value("llm_engine_requests_waiting") == 5
    assert target.value("llm_engine_requests_running") == 5


def test_requests_of_all_priorities_and_kinds_are_added_up(scraped) -> None:
    parts = [
        (f'model_name="m",is_streaming="{kind}",priority="{priority}"', count)
        for kind, priority, count in (("true", "1", 2), ("true", "2", 3), ("false", "1", 4))
    ]
    target = scraped()
    target.scrape(family("sglang:num_requests_total", "counter", *parts))
    assert target.value("llm_engine_requests_finished_total") == 9


def test_cached_tokens_of_unknown_tier_stand_beside_the_others(scraped) -> None:
    """One request is counted either by tier or under "total"; storage back ends have a name each."""
    sources = (("device", 7), ("host", 5), ("storage_file", 2), ("storage_mooncake", 1), ("total", 3))
    target = scraped()
    target.scrape(
        family(
            "sglang:cached_tokens_total", "counter", *((f'model_name="m",cache_source="{s}"', v) for s, v in sources)
        )
    )
    name = "llm_engine_tokens_input_cached_total"
    by_tier = {dict(ls).get("cache_tier", ""): v for (n, ls), v in target.values.items() if n == name}
    assert by_tier == {"device": 7, "host": 5, "storage": 3, "": 3}
    assert target.value("llm_engine_prefix_cache_hit_tokens_total") == 18


def test_first_tokens_of_streamed_requests_only_where_they_can_be_told_apart(scraped) -> None:
    name = "sglang:time_to_first_token_seconds"
    streamed = histogram(name, 5, 2.0, 'model_name="m",is_streaming="true"')
    other = histogram(name, 9, 90.0, 'model_name="m",is_streaming="false"')
    for text, count in ((streamed + other, 5), (histogram(name, 14, 92.0), 14)):
        target = scraped()
        target.scrape(text)
        assert target.value("gen_ai_server_time_to_first_token_seconds_count") == count
        assert target.value("gen_ai_server_time_to_first_token_seconds_bucket", le="+Inf") == count
    target = scraped()
    target.scrape(other)
    assert target.names() == set()
    assert target.plan.unmapped == ()


def test_only_calls_for_inference_are_requests(scraped) -> None:
    paths = (
        ("/v1/completions", 4),
        ("/v1/chat/completions", 36),
        ("/generate", 2),
        ("/metrics", 10),
        ("/v1/models", 1),
    )
    calls = [(f'endpoint="{path}",method="POST"', count) for path, count in paths]
    target = scraped()
    target.scrape(family("sglang:http_requests_total", "counter", *calls))
    assert target.value("llm_engine_requests_started_total") == 42


# Names and types that changed


def test_a_gauge_is_not_read_as_a_histogram(scraped) -> None:
    name = "sglang:kv_transfer_latency_ms"
    target = scraped()
    target.scrape(family(name, "gauge", (rank(0), 12.5)))
    assert target.names() == set()
    assert target.plan.unmapped == ()
    target.scrape(histogram(name, 8, 400.0, rank(0), "25.0"))
    transfer = "llm_engine_kv_transfer_duration_seconds"
    assert target.value(f"{transfer}_count", connector="disaggregation") == 8
    assert target.value(f"{transfer}_sum") == pytest.approx(0.4)
    assert target.value(f"{transfer}_bucket", le="0.025") == 7


@pytest.mark.parametrize(
    ("text", "retractions"),
    [
        (family("sglang:total_retracted_reqs", "gauge", (rank(0), 5)), 5),
        (histogram("sglang:num_retractions", 100, 7.0), 7),
        (
            family("sglang:num_retracted_requests_total", "counter", (rank(0), 6))
            + family("sglang:num_retracted_reqs", "gauge", (rank(0, 'pid="7"'), 1))
            + histogram("sglang:num_retractions", 100, 5.0),
            6,
        ),
    ],
    ids=["0.5.1", "0.5.6", "0.5.8"],
)
def test_retractions_of_three_times(scraped, text: str, retractions: float) -> None:
    target = scraped()
    target.scrape(text)
    assert target.value("llm_engine_requests_preempted_total") == retractions
    assert target.plan.unmapped == ()


def test_queues_between_prefill_and_decode_servers_have_reasons_and_one_name_each(scraped) -> None:
    queues = {
        "num_queue_reqs": 1,
        "num_grammar_queue_reqs": 2,
        "num_prefill_prealloc_queue_reqs": 4,
        "num_prefill_infight_queue_reqs": 8,
        "num_decode_prealloc_queue_reqs": 16,
        "num_decode_transfer_queue_reqs": 32,
        "num_decode_host_receive_queue_reqs": 32,
    }
    target = scraped()
    target.scrape("".join(family(f"sglang:{name}", "gauge", (rank(0), value)) for name, value in queues.items()))
    assert waiting(target) == 1 + 2 + 4 + 8 + 16 + 32
    target.scrape(
        family("sglang:num_prefill_inflight_queue_reqs", "gauge", (rank(0), 8))
        + family("sglang:num_prefill_infight_queue_reqs", "gauge", (rank(0), 8))
    )
    assert waiting(target) == 8


def test_hierarchical_cache_moves_bytes_both_ways(scraped) -> None:
    target = scraped()
    target.scrape(
        family("sglang:load_back_bytes_total", "counter", (rank(0), 100))
        + family("sglang:hicache_backup_bytes_total", "counter", (rank(0), 200))
        + histogram("sglang:kv_transfer_total_mb", 2, 3.0, rank(0))
        + histogram("sglang:load_back_duration_seconds", 4, 0.5, rank(0))
        + histogram("sglang:hicache_backup_duration_seconds", 6, 0.25, rank(0))
    )
    assert target.value("llm_engine_kv_transfer_io_bytes_total", direction="load") == 100
    assert target.value("llm_engine_kv_transfer_io_bytes_total", direction="store") == 200
    assert target.value("llm_engine_kv_transfer_io_bytes_total", direction="send") == 3 * 2**20
    assert target.value("llm_engine_kv_transfer_duration_seconds_count", direction="load") == 4
    assert target.value("llm_engine_kv_transfer_duration_seconds_sum", direction="store") == 0.25


def test_openmetrics_and_ray_spell_the_names_with_an_underscore(scraped) -> None:
    text = (
        "# TYPE sglang_prompt_tokens counter\n"
        'sglang_prompt_tokens_total{model_name="m"} 12\n'
        "# TYPE sglang_num_running_reqs gauge\n"
        'sglang_num_running_reqs{model_name="m",tp_rank="0"} 2\n'
        "# TYPE sglang_lora_pool_slots_total gauge\n"
        'sglang_lora_pool_slots_total{model_name="m",tp_rank="0"} 8\n'
        "# EOF\n"
    )
    for spelt in (text, text.replace("sglang_", "ray_sglang_")):
        target = scraped()
        target.scrape(spelt, "application/openmetrics-text; version=1.0.0")
        assert target.value("llm_engine_tokens_input_total") == 12
        assert target.value("llm_engine_requests_running") == 2
        assert target.plan.unmapped == ()
    assert recognise(frozenset({"sglang:num_queue_reqs"})) == "sglang"
    assert recognise(frozenset({"ray_sglang_num_queue_reqs"})) == "sglang"
    assert recognise(frozenset({"my_sglang:num_queue_reqs"})) is None


# Progress and identity


def test_a_long_request_shows_progress_although_its_tokens_are_not_counted_yet(scraped) -> None:
    def now(steps: int) -> str:
        return (
            family("sglang:generation_tokens_total", "counter", ('model_name="m"', 40))
            + family("sglang:realtime_tokens_total", "counter", (rank(0, 'mode="decode"'), 40 + steps))
            + histogram("sglang:inter_token_latency_seconds", 10 + steps, 1.0)
        )

    target = scraped()
    target.scrape(now(0))
    before = target.value("loms_engine_progress_total")
    target.scrape(now(3))
    assert target.value("llm_engine_tokens_output_total") == 40
    assert target.value("loms_engine_progress_total") == before + 3 + 3


RECORDED = {"model_path": "/LAB/model/SmolLM2-135M-Instruct", "served_model_name": "smollm2-135m"}
"""Of the recording's ``/server_info`` and ``/model_info``; the former has ``version`` beside it."""


@pytest.mark.parametrize(
    ("answers", "identity"),
    [
        ({"/server_info": {**RECORDED, "version": "0.5.23"}}, Identity("0.5.23", "smollm2-135m")),
        ({"/get_server_info": {"version": "0.4.5", "model_path": "/m"}}, Identity("0.4.5")),
        ({"/model_info": RECORDED}, Identity("", "smollm2-135m")),
        ({"/get_model_info": {"model_path": "/models/llama"}}, Identity("", "/models/llama")),
        ({"/server_info": ["no", "object"], "/model_info": "text"}, Identity()),
    ],
)
def test_identity(answers: dict[str, Any], identity: Identity) -> None:
    async def get(path: str) -> Any:
        return answers.get(path)

    assert asyncio.run(engines.load()["sglang"].identify(get)) == identity


def waiting(target: Any) -> float:
    return sum(value for (name, _), value in target.values.items() if name == "llm_engine_requests_waiting")
