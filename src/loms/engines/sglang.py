"""SGLang (0.4 to 0.5.23), started with ``--enable-metrics``.

Known by its families ``sglang:…`` (``sglang_…`` with an OpenMetrics Accept header, ``ray_sglang_…`` from Ray). Two
sides of it speak. The scheduler of every rank tells gauges, times and forward passes, with ``tp_rank``, ``pp_rank``,
``moe_ep_rank`` and ``dp_rank``: data-parallel ranks do different work and stay apart, the others all say the same. The
tokenizer side counts requests, without a rank, and only when they end: tokens come in bursts, and progress is read off
the scheduler.

**What ended.** ``num_requests_total`` counts every request that came to its end in the scheduler, those aborted on the
way, too (in a recording with 37 answers, one of them left by its client, all 37), and n + 1 for one with ``n`` > 1,
because the common prefix is prefilled first. ``num_aborted_requests_total`` counts calls: also for requests that never
left the queue and are therefore not in the first, and once for a call that aborts everything. So neither may be added
to the other or taken off it, and the canonical count has no outcome. Requests refused with 4xx are in
``http_responses_total`` only.

**Splits.** With priority scheduling the gauges have one series for each priority beside the total, which has no
priority; the tokenizer's counters have no total and are added up. ``cached_tokens_total{cache_source="total"}`` is no
sum but what was reused by requests of which the tier is not known. ``is_streaming`` came about 0.5.18; from then on
first tokens of requests that are not streamed can be left out, and are.

``token_usage`` is rounded to a hundredth, and the largest share over the pools of a hybrid model. Numbers in ``…_gb``
are GiB. Bytes of KV transfers are those of one tensor-parallel rank. Sources: SGLang's documentation and code
("observability"), recordings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Get, Identity, Lookup, Row, engines

_SPELLING = re.compile(r"^(?:ray_)?sglang[:_]")
_SPLIT = ("is_streaming", "priority")
"""Labels that split what the tokenizer side counts."""
_INFERENCE = (
    "/generate|/v1/completions|/v1/chat/completions|/v1/responses|/v1/messages|/v1/embeddings|/v1/rerank|/v1/score"
    "|/v1/classify|/v1/audio/transcriptions|/invocations|/vertex_generate|/api/chat|/api/generate"
)
_TIER = Lookup(
    source="cache_source",
    into="cache_tier",
    values={"": "", "total": "", "device": "device", "host": "host"},
    default="storage",
)
_DISAGGREGATED = "only between prefill and decode servers"
_HIERARCHICAL = "with --enable-hierarchical-cache"
_STAGE = "SGLang times the stages of a request from 0.5.3 on, and not every stage everywhere"
_MEMORY = "SGLang has it from about 0.5.18 on"
_SPECULATION = "SGLang tells ratios and lengths of its last interval (spec_accept_…), no counts of tokens"


def _queue(family: str, reason: str, *former: str) -> Row:
    sources = tuple(f'sglang:{name}{{priority=""}}' for name in (family, *former))
    return Row("llm.engine.requests.waiting", sources, fixed={"reason": reason})


def _memory(family: str, purpose: str) -> Row:
    return Row(
        "llm.engine.gpu.memory.usage",
        (f"sglang:{family} * 1073741824",),
        fixed={"purpose": purpose},
        without=("phase",),
        absent=_MEMORY,
    )


_TABLE = (
    Row("gen_ai.server.request.duration", ("sglang:e2e_request_latency_seconds",), without=_SPLIT),
    Row(
        "gen_ai.server.time_to_first_token",
        (
            'sglang:time_to_first_token_seconds{is_streaming="true"}',
            'sglang:time_to_first_token_seconds{is_streaming=""}',
        ),
        without=_SPLIT,
        absent="no streamed request has come yet",
    ),
    Row(
        "gen_ai.server.time_per_output_token",
        ("sglang:request_time_per_output_token_seconds",),
        without=_SPLIT,
        absent="SGLang has it from about 0.5.22 on; inter_token.latency has the gaps themselves",
    ),
    Row(
        "llm.engine.inter_token.latency",
        ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        fixed={"granularity": "token"},
        without=_SPLIT,
    ),
    Row(
        "llm.engine.request.queue.duration",
        ("sglang:queue_time_seconds", "sglang:queue_time_s"),
        absent="SGLang has it from 0.5.2 on; before that only the mean over an interval",
    ),
    Row(
        "llm.engine.request.prefill.duration",
        ('sglang:per_stage_req_latency_seconds{stage="prefill_forward"}',),
        without=("stage",),
        absent=_STAGE,
    ),
    Row(
        "llm.engine.request.decode.duration",
        ('sglang:per_stage_req_latency_seconds{stage="decode_loop"}',),
        without=("stage",),
        absent=_STAGE,
    ),
    Row("llm.engine.requests.running", ('sglang:num_running_reqs{priority=""}',)),
    Row("llm.engine.requests.waiting", ('sglang:num_queue_reqs{priority=""}',)),
    _queue("num_grammar_queue_reqs", "grammar"),
    _queue("num_paused_reqs", "paused"),
    _queue("num_prefill_bootstrap_queue_reqs", "prefill_bootstrap", "num_prefill_prealloc_queue_reqs"),
    _queue("num_prefill_inflight_queue_reqs", "prefill_inflight", "num_prefill_infight_queue_reqs"),
    _queue("num_decode_prealloc_queue_reqs", "decode_prealloc"),
    _queue("num_decode_transfer_queue_reqs", "decode_transfer"),
    Row(
        "llm.engine.requests.started",
        (f'sglang:http_requests_total{{endpoint=~"{_INFERENCE}"}}',),
        without=("endpoint", "method"),
        absent="older releases do not count HTTP requests, and newer ones from the first of each endpoint on",
    ),
    Row("llm.engine.requests.finished", ("sglang:num_requests_total",), without=_SPLIT),
    Row(
        "llm.engine.requests.preempted",
        # The second is a gauge that only grows; the third counts when a request ends.
        ("sglang:num_retracted_requests_total", "sglang:total_retracted_reqs", "sglang:num_retractions_sum"),
        without=_SPLIT,
        absent="SGLang counts its retractions from 0.5.8 on, from the first one",
    ),
    Row("llm.engine.tokens.input", ("sglang:prompt_tokens_total",), without=_SPLIT),
    Row(
        "llm.engine.tokens.input.cached",
        ("sglang:cached_tokens_total",),
        lookup=_TIER,
        without=("cache_source", *_SPLIT),
        absent="no request has found anything in the cache yet",
    ),
    Row("llm.engine.tokens.output", ("sglang:generation_tokens_total",), without=_SPLIT),
    Row("llm.engine.request.input_tokens", ("sglang:prompt_tokens_histogram",), without=_SPLIT),
    Row("llm.engine.request.output_tokens", ("sglang:generation_tokens_histogram",), without=_SPLIT),
    Row("llm.engine.kv_cache.utilization", ("sglang:token_usage",)),
    Row("llm.engine.kv_cache.usage", ("sglang:num_used_tokens",)),
    Row(
        "llm.engine.kv_cache.capacity",
        ("sglang:max_total_num_tokens",),
        absent="SGLang has it from about 0.5.6 on; before that /get_server_info says it",
    ),
    Row(
        "llm.engine.prefix_cache.lookup_tokens",
        ("sglang:prefill_effective_tokens_total", "sglang:prompt_tokens_total"),
        without=("mode", *_SPLIT),
    ),
    Row(
        "llm.engine.prefix_cache.hit_tokens",
        ('sglang:prefill_effective_tokens_total{mode=~".+_hit"}', "sglang:cached_tokens_total"),
        without=("mode", "cache_source", *_SPLIT),
    ),
    Row(
        "llm.engine.iteration.duration",
        ("sglang:cuda_graph_passes_total",),
        part="_count",
        without=("mode",),
        absent="SGLang counts its forward passes from 0.5.8 on",
    ),
    Row("llm.engine.spec_decode.drafts", ("sglang:spec_verify_calls_total",), absent="only with speculative decoding"),
    Row(
        "llm.engine.kv_transfer.duration",
        ("sglang:kv_transfer_latency_ms * 0.001",),
        fixed={"connector": "disaggregation", "direction": "send"},
        absent=f"{_DISAGGREGATED} (before about 0.5.10 the latest one in a gauge), or {_HIERARCHICAL}",
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("sglang:load_back_duration_seconds",),
        fixed={"connector": "hicache", "direction": "load"},
    ),
    Row(
        "llm.engine.kv_transfer.duration",
        ("sglang:hicache_backup_duration_seconds",),
        fixed={"connector": "hicache", "direction": "store"},
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("sglang:kv_transfer_total_mb_sum * 1048576",),
        fixed={"connector": "disaggregation", "direction": "send"},
        absent=f"{_DISAGGREGATED}, or {_HIERARCHICAL}",
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("sglang:load_back_bytes_total",),
        fixed={"connector": "hicache", "direction": "load"},
    ),
    Row(
        "llm.engine.kv_transfer.io",
        ("sglang:hicache_backup_bytes_total",),
        fixed={"connector": "hicache", "direction": "store"},
    ),
    _memory("weight_memory_usage_gb", "weights"),
    _memory("kv_cache_memory_usage_gb", "kv_cache"),
    _memory("graph_memory_usage_gb", "graphs"),
)

_LAST_INTERVAL = "what the last interval looked like; the counters give it for any window"
_CONFIGURATION = "configuration, not a measurement"
_DEVICE_TIME = "time on the GPU, of other passes than cuda_graph_passes_total counts"
_POOL = "one pool of a hybrid model; token_usage has the fullest"
_HTTP = "HTTP calls of every kind; requests.started has the requests for inference among them"


@engines.register("sglang")
class SGLang(Engine):
    """SGLang's Prometheus endpoint."""

    prefix: ClassVar[str] = "sglang:"
    openai: ClassVar[bool] = True
    rename: ClassVar[Mapping[str, str]] = {"dp_rank": "engine_index"}
    replicas: ClassVar[frozenset[str]] = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
    table: ClassVar[tuple[Row, ...]] = _TABLE
    progress: ClassVar[tuple[str, ...]] = (
        "sglang:realtime_tokens_total",
        "sglang:inter_token_latency_seconds_count",
        "sglang:queue_time_seconds_count",
    )
    never: ClassVar[Mapping[str, str]] = {
        "llm.engine.request.inference.duration": "SGLang times prefill and decode apart",
        "llm.engine.prefix_cache.hit_ratio": "the counters give the ratio of any window",
        "llm.engine.iteration.tokens": "SGLang has no distribution of the tokens of its steps",
        "llm.engine.iteration.requests": "requests.running is SGLang's batch",
        "llm.engine.batch.size": "requests.running is SGLang's batch",
        "llm.engine.spec_decode.draft_tokens": _SPECULATION,
        "llm.engine.spec_decode.accepted_tokens": _SPECULATION,
        "http.server.request.duration": "SGLang counts HTTP calls but does not time them",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "sglang:gen_throughput": "written every few decode steps and left standing when idle; tokens.output has it all",
        "sglang:cache_hit_rate": "of the last prefill batch, and 0 while decoding; prefix_cache.… has the counters",
        "sglang:num_aborted_requests_total": "in part also in num_requests_total, so it cannot stand beside it",
        "sglang:num_retracted_reqs": _LAST_INTERVAL,
        "sglang:avg_request_queue_latency": _LAST_INTERVAL,
        "sglang:num_retracted_*_tokens_total": "tokens of retracted requests, computed again or found in the cache",
        "sglang:num_running_reqs_offline_batch": "a part of num_running_reqs",
        "sglang:decode_sum_seq_lens": "tokens in the decode batch; num_used_tokens has the pool",
        "sglang:full_token_usage": _POOL,
        "sglang:swa_*": _POOL,
        "sglang:mamba_*": _POOL,
        "sglang:max_total_num_tokens_swa": _POOL,
        "sglang:kv_used_tokens": "num_used_tokens of the full-attention pool",
        "sglang:kv_available_tokens": "what kv_cache.capacity leaves over",
        "sglang:kv_evictable_tokens": "what the prefix cache holds and gives back on demand",
        "sglang:hicache_host_*": "about the tier in host memory",
        "sglang:hicache_*dropped_tokens_total": "what found no room in host memory",
        "sglang:hicache_prefetch_*": "between storage and host memory",
        "sglang:hicache_backup_tokens_total": "kv_transfer.io has it in bytes",
        "sglang:load_back_tokens_total": "kv_transfer.io has it in bytes",
        "sglang:evict*": "tokens that the prefix cache gave back",
        "sglang:prefetch*": "between storage and host memory",
        "sglang:backup*": "between storage and host memory",
        "sglang:storage_prefetch_*": "between storage and host memory",
        "sglang:page_size": _CONFIGURATION,
        "sglang:num_pages": _CONFIGURATION,
        "sglang:context_len": _CONFIGURATION,
        "sglang:cache_config_info": _CONFIGURATION,
        "sglang:max_running_requests_under_SLO": _CONFIGURATION,
        "sglang:startup_*": "about the start",
        "sglang:engine_startup_time": "about the start",
        "sglang:engine_load_weights_time": "about the start",
        "sglang:weight_load_duration_seconds": "the latest weight update",
        "sglang:spec_accept_*": _LAST_INTERVAL,
        "sglang:spec_block_accept_length": _LAST_INTERVAL,
        "sglang:spec_cap_length": _LAST_INTERVAL,
        "sglang:spec_num_*": _CONFIGURATION,
        "sglang:num_decode_host_receive_*": "a part of num_decode_transfer_queue_reqs",
        "sglang:num_decode_deferred_kv_release_reqs": "failed requests that still hold KV",
        "sglang:decode_deferred_kv_release_*": "failed requests that still hold KV",
        "sglang:kv_transfer_bootstrap_ms": "the time of a handshake",
        "sglang:kv_transfer_alloc_ms": "a wait for memory before the transfer",
        "sglang:kv_transfer_speed_gb_s": "kv_transfer.io over kv_transfer.duration",
        "sglang:pending_prealloc_token_usage": "asked for, not used",
        "sglang:prealloc_*_token_usage": "a part of token_usage",
        "sglang:num_bootstrap_failed_reqs_total": "such requests end as others do, in num_requests_total",
        "sglang:num_transfer_failed_reqs_total": "such requests end as others do, in num_requests_total",
        "sglang:num_prefill_retries_total": "prefills begun anew",
        "sglang:utilization": "against a limit that an SLO sets; -1 without one",
        "sglang:fwd_occupancy": "NaN unless the device is timed",
        "sglang:new_token_ratio": "the scheduler's estimate for reservations",
        "sglang:is_cuda_graph": "whether the last batch ran as a graph; cuda_graph_passes_total counts them",
        "sglang:*routing_key*": "about keys of a router in front; the distributions are gauges with gt and le",
        "sglang:grammar_*": "about the compilation of grammars; those who wait for it are in requests.waiting",
        "sglang:num_grammar_*total": "about the compilation of grammars",
        "sglang:eplb_*": "about experts",
        "sglang:*forward_execution_seconds_total": _DEVICE_TIME,
        "sglang:*gpu_execution_seconds_total": _DEVICE_TIME,
        "sglang:gpu_overlap_wait_seconds_total": "a part of a step",
        "sglang:scheduler_*": "the scheduler's own time",
        "sglang:estimated_*": "an estimate from the model's shape",
        "sglang:dp_cooperation_*": "realtime_tokens_total split by what the other ranks do",
        "sglang:dp_attention_*": "about the balance of data-parallel ranks",
        "sglang:prefill_delayer_*": "decisions about when to prefill",
        "sglang:lora_pool_*": "about adapters",
        "sglang:num_streaming_sessions": "about sessions",
        "sglang:streaming_session_held_tokens": "about sessions",
        "sglang:uncached_prompt_tokens_histogram": "the prompts' computed part",
        "sglang:num_so_requests_total": "a part of num_requests_total",
        "sglang:get_loads_duration_seconds": "the time of an administrative call",
        "sglang:http_responses_total": _HTTP,
        "sglang:http_requests_active": _HTTP,
        "sglang:http_*_size_bytes": _HTTP,
        "sglang:func_latency_seconds": "single functions, for development",
        "sglang:process_cpu_seconds_total": "CPU time of the processes beside the scheduler",
        "sglang:encoder_*": "about a multimodal encoder",
        "sglang:diffusion_*": "about image and video generation",
        "sglang:failed_session_recoveries_total": "about Mooncake sessions",
    }

    @staticmethod
    def spell(name: str) -> str:
        return _SPELLING.sub("sglang:", name)

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """Of the steps there is a count only; say so beside it."""
        passes = "SGLang counts its forward passes (_count) but does not time them"
        if draft.has("llm.engine.iteration.duration", "sglang:cuda_graph_passes_total", "_count"):
            draft.lacks("llm.engine.iteration.duration", passes, partly=True)

    @staticmethod
    async def identify(get: Get) -> Identity:
        """Version and model from ``/server_info``, formerly ``/get_server_info``; else the model's path at least."""
        for path in ("/server_info", "/get_server_info"):
            server = await get(path)
            if isinstance(server, dict) and server.get("version"):
                return Identity(str(server["version"]), str(server.get("served_model_name") or ""))
        for path in ("/model_info", "/get_model_info"):
            model = await get(path)
            if isinstance(model, dict):
                return Identity(model=str(model.get("served_model_name") or model.get("model_path", "")))
        return Identity()
