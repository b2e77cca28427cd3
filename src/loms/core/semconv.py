"""The canonical vocabulary: every metric that LOMS derives from engines and devices, in one table.

Names follow OpenTelemetry (GenAI and hardware conventions) where one exists. `Metric.prometheus` is the same name in
its Prometheus spelling, by OpenTelemetry's rules for that translation: dots become underscores, the unit is appended,
counters end in ``_total``, dimensionless gauges in ``_ratio``. Standard library only, because the SDK imports this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Instrument = Literal["counter", "gauge", "updowncounter", "histogram", "info"]

_UNIT_SUFFIX = {"s": "seconds", "By": "bytes", "W": "watts", "J": "joules", "Cel": "celsius"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. ``unit`` is UCUM; ``{request}`` and the like only annotate."""

    name: str
    unit: str
    instrument: Instrument
    meaning: str

    @property
    def prometheus(self) -> str:
        """Family name in Prometheus spelling; a histogram's series add ``_bucket``, ``_sum``, ``_count``.

        >>> CATALOGUE["gen_ai.server.time_to_first_token"].prometheus
        'gen_ai_server_time_to_first_token_seconds'
        >>> CATALOGUE["llm.engine.tokens.output"].prometheus
        'llm_engine_tokens_output_total'
        >>> CATALOGUE["llm.engine.kv_cache.utilization"].prometheus
        'llm_engine_kv_cache_utilization_ratio'
        """
        suffixes = [
            _UNIT_SUFFIX.get(self.unit, ""),
            "ratio" if self.unit == "1" and self.instrument == "gauge" else "",
            "total" if self.instrument == "counter" else "",
        ]
        name = self.name.replace(".", "_")
        for suffix in suffixes:
            if suffix and not name.endswith(f"_{suffix}"):
                name += f"_{suffix}"
        return name

    @property
    def cumulative(self) -> bool:
        """True where values only grow until a restart."""
        return self.instrument in ("counter", "histogram")


