from __future__ import annotations

import re

import pytest

from loms.core.semconv import BY_PROMETHEUS, CATALOGUE, Metric


@pytest.mark.parametrize(
    ("name", "prometheus"),
    [
        # OpenTelemetry's "Prometheus and OpenMetrics compatibility" rules, worked by hand
        ("gen_ai.server.request.duration", "gen_ai_server_request_duration_seconds"),
        ("llm.engine.requests.finished", "llm_engine_requests_finished_total"),
        ("llm.engine.kv_transfer.io", "llm_engine_kv_transfer_io_bytes_total"),
        ("llm.engine.prefix_cache.hit_ratio", "llm_engine_prefix_cache_hit_ratio"),
        ("llm.engine.requests.running", "llm_engine_requests_running"),
        ("hw.gpu.memory.usage", "hw_gpu_memory_usage_bytes"),
        ("hw.temperature", "hw_temperature_celsius"),
        ("hw.energy", "hw_energy_joules_total"),
        ("llm.engine.info", "llm_engine_info"),
    ],
)
def test_prometheus_spelling(name: str, prometheus: str) -> None:
    assert CATALOGUE[name].prometheus == prometheus


def test_every_row_is_distinct_valid_and_explained() -> None:
    assert len(CATALOGUE) == len(BY_PROMETHEUS) == 49
    for metric in CATALOGUE.values():
        assert isinstance(metric, Metric)
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+", metric.name)
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.prometheus)
        assert metric.meaning[0].isupper()
