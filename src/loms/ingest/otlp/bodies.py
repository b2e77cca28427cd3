"""The body of a request → its message."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loms.core.errors import PayloadError
from loms.ingest.otlp.json_form import message_of
from loms.ingest.otlp.limits import Signal

Request = ExportMetricsServiceRequest | ExportTraceServiceRequest | ExportLogsServiceRequest

REQUESTS: dict[Signal, type[Request]] = {
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}


_MOST_GROUPS = 20_000
_GROUPS = {
    "metrics": ("resource_metrics", "scope_metrics"),
    "traces": ("resource_spans", "scope_spans"),
    "logs": ("resource_logs", "scope_logs"),
}


def parsed(signal: Signal, body: bytes, *, as_json: bool = False) -> Request:
    """The request of a signal. Raises `PayloadError` with what is wrong with it."""
    kind = REQUESTS[signal]
    try:
        request: Request = message_of(kind, body) if as_json else kind.FromString(body)
    except DecodeError:
        raise PayloadError(f"the body is no {kind.DESCRIPTOR.name} in protobuf") from None
    resources, scopes = _GROUPS[signal]
    groups = getattr(request, resources)
    if len(groups) > _MOST_GROUPS or sum(len(getattr(group, scopes)) for group in groups) > _MOST_GROUPS:
        raise PayloadError(f"the request has more than {_MOST_GROUPS} resources or scopes", status=413)
    return request
