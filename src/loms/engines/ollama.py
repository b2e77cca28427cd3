"""Ollama, which has no metrics endpoint.

Two of its JSON answers are turned into an exposition with families of our own, ``ollama_…``. ``GET /api/ps`` lists the
models in memory: that is what a running LOMS reads. The answers to ``POST /api/generate`` and ``/api/chat`` carry
counts and durations in nanoseconds: whoever has some of them, one or a list, gets the sums over them.

``prompt_eval_count`` leaves out what was reused from the cache. ``context_length`` is that of one sequence. An idle
Ollama unloads its models, so it is never asked for a token: that would keep the model in memory, or load it. Source:
Ollama, docs/api.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from loms.engines.draft import Draft
from loms.engines.engine import Engine, Get, Identity, Row, engines

_RESPONSES = "only Ollama's responses tell it, and a running Ollama keeps none of them"
_NO_QUEUE = "Ollama does not tell how many requests it works on, or how many wait"
_NO_CACHE = "Ollama does not tell what it found in its cache"
_LLAMA = "the runner inside Ollama knows it, but Ollama does not tell"
_NOT_LOADED = "no model is in memory, or only responses are looked at"
_ONLY = "responses give its sum and count, from which a mean follows"

_TABLE = (
    Row("gen_ai.server.request.duration", ("ollama_request_duration_seconds",), absent=_RESPONSES),
    Row("gen_ai.server.time_per_output_token", ("ollama_time_per_output_token_seconds",), absent=_RESPONSES),
    Row("llm.engine.request.prefill.duration", ("ollama_prompt_eval_duration_seconds",), absent=_RESPONSES),
    Row("llm.engine.request.decode.duration", ("ollama_eval_duration_seconds",), absent=_RESPONSES),
    Row(
        "llm.engine.requests.finished",
        ("ollama_responses_total",),
        fixed={"outcome": "success"},
        rename={"done_reason": "finish_reason"},
        absent=_RESPONSES,
    ),
    Row("llm.engine.tokens.input", ("ollama_prompt_eval_tokens_total",), absent=_RESPONSES),
    Row("llm.engine.tokens.output", ("ollama_eval_tokens_total",), absent=_RESPONSES),
    Row(
        "llm.engine.gpu.memory.usage",
        ("ollama_model_vram_bytes",),
        fixed={"purpose": "total"},
        absent=_NOT_LOADED,
    ),
    Row("llm.engine.kv_cache.capacity", ("ollama_model_context_length",), absent=_NOT_LOADED),
)


@engines.register("ollama")
class Ollama(Engine):
    """``GET /api/ps``, and saved responses."""

    prefix: ClassVar[str] = "ollama_"
    paths: ClassVar[tuple[str, ...]] = ("/api/ps",)
    table: ClassVar[tuple[Row, ...]] = _TABLE
    never: ClassVar[Mapping[str, str]] = {
        "gen_ai.server.time_to_first_token": "responses do not tell; loading plus request.prefill.duration comes close",
        "llm.engine.inter_token.latency": "responses tell the whole of decoding only",
        "llm.engine.request.queue.duration": _NO_QUEUE,
        "llm.engine.request.inference.duration": "it is request.prefill.duration plus request.decode.duration",
        "llm.engine.requests.running": _NO_QUEUE,
        "llm.engine.requests.waiting": _NO_QUEUE,
        "llm.engine.requests.started": "Ollama does not count requests",
        "llm.engine.requests.preempted": "Ollama does not preempt",
        "llm.engine.tokens.input.cached": _NO_CACHE,
        "llm.engine.request.input_tokens": "the counters give the mean of any window",
        "llm.engine.request.output_tokens": "the counters give the mean of any window",
        "llm.engine.kv_cache.utilization": _LLAMA,
        "llm.engine.kv_cache.usage": _LLAMA,
        "llm.engine.prefix_cache.lookup_tokens": _NO_CACHE,
        "llm.engine.prefix_cache.hit_tokens": _NO_CACHE,
        "llm.engine.prefix_cache.hit_ratio": _NO_CACHE,
        "llm.engine.iteration.tokens": _LLAMA,
        "llm.engine.iteration.duration": _LLAMA,
        "llm.engine.iteration.requests": _LLAMA,
        "llm.engine.batch.size": _LLAMA,
        "llm.engine.spec_decode.drafts": _LLAMA,
        "llm.engine.spec_decode.draft_tokens": _LLAMA,
        "llm.engine.spec_decode.accepted_tokens": _LLAMA,
        "llm.engine.kv_transfer.duration": "Ollama transfers no KV blocks",
        "llm.engine.kv_transfer.io": "Ollama transfers no KV blocks",
        "http.server.request.duration": "Ollama does not time its HTTP handlers",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "ollama_models_loaded": "how many models are in memory",
        "ollama_model_info": "what the model is",
        "ollama_model_size_bytes": "memory of GPU and host together",
        "ollama_load_duration_seconds": "loading the model, a part of request.duration",
    }

    @staticmethod
    def expose(answer: Any) -> str:
        """For the answer of ``/api/ps``, for a response with its durations, and for a list in which there are such."""
        if isinstance(answer, dict) and set(answer) == {"models"}:
            return _loaded(answer["models"])
        responses = answer if isinstance(answer, list) else [answer]
        return _answered([r for r in responses if isinstance(r, dict) and r.keys() >= _ANSWERED])

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """Say what is not whole."""
        for row in _TABLE[:4]:
            if draft.has(row.canonical, row.sources[0]):
                draft.lacks(row.canonical, _ONLY, partly=True)
        if draft.positions("ollama_prompt_eval_tokens_total"):
            draft.lacks("llm.engine.tokens.input", "without the tokens that were reused from the cache", partly=True)
        if draft.positions("ollama_model_context_length"):
            one = "that of one sequence; Ollama does not tell how many it keeps side by side (OLLAMA_NUM_PARALLEL)"
            draft.lacks("llm.engine.kv_cache.capacity", one, partly=True)

    @staticmethod
    async def identify(get: Get) -> Identity:
        """The version from ``/api/version``; models are labels."""
        answer = await get("/api/version")
        return Identity(version=str(answer.get("version", "")) if isinstance(answer, dict) else "")


_ANSWERED = {"model", "done", "total_duration"}
_DETAILS = ("family", "format", "parameter_size", "quantization_level")
_Labels = dict[str, str]


def _loaded(models: Any) -> str:
    """The exposition of a ``/api/ps`` answer (null where no model is loaded); empty where it is another's."""
    models = models or []
    if not isinstance(models, list) or not all(
        isinstance(m, dict) and {"name", "size_vram"} <= m.keys() for m in models
    ):
        return ""
    lines = _family("ollama_models_loaded", "gauge", [({}, len(models))])
    for family, field in (
        ("ollama_model_size_bytes", "size"),
        ("ollama_model_vram_bytes", "size_vram"),
        ("ollama_model_context_length", "context_length"),
    ):
        told = [({"model": str(m["name"])}, _number(m, field)) for m in models]
        lines += _family(family, "gauge", [(labels, value) for labels, value in told if value is not None])
    details = ((str(m["name"]), m["details"]) for m in models if isinstance(m.get("details"), dict))
    infos = [({"model": name, **{key: str(of.get(key, "")) for key in _DETAILS}}, 1.0) for name, of in details]
    return "".join(lines + _family("ollama_model_info", "gauge", infos))


