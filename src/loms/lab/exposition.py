"""A simulated engine's ``/metrics``: vLLM 0.32's names, labels and bounds, and a family that says it is simulated.

The text keeps its shape, so it is one template with a hole per value; a scrape fills the holes (about 0.1 ms).
Left out are the families that describe a Python process and its HTTP server: several engines share one here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loms.lab.scheduler import EngineConfig
from loms.lab.stats import EngineStats, Histogram

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

Read = Callable[[], float]
Values = Callable[[], Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Read], ...]
    """Extra labels, ``key="value"`` joined by commas, and where the value comes from."""
    engine_label: bool = True


def _nothing() -> float:
    return 0.0


def _one() -> float:
    return 1.0


def _scalars(stats: EngineStats, config: EngineConfig) -> tuple[_Family, ...]:
    def by(label: str, **reads: Read) -> tuple[tuple[str, Read], ...]:
        return tuple((f'{label}="{value}"', read) for value, read in reads.items())

    def alone(read: Read) -> tuple[tuple[str, Read], ...]:
        return (("", read),)

    return (
        _Family("num_requests_running", "gauge", "Requests in the batch.", alone(lambda: stats.running)),
        _Family("num_requests_waiting", "gauge", "Requests in the queue.", alone(lambda: stats.waiting)),
        _Family(
            "num_requests_waiting_by_reason",
            "gauge",
            "Requests in the queue, by what they wait for.",
            by("reason", capacity=lambda: stats.waiting, deferred=_nothing),
        ),
        _Family(
            "engine_sleep_state",
            "gauge",
            "1 for the state the engine is in.",
            by("sleep_state", awake=_one, weights_offloaded=_nothing, discard_all=_nothing),
        ),
        _Family("kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.", alone(lambda: stats.kv_utilization)),
        _Family(
            "prefix_cache_queries",
            "counter",
            "Tokens looked up in the prefix cache.",
            alone(lambda: stats.prefix_lookup_tokens),
        ),
        _Family(
            "prefix_cache_hits",
            "counter",
            "Tokens found in the prefix cache.",
            alone(lambda: stats.prefix_hit_tokens),
        ),
        _Family("external_prefix_cache_queries", "counter", "Tokens looked up in other tiers.", alone(_nothing)),
        _Family("external_prefix_cache_hits", "counter", "Tokens found in other tiers.", alone(_nothing)),
        _Family("mm_cache_queries", "counter", "Multi-modal items looked up.", alone(_nothing)),
        _Family("mm_cache_hits", "counter", "Multi-modal items found.", alone(_nothing)),
        _Family("num_preemptions", "counter", "Requests that lost their blocks.", alone(lambda: stats.preemptions)),
        _Family("prompt_tokens", "counter", "Prompt tokens of started requests.", alone(lambda: stats.prompt_tokens)),
        _Family(
            "prompt_tokens_by_source",
            "counter",
            "Prompt tokens by where they came from.",
            by(
                "source",
                local_compute=lambda: stats.prompt_tokens - stats.cached_tokens,
                local_cache_hit=lambda: stats.cached_tokens,
                external_kv_transfer=_nothing,
            ),
        ),
        _Family("prompt_tokens_cached", "counter", "Prompt tokens not computed.", alone(lambda: stats.cached_tokens)),
        _Family(
            "prompt_tokens_cached_by_source",
            "counter",
            "Prompt tokens not computed, by cache tier.",
            by(
                "source",
                device=lambda: stats.cached_tokens,
                host=_nothing,
                p2p=_nothing,
                disk=_nothing,
                external_unspecified=_nothing,
            ),
        ),
        _Family("generation_tokens", "counter", "Tokens said.", alone(lambda: stats.generated_tokens)),
        _Family(
            "request_success",
            "counter",
            "Requests that ended by themselves, by reason.",
            by(
                "finished_reason",
                stop=lambda: stats.finished["stop"],
                length=lambda: stats.finished["length"],
                abort=_nothing,
                error=_nothing,
                repetition=_nothing,
            ),
        ),
        _Family(
            "admission_rejections",
            "counter",
            "Requests refused by a limit of the queue.",
            by("reason", max_num_queued_reqs=_nothing, max_num_queued_tokens=_nothing),
            engine_label=False,
        ),
        _Family("cache_config_info", "gauge", "Size of the KV cache.", ((_cache_labels(config), _one),)),
    )


def _cache_labels(config: EngineConfig) -> str:
    tokens = config.num_blocks * config.block_size
    labels = {
        "block_size": config.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": config.prefix_caching,
        "gpu_memory_utilization": "0.9",
        "kv_cache_max_concurrency": tokens / config.max_model_len,
        "kv_cache_size_tokens": tokens,
        "num_cpu_blocks": "None",
        "num_gpu_blocks": config.num_blocks,
        "prefix_caching_hash_algo": "tuple",
    }
    return ",".join(f'{key}="{value}"' for key, value in labels.items())


def _histograms(stats: EngineStats) -> tuple[tuple[str, str, Histogram], ...]:
    return (
        ("request_prompt_tokens", "Prompt tokens per request.", stats.request_prompt_tokens),
        ("request_generation_tokens", "Tokens said per request.", stats.request_generated_tokens),
        ("iteration_tokens_total", "Tokens per step.", stats.iteration_tokens),
        ("request_max_num_generation_tokens", "Longest answer per request.", stats.request_generated_tokens),
        ("request_params_n", "Answers asked for per request.", stats.request_choices),
        ("request_params_max_tokens", "Tokens asked for per request.", stats.request_max_tokens),
        ("time_to_first_token_seconds", "Arrival to first token.", stats.ttft_seconds),
        ("inter_token_latency_seconds", "Token to token.", stats.inter_token_seconds),
        (
            "request_time_per_output_token_seconds",
            "Mean time per token after the first.",
            stats.time_per_output_token_seconds,
        ),
        ("e2e_request_latency_seconds", "Arrival to last token.", stats.e2e_seconds),
        ("request_queue_time_seconds", "Time in the queue.", stats.queue_seconds),
        ("request_inference_time_seconds", "First scheduling to last token.", stats.inference_seconds),
        ("request_prefill_time_seconds", "First scheduling to first token.", stats.prefill_seconds),
        ("request_decode_time_seconds", "First to last token.", stats.decode_seconds),
        ("request_num_preemptions", "Preemptions per request.", stats.request_preemptions),
        ("request_prefill_kv_computed_tokens", "Prompt tokens computed per request.", stats.request_computed_tokens),
    )


class MetricsText:
    """Renders one engine's statistics. ``created_seconds`` is Unix time and goes into the ``_created`` series."""

    def __init__(self, stats: EngineStats, config: EngineConfig, model: str, created_seconds: float) -> None:
        self._model = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._created = created_seconds
        self._lines: list[str] = []
        self._reads: list[Values] = []
        self._header("loms_simulated_info", "gauge", "1: these figures come from a model of an engine, not from one.")
        self._lines.append("loms_simulated_info 1.0")
        *families, info = _scalars(stats, config)
        for family in families:
            self._scalar(family)
        for name, text, histogram in _histograms(stats):
            self._histogram(f"vllm:{name}", text, histogram)
        self._scalar(info)
        self._template = "\n".join(self._lines) + "\n"

    def render(self) -> bytes:
        values: list[float] = []
        for read in self._reads:
            values.extend(read())
        return (self._template % tuple(map(float, values))).encode()

    def _header(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, labels: str, value: str = "%s", *, engine: bool = True) -> None:
        parts = ['engine="0"' if engine else "", f'model_name="{self._model}"', labels]
        text = f"{name}{{{','.join(filter(None, parts))}}} "
        self._lines.append(text.replace("%", "%%") + value)

    def _scalar(self, family: _Family) -> None:
        counter = family.kind == "counter"
        name = f"vllm:{family.name}"
        full = f"{name}_total" if counter else name
        self._header(full, family.kind, family.help)
        for labels, _ in family.samples:
            self._sample(full, labels, engine=family.engine_label)
        reads = tuple(read for _, read in family.samples)
        self._reads.append(lambda: [read() for read in reads])
        if counter:
            self._header(f"{name}_created", "gauge", family.help)
            for labels, _ in family.samples:
                self._sample(f"{name}_created", labels, str(self._created), engine=family.engine_label)

    def _histogram(self, name: str, text: str, histogram: Histogram) -> None:
        self._header(name, "histogram", text)
        for bound in (*histogram.bounds, "+Inf"):
            self._sample(f"{name}_bucket", f'le="{bound}"')
        self._sample(f"{name}_count", "")
        self._sample(f"{name}_sum", "")
        self._header(f"{name}_created", "gauge", text)
        self._sample(f"{name}_created", "", str(self._created))

        def read() -> Sequence[float]:
            cumulative = histogram.cumulative()
            return [*cumulative, cumulative[-1], histogram.total]

        self._reads.append(read)
