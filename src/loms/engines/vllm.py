"""vLLM (0.8 to 0.32, engine cores V0 and V1).

Known by its families ``vllm:…``; with an OpenMetrics Accept header the same are spelled ``vllm_…``, and Ray puts
``ray_`` before that. V0 has no ``engine`` label. Renamed metrics are taken by their new name, never both. The version
comes from ``GET /version``.

What changed its meaning: ``gpu_prefix_cache_*`` counted blocks before 0.9. ``num_requests_waiting`` includes deferred
requests from 0.20 on, which no metric told before. ``time_per_output_token_seconds`` (before 0.10.2) was the gap
between steps, as ``inter_token_latency_seconds`` is; a step may bring several tokens. Aborted requests are missing from
``request_success_total`` in several releases (vllm-project/vllm#31503).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Get, Identity, Lookup, Row, engines
from loms.engines.source import Term

_SPELLING = re.compile(r"^(?:ray_)?vllm[:_]")
_CONNECTOR = "only where that KV connector is in use"
_CORE_V0 = "core V0 does not count it"
_SPECULATION = "only with speculative decoding"

_OUTCOME = Lookup(
    source="finished_reason",
    into="outcome",
    values={"stop": "success", "length": "success", "repetition": "success", "abort": "cancelled"},
    default="error",
)

_TABLE = (
    Row("gen_ai.server.request.duration", ("vllm:e2e_request_latency_seconds",)),
    Row("gen_ai.server.time_to_first_token", ("vllm:time_to_first_token_seconds",)),
    Row(
        "gen_ai.server.time_per_output_token",
        ("vllm:request_time_per_output_token_seconds",),
        absent="vLLM has it from 0.11 on",
    ),
    Row(
        "llm.engine.inter_token.latency",
        # The old name is not the per-request mean that OpenTelemetry calls time per output token.
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        fixed={"granularity": "step"},
    ),
    Row("llm.engine.request.queue.duration", ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests")),
    Row("llm.engine.request.prefill.duration", ("vllm:request_prefill_time_seconds",)),
    Row("llm.engine.request.decode.duration", ("vllm:request_decode_time_seconds",)),
    Row("llm.engine.request.inference.duration", ("vllm:request_inference_time_seconds",)),
    Row("llm.engine.requests.running", ("vllm:num_requests_running",)),
    Row("llm.engine.requests.waiting", ("vllm:num_requests_waiting",)),
    Row("llm.engine.requests.waiting", ("vllm:num_requests_swapped",), fixed={"reason": "swapped"}),
    Row(
        "llm.engine.requests.finished",
        ("vllm:request_success_total",),
        rename={"finished_reason": "finish_reason"},
        lookup=_OUTCOME,
    ),
    Row("llm.engine.requests.finished", ("vllm:admission_rejections_total",), fixed={"outcome": "rejected"}),
    Row("llm.engine.requests.preempted", ("vllm:num_preemptions_total",)),
    Row("llm.engine.tokens.input", ("vllm:prompt_tokens_total",)),
    Row(
        "llm.engine.tokens.input.cached",
        ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
        absent=_CORE_V0,
    ),
    Row("llm.engine.tokens.output", ("vllm:generation_tokens_total",)),
    Row("llm.engine.request.input_tokens", ("vllm:request_prompt_tokens",)),
    Row("llm.engine.request.output_tokens", ("vllm:request_generation_tokens",)),
    Row("llm.engine.kv_cache.utilization", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    Row("llm.engine.prefix_cache.lookup_tokens", ("vllm:prefix_cache_queries_total",), absent=_CORE_V0),
    Row("llm.engine.prefix_cache.hit_tokens", ("vllm:prefix_cache_hits_total",), absent=_CORE_V0),
    Row("llm.engine.iteration.tokens", ("vllm:iteration_tokens_total",)),
    Row("llm.engine.spec_decode.drafts", ("vllm:spec_decode_num_drafts_total",), absent=_SPECULATION),
    Row("llm.engine.spec_decode.draft_tokens", ("vllm:spec_decode_num_draft_tokens_total",), absent=_SPECULATION),
    Row("llm.engine.spec_decode.accepted_tokens", ("vllm:spec_decode_num_accepted_tokens_total",), absent=_SPECULATION),
    Row(
        "llm.engine.kv_transfer.duration",
        ("vllm:nixl_xfer_time_seconds",),
        fixed={"connector": "nixl"},
        absent=_CONNECTOR,
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("vllm:hf3fs_load_duration_seconds",),
        fixed={"connector": "hf3fs", "direction": "load"},
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("vllm:hf3fs_save_duration_seconds",),
        fixed={"connector": "hf3fs", "direction": "store"},
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("vllm:mooncake_store_operation_time_seconds",),
        fixed={"connector": "mooncake"},
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("vllm:nixl_bytes_transferred_sum",),
        fixed={"connector": "nixl"},
        absent=_CONNECTOR,
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("vllm:mooncake_store_operation_bytes_total",),
        fixed={"connector": "mooncake"},
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("vllm:kv_offload_load_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}'),
        fixed={"connector": "offload", "direction": "load"},
        without=("transfer_type",),
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("vllm:kv_offload_store_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}'),
        fixed={"connector": "offload", "direction": "store"},
        without=("transfer_type",),
    ),
    Row(
        "http.server.request.duration",
        ("http_request_duration_seconds",),
        rename={"handler": "http_route", "method": "http_request_method"},
        absent="vLLM's OpenAI server has it from its first request on",
    ),
)

_FORMER_CACHE_NAMES = {
    "llm.engine.prefix_cache.lookup_tokens": "vllm:gpu_prefix_cache_queries_total",
    "llm.engine.prefix_cache.hit_tokens": "vllm:gpu_prefix_cache_hits_total",
    "llm.engine.tokens.input.cached": "vllm:gpu_prefix_cache_hits_total",
}


@engines.register("vllm")
class Vllm(Engine):
    """vLLM's Prometheus endpoint."""

    prefix: ClassVar[str] = "vllm:"
    openai: ClassVar[bool] = True
    rename: ClassVar[Mapping[str, str]] = {"engine": "engine_index"}
    table: ClassVar[tuple[Row, ...]] = _TABLE
    computed: ClassVar[frozenset[str]] = frozenset({"llm.engine.kv_cache.capacity", "llm.engine.kv_cache.usage"})
    labels_tell: ClassVar[Mapping[str, str]] = dict.fromkeys(computed, "vllm:cache_config_info")
    never: ClassVar[Mapping[str, str]] = {
        "llm.engine.requests.started": "vLLM counts a request when it ends, not when it comes",
        "llm.engine.prefix_cache.hit_ratio": (
            "the counters give the ratio of any window; core V0, which has none, tells a mean since its start"
        ),
        "llm.engine.iteration.duration": "vLLM counts the tokens of its steps but does not time them",
        "llm.engine.iteration.requests": "requests.running is vLLM's batch",
        "llm.engine.batch.size": "requests.running is vLLM's batch",
        "llm.engine.gpu.memory.usage": "vLLM reports no GPU memory; the device does",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "vllm:num_requests_waiting_by_reason": "a split of num_requests_waiting, which has it all",
        "vllm:num_requests_kv_fetch_by_stage": "a split of num_requests_waiting by where its KV is",
        "vllm:prompt_tokens_by_source_total": "a split of prompt_tokens_total",
        "vllm:prompt_tokens_cached_by_source_total": "a split of prompt_tokens_cached_total, counted at admission",
        "vllm:prompt_tokens_recomputed_total": "tokens that were computed although the cache had them",
        "vllm:external_prefix_cache_*": "a second look-up of tokens that the local cache missed",
        "vllm:mm_cache_*": "about images and sounds, not tokens",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": "a split of spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_emitted_tokens_total": "accepted tokens and those of the model itself",
        "vllm:spec_decode_draft_acceptance_rate": "a ratio since start; the counters give it for any window",
        "vllm:spec_decode_efficiency": "a ratio since start; the counters give it for any window",
        "vllm:gpu_prefix_cache_hit_rate": "a mean since start, and -1 where caching is off",
        "vllm:cpu_prefix_cache_hit_rate": "a mean since start, and -1 where caching is off",
        "vllm:cpu_cache_usage_perc": "about the tier in host memory",
        "vllm:avg_*_throughput_toks_per_s": "a mean over the log's interval; the counters give it for any window",
        "vllm:request_params_*": "what was asked for, not what came",
        "vllm:request_max_num_generation_tokens": "the longest of a request's n replies",
        "vllm:request_num_preemptions": "num_preemptions_total by request",
        "vllm:request_prefill_kv_computed_tokens": "the prompts' computed part",
        "vllm:model_*_time_milliseconds": "of a forward pass seen from one request, with detailed traces only",
        "vllm:kv_block_*": "the lives of sampled cache blocks",
        "vllm:kv_offload_*_time_total": "seconds of transfers together, without their number",
        "vllm:kv_offload_*size": "the size of single transfers",
        "vllm:kv_offload_lookup_*": "how long the offload tier took to answer",
        "vllm:kv_offload_allocation_failure_total": "about the offload tier's room",
        "vllm:kv_offload_stores_skipped_total": "about the offload tier's room",
        "vllm:kv_offload_cpu_cache_*": "about the offload tier's room",
        "vllm:kv_offload_tiering_*": "about tiers below the offload tier",
        "vllm:simple_kv_offload_*": "a connector that counts blocks of no told size",
        "vllm:hisparse_*": "about a connector's own cache",
        "vllm:nixl_post_time_seconds": "a part of nixl_xfer_time_seconds",
        "vllm:nixl_num_*": "a connector's descriptors and failures",
        "vllm:hf3fs_num_*": "a connector's failures",
        "vllm:mooncake_store_operation_total": "in the count of kv_transfer.duration",
        "vllm:mooncake_store_operation_*keys_total": "a connector's keys",
        "vllm:lora_requests_info": "its value is a timestamp",
        "vllm:engine_sleep_state": "a state, not a measurement",
        "vllm:sleep_mode_*": "administrative operations",
        "vllm:rl_weight_update_*": "administrative operations",
        "vllm:corrupted_requests_total": "a part of request_success_total",
        "vllm:watermark_requests_total": "a part of request_success_total",
        "vllm:diffusion_*": "about diffusion language models",
        "vllm:estimated_*": "an estimate from the model's shape",
        "vllm:tool_call_parser_invocations_total": "about the parsing of replies",
        "vllm:websocket_*": "about connections, not requests",
    }

    @staticmethod
    def spell(name: str) -> str:
        return _SPELLING.sub("vllm:", name)

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """KV capacity from the labels of ``cache_config_info``; the prefix cache's former names and units."""
        draft.used.add("vllm:cache_config_info")
        block_size = _capacity(draft)
        for metric, family in _FORMER_CACHE_NAMES.items():
            if draft.has(metric, family):
                _former_cache(draft, metric, family, block_size, identity)

    @staticmethod
    async def identify(get: Get) -> Identity:
        """The version from ``/version``; the model's name is a label of every metric."""
        answer = await get("/version")
        return Identity(version=str(answer.get("version", "")) if isinstance(answer, dict) else "")


