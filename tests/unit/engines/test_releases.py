"""Expositions of many releases that tell one story (``tests/data/written/README.md``) → the same canonical values.

The right answers are the story's, worked out by hand; what a release does not tell is left out below.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.engines.engine import ENGINE_NAMES, Identity
from loms.engines.watch import PROGRESS_TOTAL

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GIB = 1024**3

REQUEST = {
    "gen_ai_server_request_duration_seconds": (100, 250.67),
    "gen_ai_server_time_to_first_token_seconds": (100, 50),
    "llm_engine_request_queue_duration_seconds": (100, 10),
}
STAGES = {
    "llm_engine_request_prefill_duration_seconds": (100, 40),
    "llm_engine_request_decode_duration_seconds": (100, 200.67),
}
INFERENCE = {"llm_engine_request_inference_duration_seconds": (100, 240.67)}
GAPS = {"llm_engine_inter_token_latency_seconds": (6689, 200.67)}
MEANS = {"gen_ai_server_time_per_output_token_seconds": (100, 3)}
LENGTHS = {"llm_engine_request_input_tokens": (100, 12345), "llm_engine_request_output_tokens": (100, 6789)}
STEPS = {"llm_engine_iteration_tokens": (2500, 15134)}
HTTP = {"http_server_request_duration_seconds": (100, 250.67)}
"""Histograms: count and sum."""

LOAD = {"llm_engine_requests_running": 3, "llm_engine_requests_waiting": 2}
FINISHED = {"llm_engine_requests_finished_total": 100}
STARTED = {"llm_engine_requests_started_total": 105}
PREEMPTED = {"llm_engine_requests_preempted_total": 5}
TOKENS = {"llm_engine_tokens_input_total": 12345, "llm_engine_tokens_output_total": 6789}
CACHED = {"llm_engine_tokens_input_cached_total": 4000}
LOOKUPS = {"llm_engine_prefix_cache_lookup_tokens_total": 12000, "llm_engine_prefix_cache_hit_tokens_total": 4000}
OF_PROMPTS = {"llm_engine_prefix_cache_lookup_tokens_total": 12345, "llm_engine_prefix_cache_hit_tokens_total": 4000}
USED_SHARE = {"llm_engine_kv_cache_utilization_ratio": 0.42}
USED = {"llm_engine_kv_cache_usage": 13440}
CAPACITY = {"llm_engine_kv_cache_capacity": 32000}

V0 = REQUEST | STAGES | INFERENCE | GAPS | LENGTHS | STEPS | HTTP | LOAD | FINISHED | PREEMPTED | TOKENS
V0 |= USED_SHARE | USED | CAPACITY
V1 = V0 | CACHED | LOOKUPS
SGLANG = REQUEST | GAPS | LOAD | FINISHED | TOKENS | CACHED | OF_PROMPTS | USED_SHARE | USED
SGLANG_047 = SGLANG | LENGTHS
SGLANG_053 = SGLANG_047 | STAGES
SGLANG_058 = SGLANG_053 | CAPACITY | PREEMPTED | STARTED | {"llm_engine_iteration_duration_seconds": (2500, None)}
SGLANG_0518 = SGLANG_058 | LOOKUPS | {"llm_engine_gpu_memory_usage_bytes": (15 + 4 + 1) * GIB}
TGI = {name: REQUEST[name] for name in REQUEST if "first_token" not in name} | INFERENCE | LENGTHS | LOAD | FINISHED
# 43 prefills of 0.4 s and 2,500 decode steps of 0.03 s; no speculation.
TGI |= STARTED | TOKENS | USED | {"llm_engine_iteration_duration_seconds": (2543, 17.2 + 75)}
TGI |= {"llm_engine_spec_decode_accepted_tokens_total": 0}
TRT = REQUEST | MEANS | FINISHED
TRT_13 = TRT | STAGES | INFERENCE | LOAD | TOKENS | CACHED | LOOKUPS | USED_SHARE | USED | CAPACITY
TRT_13 |= {"llm_engine_batch_size": 3, "llm_engine_gpu_memory_usage_bytes": 60000 * 1024**2}

TOLD: dict[str, dict[str, object]] = {
    "vllm-0.8.5-v0": V0,
    "vllm-0.8.5": V1,
    "vllm-0.9.0": V1,
    "vllm-0.9.2": V1,
    "vllm-0.10.0": V1,
    "vllm-0.10.2": V1,
    **dict.fromkeys(
        (
            "vllm-0.11.0",
            "vllm-0.11.2",
            "vllm-0.11.2-hidden-shown",
            "vllm-0.12.0",
            "vllm-0.13.0",
            "vllm-0.15.0",
            "vllm-0.17.0",
            "vllm-0.20.0",
            "vllm-0.26.0",
            "vllm-0.30.0",
            "vllm-0.32.0",
        ),
        V1 | MEANS,
    ),
    "sglang-0.4.5": {name: told for name, told in SGLANG.items() if "queue" not in name},
    "sglang-0.4.9": {name: told for name, told in SGLANG_047.items() if "queue" not in name},
    "sglang-0.5.1": {name: told for name, told in (SGLANG_047 | PREEMPTED).items() if "queue" not in name},
    "sglang-0.5.3": SGLANG_053,
    "sglang-0.5.6": SGLANG_053 | CAPACITY,
    "sglang-0.5.8": SGLANG_058,
    "sglang-0.5.12": SGLANG_058,
    "sglang-0.5.18": SGLANG_0518,
    "sglang-0.5.22": SGLANG_0518 | MEANS,
    "sglang-0.5.23": SGLANG_0518 | MEANS,
    "tgi-2.2.0": TGI,
    "tgi-3.3.7": TGI | CAPACITY | USED_SHARE,
    "tensorrt-llm-1.1.0": TRT,
    "tensorrt-llm-1.2.0": TRT | USED_SHARE,
    "tensorrt-llm-1.3.0": TRT_13,
}


def identity_of(name: str) -> Identity:
    """What that release says of itself over HTTP."""
    version = re.search(r"-(\d+\.[\d.]+)", name)
    assert version
    return Identity(version[1], MODEL if name.startswith("tgi") else "")


@pytest.mark.parametrize("name", TOLD)
def test_a_release_tells_the_story(scraped, data: Path, name: str) -> None:
    target = scraped(identity_of(name))
    target.scrape((data / "written" / f"{name}.txt").read_bytes())
    assert told(target.values) == pytest.approx(flat(TOLD[name]))
    assert target.plan.engine == next(e for e in ("tensorrt-llm", "sglang", "tgi", "vllm") if name.startswith(e))
    assert target.plan.unmapped == ()
    assert {dict(labels)["model"] for _, labels in target.values} == {MODEL}
    assert {dict(labels)["hop"] for _, labels in target.values} == {"engine"}


@pytest.mark.parametrize("name", TOLD)
def test_what_a_release_does_not_tell_has_a_reason(scraped, data: Path, name: str) -> None:
    target = scraped(identity_of(name))
    target.scrape((data / "written" / f"{name}.txt").read_bytes())
    wanted = {CATALOGUE[metric].prometheus for metric in ENGINE_NAMES} - {"llm_engine_info"}
    assert wanted - set(TOLD[name]) <= set(target.plan.unavailable)
    # What is told in part may have one, too.
    assert set(TOLD[name]) & set(target.plan.unavailable) <= {"llm_engine_iteration_duration_seconds"}


def test_every_written_release_of_these_engines_is_looked_at(data: Path) -> None:
    written = {path.stem for path in (data / "written").glob("*.txt")}
    assert {name for name in written if name.startswith(("vllm-", "sglang-", "tgi-", "tensorrt-llm-"))} == set(TOLD)


@pytest.mark.parametrize("name", ["vllm-0.11.0", "vllm-0.26.0", "sglang-0.5.12"])
def test_data_parallel_ranks_stay_apart(scraped, data: Path, name: str) -> None:
    """The first has 60 of the 100 requests, 2 of the 3 that run, 3 of the 5 preemptions and half of the KV cache."""
    target = scraped(identity_of(name))
    target.scrape((data / "written" / f"{name}.txt").read_bytes())
    for rank, requests, running, preempted in (("0", 60, 2, 3), ("1", 40, 1, 2)):
        assert target.value("llm_engine_request_queue_duration_seconds_count", engine_index=rank) == requests
        assert target.value("llm_engine_requests_running", engine_index=rank) == running
        assert target.value("llm_engine_requests_preempted_total", engine_index=rank) == preempted
        assert target.value("llm_engine_kv_cache_capacity", engine_index=rank) == 16000
        assert target.value("llm_engine_kv_cache_usage", engine_index=rank) == pytest.approx(6720)


def test_an_upgrade_keeps_the_names_and_labels_of_the_series(scraped, data: Path) -> None:
    """What vLLM's V1 and SGLang with one rank tell in their oldest release here, they tell by the same name later."""
    for releases in (
        ("vllm-0.8.5", "vllm-0.9.2", "vllm-0.10.2", "vllm-0.13.0", "vllm-0.20.0", "vllm-0.32.0"),
        ("sglang-0.4.5", "sglang-0.5.1", "sglang-0.5.8", "sglang-0.5.18", "sglang-0.5.23"),
    ):
        keys = []
        for name in releases:
            target = scraped(identity_of(name))
            target.scrape((data / "written" / f"{name}.txt").read_bytes())
            left_out = ("_bucket", "_info", PROGRESS_TOTAL, "cached_total")  # bounds, version, ours, SGLang's tiers
            keys.append({key for key in target.values if not key[0].endswith(left_out)})
        for older, newer in pairwise(keys):
            assert older <= newer


def told(values: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> dict[str, float]:
    """Totals by name; of buckets only the last one, which is the count; of ratios the mean."""
    found: dict[str, list[float]] = defaultdict(list)
    for (name, labels), value in values.items():
        if name.endswith("_bucket"):
            if dict(labels)["le"] == "+Inf":
                found[name].append(value)
        elif name not in (PROGRESS_TOTAL, "llm_engine_info"):
            found[name].append(value)
    return {name: sum(vs) / (len(vs) if name.endswith("_ratio") else 1) for name, vs in found.items()}


def flat(story: dict[str, object]) -> dict[str, float]:
    """The story by the names of series."""
    out: dict[str, float] = {}
    for name, value in story.items():
        if not isinstance(value, tuple):
            assert BY_PROMETHEUS[name].instrument != "histogram"
            out[name] = value  # type: ignore[assignment]
            continue
        count, total = value
        out |= {f"{name}_count": count} if total is None else dict.fromkeys((f"{name}_bucket", f"{name}_count"), count)
        out |= {} if total is None else {f"{name}_sum": total}
    return out
