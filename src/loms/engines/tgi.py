"""Hugging Face's Text Generation Inference (2 and 3; its development ended with 3.3).

Known by its families ``tgi_…``, which carry no model: name and version come from ``GET /info``. Counters have no
``_total``. Times are of whole requests and of batches, so there is no time to first token: its mean is about that of
``request.queue.duration`` and ``iteration.duration{method="prefill"}`` together. Tokens are the sums of histograms over
requests: prompts count when they are validated, before the engine has seen them, and replies when they end well. The
steps of the batch are what shows progress.

KV memory is reserved for a request's longest possible reply when it enters the batch; usage, capacity and utilisation
are those reservations, and what admits the next request. Seen in the wild: ``tgi_queue_size`` grows without end once a
batch hangs (huggingface/text-generation-inference#2192), which is a wrong length and a right alarm. Sources: TGI's
documentation ("Metrics") and the code of its router.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.engine import Engine, Get, Identity, Lookup, Row, engines

_ERROR = Lookup(
    source="err",
    into="outcome",
    values={"overloaded": "rejected", "validation": "rejected", "template": "rejected", "dropped": "cancelled"},
    default="error",
)
_BUDGET = "TGI has it from 2.3 on (version 3 of its back end)"

_TABLE = (
    Row("gen_ai.server.request.duration", ("tgi_request_duration",)),
    Row("llm.engine.request.queue.duration", ("tgi_request_queue_duration",)),
    Row("llm.engine.request.inference.duration", ("tgi_request_inference_duration",)),
    Row("llm.engine.requests.running", ("tgi_batch_current_size",)),
    Row("llm.engine.requests.waiting", ("tgi_queue_size",)),
    Row("llm.engine.requests.started", ("tgi_request_count",)),
    Row("llm.engine.requests.finished", ("tgi_request_success",), fixed={"outcome": "success"}),
    Row("llm.engine.requests.finished", ("tgi_request_failure",), rename={"err": "error_type"}, lookup=_ERROR),
    Row("llm.engine.tokens.input", ("tgi_request_input_length_sum",)),
    Row("llm.engine.tokens.output", ("tgi_request_generated_tokens_sum",)),
    Row("llm.engine.request.input_tokens", ("tgi_request_input_length",)),
    Row("llm.engine.request.output_tokens", ("tgi_request_generated_tokens",)),
    Row("llm.engine.kv_cache.usage", ("tgi_batch_current_max_tokens",)),
    Row("llm.engine.kv_cache.capacity", ("tgi_batch_max_total_tokens",), absent=_BUDGET),
    Row(
        "llm.engine.kv_cache.utilization",
        ("tgi_batch_current_max_tokens / tgi_batch_max_total_tokens",),
        absent=_BUDGET,
    ),
    Row("llm.engine.iteration.duration", ("tgi_batch_inference_duration",)),
    # A histogram until 2.2, a summary since; either has the sum.
    Row(
        "llm.engine.spec_decode.accepted_tokens",
        ("tgi_request_skipped_tokens_sum",),
        absent="TGI has it from the first finished request on",
    ),
)

_IN_A_STEP = "a part of a step, which iteration.duration has whole"
_STEPS = "iteration.duration counts the steps"


@engines.register("tgi")
class Tgi(Engine):
    """TGI's Prometheus endpoint."""

    prefix: ClassVar[str] = "tgi_"
    openai: ClassVar[bool] = True
    identified: ClassVar[bool] = True
    table: ClassVar[tuple[Row, ...]] = _TABLE
    progress: ClassVar[tuple[str, ...]] = ("tgi_batch_inference_success",)
    early: ClassVar[frozenset[str]] = frozenset({"llm.engine.tokens.input"})
    never: ClassVar[Mapping[str, str]] = {
        "gen_ai.server.time_to_first_token": (
            "TGI does not time first tokens; the mean is about that of request.queue.duration plus that of "
            'iteration.duration{method="prefill"}'
        ),
        "gen_ai.server.time_per_output_token": (
            "tgi_request_mean_time_per_token_duration has the prefill in it and divides by all tokens"
        ),
        "llm.engine.inter_token.latency": "TGI does not time single tokens; iteration.duration times the steps",
        "llm.engine.request.prefill.duration": 'TGI times batches: iteration.duration{method="prefill"}',
        "llm.engine.request.decode.duration": 'TGI times batches: iteration.duration{method="decode"}',
        "llm.engine.requests.preempted": "TGI reserves a request's memory beforehand and never preempts",
        "llm.engine.tokens.input.cached": "TGI does not tell what its prefix cache found",
        "llm.engine.prefix_cache.lookup_tokens": "TGI does not tell what its prefix cache was asked for",
        "llm.engine.prefix_cache.hit_tokens": "TGI does not tell what its prefix cache found",
        "llm.engine.prefix_cache.hit_ratio": "TGI does not tell what its prefix cache found",
        "llm.engine.iteration.tokens": "TGI does not count the tokens of its steps",
        "llm.engine.iteration.requests": "TGI counts the requests that enter a batch, not those in a step",
        "llm.engine.batch.size": "requests.running is TGI's batch",
        "llm.engine.spec_decode.drafts": "TGI counts the accepted tokens only",
        "llm.engine.spec_decode.draft_tokens": "TGI counts the accepted tokens only",
        "llm.engine.kv_transfer.duration": "TGI transfers no KV blocks",
        "llm.engine.kv_transfer.io": "TGI transfers no KV blocks",
        "llm.engine.gpu.memory.usage": "TGI reports no GPU memory; the device does",
        "http.server.request.duration": "TGI times requests (request.duration), not its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "tgi_request_mean_time_per_token_duration": "has the prefill in it; decode alone is not told",
        "tgi_request_validation_duration": "a part of request.duration, before the queue",
        "tgi_request_max_new_tokens": "what was asked for, not what came",
        "tgi_batch_next_size": "requests that enter a batch together, not those in it",
        "tgi_batch_concat": "why batches were put together",
        "tgi_batch_concat_duration": _IN_A_STEP,
        "tgi_batch_forward_duration": _IN_A_STEP,
        "tgi_batch_decode_duration": f"turning numbers into tokens: {_IN_A_STEP}",
        "tgi_batch_filter_duration": _IN_A_STEP,
        "tgi_batch_inference_count": _STEPS,
        "tgi_batch_inference_failure": "steps that failed; the requests in them are in requests.finished",
        "tgi_batch_total_tokens": "described but never set; tgi_batch_max_total_tokens is",
    }

    @staticmethod
    async def identify(get: Get) -> Identity:
        """Version and model from ``/info``."""
        info = await get("/info")
        if not isinstance(info, dict):
            return Identity()
        return Identity(str(info.get("version") or ""), str(info.get("model_id") or ""))
