"""A target that is much of vLLM 0.32, and a contract small enough to know by heart."""

from __future__ import annotations

from pathlib import Path

from loms.engines.contracts.contract import Contract, Exposed, Observed
from loms.engines.contracts.family import Family
from loms.engines.vllm import Vllm
from loms.lint.expression import Dialect, Expression, Purpose
from loms.lint.place import Excerpt, Place, Source
from loms.lint.target import Target

DATA = Path(__file__).parents[2] / "data" / "lint"
RANK = ("model_name", "engine")


def exposed(type_: str, *labels: str) -> Exposed:
    return Exposed(type_, frozenset((*RANK, *labels)))


FAMILIES = {
    "vllm:num_requests_running": exposed("gauge"),
    "vllm:num_requests_waiting": exposed("gauge"),
    "vllm:kv_cache_usage_perc": exposed("gauge"),
    "vllm:prefix_cache_queries_total": exposed("counter"),
    "vllm:prefix_cache_hits_total": exposed("counter"),
    "vllm:num_preemptions_total": exposed("counter"),
    "vllm:prompt_tokens_total": exposed("counter"),
    "vllm:generation_tokens_total": exposed("counter"),
    "vllm:request_success_total": exposed("counter", "finished_reason"),
    "vllm:time_to_first_token_seconds": exposed("histogram"),
    "vllm:inter_token_latency_seconds": exposed("histogram"),
    "vllm:e2e_request_latency_seconds": exposed("histogram"),
    "vllm:reworked_seconds": exposed("summary"),
    "http_requests_total": Exposed("counter", frozenset({"handler"})),
}
"""What a target exposes: much of vLLM 0.32, and a summary as only a made-up one would have it."""


def family(name: str, type_: str, *successors: str, until: str = "", gone: str = "", **more: object) -> Family:
    return Family(name, type_, RANK, until=until, gone=gone, successors=successors, **more)  # type: ignore[arg-type]


CONTRACT = Contract(
    "vllm",
    "vLLM",
    ("0.8.5", "0.9.0", "0.11.2", "0.12.0", "0.32.0"),
    {
        one.name: one
        for one in (
            *(Family(name, there.type, tuple(sorted(there.labels))) for name, there in FAMILIES.items()),
            family("vllm:num_requests_waiting", "gauge", changes=(("0.9.0", "counts deferred requests, too"),)),
            family("vllm:gpu_cache_usage_perc", "gauge", "vllm:kv_cache_usage_perc", until="0.11.2", gone="0.12.0"),
            family(
                "vllm:gpu_prefix_cache_hits_total",
                "counter",
                "vllm:prefix_cache_hits_total",
                until="0.11.2",
                gone="0.12.0",
                changes=(("0.9.0", "counts tokens, and counted blocks before"),),
            ),
            family(
                "vllm:time_per_output_token_seconds",
                "histogram",
                "vllm:inter_token_latency_seconds",
                until="0.11.2",
                gone="0.12.0",
                meaning="both are the gap between two steps",
            ),
            family("vllm:older_usage_perc", "gauge", "vllm:gpu_cache_usage_perc", until="0.8.5", gone="0.9.0"),
            family("vllm:worked_seconds", "histogram", "vllm:reworked_seconds", until="0.11.2", gone="0.12.0"),
            family("vllm:num_requests_swapped", "gauge", until="0.8.5", gone="0.9.0"),
            family("vllm:split_perc", "gauge", "vllm:left_perc", "vllm:num_requests_running", gone="0.9.0"),
            family("vllm:left_perc", "gauge", when="on the left"),
            family(
                "vllm:spec_decode_num_drafts_total", "counter", when="with speculation", flag="--speculative-config"
            ),
            family("vllm:nixl_xfer_time_seconds", "histogram", lazy=True),
        )
    },
    own=("vllm:",),
)
OTHER = Contract(
    "sglang", "SGLang", ("0.5.23",), {"sglang:token_usage": Family("sglang:token_usage", "gauge")}, ("sglang:",)
)


def written(text: str, purpose: Purpose = "alert", dialect: Dialect = "promql", **more: object) -> Expression:
    """An expression that is a file of its own."""
    source = Source.of("f.promql", text)
    excerpt = Excerpt(text, source, 0, len(text), "plain")
    return Expression(text, Place("f.promql", 1, "here"), purpose, excerpt, dialect, **more)  # type: ignore[arg-type]


OBSERVED = Observed("vllm", "0.32.0", FAMILIES)
TARGET = Target(OBSERVED, CONTRACT, (), (OTHER,), ("vllm:",), Vllm.spell)
