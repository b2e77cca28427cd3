from __future__ import annotations

import pytest

from loms.engines.engine import Identity, recognise

L = '{engine="0",model_name="m"}'


def family(name: str, kind: str, *lines: str) -> str:
    return f"# TYPE {name} {kind}\n" + "".join(f"{line}\n" for line in lines)


def histogram(name: str, count: int, labels: str = 'engine="0",model_name="m"') -> str:
    return family(
        name,
        "histogram",
        f'{name}_bucket{{{labels},le="1.0"}} {count - 1}',
        f'{name}_bucket{{{labels},le="+Inf"}} {count}',
        f"{name}_sum{{{labels}}} {count * 0.5}",
        f"{name}_count{{{labels}}} {count}",
    )


def test_renamed_metrics_are_taken_by_their_new_name_and_never_added(scraped) -> None:
    """vLLM 0.10.2 shows both names of three metrics."""
    target = scraped(Identity("0.10.2"))
    target.scrape(
        family("vllm:kv_cache_usage_perc", "gauge", f"vllm:kv_cache_usage_perc{L} 0.25")
        + family("vllm:gpu_cache_usage_perc", "gauge", f"vllm:gpu_cache_usage_perc{L} 0.75")
        + family("vllm:prefix_cache_queries_total", "counter", f"vllm:prefix_cache_queries_total{L} 100")
        + family("vllm:gpu_prefix_cache_queries_total", "counter", f"vllm:gpu_prefix_cache_queries_total{L} 101")
        + histogram("vllm:time_per_output_token_seconds", 7)
        + histogram("vllm:inter_token_latency_seconds", 8)
    )
    assert target.value("llm_engine_kv_cache_utilization_ratio") == 0.25
    assert target.value("llm_engine_prefix_cache_lookup_tokens_total") == 100
    assert target.value("llm_engine_inter_token_latency_seconds_count", granularity="step") == 8
    assert target.value("llm_engine_inter_token_latency_seconds_bucket", le="1.0") == 7
    assert target.plan.unmapped == ()


def test_former_names_alone_are_taken(scraped) -> None:
    """vLLM 0.9.0 without an engine label, as core V0 had it."""
    target, old = scraped(Identity("0.9.0")), '{model_name="m"}'
    target.scrape(
        family("vllm:gpu_cache_usage_perc", "gauge", f"vllm:gpu_cache_usage_perc{old} 0.75")
        + family("vllm:gpu_prefix_cache_queries_total", "counter", f"vllm:gpu_prefix_cache_queries_total{old} 101")
        + family("vllm:gpu_prefix_cache_hits_total", "counter", f"vllm:gpu_prefix_cache_hits_total{old} 11")
        + histogram("vllm:time_per_output_token_seconds", 7, 'model_name="m"')
        + histogram("vllm:time_in_queue_requests", 3, 'model_name="m"')
    )
    assert target.value("llm_engine_kv_cache_utilization_ratio", model="m", engine="vllm") == 0.75
    assert target.value("llm_engine_prefix_cache_lookup_tokens_total") == 101
    assert target.value("llm_engine_prefix_cache_hit_tokens_total") == 11
    assert target.value("llm_engine_tokens_input_cached_total") == 11
    assert target.value("llm_engine_inter_token_latency_seconds_count") == 7
    assert target.value("llm_engine_request_queue_duration_seconds_count") == 3
    assert not any("engine_index" in dict(labels) for _, labels in target.values)


CACHE = family(
    "vllm:cache_config_info", "gauge", 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0'
)
BLOCKS = family("vllm:gpu_prefix_cache_queries_total", "counter", f"vllm:gpu_prefix_cache_queries_total{L} 5")


@pytest.mark.parametrize(("version", "tokens"), [("0.8.5", 80.0), ("0.8.5.post1", 80.0), ("0.9.1", 5.0)])
def test_prefix_cache_counted_blocks_in_0_8(scraped, version: str, tokens: float) -> None:
    target = scraped(Identity(version))
    target.scrape(CACHE + BLOCKS)
    assert target.value("llm_engine_prefix_cache_lookup_tokens_total") == tokens


