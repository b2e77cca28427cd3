"""What an upgrade took away, worked out by hand from the engines' change logs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from loms.engines.contracts.contract import Change, Contract, Exposed, Observed, changes, contract_of, observe
from loms.ingest.exposition import ExpositionReader

WRITTEN = Path(__file__).parents[3] / "data" / "written"
LOST_IN_0_12 = """
renamed vllm:gpu_cache_usage_perc vllm:kv_cache_usage_perc
renamed vllm:gpu_prefix_cache_hits_total vllm:prefix_cache_hits_total
renamed vllm:gpu_prefix_cache_queries_total vllm:prefix_cache_queries_total
renamed vllm:time_per_output_token_seconds vllm:inter_token_latency_seconds
"""
UNITS_IN_0_9 = """
meaning vllm:gpu_prefix_cache_hits_total
meaning vllm:gpu_prefix_cache_queries_total
"""


def contract(engine: str) -> Contract:
    found = contract_of(engine)
    assert found is not None
    return found


def seen(engine: str, name: str) -> Observed:
    version = re.match(r"\d+\.\d+\.\d+", name)
    assert version
    page = (WRITTEN / f"{engine}-{name}.txt").read_bytes()
    return observe(ExpositionReader().read(page, "text/plain").shape, engine, version[0], lambda raw: raw)


def told(found: list[Change]) -> str:
    """One line each: kind, family, successor, and a question mark where it is not certain."""
    return "\n".join(
        " ".join(filter(None, (change.kind, change.family, change.successor, "" if change.certain else "?")))
        for change in found
    )


@pytest.mark.parametrize(
    ("engine", "before", "now", "expected"),
    [
        ("vllm", "0.9.0", "0.12.0", LOST_IN_0_12),
        ("vllm", "0.10.2", "0.12.0", LOST_IN_0_12),
        ("vllm", "0.11.2-hidden-shown", "0.12.0", LOST_IN_0_12),
        ("vllm", "0.8.5", "0.9.0", UNITS_IN_0_9),
        ("vllm", "0.9.0", "0.8.5", UNITS_IN_0_9),
        ("vllm", "0.9.0", "0.9.2", ""),
        ("vllm", "0.11.2", "0.12.0", "renamed vllm:time_per_output_token_seconds vllm:inter_token_latency_seconds"),
        ("vllm", "0.12.0", "0.17.0", ""),
        (
            "vllm",
            "0.17.0",
            "0.20.0",
            "meaning vllm:num_requests_waiting\nlost vllm:prompt_tokens_recomputed_total",
        ),
        (
            "vllm",
            "0.8.5-v0",
            "0.9.2",
            """
lost vllm:cpu_cache_usage_perc
lost vllm:cpu_prefix_cache_hit_rate
lost vllm:gpu_prefix_cache_hit_rate
lost vllm:num_requests_swapped
renamed vllm:time_in_queue_requests vllm:request_queue_time_seconds
""",
        ),
        (
            "sglang",
            "0.5.1",
            "0.5.3",
            """
lost sglang:avg_request_queue_latency
renamed sglang:num_prefill_infight_queue_reqs sglang:num_prefill_inflight_queue_reqs
lost sglang:total_retracted_reqs
""",
        ),
        (
            "sglang",
            "0.5.8",
            "0.5.12",
            """
