"""TensorRT-LLM's own server (``trtllm-serve``; 1.0 to 1.3).

Known by its families ``trtllm_…`` at ``/prometheus/metrics``. ``/metrics`` is something else: JSON statistics of the
last steps, which are gone for everybody else once they are read, so LOMS never asks for it. Requests are counted with
``return_perf_metrics: true``, load and KV cache with ``enable_iter_perf_stats: true``; tokens and times when a request
ends. Times of exactly 0 are left out of most histograms.

The KV cache is told in blocks; tokens are those times ``trtllm_kv_cache_tokens_per_block``. ``time_per_output_token``
is a mean for each request here, unlike vLLM's old metric of that name. With several processes a gauge has one series
for each ``pid``, the dead ones' too, and the largest counts. Where a thing is counted twice (``iter_…`` blocks beside
the blocks, speculation by position beside the plain counters), one of the two is taken. Sources: TensorRT-LLM's
documentation ("trtllm-serve") and code (``metrics/collector.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.engine import Engine, Get, Identity, Lookup, Row, engines

_PER_BLOCK = "trtllm_kv_cache_tokens_per_block"
_REUSED = f"trtllm_kv_cache_reused_blocks_total * {_PER_BLOCK}"
_MISSED = f"trtllm_kv_cache_missed_blocks_total * {_PER_BLOCK}"
_STATISTICS = "only with enable_iter_perf_stats: true, and from about 1.3 on"
_REQUESTS = "only with return_perf_metrics: true"
_NEWER = f"{_REQUESTS}, and from about 1.3 on"
_SPECULATION = "only with speculative decoding, and from about 1.3 on"
_SECONDARY = "only where KV blocks go to host memory"

_REASON = Lookup(
    source="finished_reason", into="outcome", values={"cancelled": "cancelled", "timeout": "error"}, default="success"
)
_STATUS = Lookup(
    source="http_code",
    into="outcome",
    values={**dict.fromkeys(("400", "404", "413", "422", "429", "503"), "rejected"), "499": "cancelled"},
    default="error",
)

_TABLE = (
    Row("gen_ai.server.request.duration", ("trtllm_e2e_request_latency_seconds",), absent=_REQUESTS),
    Row("gen_ai.server.time_to_first_token", ("trtllm_time_to_first_token_seconds",), absent=_REQUESTS),
    Row("gen_ai.server.time_per_output_token", ("trtllm_time_per_output_token_seconds",), absent=_REQUESTS),
    Row("llm.engine.request.queue.duration", ("trtllm_request_queue_time_seconds",), absent=_REQUESTS),
    Row("llm.engine.request.prefill.duration", ("trtllm_request_prefill_time_seconds",), absent=_NEWER),
    Row("llm.engine.request.decode.duration", ("trtllm_request_decode_time_seconds",), absent=_NEWER),
    Row("llm.engine.request.inference.duration", ("trtllm_request_inference_time_seconds",), absent=_NEWER),
    Row("llm.engine.requests.running", ("trtllm_num_requests_running",), absent=_STATISTICS),
    Row("llm.engine.requests.waiting", ("trtllm_num_requests_waiting",), absent=_STATISTICS),
    Row("llm.engine.requests.waiting", ("trtllm_num_paused_requests",), fixed={"reason": "paused"}),
    Row(
        "llm.engine.requests.finished",
        ("trtllm_request_success_total",),
        rename={"finished_reason": "finish_reason"},
        lookup=_REASON,
        absent=_REQUESTS,
    ),
    Row(
        "llm.engine.requests.finished",
        ("trtllm_request_error_total",),
        rename={"http_code": "http_response_status_code"},
        lookup=_STATUS,
    ),
    Row("llm.engine.tokens.input", ("trtllm_prompt_tokens_total",), absent=_NEWER),
    Row(
        "llm.engine.tokens.input.cached",
        ("trtllm_prompt_cached_tokens_total", "trtllm_prompt_cache_hit_tokens_total"),
        without=("cache_level", "cache_tier"),
        absent=_NEWER,
    ),
    Row("llm.engine.tokens.output", ("trtllm_generation_tokens_total",), absent=_NEWER),
    Row("llm.engine.kv_cache.utilization", ("trtllm_kv_cache_utilization",), absent=_STATISTICS),
    Row("llm.engine.kv_cache.usage", (f"trtllm_kv_cache_used_blocks * {_PER_BLOCK}",), absent=_STATISTICS),
    Row("llm.engine.kv_cache.capacity", (f"trtllm_kv_cache_max_blocks * {_PER_BLOCK}",), absent=_STATISTICS),
    Row("llm.engine.prefix_cache.lookup_tokens", (f"{_REUSED} + {_MISSED}",), absent=_STATISTICS),
    Row("llm.engine.prefix_cache.hit_tokens", (_REUSED,), absent=_STATISTICS),
    Row(
        "llm.engine.batch.size",
        ("trtllm_num_scheduled_requests", "trtllm_scheduled_batch_size"),
        absent=_STATISTICS,
    ),
    Row(
        "llm.engine.spec_decode.draft_tokens",
        ("trtllm_spec_decode_num_draft_tokens_total", "trtllm_spec_decode_drafted_tokens_total"),
        without=("token_position",),
        absent=_SPECULATION,
    ),
    Row(
        "llm.engine.spec_decode.accepted_tokens",
        ("trtllm_spec_decode_num_accepted_tokens_total", "trtllm_spec_decode_accepted_tokens_total"),
        without=("token_position",),
        absent=_SPECULATION,
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("trtllm_kv_cache_onboard_bytes_total",),
        fixed={"connector": "offload", "direction": "load"},
        absent=_SECONDARY,
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("trtllm_kv_cache_offload_bytes_total",),
        fixed={"connector": "offload", "direction": "store"},
    ),
    Row(
        "llm.engine.gpu.memory.usage",
        ("trtllm_gpu_memory_usage_bytes",),
        fixed={"purpose": "total"},
        absent=_STATISTICS,
    ),
)

_LAST_STEP = "about the last step only"
_LIMIT = "a limit, not a measurement"
_CONFIGURATION = "configuration, not a measurement"
_ITERATION_BLOCKS = "a second count of the blocks, summed up over steps"
_PERPLEXITY = "about the model's text, not the engine's work"


@engines.register("tensorrt-llm")
class TensorRtLlm(Engine):
    """``trtllm-serve``'s Prometheus endpoint."""

    prefix: ClassVar[str] = "trtllm_"
    openai: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ("/prometheus/metrics",)
    replicas: ClassVar[frozenset[str]] = frozenset({"rank", "pid"})
    table: ClassVar[tuple[Row, ...]] = _TABLE
    progress: ClassVar[tuple[str, ...]] = (
        "trtllm_num_requests_completed_total",
        "trtllm_kv_cache_missed_blocks_total",
        "trtllm_kv_cache_gen_alloc_blocks_total",
        "trtllm_prefill_batch_tokens_count",
        "trtllm_time_to_first_token_seconds_count",
    )
    never: ClassVar[Mapping[str, str]] = {
        "llm.engine.inter_token.latency": "TensorRT-LLM times requests: time_per_output_token has their means",
        "llm.engine.requests.started": "TensorRT-LLM counts a request when it ends, not when it comes",
        "llm.engine.requests.preempted": "TensorRT-LLM tells how many requests are paused, not how often that happened",
        "llm.engine.request.input_tokens": "TensorRT-LLM has no distribution of the prompts' lengths",
        "llm.engine.request.output_tokens": "TensorRT-LLM has no distribution of the replies' lengths",
        "llm.engine.prefix_cache.hit_ratio": (
            "trtllm_kv_cache_hit_rate is a ratio since the start, its warm-up included where the counters are missing"
        ),
        "llm.engine.iteration.tokens": "trtllm_prefill_batch_tokens has the prompts' tokens only",
        "llm.engine.iteration.duration": "trtllm_iteration_latency_seconds is the time of the last step",
        "llm.engine.iteration.requests": "batch.size has the last step's; there is no distribution",
        "llm.engine.spec_decode.drafts": "TensorRT-LLM counts draft tokens, not rounds",
        "llm.engine.kv_transfer.duration": "TensorRT-LLM counts the bytes of its transfers, not their time",
        "http.server.request.duration": "TensorRT-LLM times requests, not its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "trtllm_kv_cache_hit_rate": "a ratio since the start; near 0 in old releases, which counted the warm-up",
        "trtllm_kv_cache_free_blocks": "what kv_cache.capacity leaves over",
        "trtllm_kv_cache_host_utilization": "about the tier in host memory",
        "trtllm_kv_cache_iter_*": _ITERATION_BLOCKS,
        "trtllm_kv_cache_disk_prefetch_blocks_total": "between disk and host memory",
        "trtllm_kv_cache_intra_device_copy_bytes_total": "copies inside the GPU",
        "trtllm_prompt_cached_tokens_per_request": "a distribution of tokens.input.cached",
        "trtllm_spec_decode_acceptance_length": _LAST_STEP,
        "trtllm_spec_decode_draft_overhead": _LAST_STEP,
        "trtllm_prefill_perplexity": _PERPLEXITY,
        "trtllm_generation_perplexity": _PERPLEXITY,
        "trtllm_iteration_latency_seconds": _LAST_STEP,
        "trtllm_max_*": _LIMIT,
        "trtllm_cpu_memory_usage_bytes": "about host memory",
        "trtllm_pinned_memory_usage_bytes": "about host memory",
        "trtllm_num_context_requests": "a part of batch.size",
        "trtllm_num_generation_requests": "a part of batch.size",
        "trtllm_total_context_tokens": _LAST_STEP,
        "trtllm_avg_decoded_tokens_per_iter": _LAST_STEP,
        "trtllm_prefill_batch_occupancy": _LAST_STEP,
        "trtllm_ep_*": "about expert-parallel ranks",
        "trtllm_model_config_info": _CONFIGURATION,
        "trtllm_parallel_config_info": _CONFIGURATION,
        "trtllm_speculative_config_info": _CONFIGURATION,
        "trtllm_kv_cache_config_info": _CONFIGURATION,
    }

    @staticmethod
    async def identify(get: Get) -> Identity:
        """The version from ``/version``; the model's name is a label of every metric."""
        answer = await get("/version")
        return Identity(version=str(answer.get("version") or "") if isinstance(answer, dict) else "")
