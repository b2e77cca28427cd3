from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loms.engines.engine import Identity, engines, known_paths, recognise

L = 'model_name="m",engine_type="trtllm"'
LOOKUPS, HITS = "llm_engine_prefix_cache_lookup_tokens_total", "llm_engine_prefix_cache_hit_tokens_total"


def family(name: str, kind: str, *samples: tuple[str, float]) -> str:
    lines = "".join(f"{name}{{{L}{',' if more else ''}{more}}} {value}\n" for more, value in samples)
    return f"# TYPE {name} {kind}\n{lines}"


def blocks(reused: float, missed: float, *, size: int | None = 32, generated: float = 0) -> str:
    """The KV cache of 1,000 blocks, told by two processes, of which one is dead."""
    text = (
        family("trtllm_generation_tokens_total", "counter", ("", generated))
        + family("trtllm_kv_cache_reused_blocks_total", "counter", ("", reused))
        + family("trtllm_kv_cache_missed_blocks_total", "counter", ("", missed))
        + family("trtllm_kv_cache_max_blocks", "gauge", ('pid="7"', 1000), ('pid="6"', 0))
        + family("trtllm_kv_cache_used_blocks", "gauge", ('pid="7"', 420), ('pid="6"', 0))
    )
    return text + (family("trtllm_kv_cache_tokens_per_block", "gauge", ('pid="7"', size)) if size else "")


def test_blocks_times_their_size_are_tokens(scraped) -> None:
    target = scraped(Identity("1.3.0"))
    target.scrape(blocks(125, 250))
    assert target.value("llm_engine_kv_cache_capacity") == 32000
    assert target.value("llm_engine_kv_cache_usage") == 13440
    assert target.value(HITS, model="m") == 4000
    assert target.value(LOOKUPS) == 12000
    assert target.plan.unmapped == ()
    # What has moved is seen at the next scrape, the size included.
    target.scrape(blocks(126, 252, size=64))
    assert target.value(LOOKUPS) == (126 + 252) * 64


def test_each_model_has_its_own_block_size(scraped) -> None:
    two = blocks(1, 2) + blocks(10, 20, size=8).replace('model_name="m"', 'model_name="n"').replace("# TYPE", "# ")
    target = scraped(Identity("1.3.0"))
    target.scrape(two)
    assert target.value(LOOKUPS, model="m") == 3 * 32
    assert target.value(LOOKUPS, model="n") == 30 * 8


def test_blocks_of_no_known_size_are_no_tokens(scraped) -> None:
    target = scraped(Identity("1.3.0"))
    target.scrape(blocks(125, 250, size=None))
    assert target.names() == {"llm_engine_tokens_output_total", "llm_engine_info", "loms_engine_progress_total"}
    assert "enable_iter_perf_stats" in target.plan.unavailable["llm_engine_kv_cache_capacity"]


def test_a_product_goes_on_where_the_last_process_of_loms_left_it(scraped) -> None:
    """A probe looked up 2 blocks of 32 tokens, which were subtracted; a new process reads that off the store."""
    first = scraped()
    before, _ = first.read(blocks(100, 200, generated=50))
    first.scrape(blocks(100, 200, generated=50))
    assert first.translator.hold(before)
    after, _ = first.read(blocks(100, 202, generated=51))
    used = {"llm.engine.tokens.output": 1.0}
    assert first.translator.settle(after, used, "length", last=True) == "exact"
    first.scrape(blocks(100, 202, generated=51))
    assert first.value(LOOKUPS) == 300 * 32
    remembered = {series: (1000, value) for series, value in first.stored.items()}

    second = scraped(restoring=True)
    second.scrape(blocks(110, 212, generated=61))
    assert set(second.translator.to_recall) <= set(remembered)
    second.translator.restore({series: remembered[series] for series in second.translator.to_recall})
    second.scrape(blocks(110, 212, generated=61))
    assert second.value(LOOKUPS) == 320 * 32
    assert second.value(HITS) == 110 * 32


