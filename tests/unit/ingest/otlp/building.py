"""OTLP requests for tests, in few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

S = 10**9
NOW_S = 1_800_000_000
SERVICE = {"service.name": "app", "service.instance.id": "a:1"}


def attributes(of: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"string_value": value}} for key, value in of.items()]


def request(
    *metrics: dict[str, Any], resource: Mapping[str, str] = SERVICE, **scope: Any
) -> ExportMetricsServiceRequest:
    scope_metrics = {"scope": scope, "metrics": list(metrics)}
    group = {"resource": {"attributes": attributes(resource)}, "scope_metrics": [scope_metrics]}
    return ExportMetricsServiceRequest(resource_metrics=[group])


def number(at: float, value: float, *, start: float = 0, flags: int = 0, **labels: str) -> dict[str, Any]:
    """A point ``at`` seconds after the tests' now; ``start`` 0 for none."""
    times = {
        "time_unix_nano": round((NOW_S + at) * S),
        "start_time_unix_nano": round((NOW_S + start) * S) if start else 0,
    }
    return {**times, "as_double": value, "flags": flags, "attributes": attributes(labels)}


def gauge(name: str, *points: dict[str, Any], unit: str = "") -> dict[str, Any]:
    return {"name": name, "unit": unit, "gauge": {"data_points": list(points)}}


def counter(name: str, *points: dict[str, Any], delta: bool = False, monotonic: bool = True) -> dict[str, Any]:
    kind = {"aggregation_temporality": 1 if delta else 2, "is_monotonic": monotonic}
    return {"name": name, "sum": {"data_points": list(points), **kind}}


def distribution(kind: str, name: str, *points: dict[str, Any], delta: bool = False, unit: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "unit": unit,
        kind: {"data_points": list(points), "aggregation_temporality": 1 if delta else 2},
    }


def counts(at: float, **fields: Any) -> dict[str, Any]:
    start = fields.pop("start", 0)
    return {**number(at, 0, start=start), **fields} | {"as_double": None}


def histogram_point(at: float, bounds: list[float], buckets: list[int], **fields: Any) -> dict[str, Any]:
    point = counts(at, explicit_bounds=bounds, bucket_counts=buckets, count=sum(buckets), **fields)
    del point["as_double"]
    return point