def _answered(responses: list[dict[str, Any]]) -> str:
    """Sums over responses, by model; empty where there are none."""
    reasons = Counter((str(r["model"]), str(r.get("done_reason", ""))) for r in responses)
    ended = [({"model": model, "done_reason": reason}, count) for (model, reason), count in sorted(reasons.items())]
    lines = _family("ollama_responses_total", "counter", ended)
    for family, field in (
        ("ollama_prompt_eval_tokens_total", "prompt_eval_count"),
        ("ollama_eval_tokens_total", "eval_count"),
    ):
        values = _by_model(responses, partial(_number, field=field))
        lines += _family(family, "counter", [({"model": model}, sum(told)) for model, told in values.items()])
    for family, measure in (
        ("ollama_request_duration_seconds", partial(_seconds, field="total_duration")),
        ("ollama_load_duration_seconds", partial(_seconds, field="load_duration")),
        ("ollama_prompt_eval_duration_seconds", partial(_seconds, field="prompt_eval_duration")),
        ("ollama_eval_duration_seconds", partial(_seconds, field="eval_duration")),
        ("ollama_time_per_output_token_seconds", _per_token),
    ):
        values = _by_model(responses, measure)
        sums = [({"model": model}, sum(told)) for model, told in values.items()]
        counts = [({"model": model}, len(told)) for model, told in values.items()]
        lines += _family(family, "summary", sums, "_sum") + _samples(family + "_count", counts)
    return "".join(lines)


def _family(name: str, kind: str, samples: Sequence[tuple[_Labels, float]], suffix: str = "") -> list[str]:
    return [f"# TYPE {name} {kind}\n", *_samples(name + suffix, samples)] if samples else []


def _samples(name: str, samples: Sequence[tuple[_Labels, float]]) -> list[str]:
    """Lines of the text format 0.0.4. JSON escapes a text as that does, but for what is not ASCII, which may stay."""
    written = (
        (",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items() if text), value)
        for labels, value in samples
    )
    return [f"{name}{{{labels}}} {value!r}\n" for labels, value in written]


def _by_model(
    responses: Iterable[Mapping[str, Any]], measure: Callable[[Mapping[str, Any]], float | None]
) -> dict[str, list[float]]:
    """What the responses of each model tell; those that do not tell it are left out."""
    found: dict[str, list[float]] = {}
    for response in responses:
        value = measure(response)
        if value is not None:
            found.setdefault(str(response["model"]), []).append(value)
    return found


def _number(answer: Mapping[str, Any], field: str) -> float | None:
    value = answer.get(field)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _seconds(answer: Mapping[str, Any], field: str) -> float | None:
    """Nanoseconds in ``field``, as seconds."""
    value = _number(answer, field)
    return None if value is None else value / 1e9


def _per_token(answer: Mapping[str, Any]) -> float | None:
    seconds, tokens = _seconds(answer, "eval_duration"), _number(answer, "eval_count")
    return seconds / tokens if seconds is not None and tokens else None