meaning sglang:cached_tokens_total
lost sglang:kv_transfer_alloc_ms ?
lost sglang:kv_transfer_bootstrap_ms ?
lost sglang:kv_transfer_latency_ms ?
lost sglang:kv_transfer_speed_gb_s ?
lost sglang:kv_transfer_total_mb ?
renamed sglang:num_prefill_prealloc_queue_reqs sglang:num_prefill_bootstrap_queue_reqs
lost sglang:num_running_reqs_offline_batch
""",
        ),
        ("tgi", "2.2.0", "3.3.7", "type tgi_request_skipped_tokens"),
        ("dynamo", "0.9.1-frontend", "1.6.1-frontend", "meaning dynamo_frontend_requests_total"),
    ],
)
def test_upgrades(engine: str, before: str, now: str, expected: str) -> None:
    found = changes(contract(engine), seen(engine, before), seen(engine, now))
    assert told(found) == expected.strip()


def test_the_texts_are_sentences() -> None:
    texts = {c.family: c.text for c in changes(contract("vllm"), seen("vllm", "0.9.0"), seen("vllm", "0.12.0"))}
    assert texts["vllm:gpu_cache_usage_perc"] == (
        "vllm:gpu_cache_usage_perc is now vllm:kv_cache_usage_perc: vLLM has it up to 0.11.2; this is 0.12.0"
    )
    assert texts["vllm:time_per_output_token_seconds"] == (
        "vllm:time_per_output_token_seconds is now vllm:inter_token_latency_seconds: vLLM hides it from 0.12.0 on; "
        "--show-hidden-metrics-for-version=0.11 brings it back"
    )
    sglang = {c.family: c.text for c in changes(contract("sglang"), seen("sglang", "0.5.1"), seen("sglang", "0.5.3"))}
    assert sglang["sglang:avg_request_queue_latency"] == (
        "sglang:avg_request_queue_latency is lost: SGLang has it up to 0.5.2; this is 0.5.3; instead there is "
        "rate(sglang:queue_time_seconds_sum[5m]) / rate(sglang:queue_time_seconds_count[5m])"
    )
    # The counter that says it better comes with 0.5.8, so it is no help here.
    assert sglang["sglang:total_retracted_reqs"] == (
        "sglang:total_retracted_reqs is lost: SGLang has it up to 0.5.2; this is 0.5.3"
    )
    units = {c.family: c.text for c in changes(contract("vllm"), seen("vllm", "0.8.5"), seen("vllm", "0.9.0"))}
    assert units["vllm:gpu_prefix_cache_hits_total"] == (
        "from vLLM 0.9.0 on vllm:gpu_prefix_cache_hits_total counts tokens, and counted blocks before; "
        "this is 0.9.0, and was 0.8.5"
    )


def observed(version: str, *families: str, engine: str = "vllm") -> Observed:
    return Observed(engine, version, {family: Exposed("gauge") for family in families})


@pytest.mark.parametrize(
    ("family", "before", "now", "certain"),
    [
        ("vllm:prompt_tokens_recomputed_total", "0.19.0", "0.20.0", True),
        ("vllm:prompt_tokens_recomputed_total", "0.19.0", "0.19.1", False),  # between two known releases
        ("vllm:prompt_tokens_recomputed_total", "0.19.0", "", False),  # the new version does not say
        ("vllm:num_requests_running", "0.19.0", "0.20.0", True),  # this release should have it
        ("vllm:num_requests_running", "0.19.0", "0.19.0", True),
        ("vllm:kv_block_lifetime_seconds", "0.19.0", "0.20.0", False),  # a flag may have gone
        ("vllm:request_num_preemptions", "0.30.0", "0.28.0", True),  # a downgrade
        ("http_requests_total", "0.19.0", "0.20.0", False),  # nobody has asked for anything yet
        ("vllm:made_up", "0.19.0", "0.20.0", True),  # no release has it, and the release is another
        ("vllm:made_up", "0.20.0", "0.20.0", False),
        ("vllm:made_up", "0.20.0", "0.99.0", False),  # a release that is not known
        ("process_open_fds", "0.19.0", "0.20.0", False),  # not vLLM's own
        ("sglang:num_running_reqs", "0.19.0", "0.20.0", False),
    ],
)
def test_when_a_loss_is_certain(family: str, before: str, now: str, certain: bool) -> None:
    (change,) = changes(contract("vllm"), observed(before, family), observed(now))
    assert (change.kind, change.family, change.successor, change.certain) == ("lost", family, "", certain)
    assert change.text.startswith(f"{family} is lost: ")


def test_a_successor_counts_only_where_it_is_exposed() -> None:
    old, new = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"
    before = observed("0.9.0", old)
    fact = "vLLM has it up to 0.11.2; this is 0.12.0"
    (lost,) = changes(contract("vllm"), before, observed("0.12.0"))
    assert lost == Change("lost", old, "", f"{old} is lost: {fact}; {new} takes its place", certain=True)
    (renamed,) = changes(contract("vllm"), before, observed("0.12.0", new))
    assert renamed == Change("renamed", old, new, f"{old} is now {new}: {fact}", certain=True)


def test_without_a_contract_nothing_is_certain() -> None:
    (change,) = changes(None, observed("1.0", "acme:thing", engine="acme"), observed("2.0", engine="acme"))
    assert change == Change("lost", "acme:thing", "", "acme:thing is lost: acme 2.0 does not expose it", certain=False)


def test_a_type_that_changed() -> None:
    name = "sglang:kv_transfer_latency_ms"
    before = Observed("sglang", "0.5.8", {name: Exposed("gauge")})
    now = Observed("sglang", "0.5.10", {name: Exposed("histogram", buckets=(1.0, float("inf")))})
    text = f"{name} is a histogram in SGLang 0.5.10, and was a gauge in SGLang 0.5.8"
    assert changes(contract("sglang"), before, now) == [Change("type", name, "", text, certain=True)]
    assert changes(None, before, now)[0].kind == "type"


def test_a_type_that_nobody_said_is_no_change() -> None:
    before = Observed("x", "1", {"a": Exposed("gauge"), "b": Exposed("untyped"), "c": Exposed("gaugehistogram")})
    now = Observed("x", "2", {"a": Exposed("untyped"), "b": Exposed("counter"), "c": Exposed("gauge")})
    assert changes(None, before, now) == []


def test_bounds_that_changed() -> None:
    name = "sglang:e2e_request_latency_seconds"
    old = Exposed("histogram", buckets=(0.1, 400.0, 800.0, float("inf")))
    new = replace(old, buckets=(0.1, 400.0, 600.0, 2400.0, float("inf")))
    before, now = Observed("sglang", "0.4.9", {name: old}), Observed("sglang", "0.5.8", {name: new})
    text = (
        f"{name} has other bounds in SGLang 0.5.8: 3 bounds (0.1, 400, 800) before, 4 bounds (0.1, 400, 600, 2400) now"
    )
    assert changes(contract("sglang"), before, now) == [Change("buckets", name, "", text, certain=True)]
    idle = Observed("sglang", "0.5.8", {name: Exposed("histogram")})
    assert changes(contract("sglang"), before, idle) == changes(contract("sglang"), idle, before) == []


@pytest.mark.parametrize(
    ("before", "now", "certain"),
    [
        ("0.19.0", "0.20.0", [True]),
        ("0.18.0", "0.32.0", [True]),
        ("0.19.1", "0.20.0", [False]),  # it changed somewhere between 0.19.0 and 0.20.0
        ("0.20.0", "0.19.0", [True]),
        ("0.19.0", "0.19.1", []),
        ("0.20.0", "0.22.0", []),
        ("", "0.20.0", []),
    ],
)
def test_a_meaning_that_changed(before: str, now: str, certain: list[bool]) -> None:
    name = "vllm:num_requests_waiting"
    found = changes(contract("vllm"), observed(before, name), observed(now, name))
    assert [(change.kind, change.family, change.certain) for change in found] == [("meaning", name, c) for c in certain]
