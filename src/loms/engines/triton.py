"""NVIDIA's Triton Inference Server (2.37 to 2.73), also inside PyTriton, with its vLLM and TensorRT-LLM back ends.

Known by its families ``nv_inference_…``, on a port of their own (8002) that serves nothing else: the version is only
to be had where one address leads to both. Durations are counters in microseconds, so there is a sum and a count of
each and no distribution. All of them are summed up over requests, the executions of a batch too: a batch of four that
computes for 20 ms counts 80 ms. What was answered from the response cache counts as successful and as queued but never
computed, so the computed requests are counted by the summaries (``--metrics-config summary_latencies=true``), where
those are on.

What Triton does not say: a request that finds the queue full is refused and counted nowhere (one whose time in the
queue ran out is counted as REJECTED); an answer with an error in it, and a stream that its client left, are successes;
an ensemble counts a failure once more as OTHER. With decoupled models (streams) a back end may give a request back
before it has answered; its duration ends there.

The vLLM back end passes on a part of vLLM's families, which are then taken. The TensorRT-LLM back end's gauges mix
meanings in one family; its series carry ``runtime="tensorrt-llm"``. Sources: Triton's documentation ("Metrics"), the
READMEs of both back ends, and recordings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Get, Identity, Lookup, Row, engines

_DURATION = "gen_ai_server_request_duration_seconds"
_SUCCESS = "nv_inference_request_success"
_BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s"}'
_TRT = {"runtime": "tensorrt-llm"}
_TRT_ONLY = "only the TensorRT-LLM back end tells it"
_BACK_END = "Triton does not look into its back ends; vLLM's and TensorRT-LLM's tell some of it"
_SUMMARY = "quantiles of a sliding window, which cannot be put together"
_RESPONSE_CACHE = "about the cache of whole responses, not of KV blocks"
_NO_GPU = "this Triton sees no GPU, or runs with --allow-gpu-metrics=false"
_HOST = "about the host's memory and CPU"

_FAILURE = Lookup(
    source="reason", into="outcome", values={"REJECTED": "rejected", "CANCELED": "cancelled"}, default="error"
)

_TABLE = (
    Row("gen_ai.server.request.duration", ("nv_inference_request_duration_us * 1e-6",), part="_sum"),
    Row("gen_ai.server.request.duration", (_SUCCESS,), part="_count"),
    Row(
        "gen_ai.server.time_to_first_token",
        ("nv_inference_first_response_histogram_ms * 0.001",),
        absent="only for models that stream, with --metrics-config histogram_latencies=true",
    ),
    Row("llm.engine.request.queue.duration", ("nv_inference_queue_duration_us * 1e-6",), part="_sum"),
    Row("llm.engine.request.queue.duration", (_SUCCESS,), part="_count"),
    Row(
        "llm.engine.request.inference.duration",
        (
            "nv_inference_compute_input_duration_us * 1e-6 + nv_inference_compute_infer_duration_us * 1e-6"
            " + nv_inference_compute_output_duration_us * 1e-6",
        ),
        part="_sum",
    ),
    Row(
        "llm.engine.request.inference.duration",
        ("nv_inference_compute_infer_summary_us_count", _SUCCESS),
        part="_count",
    ),
    Row(
        "llm.engine.requests.running",
        ('nv_trt_llm_request_metrics{request_type="active"}',),
        fixed=_TRT,
        without=("request_type",),
        absent=f"Triton counts what waits for a back end, not what one works on; {_TRT_ONLY}",
    ),
    Row("llm.engine.requests.waiting", ("nv_inference_pending_request_count",)),
    Row(
        "llm.engine.requests.waiting",
        ('nv_trt_llm_request_metrics{request_type="waiting"}',),
        fixed=_TRT,
        without=("request_type",),
    ),
    Row("llm.engine.requests.finished", (_SUCCESS,), fixed={"outcome": "success"}),
    Row(
        "llm.engine.requests.finished",
        ("nv_inference_request_failure",),
        rename={"reason": "error_type"},
        lookup=_FAILURE,
    ),
    Row("llm.engine.iteration.requests", ("nv_inference_count",), part="_sum"),
    Row("llm.engine.iteration.requests", ("nv_inference_exec_count",), part="_count"),
    Row(
        "llm.engine.iteration.duration",
        ('nv_trt_llm_general_metrics{general_type="iteration_counter"}',),
        fixed=_TRT,
        without=("general_type",),
        part="_count",
        absent="Triton counts executions (iteration.requests) but times requests",
    ),
    Row(
        "llm.engine.tokens.input",
        ("nv_llm_input_token_len_sum",),
        fixed=_TRT,
        without=("response_metric_type",),
        absent=_BACK_END,
    ),
    Row(
        "llm.engine.tokens.output",
        ("nv_llm_output_token_len_sum",),
        fixed=_TRT,
        without=("response_metric_type",),
        absent=_BACK_END,
    ),
    Row(
        "llm.engine.request.input_tokens",
        ("nv_llm_input_token_len",),
        fixed=_TRT,
        without=("response_metric_type",),
        absent=_BACK_END,
    ),
    Row(
        "llm.engine.request.output_tokens",
        ("nv_llm_output_token_len",),
        fixed=_TRT,
        without=("response_metric_type",),
        absent=_BACK_END,
    ),
    Row(
        "llm.engine.kv_cache.utilization",
        (_BLOCKS % "fraction", f"{_BLOCKS % 'used'} / {_BLOCKS % 'max'}"),
        fixed=_TRT,
        without=("kv_cache_block_type",),
        absent=_TRT_ONLY,
    ),
    Row(
        "llm.engine.kv_cache.usage",
        (f"{_BLOCKS % 'used'} * {_BLOCKS % 'tokens_per'}",),
        fixed=_TRT,
        without=("kv_cache_block_type",),
        absent=_TRT_ONLY,
    ),
    Row(
        "llm.engine.kv_cache.capacity",
        (f"{_BLOCKS % 'max'} * {_BLOCKS % 'tokens_per'}",),
        fixed=_TRT,
        without=("kv_cache_block_type",),
        absent=_TRT_ONLY,
    ),
    Row(
        "llm.engine.gpu.memory.usage",
        ('nv_trt_llm_runtime_memory_metrics{memory_type="gpu"}',),
        fixed={**_TRT, "purpose": "total"},
        without=("memory_type",),
        absent=_TRT_ONLY,
    ),
    Row("hw.gpu.utilization", ("nv_gpu_utilization",), absent=_NO_GPU),
    Row("hw.gpu.memory.usage", ("nv_gpu_memory_used_bytes",), absent=_NO_GPU),
    Row("hw.gpu.memory.limit", ("nv_gpu_memory_total_bytes",), absent=_NO_GPU),
    Row(
        "hw.gpu.memory.utilization",
        ("nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes",),
        absent=_NO_GPU,
    ),
    Row("hw.power", ("nv_gpu_power_usage",), absent=_NO_GPU),
    Row("hw.energy", ("nv_energy_consumption",), absent=_NO_GPU),
)


@engines.register("triton")
class Triton(Engine):
    """Triton's metrics port."""

    prefix: ClassVar[str] = "nv_"
    carries: ClassVar[tuple[str, ...]] = ("vllm",)
    rename: ClassVar[Mapping[str, str]] = {"version": "model_version"}
    table: ClassVar[tuple[Row, ...]] = _TABLE
    progress: ClassVar[tuple[str, ...]] = ("nv_inference_exec_count",)
    never: ClassVar[Mapping[str, str]] = {
        "gen_ai.server.time_per_output_token": _BACK_END,
        "llm.engine.inter_token.latency": _BACK_END,
        "llm.engine.request.prefill.duration": _BACK_END,
        "llm.engine.request.decode.duration": _BACK_END,
        "llm.engine.requests.started": "Triton counts a request when it ends, not when it comes",
        "llm.engine.requests.preempted": "Triton does not preempt, and its back ends do not tell of it",
        "llm.engine.tokens.input.cached": _BACK_END,
        "llm.engine.prefix_cache.lookup_tokens": "Triton's response cache keeps whole responses",
        "llm.engine.prefix_cache.hit_tokens": "Triton's response cache keeps whole responses",
        "llm.engine.prefix_cache.hit_ratio": "Triton's response cache keeps whole responses",
        "llm.engine.iteration.tokens": _BACK_END,
        "llm.engine.batch.size": "iteration.requests gives the mean batch of any window",
        "llm.engine.spec_decode.drafts": _BACK_END,
        "llm.engine.spec_decode.draft_tokens": _BACK_END,
        "llm.engine.spec_decode.accepted_tokens": _BACK_END,
        "llm.engine.kv_transfer.duration": "the TensorRT-LLM back end has milliseconds and requests in one counter",
        "llm.engine.kv_transfer.io": "no back end tells how many bytes it moves",
        "http.server.request.duration": "Triton does not time its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "nv_inference_request_summary_us": _SUMMARY,
        "nv_inference_queue_summary_us": _SUMMARY,
        "nv_inference_compute_input_summary_us": _SUMMARY,
        "nv_inference_compute_infer_summary_us": _SUMMARY,
        "nv_inference_compute_output_summary_us": _SUMMARY,
        "nv_cache_hit_summary_per_model": _SUMMARY,
        "nv_cache_miss_summary_per_model": _SUMMARY,
        "nv_cache_num_hits_per_model": _RESPONSE_CACHE,
        "nv_cache_num_misses_per_model": _RESPONSE_CACHE,
        "nv_cache_hit_duration_per_model": _RESPONSE_CACHE,
        "nv_cache_miss_duration_per_model": _RESPONSE_CACHE,
        "nv_cache_util": _RESPONSE_CACHE,
        "nv_cache_num_entries": _RESPONSE_CACHE,
        "nv_cache_num_hits": _RESPONSE_CACHE,
        "nv_cache_num_misses": _RESPONSE_CACHE,
        "nv_cache_num_lookups": _RESPONSE_CACHE,
        "nv_cache_num_evictions": _RESPONSE_CACHE,
        "nv_cache_lookup_duration": _RESPONSE_CACHE,
        "nv_cache_insertion_duration": _RESPONSE_CACHE,
        "nv_pinned_memory_pool_total_bytes": _HOST,
        "nv_pinned_memory_pool_used_bytes": _HOST,
        "nv_cpu_utilization": _HOST,
        "nv_cpu_memory_total_bytes": _HOST,
        "nv_cpu_memory_used_bytes": _HOST,
        "nv_model_load_duration_secs": "how long loading the model took, once",
        "nv_gpu_power_limit": "a setting",
        "nv_trt_llm_inflight_batcher_metrics": "token counts, request counts and an id in one family",
        "nv_trt_llm_v1_metrics": "token counts and free slots in one family",
        "nv_trt_llm_disaggregated_serving_metrics": "milliseconds and requests in one counter",
    }

    @classmethod
    def matches(cls, families: frozenset[str]) -> bool:
        return any(family.startswith("nv_inference_") for family in families)

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """Of three durations there is a sum and a count but no distribution; say so beside them."""
        only = "Triton has only sum and count of it, from which a mean follows"
        if not any(c.name == f"{_DURATION}_bucket" for c in draft.combinations.values()):
            early = f"{only}; with a model that streams it may end before the answer does"
            draft.lacks("gen_ai.server.request.duration", early, partly=True)
        draft.lacks("llm.engine.request.queue.duration", only, partly=True)
        draft.lacks("llm.engine.request.inference.duration", only, partly=True)

    @staticmethod
    async def identify(get: Get) -> Identity:
        """The version from ``/v2``; models are labels."""
        answer = await get("/v2")
        return Identity(version=str(answer.get("version", "")) if isinstance(answer, dict) else "")
