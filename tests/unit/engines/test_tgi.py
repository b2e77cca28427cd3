from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from loms.engines.engine import Identity, engines, recognise

WHO = Identity("3.3.7", "org/model")


def tgi(*, prompts: int = 0, prompt_tokens: int = 0, steps: int = 0, done: int = 0) -> str:
    """A server that has validated ``prompts``, taken ``steps`` decode steps and answered ``done`` requests."""
    return (
        "# TYPE tgi_request_count counter\n"
        f"tgi_request_count {prompts}\n"
        "# TYPE tgi_request_success counter\n"
        f"tgi_request_success {done}\n"
        "# TYPE tgi_request_input_length histogram\n"
        f'tgi_request_input_length_bucket{{le="+Inf"}} {prompts}\n'
        f"tgi_request_input_length_sum {prompt_tokens}\n"
        f"tgi_request_input_length_count {prompts}\n"
        "# TYPE tgi_batch_inference_duration histogram\n"
        f'tgi_batch_inference_duration_bucket{{method="decode",le="+Inf"}} {steps}\n'
        f'tgi_batch_inference_duration_sum{{method="decode"}} {steps * 0.25}\n'
        f'tgi_batch_inference_duration_count{{method="decode"}} {steps}\n'
    )


def test_nothing_is_translated_before_the_model_is_known(scraped) -> None:
    target = scraped()
    target.scrape(tgi(prompts=2))
    assert (target.plan.engine, target.names()) == ("tgi", set())
    target.translator.identified(WHO)
    target.scrape(tgi(prompts=2))
    assert target.value("llm_engine_requests_started_total", model="org/model", engine="tgi") == 2
    assert target.value("llm_engine_info", version="3.3.7") == 1


def test_failures_by_what_became_of_the_request(scraped) -> None:
    causes = ("overloaded", "validation", "template", "incomplete", "dropped", "generation")
    lines = "".join(f'tgi_request_failure{{err="{cause}"}} {i}\n' for i, cause in enumerate(causes, start=1))
    target = scraped(WHO)
    target.scrape(f"# TYPE tgi_request_success counter\ntgi_request_success 50\n{lines}")
    by_outcome: dict[str, float] = {}
    for (name, labels), value in target.values.items():
        if name == "llm_engine_requests_finished_total":
            outcome = dict(labels)["outcome"]
            by_outcome[outcome] = by_outcome.get(outcome, 0) + value
    assert by_outcome == {"success": 50, "rejected": 1 + 2 + 3, "error": 4 + 6, "cancelled": 5}
    assert target.value("llm_engine_requests_finished_total", error_type="generation") == 6


def test_utilisation_is_what_is_reserved_of_the_budget(scraped) -> None:
    reserved = "# TYPE tgi_batch_current_max_tokens gauge\ntgi_batch_current_max_tokens 1500\n"
    budget = "# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens {}\n"
    target = scraped(WHO)
    target.scrape(reserved + budget.format(6000))
    assert target.value("llm_engine_kv_cache_utilization_ratio") == 0.25
    assert target.value("llm_engine_kv_cache_capacity") == 6000
    target.scrape(reserved + budget.format(0))
    assert math.isnan(target.value("llm_engine_kv_cache_utilization_ratio"))
    target.scrape(reserved)
    assert target.value("llm_engine_kv_cache_usage") == 1500
    assert "2.3" in target.plan.unavailable["llm_engine_kv_cache_utilization_ratio"]


def test_tokens_gained_by_speculation_are_a_sum_whatever_its_type(scraped) -> None:
    histogram = 'tgi_request_skipped_tokens_bucket{le="+Inf"} 4\n'
    quantiles = 'tgi_request_skipped_tokens{quantile="0.5"} 3\n'
    for kind, samples in (("histogram", histogram), ("summary", quantiles)):
        target = scraped(WHO)
        target.scrape(
            f"# TYPE tgi_request_skipped_tokens {kind}\n{samples}"
            "tgi_request_skipped_tokens_sum 12\ntgi_request_skipped_tokens_count 4\n"
        )
        assert target.value("llm_engine_spec_decode_accepted_tokens_total") == 12
        assert target.plan.unmapped == ()


def test_prompts_that_were_only_validated_are_no_progress(scraped) -> None:
    """A batch hangs while requests go on coming: they are counted, and the engine does nothing."""
    target = scraped(WHO)
    target.scrape(tgi(prompts=5, prompt_tokens=100, steps=40, done=3))
    before = target.value("loms_engine_progress_total")
    exposition = target.scrape(tgi(prompts=9, prompt_tokens=180, steps=40, done=3))
    assert target.value("llm_engine_tokens_input_total") == 180
    assert target.value("loms_engine_progress_total") == before
    assert "llm.engine.tokens.input" not in target.translator.progress(exposition)
    target.scrape(tgi(prompts=9, prompt_tokens=180, steps=41, done=3))
    assert target.value("loms_engine_progress_total") == before + 1
    assert target.value("llm_engine_iteration_duration_seconds_sum", method="decode") == 41 * 0.25


@pytest.mark.parametrize(
    ("answer", "identity"),
    [
        ({"model_id": "org/model", "version": "3.3.7", "sha": "abc"}, WHO),
        ({"model_id": None, "version": "2.2.0"}, Identity("2.2.0")),
        (None, Identity()),
        (["info"], Identity()),
    ],
)
def test_identity(answer: Any, identity: Identity) -> None:
    async def get(path: str) -> Any:
        return answer if path == "/info" else {"version": "not asked for"}

    assert asyncio.run(engines.load()["tgi"].identify(get)) == identity


def test_recognition() -> None:
    assert recognise(frozenset({"tgi_queue_size"})) == "tgi"
    assert recognise(frozenset({"te_queue_size", "my_tgi_queue_size"})) is None
