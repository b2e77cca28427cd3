from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loms.engines.engine import Identity, expose
from loms.engines.ollama import Ollama


@pytest.fixture
def ps(data: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((data / "ollama" / "ps.json").read_text())
    return answer


@pytest.fixture
def responses(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data / "ollama" / "responses.jsonl").read_text().splitlines()]


def test_answers_give_the_expositions_whose_meaning_the_goldens_hold(data: Path, ps, responses) -> None:
    assert expose(ps) == (data / "ollama" / "ps.txt").read_text()
    assert expose(responses) == (data / "ollama" / "responses.txt").read_text()


def test_loaded_models(scraped, ps) -> None:
    target = scraped(Identity("0.15.2"))
    target.scrape(expose(ps))
    assert target.value("llm_engine_gpu_memory_usage_bytes", model="mistral:latest", purpose="total") == 5137025024
    assert target.value("llm_engine_gpu_memory_usage_bytes", model="smollm2:135m") == 0
    assert target.value("llm_engine_kv_cache_capacity", model="smollm2:135m") == 8192
    assert target.value("llm_engine_info", version="0.15.2") == 1
    assert "OLLAMA_NUM_PARALLEL" in target.plan.unavailable["llm_engine_kv_cache_capacity"]
    assert "llm_engine_tokens_output_total" not in target.names()


@pytest.mark.parametrize("empty", [[], None])
def test_no_model_is_loaded(scraped, empty: object) -> None:
    target = scraped(Identity("0.15.2"))
    target.scrape(expose({"models": empty}))
    assert target.names() == {"llm_engine_info"}
    assert "no model is in memory" in target.plan.unavailable["llm_engine_gpu_memory_usage_bytes"]


def test_responses_added_up(scraped, responses) -> None:
    """Three of the six lines are whole answers; the others are parts of a stream, and an unloading."""
    target = scraped(Identity())
    target.scrape(expose(responses))

    def value(name: str, model: str = "mistral:latest", **labels: str) -> float:
        return target.value(name, model=model, **labels)

    assert value("llm_engine_requests_finished_total", finish_reason="stop", outcome="success") == 1
    assert value("llm_engine_requests_finished_total", finish_reason="length") == 1
    assert value("llm_engine_requests_finished_total", "smollm2:135m") == 1
    assert value("gen_ai_server_request_duration_seconds_sum") == pytest.approx(5.043500667 + 1.5)
    assert value("gen_ai_server_request_duration_seconds_count") == 2
    assert value("llm_engine_request_prefill_duration_seconds_sum") == pytest.approx(0.35)
    assert value("llm_engine_request_decode_duration_seconds_sum") == pytest.approx(4.0)
    # 2.9 s / 290 and 1.1 s / 100.
    assert value("gen_ai_server_time_per_output_token_seconds_sum") == pytest.approx(0.010 + 0.011)
    assert value("llm_engine_tokens_input_total") == 26 + 14
    assert value("llm_engine_tokens_output_total") == 290 + 100
    assert value("llm_engine_tokens_output_total", "smollm2:135m") == 1
    # Its prompt was cached: no count, and so no sum.
    assert ("llm_engine_tokens_input_total", "smollm2:135m") not in {
        (n, dict(ls).get("model")) for n, ls in target.values
    }
    assert "reused" in target.plan.unavailable["llm_engine_tokens_input_total"]


def test_one_response_alone(responses) -> None:
    assert 'ollama_eval_tokens_total{model="mistral:latest"} 290\n' in expose(responses[2])


@pytest.mark.parametrize(
    "answer",
    [
        None,
        3,
        "text",
        {},
        [],
        [1, None],
        {"models": [{"name": "tags have no size_vram"}]},
        {"models": [7]},
        {"models": "x"},
        {"object": "list", "models": [], "data": []},  # llama.cpp, /v1/models
        [{"iter": 1, "gpuMemUsage": 5}],  # TensorRT-LLM, /metrics
        {"model": "m", "done": False, "response": "a part of a stream"},
    ],
)
def test_other_answers_are_nobodys(answer: object) -> None:
    assert expose(answer) == ""


def test_odd_names_do_not_break_the_text(scraped) -> None:
    odd = 'a"b\\c\nd'
    target = scraped(Identity())
    target.scrape(expose({"models": [{"name": odd, "size_vram": 1, "context_length": None}]}))
    assert target.value("llm_engine_gpu_memory_usage_bytes", model=odd) == 1


def test_identity() -> None:
    async def get(path: str) -> Any:
        return {"/api/version": {"version": "0.15.2"}}.get(path)

    async def silent(path: str) -> Any:
        return None

    assert asyncio.run(Ollama.identify(get)) == Identity("0.15.2")
    assert asyncio.run(Ollama.identify(silent)) == Identity()