@pytest.mark.parametrize(
    ("text", "version", "reason"), [(CACHE + BLOCKS, "", "version is not known"), (BLOCKS, "0.8.5", "block size")]
)
def test_prefix_cache_is_unavailable_where_its_unit_is_unknown(scraped, text: str, version: str, reason: str) -> None:
    target = scraped(Identity(version))
    target.scrape(text)
    assert "llm_engine_prefix_cache_lookup_tokens_total" not in target.names()
    _, plan = target.read(text)
    assert reason in plan.unavailable["llm_engine_prefix_cache_lookup_tokens_total"]


def test_capacity_and_usage_follow_from_the_cache_configuration_of_each_engine(scraped) -> None:
    target = scraped()
    target.scrape(
        family(
            "vllm:cache_config_info",
            "gauge",
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10"} 1.0',
            'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="20",kv_cache_size_tokens="319"} 1.0',
        )
        + family(
            "vllm:kv_cache_usage_perc",
            "gauge",
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5',
            'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 1',
        )
    )
    assert target.value("llm_engine_kv_cache_capacity", engine_index="0", model="m") == 160
    assert target.value("llm_engine_kv_cache_capacity", engine_index="1") == 319
    assert target.value("llm_engine_kv_cache_usage", engine_index="0") == 80
    assert target.value("llm_engine_kv_cache_usage", engine_index="1") == 319


def test_capacity_is_unavailable_where_the_configuration_does_not_tell(scraped) -> None:
    target = scraped()
    text = family(
        "vllm:cache_config_info", "gauge", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0'
    ) + family("vllm:kv_cache_usage_perc", "gauge", f"vllm:kv_cache_usage_perc{L} 0.5")
    target.scrape(text)
    assert "llm_engine_kv_cache_capacity" not in target.names()
    assert "how many blocks" in target.read(text)[1].unavailable["llm_engine_kv_cache_capacity"]


def test_openmetrics_and_ray_spell_the_names_with_an_underscore(scraped) -> None:
    openmetrics = (
        "# TYPE vllm_prompt_tokens counter\n"
        'vllm_prompt_tokens_total{engine="0",model_name="m"} 12\n'
        "# TYPE vllm_num_requests_running gauge\n"
        'vllm_num_requests_running{engine="0",model_name="m"} 2\n'
        "# TYPE vllm_iteration_tokens_total histogram\n"
        'vllm_iteration_tokens_total_count{engine="0",model_name="m"} 4\n'
        "# EOF\n"
    )
    for text in (openmetrics, openmetrics.replace("vllm_", "ray_vllm_")):
        target = scraped()
        target.scrape(text, "application/openmetrics-text; version=1.0.0")
        assert target.value("llm_engine_tokens_input_total", engine_index="0") == 12
        assert target.value("llm_engine_requests_running") == 2
        assert target.value("llm_engine_iteration_tokens_count") == 4
        assert target.plan.unmapped == ()


def test_rejections_count_as_finished_requests_of_their_own(scraped) -> None:
    target = scraped()
    target.scrape(
        family(
            "vllm:request_success_total", "counter", 'vllm:request_success_total{engine="0",finished_reason="new"} 2'
        )
        + family("vllm:admission_rejections_total", "counter", 'vllm:admission_rejections_total{reason="full"} 3')
    )
    name = "llm_engine_requests_finished_total"
    assert target.value(name, outcome="rejected", reason="full", engine_index="0") == 3
    assert target.value(name, outcome="error", finish_reason="new") == 2


def test_unknown_families_of_the_engine_are_listed_and_known_ones_not(scraped) -> None:
    target = scraped()
    _, plan = target.read(
        family("vllm:brand_new_total", "counter", f"vllm:brand_new_total{L} 1")
        + family("vllm:brand_new_created", "gauge", f"vllm:brand_new_created{L} 1")
        + family("vllm:num_requests_waiting_by_reason", "gauge", 'vllm:num_requests_waiting_by_reason{reason="x"} 1')
        + family("python_info", "gauge", "python_info 1")
    )
    assert plan.unmapped == ("vllm:brand_new_total",)


