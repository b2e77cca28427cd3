"""Names in Prometheus's spelling. Expected values: Prometheus's own translator (its rules worked by hand)."""

from __future__ import annotations

import pytest

from loms.core.semconv import CATALOGUE, Instrument
from loms.ingest.otlp.names import Kind, label_name, metric_name, unit_name


@pytest.mark.parametrize(
    ("name", "unit", "kind", "expected"),
    [
        ("system.io", "foo/bar", "gauge", "system_io_foo_per_bar"),
        ("broken.metric.speed", "km/h", "gauge", "broken_metric_speed_km_per_hour"),
        ("astro.light.speed_limit", "ly/s", "counter", "astro_light_speed_limit_ly_per_second_total"),
        ("system.cpu.utilization", "%", "gauge", "system_cpu_utilization_percent"),
        ("hw.gpu.memory.utilization", "1", "gauge", "hw_gpu_memory_utilization_ratio"),
        ("objects", "1", "counter", "objects_total"),
        ("presented_ratio", "1", "gauge", "presented_ratio"),
        ("apache.requests", "{requests}/s", "gauge", "apache_requests_per_second"),
        ("sent.bytes", "By", "counter", "sent_bytes_total"),
        ("bytes.sent", "By", "counter", "bytes_sent_total"),
        ("total.things", "{thing}", "counter", "things_total"),
        ("queue_size", "", "updowncounter", "queue_size"),
        ("queue__size..x", "", "gauge", "queue_size_x"),
        ("job:rate", "", "gauge", "job:rate"),
        ("2xx", "", "counter", "_2xx_total"),
        ("größe", "By", "gauge", "gr_e_bytes"),
        ("a", "foo/{bar}", "gauge", "a_foo"),
        ("a", "m/s", "gauge", "a_meters_per_second"),
        ("latency", " ms ", "histogram", "latency_milliseconds"),
        ("日本", "s", "gauge", ""),
        ("", "s", "gauge", ""),
    ],
)
def test_metrics(name: str, unit: str, kind: Kind, expected: str) -> None:
    assert metric_name(name, unit, kind) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("http.request.method", "http_request_method"),
        ("a b-c", "a_b_c"),
        ("a..b", "a__b"),
        ("0day", "key_0day"),
        ("_private", "key_private"),
        ("__meta", "__meta"),
        ("ö", ""),
        ("___", ""),
        ("", ""),
    ],
)
def test_labels(name: str, expected: str) -> None:
    assert label_name(name) == expected


@pytest.mark.parametrize(
    ("unit", "expected"), [("By/s", "bytes_per_second"), ("1", ""), ("{token}", ""), ("s", "seconds")]
)
def test_units(unit: str, expected: str) -> None:
    assert unit_name(unit) == expected


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_canonical_metric_that_comes_by_otlp_has_the_canonical_name(name: str) -> None:
    metric = CATALOGUE[name]
    kinds: dict[Instrument, Kind] = {
        "counter": "counter",
        "gauge": "gauge",
        "updowncounter": "updowncounter",
        "histogram": "histogram",
        "info": "updowncounter",
    }
    assert metric_name(metric.name, metric.unit, kinds[metric.instrument]) == metric.prometheus
