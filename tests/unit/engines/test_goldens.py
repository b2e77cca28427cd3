"""Recorded expositions of real engines → canonical series, against goldens that were checked by hand.

``pytest tests/unit/engines --regenerate-goldens`` writes them anew; look at the difference before committing it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loms.engines.engine import Identity

CASES = [
    ("vllm-0.32.0", "loaded", Identity("0.32.0")),
    ("vllm-0.32.0", "queued", Identity("0.32.0")),
    ("vllm-0.32.0", "preempted", Identity("0.32.0")),
    ("llamacpp-11434.0.0", "loaded", Identity("b0-unknown", "smollm2-135m")),
    ("llamacpp-11434.0.0", "queued", Identity("b0-unknown", "smollm2-135m")),
    ("xllamacpp-2026.10.11549", "loaded", Identity("b0-unknown", "smollm2-135m")),
    ("sglang-0.5.23", "loaded", Identity("0.5.23", "smollm2-135m")),
    ("sglang-0.5.23", "queued", Identity("0.5.23", "smollm2-135m")),
    ("sglang-0.5.23", "retracted", Identity("0.5.23", "smollm2-135m")),
    # Never recorded; written by hand (`test_releases` has the right values).
    ("written", "tgi-3.3.7", Identity("3.3.7", "meta-llama/Llama-3.1-8B-Instruct")),
    ("written", "tensorrt-llm-1.3.0", Identity("1.3.0")),
    ("triton-2.51.0", "idle", Identity("2.51.0")),
    ("triton-2.51.0", "queued", Identity("2.51.0")),
    ("triton-2.51.0", "loaded", Identity("2.51.0")),
    ("triton-2.51.0", "streaming", Identity("2.51.0")),
    ("written", "triton-2.64.0-vllm", Identity("2.64.0")),
    ("written", "triton-2.64.0-tensorrtllm", Identity("2.64.0")),
    ("written", "dynamo-0.9.1-frontend", Identity()),
    ("written", "dynamo-1.6.1-frontend", Identity()),
    ("written", "dynamo-1.6.1-worker", Identity()),
    ("written", "dcgm-4.5.3", Identity()),
    ("ollama", "ps", Identity("0.15.2")),
    ("ollama", "responses", Identity()),
]


@pytest.mark.parametrize(("folder", "name", "identity"), CASES, ids=[f"{f}/{n}" for f, n, _ in CASES])
def test_recording_gives_its_golden(scraped, data: Path, request, folder: str, name: str, identity: Identity) -> None:
    target = scraped(identity)
    raw, golden = data / folder / f"{name}.txt", data / folder / f"{name}.canonical.json"
    target.scrape(raw.read_bytes())
    _, plan = target.read(raw.read_bytes())
    shown = {
        "engine": plan.engine,
        "version": plan.version,
        "model": plan.model,
        "unmapped": list(plan.unmapped),
        "unavailable": dict(sorted(plan.unavailable.items())),
        "series": {_series(*key): value for key, value in sorted(target.values.items())},
    }
    if request.config.getoption("--regenerate-goldens", default=False):
        golden.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert shown == json.loads(golden.read_text(encoding="utf-8"))


def _series(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """Without the target's own labels, which are the same on every line."""
    own = ("job", "instance", "deployment_zone", "engine")
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in labels if k not in own) + "}"


def test_values_of_the_loaded_vllm_against_its_text(scraped, data: Path) -> None:
    """Read off ``loaded.txt`` by eye; the client of that recording had sent 36 requests and aborted a 37th."""
    target = scraped(Identity("0.32.0"))
    target.scrape((data / "vllm-0.32.0" / "loaded.txt").read_bytes())
    assert target.value("llm_engine_tokens_input_total") == 2268
    assert target.value("llm_engine_tokens_input_cached_total") == 384
    assert target.value("llm_engine_tokens_output_total") == 1907
    assert target.value("llm_engine_requests_finished_total", finish_reason="stop", outcome="success") == 5
    assert target.value("llm_engine_requests_finished_total", finish_reason="length", outcome="success") == 31
    assert target.value("llm_engine_requests_finished_total", finish_reason="abort", outcome="cancelled") == 0
    assert target.value("llm_engine_requests_finished_total", finish_reason="error", outcome="error") == 0
    assert target.value("gen_ai_server_time_to_first_token_seconds_count") == 37
    assert target.value("gen_ai_server_request_duration_seconds_count") == 36
    assert target.value("gen_ai_server_request_duration_seconds_sum") == 142.18115949630737
    assert target.value("llm_engine_inter_token_latency_seconds_count", granularity="step") == 1870
    assert target.value("llm_engine_iteration_tokens_count") == 746
    assert target.value("llm_engine_iteration_tokens_sum") == 3791
    assert target.value("llm_engine_kv_cache_capacity", engine_index="0") == 364 * 128
    assert target.value("llm_engine_info", version="0.32.0") == 1
    assert target.value("http_server_request_duration_seconds_count", http_route="/v1/completions") == 4


def test_gauges_of_the_queued_vllm_against_its_text(scraped, data: Path) -> None:
    target = scraped(Identity("0.32.0"))
    target.scrape((data / "vllm-0.32.0" / "queued.txt").read_bytes())
    assert target.value("llm_engine_requests_running") == 4
    # num_requests_waiting_by_reason says 9 again, in two parts; added, it would be 18.
    assert target.value("llm_engine_requests_waiting") == 9
    assert target.value("llm_engine_kv_cache_utilization_ratio") == 0.011019283746556474
    assert target.value("llm_engine_kv_cache_usage") == 0.011019283746556474 * 46592


def test_values_of_the_loaded_llamacpp_against_its_text(scraped, data: Path) -> None:
    target = scraped(Identity("b0-unknown", "smollm2-135m"))
    target.scrape((data / "xllamacpp-2026.10.11549" / "loaded.txt").read_bytes())
    assert target.value("llm_engine_tokens_input_total", model="smollm2-135m") == 1012 + 1239
    assert target.value("llm_engine_tokens_input_cached_total") == 1239
    assert target.value("llm_engine_tokens_output_total") == 1919
    assert target.value("llm_engine_iteration_duration_seconds_count") == 764
    assert target.value("llm_engine_request_decode_duration_seconds_sum") == 75.6661
    assert "gen_ai_server_time_to_first_token_seconds_count" not in target.names()
