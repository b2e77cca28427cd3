"""llama.cpp's server (``llama-server --metrics``, also inside xllamacpp).

Known by its families ``llamacpp:…``, which carry no labels at all: the model's name and the build come from
``GET /props``. There are no histograms and no request counters. Prompt tokens are counted without those reused from
a slot's cache, so the canonical count is the sum of two families. ``*_tokens_seconds`` are reset by whoever scrapes,
``n_busy_slots_per_decode`` is a mean since start and ``n_tokens_max`` a high-water mark typed as a counter: none of
them is translated. Numbers are printed with six digits, so a counter beyond a million moves in steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Get, Identity, Row, engines

_NO_HISTOGRAM = "llama.cpp has no latency histograms"
_TWO_SCRAPERS = "a mean over the time since the last scrape, whoever made it"

_TABLE = (
    Row("llm.engine.requests.running", ("llamacpp:requests_processing",)),
    Row("llm.engine.requests.waiting", ("llamacpp:requests_deferred",)),
    Row(
        "llm.engine.tokens.input",
        ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
        absent="this build does not count cached prompt tokens, so its prompt tokens are not all of them",
    ),
    Row(
        "llm.engine.tokens.input.cached",
        ("llamacpp:prompt_tokens_cached_total",),
        absent="builds before August 2026 do not count cached prompt tokens",
    ),
    Row("llm.engine.tokens.output", ("llamacpp:tokens_predicted_total",)),
    Row(
        "llm.engine.prefix_cache.lookup_tokens",
        ("llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total",),
        absent="builds before August 2026 do not count cached prompt tokens",
    ),
    Row(
        "llm.engine.prefix_cache.hit_tokens",
        ("llamacpp:prompt_tokens_cached_total",),
        absent="builds before August 2026 do not count cached prompt tokens",
    ),
    Row("llm.engine.request.prefill.duration", ("llamacpp:prompt_seconds_total",), part="_sum"),
    Row("llm.engine.request.decode.duration", ("llamacpp:tokens_predicted_seconds_total",), part="_sum"),
    Row("llm.engine.iteration.duration", ("llamacpp:n_decode_total",), part="_count"),
    Row("llm.engine.spec_decode.drafts", ("llamacpp:spec_decode_num_drafts_total",)),
    Row("llm.engine.spec_decode.draft_tokens", ("llamacpp:spec_decode_num_draft_tokens_total",)),
    Row("llm.engine.spec_decode.accepted_tokens", ("llamacpp:spec_decode_num_accepted_tokens_total",)),
    Row(
        "llm.engine.kv_cache.utilization",
        ("llamacpp:kv_cache_usage_ratio",),
        absent="llama.cpp removed its KV metrics in May 2025",
    ),
    Row(
        "llm.engine.kv_cache.usage",
        ("llamacpp:kv_cache_tokens",),
        absent="llama.cpp removed its KV metrics in May 2025",
    ),
)


@engines.register("llama.cpp")
class LlamaCpp(Engine):
    """llama.cpp's Prometheus endpoint."""

    prefix: ClassVar[str] = "llamacpp:"
    openai: ClassVar[bool] = True
    identified: ClassVar[bool] = True
    table: ClassVar[tuple[Row, ...]] = _TABLE
    never: ClassVar[Mapping[str, str]] = {
        "gen_ai.server.request.duration": _NO_HISTOGRAM,
        "gen_ai.server.time_to_first_token": _NO_HISTOGRAM,
        "gen_ai.server.time_per_output_token": (
            f"{_NO_HISTOGRAM}; the mean is request.decode.duration's sum over tokens.output"
        ),
        "llm.engine.inter_token.latency": _NO_HISTOGRAM,
        "llm.engine.request.queue.duration": _NO_HISTOGRAM,
        "llm.engine.request.inference.duration": _NO_HISTOGRAM,
        "llm.engine.request.input_tokens": "llama.cpp has no histograms",
        "llm.engine.request.output_tokens": "llama.cpp has no histograms",
        "llm.engine.iteration.tokens": "llama.cpp has no histograms; iteration.duration's count counts its steps",
        "llm.engine.iteration.requests": "llamacpp:n_busy_slots_per_decode is a mean since start",
        "llm.engine.requests.started": "llama.cpp does not count requests",
        "llm.engine.requests.finished": "llama.cpp does not count requests",
        "llm.engine.requests.preempted": "llama.cpp does not preempt",
        "llm.engine.kv_cache.capacity": "llama.cpp does not say whether its slots share one pool",
        "llm.engine.prefix_cache.hit_ratio": "the counters give the ratio of any window",
        "llm.engine.batch.size": "llamacpp:n_busy_slots_per_decode is a mean since start",
        "llm.engine.kv_transfer.duration": "llama.cpp transfers no KV blocks",
        "llm.engine.kv_transfer.io": "llama.cpp transfers no KV blocks",
        "llm.engine.gpu.memory.usage": "llama.cpp reports no GPU memory; the device does",
        "http.server.request.duration": "llama.cpp does not time its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "llamacpp:prompt_tokens_seconds": _TWO_SCRAPERS,
        "llamacpp:predicted_tokens_seconds": _TWO_SCRAPERS,
        "llamacpp:n_tokens_max": "a high-water mark typed as a counter",
        "llamacpp:n_busy_slots_per_decode": "a mean since start",
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": "a split of spec_decode_num_accepted_tokens_total",
    }

    @staticmethod
    def spell(name: str) -> str:
        return name.replace("llamacpp_", "llamacpp:", 1) if name.startswith("llamacpp_") else name

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """Of three durations there is a sum or a count but no distribution; say so beside them."""
        only_sum = "llama.cpp has only the sum over all requests (_sum)"
        draft.lacks("llm.engine.request.prefill.duration", only_sum, partly=True)
        draft.lacks("llm.engine.request.decode.duration", only_sum, partly=True)
        steps = "llama.cpp counts its decode steps (_count) but does not time them"
        draft.lacks("llm.engine.iteration.duration", steps, partly=True)

    @staticmethod
    async def identify(get: Get) -> Identity:
        """Build and model alias from ``/props``; without it (an API key is set) the model from ``/v1/models``."""
        props = await get("/props")
        if isinstance(props, dict):
            path = str(props.get("model_path", ""))
            model = str(props.get("model_alias") or path.rsplit("/", 1)[-1])
            return Identity(str(props.get("build_info", "")), model)
        models = await get("/v1/models")
        served = models.get("data") if isinstance(models, dict) else None
        return Identity(model=str(served[0].get("id", ""))) if served else Identity()
