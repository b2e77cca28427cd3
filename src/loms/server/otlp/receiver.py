"""What becomes of an OTLP request, whichever way it came: decoded, stored, sent on, answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import PayloadError, StoreError
from loms.core.model import Metadata, SampleBatch
from loms.core.settings import Receive
from loms.ingest.decompression import decompress
from loms.ingest.otlp.bodies import Request, parsed
from loms.ingest.otlp.limits import Limits, Refusals, Signal
from loms.ingest.otlp.metrics import MetricTranslator
from loms.ingest.otlp.prompts import may_carry, redact
from loms.ingest.otlp.rows import log_rows, span_rows
from loms.store.arrivals import Accepted

RETRY_SECONDS = 1
"""When a sender should come again that found no room."""
FUTURE_NS = 600 * 10**9
"""How far ahead of this machine's clock a span or record may lie."""
RECALL_MS = 86_400_000
"""How far back the newest sample of a series is looked for, on which its deltas go on."""
_RECALLED_AT_ONCE = 10_000
_LARGE = 4 * 2**20
"""Requests beyond it are decoded one at a time: a message may take thirty times as much memory as its bytes."""

_GRPC = {400: 3, 413: 8, 415: 12, 429: 8, 503: 14}
"""HTTP status → gRPC's: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE."""

Forward = Callable[[Signal, bytes, int], None]
"""Is given each accepted request in protobuf and how many points, spans or records it has."""


class Arrivals(Protocol):
    def accept(self, batch: SampleBatch, /) -> Accepted: ...