def test_of_twins_one_is_taken(scraped) -> None:
    twins = family(
        "trtllm_spec_decode_drafted_tokens_total", "counter", ('token_position="0"', 30), ('token_position="1"', 20)
    ) + family("trtllm_prompt_cache_hit_tokens_total", "counter", ('cache_level="0"', 5), ('cache_level="1"', 2))
    plain = family("trtllm_spec_decode_num_draft_tokens_total", "counter", ("", 51)) + family(
        "trtllm_prompt_cached_tokens_total", "counter", ("", 8)
    )
    for text, drafts, cached in ((twins, 50, 7), (twins + plain, 51, 8)):
        target = scraped()
        target.scrape(text)
        assert target.value("llm_engine_spec_decode_draft_tokens_total") == drafts
        assert target.value("llm_engine_tokens_input_cached_total") == cached
        assert target.plan.unmapped == ()


def test_requests_end_by_reason_and_fail_by_status(scraped) -> None:
    target = scraped()
    target.scrape(
        family(
            "trtllm_request_success_total",
            "counter",
            *((f'finished_reason="{r}"', i) for i, r in enumerate(("stop", "length", "cancelled", "timeout"), start=1)),
        )
        + family(
            "trtllm_request_error_total",
            "counter",
            ('http_code="400"', 5),
            ('http_code="500"', 6),
            ('http_code="499"', 7),
        )
    )
    name = "llm_engine_requests_finished_total"
    assert target.value(name, finish_reason="stop", outcome="success") == 1
    assert target.value(name, finish_reason="length", outcome="success") == 2
    assert target.value(name, finish_reason="cancelled", outcome="cancelled") == 3
    assert target.value(name, finish_reason="timeout", outcome="error") == 4
    assert target.value(name, http_response_status_code="400", outcome="rejected") == 5
    assert target.value(name, http_response_status_code="500", outcome="error") == 6
    assert target.value(name, http_response_status_code="499", outcome="cancelled") == 7


def test_the_batch_of_several_ranks_is_one_batch(scraped) -> None:
    target = scraped()
    target.scrape(
        family("trtllm_scheduled_batch_size", "gauge", ('rank="0",pid="51"', 3), ('rank="1",pid="52"', 3))
        + family("trtllm_num_paused_requests", "gauge", ("", 2))
        + family("trtllm_num_requests_waiting", "gauge", ("", 4))
    )
    assert target.value("llm_engine_batch_size") == 3
    assert target.value("llm_engine_requests_waiting", reason="paused") == 2


def test_steps_that_allocate_blocks_are_progress(scraped) -> None:
    target = scraped()
    allocated = family("trtllm_kv_cache_gen_alloc_blocks_total", "counter", ("", 5))
    target.scrape(blocks(1, 2, generated=9) + allocated)
    before = target.value("loms_engine_progress_total")
    target.scrape(blocks(1, 2, generated=9) + allocated.replace(" 5\n", " 6\n"))
    assert target.value("llm_engine_tokens_output_total") == 9
    assert target.value("loms_engine_progress_total") == before + 1


def test_its_statistics_that_are_gone_once_read_are_not_asked_for() -> None:
    assert engines.load()["tensorrt-llm"].paths == ("/prometheus/metrics",)
    assert "/prometheus/metrics" in known_paths()


@pytest.mark.parametrize(
    ("answer", "identity"),
    [({"version": "1.3.0"}, Identity("1.3.0")), ({"version": None}, Identity()), ("1.3.0", Identity())],
)
def test_identity(answer: Any, identity: Identity) -> None:
    async def get(path: str) -> Any:
        return answer if path == "/version" else None

    assert asyncio.run(engines.load()["tensorrt-llm"].identify(get)) == identity


def test_recognition() -> None:
    assert recognise(frozenset({"trtllm_num_requests_running", "python_info"})) == "tensorrt-llm"
    assert recognise(frozenset({"nv_trt_llm_request_metrics"})) != "tensorrt-llm"
