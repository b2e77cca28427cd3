from __future__ import annotations

from pathlib import Path

import pytest

from loms.engines.engine import Identity, recognise

TTFT = "gen_ai_server_time_to_first_token_seconds"
LABELS = 'dynamo_namespace="d",dynamo_component="backend",dynamo_endpoint="generate"'


def written(scraped, data: Path, name: str):
    target = scraped(Identity())
    target.scrape((data / "written" / f"{name}.txt").read_bytes())
    assert target.plan.engine == "dynamo"
    assert target.plan.unmapped == ()
    return target


def test_the_story_at_the_front_end(scraped, data: Path) -> None:
    """tests/data/written/README.md: five in flight, and all five wait for their first token."""
    for name in ("dynamo-0.9.1-frontend", "dynamo-1.6.1-frontend"):
        target = written(scraped, data, name)

        def value(name: str, target=target, **labels: str) -> float:
            return target.value(name, hop="frontend", **labels)

        assert value("llm_engine_requests_running") == 5
        assert value("llm_engine_requests_waiting") == 5
        assert value("llm_engine_requests_finished_total", outcome="success", request_type="stream") == 100
        assert value("llm_engine_tokens_input_total") == 12345
        assert value("llm_engine_tokens_input_cached_total") == 4000
        assert value("llm_engine_tokens_output_total") == 6789
        assert (value(f"{TTFT}_sum"), value(f"{TTFT}_count")) == (50, 100)
        assert value("gen_ai_server_request_duration_seconds_sum") == 250.67
        assert value("llm_engine_inter_token_latency_seconds_sum", granularity="chunk") == 200.67
        assert value("llm_engine_kv_cache_capacity") == 32000
        assert dict(target.plan.labels)["hop"] == "frontend"
        assert target.plan.unavailable["llm_engine_kv_cache_capacity"] == "the front end tells that of one worker only"


def test_front_end_and_router_see_the_same_requests_and_stay_apart(scraped, data: Path) -> None:
    target = written(scraped, data, "dynamo-1.6.1-frontend")
    hops = {dict(labels)["hop"] for name, labels in target.values if name == f"{TTFT}_count"}
    assert hops == {"frontend", "router"}
    assert target.value(f"{TTFT}_count", hop="router", dynamo_component="router") == 100
    assert target.value("gen_ai_server_time_per_output_token_seconds_sum", hop="router") == 3
    for hop in hops:
        assert target.value("llm_engine_requests_started_total", hop=hop) == 105


def test_a_workers_engine_comes_first(scraped, data: Path) -> None:
    """The worker counts and times the same requests as the vLLM inside; they are not told twice."""
    target = written(scraped, data, "dynamo-1.6.1-worker")
    inside = {"hop": "engine", "runtime": "vllm", "engine_index": "0", "model": "meta-llama/Llama-3.1-8B-Instruct"}
    for name, value in {
        "gen_ai_server_request_duration_seconds_sum": 250.67,
        "llm_engine_requests_running": 3,
        "llm_engine_requests_waiting": 2,
        "llm_engine_kv_cache_utilization_ratio": 0.42,
        "llm_engine_kv_cache_capacity": 32000,
        "llm_engine_prefix_cache_hit_tokens_total": 4000,
        "llm_engine_request_queue_duration_seconds_sum": 10,
    }.items():
        assert target.value(name) == target.value(name, **inside) == value
    finished = [v for (n, _), v in target.values.items() if n == "llm_engine_requests_finished_total"]
    assert sum(finished) == 100
    assert "llm_engine_prefix_cache_hit_ratio" not in target.names()