class Telemetry(Protocol):
    def offer(self, table: str, rows: pa.Table, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """``message`` is the signal's response, or a ``google.rpc.Status`` when the request is refused as a whole."""

    message: Message
    http: int = 200
    grpc: int = 0
    retry_seconds: int | None = None


class OtlpReceiver:
    """Takes requests from several threads. ``forward`` is told what was accepted."""

    def __init__(
        self,
        settings: Receive,
        clock: Clock,
        arrivals: Arrivals,
        telemetry: Telemetry,
        note: Callable[[Iterable[Metadata]], None],
        *,
        bounds_ms: Callable[[], tuple[int, int]],
        last_values: Callable[[Sequence[int], int], Mapping[int, tuple[int, float]]],
        forward: Sequence[Forward] = (),
    ) -> None:
        """``bounds_ms`` are the times that a sample may have; ``last_values`` gives, for series ids and a time in ms,
        the newest stored time and value since then.
        """
        self.settings = settings
        self._clock = clock
        self._arrivals = arrivals
        self._telemetry = telemetry
        self._note = note
        self._bounds_ms = bounds_ms
        self._last_values = last_values
        self._forward = forward
        self._translator = MetricTranslator(clock, self._recall)
        self._translating, self._large = threading.Lock(), threading.Lock()

    def take(self, signal: Signal, body: bytes, *, encoding: str = "", as_json: bool = False) -> Answer:
        """Store what ``body`` holds. Never raises on account of it."""
        try:
            plain = decompress(body, encoding.strip().lower(), self._most)
            if len(plain) <= _LARGE:
                refusals = self._stored(signal, plain, as_json)
            else:
                with self._large:
                    refusals = self._stored(signal, plain, as_json)
        except PayloadError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return refusal(signal, error.status, f"{error.message}{hint}")
        except StoreError as error:
            return refusal(signal, 503, error.message)
        return Answer(_response(signal, refusals))

    @property
    def _most(self) -> int:
        return min(self.settings.decompressed, self.settings.otlp_message)

    def _stored(self, signal: Signal, plain: bytes, as_json: bool) -> Refusals:
        request = parsed(signal, plain, as_json=as_json)
        changed = as_json
        if signal != "metrics" and not self.settings.keep_prompts and (as_json or may_carry(plain)):
            redacted = redact(request)
            selfmetrics.otlp_redacted.inc(redacted)
            changed = changed or redacted > 0
        if signal == "metrics":
            items, refusals = self._metrics(request)
        else:
            items, refusals = self._rows(signal, request)
        selfmetrics.otlp_items.labels(signal, "accepted").inc(items - refusals.count)
        selfmetrics.otlp_items.labels(signal, "refused").inc(refusals.count)
        if self._forward:
            sent = request.SerializeToString() if changed else plain
            for forward in self._forward:
                forward(signal, sent, items)
        return refusals

    def _metrics(self, request: Request) -> tuple[int, Refusals]:
        oldest_ms, newest_ms = self._bounds_ms()
        with self._translating:
            samples = self._translator.translate(request, self._limits(oldest_ms * 1_000_000, newest_ms * 1_000_000))
            try:
                accepted = self._arrivals.accept(samples.batch())
            except StoreError:
                self._translator.undo(samples)
                raise
            if accepted.full and not accepted.accepted:
                # Of a part that was taken the deltas stay counted: sent again they are known, and totals go on.
                self._translator.undo(samples)
        if accepted.full:
            raise PayloadError("the store's queue is full; come again", status=429)
        self._note(samples.metadata)
        selfmetrics.otlp_exemplars.inc(samples.exemplars)
        if accepted.conflicting:
            reason = "points have the time of another one with another value, which stays"
            samples.refusals.add(reason, min(accepted.conflicting, samples.points - samples.refusals.count))
        return samples.points, samples.refusals

    def _rows(self, signal: Signal, request: Request) -> tuple[int, Refusals]:
        refusals = Refusals()
        now_ns = self._clock.now_ms() * 1_000_000
        kept = self.settings.traces_retention if signal == "traces" else self.settings.logs_retention
        limits = self._limits(max(1, now_ns - round(kept * 1e9)), now_ns + FUTURE_NS)
        if signal == "traces":
            rows = span_rows(request, limits, refusals)
        else:
            rows = log_rows(request, limits, refusals, now_ns)
        if rows is not None and not self._telemetry.offer("otel_traces" if signal == "traces" else "otel_logs", rows):
            raise PayloadError("the store's queue is full; come again", status=429)
        return (0 if rows is None else len(rows)) + refusals.count, refusals

    def _limits(self, oldest_ns: int, newest_ns: int) -> Limits:
        return Limits(
            self.settings.labels,
            self.settings.label_value_length,
            max(1, oldest_ns),
            newest_ns,
            labels_length=self.settings.labels_length,
            expanded=self.settings.decompressed,
        )

    def _recall(self, ids: Sequence[int]) -> Mapping[int, tuple[int, float]]:
        since_ms = self._clock.now_ms() - RECALL_MS
        found: dict[int, tuple[int, float]] = {}
        for start in range(0, len(ids), _RECALLED_AT_ONCE):
            found.update(self._last_values(ids[start : start + _RECALLED_AT_ONCE], since_ms))
        return found


def refusal(signal: Signal, http: int, text: str, grpc: int | None = None) -> Answer:
    """A request that is refused as a whole, with when to come again where that helps."""
    selfmetrics.otlp_refused.labels(signal, str(http)).inc()
    status = Status(code=_GRPC.get(http, 2) if grpc is None else grpc, message=text)
    retry = RETRY_SECONDS if http in (429, 503) else None
    if retry is not None:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=retry)))
    return Answer(status, http, status.code, retry)


def _response(signal: Signal, refusals: Refusals) -> Message:
    partial: dict[str, Any] = {}
    if refusals.count:
        field = {"metrics": "data_points", "traces": "spans", "logs": "log_records"}[signal]
        partial["partial_success"] = {f"rejected_{field}": refusals.count, "error_message": str(refusals)}
    if signal == "metrics":
        return ExportMetricsServiceResponse(**partial)
    return ExportTraceServiceResponse(**partial) if signal == "traces" else ExportLogsServiceResponse(**partial)
