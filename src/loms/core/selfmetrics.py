"""LOMS's own metrics: each declared once, here, and fed where the thing happens (feature I7).

The registry is `prometheus_client`'s; ``/metrics`` renders it, and LOMS scrapes itself like any other target.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from loms import __version__
from loms.core import guard

registry = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

build_info = Gauge("loms_build_info", "Constant 1, labelled with the version.", ["version"], registry=registry)
build_info.labels(__version__).set(1)

scrapes = Counter("loms_scrapes", "Scrapes by outcome (ok or the failure's reason).", ["outcome"], registry=registry)
scrape_seconds = Histogram(
    "loms_scrape_duration_seconds", "Wall time of one scrape, decoding included.", buckets=_FAST, registry=registry
)
samples_scraped = Counter("loms_scraped_samples", "Samples read from targets.", registry=registry)
samples_dropped = Counter(
    "loms_dropped_samples", "Samples that were not stored, by reason.", ["reason"], registry=registry
)
series_dropped = Counter(
    "loms_dropped_series", "Series whose labels could not be stored, by reason.", ["reason"], registry=registry
)
metadata_dropped = Counter(
    "loms_dropped_metadata",
    "Metric families whose type and help were not kept, for there are too many.",
    registry=registry,
)
untranslated = Counter(
    "loms_untranslated_samples",
    "Pushed samples of engines that did not become canonical, by reason.",
    ["reason"],
    registry=registry,
)
targets = Gauge("loms_targets", "Targets known, by discovery.", ["discovered_by"], registry=registry)

samples_written = Counter("loms_written_samples", "Samples acknowledged by the store.", registry=registry)
series_written = Counter("loms_written_series", "Series rows acknowledged by the store.", registry=registry)
write_queue = Gauge("loms_write_queue_samples", "Samples waiting to be written.", registry=registry)
write_seconds = Histogram("loms_write_duration_seconds", "One flush to the store.", buckets=_FAST, registry=registry)
store_retries = Counter(
    "loms_store_retries", "Requests to a ClickHouse that were sent again, to it or to another host.", registry=registry
)
write_failures = Counter("loms_write_failures", "Flushes that the store refused (retried).", registry=registry)

otlp_items = Counter(
    "loms_otlp_items", "Points, spans and records that came by OTLP, by what became of them.", ["signal", "outcome"],
    registry=registry,
)  # fmt: skip
otlp_refused = Counter(
    "loms_otlp_refused_requests", "OTLP requests refused as a whole, by status code.", ["signal", "code"],
    registry=registry,
)  # fmt: skip
otlp_exemplars = Counter("loms_otlp_ignored_exemplars", "Exemplars that came by OTLP: not kept.", registry=registry)
otlp_redacted = Counter(
    "loms_otlp_redacted_texts", "Prompts and answers of which the length is kept.", registry=registry
)
telemetry_written = Counter(
    "loms_telemetry_written_rows", "Spans and log records acknowledged by the store.", ["table"], registry=registry
)
telemetry_lost = Counter(
    "loms_telemetry_lost_rows", "Spans and log records that could not be written at the end.", ["table"],
    registry=registry,
)  # fmt: skip
telemetry_queue = Gauge("loms_telemetry_queue_bytes", "Spans and log records waiting to be written.", registry=registry)
telemetry_failures = Counter(
    "loms_telemetry_write_failures", "Inserts of spans and records that failed (retried).", ["table"], registry=registry
)

rollup_lag = Gauge(
    "loms_rollup_lag_seconds", "Age of the newest bucket that is rolled up, by width.", ["width"], registry=registry
)
rollup_late = Counter("loms_rollup_late", "Hours of series that late samples had rolled up again.", registry=registry)
rollup_failures = Counter("loms_rollup_failures", "Rolling that the store refused (retried).", registry=registry)

query_seconds = Histogram("loms_query_duration_seconds", "One PromQL query.", buckets=_FAST, registry=registry)
query_failures = Counter(
    "loms_query_failures", "PromQL queries that failed, by error type.", ["type"], registry=registry
)

evaluation_seconds = Histogram(
    "loms_rule_evaluation_duration_seconds", "One evaluation of one rule group.", buckets=_FAST, registry=registry
)
evaluation_failures = Counter(
    "loms_rule_evaluation_failures", "Rules whose evaluation failed.", ["rule"], registry=registry
)
evaluations_missed = Counter(
    "loms_rule_evaluations_missed", "Evaluations skipped because the previous one still ran.", registry=registry
)
alerts = Gauge("loms_alerts", "Alerts by state.", ["state"], registry=registry)
incidents_open = Gauge("loms_incidents_open", "Incidents that are open now.", registry=registry)
notifications = Counter(
    "loms_notifications", "Notification attempts by channel and outcome.", ["channel", "outcome"], registry=registry
)
notifications_dropped = Counter(
    "loms_notifications_dropped", "Notifications given up, by reason.", ["channel", "reason"], registry=registry
)

remote_write_requests = Counter(
    "loms_remote_write_requests",
    "Requests of remote write, by the HTTP status they got.",
    ["status"],
    registry=registry,
)
remote_write_exemplars = Counter(
    "loms_remote_write_ignored_exemplars", "Exemplars that came by remote write, which are not kept.", registry=registry
)

forwarded = Counter(
    "loms_forwarded", "Samples, spans and records that a destination acknowledged.", ["destination"], registry=registry
)
forward_queue = Gauge(
    "loms_forward_queue_bytes", "Waiting on disk for a destination.", ["destination"], registry=registry
)
forward_oldest = Gauge(
    "loms_forward_oldest_seconds", "Age of what waits longest for a destination.", ["destination"], registry=registry
)
forward_failures = Counter(
    "loms_forward_failures", "Attempts to send on that failed, by reason.", ["destination", "reason"], registry=registry
)
forward_dropped = Counter(
    "loms_forward_dropped",
    "Samples, spans and records that a destination will never get, by reason.",
    ["destination", "reason"],
    registry=registry,
)


class _GuardCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("loms_internal_errors", "Unexpected exceptions, by place.", labels=["where"])
        for where, count in sorted(guard.failures.items()):
            family.add_metric([where], count)
        yield family


registry.register(_GuardCollector())


def render() -> bytes:
    """The registry as Prometheus text (format 0.0.4)."""
    return generate_latest(registry)