WORKER = (
    f"# TYPE dynamo_component_requests_total counter\ndynamo_component_requests_total{{{LABELS}}} 105\n"
    'dynamo_component_requests_total{dynamo_component="backend",dynamo_endpoint="clear_kv_blocks"} 7\n'
    f"# TYPE dynamo_component_inflight_requests gauge\ndynamo_component_inflight_requests{{{LABELS}}} 5\n"
    "# TYPE dynamo_component_request_duration_seconds histogram\n"
    f'dynamo_component_request_duration_seconds_bucket{{{LABELS},le="1"}} 90\n'
    f'dynamo_component_request_duration_seconds_bucket{{{LABELS},le="+Inf"}} 100\n'
    f"dynamo_component_request_duration_seconds_sum{{{LABELS}}} 70.5\n"
    f"dynamo_component_request_duration_seconds_count{{{LABELS}}} 100\n"
    f'# TYPE dynamo_component_errors_total counter\ndynamo_component_errors_total{{{LABELS},error_type="generate"}} 2\n'
    "# TYPE dynamo_component_gpu_cache_usage_percent gauge\n"
    f'dynamo_component_gpu_cache_usage_percent{{{LABELS},dp_rank="0"}} 0.5\n'
    f'dynamo_component_gpu_cache_usage_percent{{{LABELS},dp_rank="1"}} 0.25\n'
    f"# TYPE dynamo_component_kv_cache_hit_rate gauge\ndynamo_component_kv_cache_hit_rate{{{LABELS}}} 0.125\n"
)


@pytest.mark.parametrize(("name", "runtime"), [("sglang-0.5.23", "sglang"), ("tensorrt-llm-1.3.0", "tensorrt-llm")])
def test_other_engines_inside_a_worker(scraped, data: Path, name: str, runtime: str) -> None:
    """Their story beside the worker's own families, with the model's label that Dynamo adds."""
    own = WORKER.replace('dynamo_namespace="d"', 'model="meta-llama/Llama-3.1-8B-Instruct"')
    target = scraped(Identity())
    target.scrape((data / "written" / f"{name}.txt").read_text() + own)
    assert target.plan.engine == "dynamo"
    assert target.value("gen_ai_server_request_duration_seconds_sum", runtime=runtime, hop="engine") == 250.67
    assert target.value("llm_engine_requests_running") == 3
    assert target.value("llm_engine_tokens_output_total") == 6789
    assert sum(v for (n, _), v in target.values.items() if n == "llm_engine_requests_finished_total") == 100
    assert sum(v for (n, _), v in target.values.items() if n == "llm_engine_requests_started_total") == 105
    assert target.plan.unmapped == ()


def test_a_worker_whose_engine_is_silent(scraped) -> None:
    target = scraped(Identity())
    target.scrape(WORKER)
    assert target.value("llm_engine_requests_started_total", hop="engine") == 105
    assert target.value("llm_engine_requests_finished_total", hop="engine") == 100
    assert target.value("llm_engine_requests_running") == 5
    assert target.value("gen_ai_server_request_duration_seconds_bucket", le="1") == 90
    assert target.value("llm_engine_kv_cache_utilization_ratio", engine_index="1") == 0.25
    assert target.value("llm_engine_prefix_cache_hit_ratio") == 0.125
    assert "where the worker passes its families on" in target.plan.unavailable[TTFT]
    assert target.plan.unmapped == ()


def test_what_became_of_the_front_ends_requests(scraped) -> None:
    lines = {
        'status="success",error_type=""': 90,
        'status="error",error_type="cancelled"': 4,
        'status="error",error_type="overload"': 3,
        'status="error",error_type="internal"': 2,
    }
    text = "# TYPE dynamo_frontend_requests_total counter\n" + "".join(
        f'dynamo_frontend_requests_total{{model="m",endpoint="completions",{labels}}} {count}\n'
        for labels, count in lines.items()
    )
    # The same again, by reason.
    again = "dynamo_frontend_model_cancellation_total"
    text += f'# TYPE {again} counter\n{again}{{model="m"}} 4\n'
    target = scraped(Identity())
    target.scrape(text)
    for outcome, count in {"success": 90, "cancelled": 4, "rejected": 3, "error": 2}.items():
        assert target.value("llm_engine_requests_finished_total", outcome=outcome, hop="frontend") == count
    assert len([name for name, _ in target.values if name == "llm_engine_requests_finished_total"]) == 4
    assert target.plan.unmapped == ()


def test_a_router_on_its_own(scraped) -> None:
    family = "dynamo_component_router_requests_total"
    target = scraped(Identity())
    target.scrape(f'# TYPE {family} counter\n{family}{{dynamo_component="router"}} 3\n')
    assert dict(target.plan.labels)["hop"] == "router"


def test_a_worker_is_dynamos_whatever_runs_inside() -> None:
    for inside in ("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running"):
        assert recognise(frozenset({"dynamo_component_requests_total", inside})) == "dynamo"