def test_a_simulated_engine_says_so_on_every_series(scraped) -> None:
    target = scraped(Identity("0.32.0"))
    target.scrape(
        family("loms_simulated_info", "gauge", "loms_simulated_info 1")
        + family("vllm:num_requests_running", "gauge", f"vllm:num_requests_running{L} 1")
    )
    assert {dict(labels).get("simulated") for _, labels in target.values} == {"true"}


def test_the_targets_labels_win_over_the_expositions(scraped) -> None:
    target = scraped()
    target.scrape(family("vllm:num_requests_running", "gauge", 'vllm:num_requests_running{engine="0",job="theirs"} 1'))
    assert target.value("llm_engine_requests_running", job="engines", engine="vllm", engine_index="0") == 1


def test_recognition() -> None:
    assert recognise(frozenset({"python_info", "vllm:num_requests_running"})) == "vllm"
    assert recognise(frozenset({"ray_vllm_num_requests_running"})) == "vllm"
    assert recognise(frozenset({"llamacpp:requests_deferred"})) == "llama.cpp"
    assert recognise(frozenset({"python_info", "my_vllm:thing", "process_open_fds"})) is None


def test_core_v0_lets_requests_wait_in_host_memory(scraped) -> None:
    target = scraped(Identity("0.8.5"))
    target.scrape(
        family("vllm:num_requests_waiting", "gauge", 'vllm:num_requests_waiting{model_name="m"} 2')
        + family("vllm:num_requests_swapped", "gauge", 'vllm:num_requests_swapped{model_name="m"} 1')
        + family("vllm:cpu_prefix_cache_hit_rate", "gauge", 'vllm:cpu_prefix_cache_hit_rate{model_name="m"} -1')
    )
    waiting = {
        dict(ls).get("reason", ""): v for (n, ls), v in target.values.items() if n == "llm_engine_requests_waiting"
    }
    assert waiting == {"": 2, "swapped": 1}
    assert target.plan.unmapped == ()


def test_offloaded_bytes_are_taken_once_whether_by_direction_or_together(scraped) -> None:
    """0.16 had one family with a label; from 0.24 on there are two, and the old one beside them for a while."""
    name = "vllm:kv_offload_total_bytes_total"
    former = family(
        name,
        "counter",
        f'{name}{{engine="0",model_name="m",transfer_type="CPU_to_GPU"}} 70',
        f'{name}{{engine="0",model_name="m",transfer_type="GPU_to_CPU"}} 30',
    )
    later = family("vllm:kv_offload_load_bytes_total", "counter", f"vllm:kv_offload_load_bytes_total{L} 71") + family(
        "vllm:kv_offload_store_bytes_total", "counter", f"vllm:kv_offload_store_bytes_total{L} 31"
    )
    for text, loaded, stored in ((former, 70, 30), (former + later, 71, 31), (later, 71, 31)):
        target = scraped()
        target.scrape(text)
        assert target.value("llm_engine_kv_transfer_io_bytes_total", direction="load") == loaded
        assert target.value("llm_engine_kv_transfer_io_bytes_total", direction="store") == stored
        assert target.plan.unmapped == ()


def test_families_left_aside_may_be_named_by_their_beginning(scraped) -> None:
    target = scraped()
    _, plan = target.read(
        family("vllm:kv_block_lifetime_seconds", "gauge", f"vllm:kv_block_lifetime_seconds{L} 1")
        + family(
            "vllm:kv_offload_tiering_read_bytes_total", "counter", f"vllm:kv_offload_tiering_read_bytes_total{L} 1"
        )
        + family("vllm:kv_blocks_of_a_later_release", "gauge", f"vllm:kv_blocks_of_a_later_release{L} 1")
    )
    assert plan.unmapped == ("vllm:kv_blocks_of_a_later_release",)
