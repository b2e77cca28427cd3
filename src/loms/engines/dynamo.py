"""NVIDIA Dynamo (0.7 to 1.6): front end, KV router and workers.

Known by its families ``dynamo_…``. The front end tells of requests as their clients see them (``hop="frontend"``), the
router inside it of those that it routed (``hop="router"``), a worker's system port (``DYN_SYSTEM_PORT``) of those that
it worked on (``hop="engine"``): the same request is seen at each, and they are never added up. A worker passes on the
families of its engine (vLLM, SGLang, TensorRT-LLM), which then come first, with ``runtime`` naming it.

The front end writes models in lower case. Its ``active_requests`` and ``queued_requests`` (from arrival to first
token) overlap. A worker's ``requests_total`` counts at arrival; what it has finished is the count of its durations,
whatever their end was. Prefill workers time their own part only. Milliseconds, microseconds and nanoseconds occur, all
in families that have no canonical name. Dynamo is not probed, although the front end could be asked: the workers
behind it would count the probe, and nobody could take it off there. Source: Dynamo's documentation ("Metrics") and
source (lib/llm/src/http/service/metrics.rs, lib/runtime/src/pipeline/network/ingress/push_handler.rs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Identity, Lookup, Row, engines

_FRONTEND = {"hop": "frontend"}
_ROUTER = {"hop": "router"}
_TENSORRT_LLM = {"runtime": "tensorrt-llm"}
"""Families that Dynamo adds to those of a TensorRT-LLM worker."""
_NOT_HERE = "only the engine behind a worker tells it, where the worker passes its families on"
_GENERATE = '{dynamo_endpoint="generate"}'
_AGAIN = "counted in dynamo_frontend_requests_total, too"
_WORKER_VIEW = "one worker's newest value as the front end sees it"
_PREDICTION = "what the router expects, not what a worker measured"
_INSIDE = "about the inside of Dynamo's runtime"

_FAILURE = Lookup(
    source="error_type", into="outcome", values={"cancelled": "cancelled", "overload": "rejected"}, default="error"
)

_TABLE = (
    Row(
        "gen_ai.server.request.duration",
        ("dynamo_frontend_request_duration_seconds",),
        fixed=_FRONTEND,
    ),
    Row("gen_ai.server.request.duration", (f"dynamo_component_request_duration_seconds{_GENERATE}",)),
    Row(
        "gen_ai.server.time_to_first_token",
        ("dynamo_frontend_time_to_first_token_seconds",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "gen_ai.server.time_to_first_token",
        ("dynamo_component_router_time_to_first_token_seconds",),
        fixed=_ROUTER,
    ),
    Row(
        "gen_ai.server.time_per_output_token",
        # One value per request: its mean.
        ("dynamo_component_router_inter_token_latency_seconds",),
        fixed=_ROUTER,
        absent=f"the KV router tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.inter_token.latency",
        ("dynamo_frontend_inter_token_latency_seconds",),
        fixed={**_FRONTEND, "granularity": "chunk"},
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.requests.running",
        ("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
        fixed=_FRONTEND,
    ),
    Row("llm.engine.requests.running", (f"dynamo_component_inflight_requests{_GENERATE}",)),
    Row(
        "llm.engine.requests.waiting",
        ("dynamo_frontend_stage_requests", "dynamo_frontend_queued_requests"),
        fixed=_FRONTEND,
        without=("stage", "phase"),
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row("llm.engine.requests.waiting", ("dynamo_frontend_router_queue_pending_requests",), fixed=_ROUTER),
    Row("llm.engine.requests.started", ("dynamo_frontend_requests_started_total",), fixed=_FRONTEND),
    Row("llm.engine.requests.started", ("dynamo_component_router_requests_total",), fixed=_ROUTER),
    Row("llm.engine.requests.started", (f"dynamo_component_requests_total{_GENERATE}",)),
    Row(
        "llm.engine.requests.finished",
        ('dynamo_frontend_requests_total{status="success"}',),
        fixed={**_FRONTEND, "outcome": "success"},
        without=("status",),
    ),
    Row(
        "llm.engine.requests.finished",
        ('dynamo_frontend_requests_total{status!="success"}',),
        fixed=_FRONTEND,
        lookup=_FAILURE,
        without=("status",),
    ),
    Row("llm.engine.requests.finished", (f"dynamo_component_request_duration_seconds_count{_GENERATE}",)),
    Row(
        "llm.engine.tokens.input",
        ("dynamo_frontend_input_sequence_tokens_sum",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row("llm.engine.tokens.input", ("dynamo_component_router_input_sequence_tokens_sum",), fixed=_ROUTER),
    Row(
        "llm.engine.tokens.input.cached",
        ("dynamo_frontend_cached_tokens_sum", "dynamo_frontend_cached_sequence_length_sum"),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.tokens.output",
        ("dynamo_frontend_output_tokens_total", "dynamo_frontend_output_sequence_tokens_sum"),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row("llm.engine.tokens.output", ("dynamo_component_router_output_sequence_tokens_sum",), fixed=_ROUTER),
    Row(
        "llm.engine.request.input_tokens",
        ("dynamo_frontend_input_sequence_tokens",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row("llm.engine.request.input_tokens", ("dynamo_component_router_input_sequence_tokens",), fixed=_ROUTER),
    Row(
        "llm.engine.request.output_tokens",
        ("dynamo_frontend_output_sequence_tokens",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row("llm.engine.request.output_tokens", ("dynamo_component_router_output_sequence_tokens",), fixed=_ROUTER),
    Row(
        "llm.engine.prefix_cache.lookup_tokens",
        ("dynamo_frontend_input_sequence_tokens_sum",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.prefix_cache.hit_tokens",
        ("dynamo_frontend_cached_tokens_sum", "dynamo_frontend_cached_sequence_length_sum"),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.kv_cache.utilization",
        ("dynamo_component_gpu_cache_usage_percent", "dynamo_component_kvstats_gpu_cache_usage_percent"),
        absent=f"workers from 1.0 on tell it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.kv_cache.capacity",
        ("dynamo_frontend_model_total_kv_blocks * dynamo_frontend_model_kv_cache_block_size",),
        fixed=_FRONTEND,
        absent=f"the front end tells it; {_NOT_HERE}",
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("trtllm_kv_transfer_latency_seconds",),
        fixed=_TENSORRT_LLM,
        absent=f"the router's estimate is an upper bound; {_NOT_HERE}",
    ),
    Row("llm.engine.kv_transfer.io", ("trtllm_kv_transfer_bytes_sum",), fixed=_TENSORRT_LLM, absent=_NOT_HERE),
)

_HIT_RATES = ("dynamo_component_kv_cache_hit_rate", "dynamo_component_kvstats_gpu_prefix_cache_hit_rate")


@engines.register("dynamo")
class Dynamo(Engine):
    """A front end's ``/metrics``, or a worker's at its system port."""

    prefix: ClassVar[str] = "dynamo_"
    carries: ClassVar[tuple[str, ...]] = ("vllm", "sglang", "tensorrt-llm")
    rename: ClassVar[Mapping[str, str]] = {"dp_rank": "engine_index"}
    table: ClassVar[tuple[Row, ...]] = _TABLE
    computed: ClassVar[frozenset[str]] = frozenset({"llm.engine.prefix_cache.hit_ratio"})
    never: ClassVar[Mapping[str, str]] = {
        "llm.engine.request.queue.duration": _NOT_HERE,
        "llm.engine.request.prefill.duration": _NOT_HERE,
        "llm.engine.request.decode.duration": _NOT_HERE,
        "llm.engine.request.inference.duration": _NOT_HERE,
        "llm.engine.requests.preempted": _NOT_HERE,
        "llm.engine.kv_cache.usage": _NOT_HERE,
        "llm.engine.iteration.tokens": _NOT_HERE,
        "llm.engine.iteration.duration": _NOT_HERE,
        "llm.engine.iteration.requests": _NOT_HERE,
        "llm.engine.batch.size": _NOT_HERE,
        "llm.engine.spec_decode.drafts": _NOT_HERE,
        "llm.engine.spec_decode.draft_tokens": _NOT_HERE,
        "llm.engine.spec_decode.accepted_tokens": _NOT_HERE,
        "llm.engine.gpu.memory.usage": "Dynamo reports no GPU memory; the device does",
        "http.server.request.duration": "the front end times requests, not its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "dynamo_frontend_failures_total": _AGAIN,
        "dynamo_frontend_model_cancellation_total": _AGAIN,
        "dynamo_frontend_model_rejection_total": _AGAIN,
        "dynamo_frontend_disconnected_clients": "a gauge that counts up, of requests that are counted elsewhere",
        "dynamo_frontend_stage_duration_seconds": "a split of the time before the first token",
        "dynamo_frontend_model_ready": "a state",
        "dynamo_frontend_model_max_num_seqs": "a setting",
        "dynamo_frontend_model_max_num_batched_tokens": "a setting",
        "dynamo_frontend_model_context_length": "a setting",
        "dynamo_frontend_model_migration_*": "requests that moved to another worker, counted once at their end",
        "dynamo_frontend_embedding_latency_seconds": "of embeddings, not of generation",
        "dynamo_frontend_kv_hit_rate": _PREDICTION,
        "dynamo_frontend_kv_selected_cached_prefix_tokens_total": _PREDICTION,
        "dynamo_frontend_kv_best_eligible_cached_prefix_tokens_total": _PREDICTION,
        "dynamo_frontend_kv_transfer_estimated_latency_seconds": "an upper bound, not a measurement",
        "dynamo_frontend_kv_worker_reused_tokens_total": "the part of cached_tokens that came through the KV router",
        "dynamo_frontend_shared_cache_*": "about the cache that workers share",
        "dynamo_frontend_non_max_overlap_selections_total": _PREDICTION,
        "dynamo_frontend_overlap_blocks_lost": _PREDICTION,
        "dynamo_frontend_worker_*": _WORKER_VIEW,
        "dynamo_frontend_lora_*": "about where adapters are placed",
        "dynamo_frontend_images_per_request": "about what prompts hold",
        "dynamo_frontend_videos_per_request": "about what prompts hold",
        "dynamo_frontend_audio_per_request": "about what prompts hold",
        "dynamo_frontend_image_tokens_per_request": "about what prompts hold",
        "dynamo_frontend_tokeni*": "about the tokenizer; milliseconds in part",
        "dynamo_frontend_template_seconds": "about the tokenizer",
        "dynamo_frontend_detokenize_*": "about the tokenizer; microseconds in part",
        "dynamo_frontend_event_loop_*": _INSIDE,
        "dynamo_component_errors_total": "a part of those that ended; also counts clients that went away",
        "dynamo_component_cancellation_total": "a part of those that ended",
        "dynamo_component_request_bytes_total": _INSIDE,
        "dynamo_component_response_bytes_total": _INSIDE,
        "dynamo_component_uptime_seconds": _INSIDE,
        "dynamo_component_model_load_time_seconds": "how long loading the model took, once",
        "dynamo_component_total_blocks": "in blocks, of a size that only the front end tells",
        "dynamo_component_kvstats_total_blocks": "in blocks, of a size that only the front end tells",
        "dynamo_component_kvstats_active_blocks": "in blocks, of a size that only the front end tells",
        "dynamo_component_kv_cache_events_applied": _INSIDE,
        "dynamo_component_kv_publisher_*": _INSIDE,
        "dynamo_component_embedding_cache_*": "about the cache of embeddings",
        "dynamo_component_router_kv_hit_rate": _PREDICTION,
        "dynamo_router_*": "phases of one routing decision; milliseconds",
        "dynamo_request_plane_*": _INSIDE,
        "dynamo_work_handler_*": _INSIDE,
        "dynamo_transport_*": _INSIDE,
        "dynamo_tokio_*": "about the runtime of Dynamo's processes; nanoseconds in part",
        "dynamo_kvindexer_*": "about the indexer of KV blocks",
    }

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """The workers' own hit ratio, only where there are no counters from which it follows; whose the capacity is."""
        if draft.positions("dynamo_frontend_model_total_kv_blocks"):
            draft.lacks("llm.engine.kv_cache.capacity", "the front end tells that of one worker only", partly=True)
        metric = "llm.engine.prefix_cache.hit_ratio"
        draft.used.update(_HIT_RATES)
        counted = any(c.metric == "llm.engine.prefix_cache.hit_tokens" for c in draft.combinations.values())
        for position in () if counted else next(filter(None, map(draft.positions, _HIT_RATES)), []):
            draft.add(metric, draft.labels(metric, position), [(position, 1.0)])
        draft.lacks(metric, "the counters give the ratio of any window" if counted else "no worker tells it")
