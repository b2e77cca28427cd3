"""The engine on ClickHouse gives what Prometheus gives, on the same samples."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from integration.promql_compare import (
    compare,
    copy_samples,
    engine_query,
    expressions_of,
    free_millisecond,
    http_query,
    prometheus,
)
from promql.embedded import Embedded
from support.http_host import TEXT, Host
from support.processes import wait_until

from loms.core.model import Floats, Ints, SampleBatch, Series, is_stale, labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's prometheus is not installed"),
]
EXPRESSIONS = expressions_of(Path(__file__).parents[1] / "promql" / "expressions.txt")
Column = tuple[Series, Ints, Floats]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path / "store")
    yield embedded
    embedded.close()


def fleet(rng: np.random.Generator, start_ms: int, minutes: int) -> Iterator[Column]:
    """Five engines scraped every five seconds or so: load, counters that restart, histograms, a scrape gap, an end."""
    for number in range(1, 6):
        instance = {"instance": f"engine-{number}:8000", "job": "vllm" if number < 5 else "canary"}
        labels = {**instance, "engine": "0", "model_name": "m7b" if number % 2 else "m70b"}
        ticks = np.arange(start_ms, start_ms + minutes * 60_000, 5_000)
        # No sample in the first 100 ms of a second, where the queries' window edges lie.
        times = ticks + rng.integers(0, 4, len(ticks)) * 1_000 + rng.integers(100, 999, len(ticks))
        times = times[rng.random(len(times)) > 0.02]
        if number == 2:
            times = times[(times < start_ms + 14 * 60_000) | (times > start_ms + 21 * 60_000)]
        if number == 3:
            times = times[times < start_ms + 20 * 60_000]
        yield from engine(rng, times, instance, labels, restarts=number == 4)


def engine(
    rng: np.random.Generator, times: Ints, instance: dict[str, str], labels: dict[str, str], restarts: bool
) -> Iterator[Column]:
    def column(name: str, values: Floats, **extra: str) -> Column:
        own = instance if name == "up" else labels
        return Series.of(name, labels_of({**own, **extra})), times, values.astype(np.float64)

    def counter(rate: float) -> Floats:
        total = 1_000 + np.cumsum(rng.poisson(rate, len(times)))
        return np.where(times > times[len(times) // 2], total - total[len(times) // 2], total) if restarts else total

    yield column("up", np.where(rng.random(len(times)) > 0.03, 1, 0))
    yield column("vllm:num_requests_running", rng.integers(0, 8, len(times)))
    yield column("vllm:num_requests_waiting", np.maximum(rng.integers(-6, 7, len(times)), 0))
    yield column("vllm:kv_cache_usage_perc", np.abs(np.cumsum(rng.normal(0.002, 0.05, len(times)))) % 1)
    yield column("vllm:generation_tokens_total", counter(400))
    yield column("vllm:prompt_tokens_total", counter(900))
    for reason in ("stop", "length", "abort"):
        yield column("vllm:request_success_total", counter(3), finished_reason=reason)
    for name, bounds in (("e2e_request_latency", "0.5 1.0 2.5 5.0 +Inf"), ("time_to_first_token", "0.05 0.1 0.5 +Inf")):
        total = np.zeros(len(times))
        for bound in bounds.split():
            total = total + counter(2)
            yield column(f"vllm:{name}_seconds_bucket", total, le=bound)
        yield column(f"vllm:{name}_seconds_count", total)
        yield column(f"vllm:{name}_seconds_sum", total * 1.25 + counter(1))


def open_metrics(columns: list[Column]) -> Iterator[str]:
    for one, times, values in columns:
        labels = ",".join(f'{name}="{value}"' for name, value in one.labels)
        for at, value in zip(times.tolist(), values.tolist(), strict=True):
            yield f"{one.name}{{{labels}}} {value!r} {at / 1000:.3f}\n"
    yield "# EOF\n"


def test_expressions_agree_on_generated_samples(tmp_path: Path, embedded: Embedded) -> None:
    start_ms = (int(time.time()) - 3 * 3_600) * 1_000
    columns = list(fleet(np.random.default_rng(20), start_ms, minutes=30))
    (tmp_path / "samples.om").write_text("".join(open_metrics(columns)))
    load = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(tmp_path / "samples.om"),
        str(tmp_path / "data"),
    ]
    subprocess.run(load, check=True, capture_output=True)
    embedded.write(columns)
    with prometheus(tmp_path, "global: {}\n") as url:
        found = compare(
            url,
            engine_query(Engine(embedded.source)),
            EXPRESSIONS,
            start_ms + 8 * 60_000 + 37,
            start_ms + 32 * 60_000 + 37,
            step_ms=17_000,
        )
    assert found.differences == []
    assert found.empty == []
    assert len(found.points) >= 60
    assert sum(found.points.values()) > 20_000


class Target(Host):
    """A metrics endpoint in this process; each scrape finds it a step further, ``leaving`` goes after the sixth."""

    def __init__(self) -> None:
        self.scrapes = 0
        super().__init__(self._answer)

    def _answer(self, _: str) -> tuple[str, bytes]:
        self.scrapes += 1
        n = self.scrapes
        lines = [f"vllm:generation_tokens_total {n * n}", f"vllm:num_requests_running {n % 4}"]
        lines += [f"leaving {n}"] if n <= 6 else []
        return TEXT, "".join(f"{line}\n" for line in lines).encode()


SCRAPED = """
global: {scrape_interval: 500ms, scrape_timeout: 400ms}
scrape_configs: [{job_name: vllm, static_configs: [{targets: ["ADDRESS"]}]}]
"""
LIVE = [
    "leaving",
    "count_over_time(leaving[10s])",
    "absent(leaving)",
    '{__name__=~"leaving|vllm:.*"}',
    "rate(vllm:generation_tokens_total[3s])",
    "increase(vllm:generation_tokens_total[5s])",
    "avg_over_time(vllm:num_requests_running[4s])",
    "stddev_over_time(vllm:num_requests_running[4s])",
    "max_over_time(leaving[2s])",
    "sum_over_time((leaving > 2)[5s:1s])",
    "timestamp(leaving)",
    "up",
]


def test_scraped_samples_are_copied_with_their_staleness(tmp_path: Path, embedded: Embedded) -> None:
    with Target() as target, prometheus(tmp_path, SCRAPED.replace("ADDRESS", target.instance)) as url:
        wait_until(lambda: target.scrapes >= 14, 60, "scraping by Prometheus")
        end_ms = int(time.time() * 1000)
        ask = http_query(url)
        wait_until(lambda: ask("up", end_ms, int(time.time() * 1000), None), 30, "storing by Prometheus")
        batches = copy_samples(url, ['{job="vllm"}'], end_ms - 3_600_000, end_ms)
        write(embedded, batches)
        edge = free_millisecond(batches)
        last_ms = end_ms // 1000 * 1000 - 2_000 + edge  # what was scraped until then is stored
        start_ms = last_ms - 10_000
        for engine in (Engine(embedded.source), Engine(MemorySource.from_batches(batches))):
            found = compare(url, engine_query(engine), LIVE, start_ms, last_ms, step_ms=1_000)
            assert found.differences == []
            assert found.empty == []
    names = {one.id: one.name for batch in batches for one in batch.series}
    stale = {names[int(i)] for batch in batches for i in batch.series_ids[is_stale(batch.values)]}
    assert stale == {"leaving"}


def write(embedded: Embedded, batches: list[SampleBatch]) -> None:
    """The batches as rows, one series after the other."""
    for batch in batches:
        embedded.write(
            (one, batch.timestamps_ms[batch.series_ids == one.id], batch.values[batch.series_ids == one.id])
            for one in batch.series
        )