def _capacity(draft: Draft) -> float:
    """Add capacity and usage in tokens for each engine; return the block size (0 where it is unknown)."""
    size = 0.0
    for position in draft.positions("vllm:cache_config_info"):
        config = dict(draft.shape.labels[position])
        size = _number(config.get("block_size"))
        tokens = _number(config.get("kv_cache_size_tokens")) or _number(config.get("num_gpu_blocks")) * size
        if not tokens:
            continue
        rank = {key: config[key] for key in ("engine", "model_name") if key in config}
        for usage in draft.positions("vllm:kv_cache_usage_perc") or draft.positions("vllm:gpu_cache_usage_perc"):
            if rank.items() <= dict(draft.shape.labels[usage]).items():
                labels = draft.labels("llm.engine.kv_cache.usage", usage)
                draft.add("llm.engine.kv_cache.capacity", labels, (), constant=tokens)
                draft.add("llm.engine.kv_cache.usage", labels, [(usage, tokens)])
    for metric in ("llm.engine.kv_cache.capacity", "llm.engine.kv_cache.usage"):
        draft.lacks(metric, "vllm:cache_config_info does not say how many blocks there are")
    return size


def _former_cache(draft: Draft, metric: str, family: str, block_size: float, identity: Identity | None) -> None:
    """``gpu_prefix_cache_*`` count blocks in 0.8 and tokens from 0.9 on; taken only where the new name is missing."""
    draft.used.add(family)
    if any(name.metric == metric for name in draft.combinations.values()):
        return
    version = re.match(r"(\d+)\.(\d+)", identity.version if identity else "")
    if version is None:
        draft.lacks(metric, f"{family} counts blocks in vLLM 0.8 and tokens later, and the version is not known")
        return
    in_blocks = (int(version[1]), int(version[2])) < (0, 9)
    if in_blocks and not block_size:
        draft.lacks(metric, f"{family} counts blocks here, and the block size is not known")
        return
    term = Term(family, factor=block_size if in_blocks else 1.0)
    draft.add_family(metric, (term,), lambda p: draft.labels(metric, p), only=False)


def _number(text: str | None) -> float:
    """A label's number; 0 for ``None``, nothing and whatever else stands there."""
    return float(text) if text and re.fullmatch(r"\d+(\.\d+)?", text) else 0.0