_TABLE = (
    Metric(
        "gen_ai.server.request.duration",
        "s",
        "histogram",
        "Whole life of a request inside the server, arrival to last token (OTel GenAI server convention)",
    ),
    Metric(
        "gen_ai.server.time_to_first_token",
        "s",
        "histogram",
        "Arrival to first generated token; contains queueing and prefill (OTel GenAI server convention)",
    ),
    Metric(
        "gen_ai.server.time_per_output_token",
        "s",
        "histogram",
        "Mean decode time per token of a request: (duration - ttft) / (output tokens - 1) (OTel GenAI convention)",
    ),
    Metric(
        "llm.engine.inter_token.latency",
        "s",
        "histogram",
        "Gap between successive output events; attribute granularity = token, step or chunk",
    ),
    Metric(
        "llm.engine.request.queue.duration",
        "s",
        "histogram",
        "Time a request waited before it was first scheduled",
    ),
    Metric("llm.engine.request.prefill.duration", "s", "histogram", "First scheduled to first token"),
    Metric("llm.engine.request.decode.duration", "s", "histogram", "First token to last token"),
    Metric("llm.engine.request.inference.duration", "s", "histogram", "First scheduled to last token"),
    Metric("llm.engine.requests.running", "{request}", "gauge", "Requests in the executing batch"),
    Metric(
        "llm.engine.requests.waiting",
        "{request}",
        "gauge",
        "Requests accepted but not executing; attribute reason where known",
    ),
    Metric("llm.engine.requests.started", "{request}", "counter", "Requests accepted by the server"),
    Metric(
        "llm.engine.requests.finished",
        "{request}",
        "counter",
        "Requests that ended; attributes outcome (success, error, cancelled, rejected) and finish_reason",
    ),
    Metric(
        "llm.engine.requests.preempted",
        "{preemption}",
        "counter",
        "Times a running request was evicted or retracted back to the queue",
    ),
    Metric("llm.engine.tokens.input", "{token}", "counter", "Prompt tokens of served requests, cached ones included"),
    Metric(
        "llm.engine.tokens.input.cached",
        "{token}",
        "counter",
        "Part of tokens.input whose KV was reused; attribute cache.tier",
    ),
    Metric("llm.engine.tokens.output", "{token}", "counter", "Generated tokens"),
    Metric("llm.engine.request.input_tokens", "{token}", "histogram", "Prompt length per request"),
    Metric("llm.engine.request.output_tokens", "{token}", "histogram", "Generated length per request"),
    Metric("llm.engine.kv_cache.utilization", "1", "gauge", "Used share of the device KV pool, 0 to 1"),
    Metric("llm.engine.kv_cache.usage", "{token}", "gauge", "Used device KV pool in token slots"),
    Metric("llm.engine.kv_cache.capacity", "{token}", "gauge", "Size of the device KV pool in token slots"),
    Metric(
        "llm.engine.prefix_cache.lookup_tokens",
        "{token}",
        "counter",
        "Tokens looked up in the prefix cache (denominator of the hit rate)",
    ),
    Metric(
        "llm.engine.prefix_cache.hit_tokens",
        "{token}",
        "counter",
        "Tokens found in the prefix cache (numerator of the hit rate)",
    ),
    Metric(
        "llm.engine.prefix_cache.hit_ratio",
        "1",
        "gauge",
        "Engine-computed hit ratio; only where counters are missing",
    ),
    Metric("llm.engine.iteration.tokens", "{token}", "histogram", "Tokens processed in one scheduler step"),
    Metric("llm.engine.iteration.duration", "s", "histogram", "Wall time of one scheduler step or forward pass"),
    Metric(
        "llm.engine.iteration.requests",
        "{request}",
        "histogram",
        "Sequences that one scheduler step or model execution worked on together",
    ),
    Metric("llm.engine.batch.size", "{request}", "gauge", "Sequences in the current device batch"),
    Metric("llm.engine.spec_decode.drafts", "{draft}", "counter", "Speculative verification rounds"),
    Metric("llm.engine.spec_decode.draft_tokens", "{token}", "counter", "Proposed draft tokens"),
    Metric(
        "llm.engine.spec_decode.accepted_tokens",
        "{token}",
        "counter",
        "Draft tokens that the target model accepted; optional attribute position",
    ),
    Metric(
        "llm.engine.kv_transfer.duration",
        "s",
        "histogram",
        "KV block transfer time; attribute direction or peer",
    ),
    Metric("llm.engine.kv_transfer.io", "By", "counter", "KV bytes moved; attribute direction"),
    Metric(
        "llm.engine.gpu.memory.usage",
        "By",
        "gauge",
        "GPU memory that the engine itself reports; attribute purpose (weights, kv_cache, graphs, total)",
    ),
    Metric("llm.engine.info", "1", "info", "Constant 1 whose attributes carry configuration"),
    Metric("http.server.request.duration", "s", "histogram", "HTTP handler time (stable OTel HTTP convention)"),
    Metric(
        "hw.gpu.utilization",
        "1",
        "gauge",
        "Busy share of the GPU, 0 to 1 (OTel hw convention, attribute hw.gpu.task)",
    ),
    Metric("hw.gpu.memory.usage", "By", "updowncounter", "GPU memory in use (OTel hw convention)"),
    Metric("hw.gpu.memory.limit", "By", "updowncounter", "GPU memory size (OTel hw convention)"),
    Metric("hw.gpu.memory.utilization", "1", "gauge", "Used share of GPU memory (OTel hw convention)"),
    Metric("hw.gpu.io", "By", "counter", "Bytes over the GPU links, network.io.direction (OTel hw convention)"),
    Metric("hw.power", "W", "gauge", "Instantaneous power, hw.type=gpu (OTel hw convention)"),
    Metric("hw.energy", "J", "counter", "Energy used, hw.type=gpu (OTel hw convention)"),
    Metric("hw.temperature", "Cel", "gauge", "Temperature, hw.type=gpu (OTel hw convention)"),
    Metric("hw.errors", "{error}", "counter", "Hardware errors, hw.type=gpu (OTel hw convention)"),
    Metric(
        "llm.gpu.tensor.utilization",
        "1",
        "gauge",
        "Share of cycles in which the tensor pipe is busy (no OTel name)",
    ),
    Metric(
        "llm.gpu.memory.bandwidth.utilization",
        "1",
        "gauge",
        "Share of cycles in which the DRAM interface is busy (no OTel name)",
    ),
    Metric(
        "llm.process.gpu.memory.usage",
        "By",
        "gauge",
        "GPU memory held by one process; attributes process.pid, hw.id (no OTel name)",
    ),
    Metric("llm.process.gpu.utilization", "1", "gauge", "SM share used by one process (no OTel name)"),
)

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
"""By OpenTelemetry name."""

BY_PROMETHEUS: dict[str, Metric] = {metric.prometheus: metric for metric in _TABLE}
"""By Prometheus family name."""


def is_canonical(name: str) -> bool:
    """Whether a series' name is one of the catalogue's, those of a histogram's parts included."""
    part = next((part for part in ("_bucket", "_sum", "_count") if name.endswith(part)), "")
    return name in BY_PROMETHEUS or name.removesuffix(part) in BY_PROMETHEUS
