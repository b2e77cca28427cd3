"""The compliance project's queries, over the same samples, answered by Debian's Prometheus 2.42 and by LOMS."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import yaml
from integration.promql_compare import REFUSED, Comparison, compare_one, engine_query, http_query, prometheus
from integration.test_promql_prometheus import open_metrics
from promql.embedded import Embedded

from loms.core.model import Floats, Ints, Series, labels_of
from loms.promql.engine import Engine

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's prometheus is not installed"),
]
QUERIES = Path(__file__).parents[1] / "data" / "promql_compliance" / "queries.yml"
VARIANTS: Mapping[str, str] = {
    "range": "1s 15s 1m 5m 15m 1h",
    "offset": "1m 5m 10m",
    "simpleAggrOp": "sum avg max min count stddev stdvar",
    "simpleTimeAggrOp": "sum avg max min count stddev stdvar absent last",
    "topBottomOp": "topk bottomk",
    "quantile": "-0.5 0.1 0.5 0.75 0.95 0.90 0.99 1 1.5",
    "arithBinOp": "+ - * / % ^",
    "compBinOp": "== != < > <= >=",
    "binOp": "+ - * / % ^ == != < > <= >=",
    "simpleMathFunc": "abs ceil floor exp sqrt ln log2 log10 round",
    "extrapolatedRateFunc": "delta rate increase",
    "clampFunc": "clamp_min clamp_max",
    "instantRateFunc": "idelta irate",
    "dateFunc": "day_of_month day_of_week days_in_month hour minute month year",
}
"""What the templates are filled in with, as in the project's own runner."""
OTHERWISE: Mapping[str, str] = {
    'label_replace(demo_num_cpus, "~invalid", "", "src", "(.*)")': "Prometheus 3 takes any UTF-8 as a label name",
    'label_join(demo_num_cpus, "~invalid", "-", "instance")': "Prometheus 3 takes any UTF-8 as a label name",
}
"""Queries that Prometheus 2.42 answers in another way than 3, and why."""
TOLERANCE = 1e-6
"""Relative. The project's own comparison allows ten times as much; ``deriv`` of large numbers needs it."""
Column = tuple[Series, Ints, Floats]


def expanded() -> Iterator[tuple[str, bool]]:
    """Each query and whether it must be refused."""
    for case in yaml.safe_load(QUERIES.read_text())["test_cases"]:
        names = case.get("variant_args", [])
        for values in product(*(VARIANTS[name].split() for name in names)):
            filled = dict(zip(names, values, strict=True))
            query = re.sub(r"\{\{\.(\w+)\}\}", lambda match, filled=filled: filled[match[1]], str(case["query"]))
            yield query, case.get("should_fail", False)


def demo(rng: np.random.Generator, start_ms: int, end_ms: int) -> Iterator[Column]:
    """Three instances like the project's demo service, scraped every five seconds, never within 100 ms of a second."""
    for number in range(3):
        instance = {"job": "demo", "instance": f"demo.promlabs.com:1000{number}"}
        ticks = np.arange(start_ms, end_ms, 5_000)
        times = ticks + rng.integers(0, 2, len(ticks)) * 1_000 + rng.integers(100, 900, len(ticks))
        times = times[rng.random(len(times)) > 0.01]
        if number == 1:  # a hole longer than the look-back
            times = times[(times < end_ms - 900_000) | (times > end_ms - 560_000)]
        yield from service(rng, times, instance, restarts=number == 2)


def service(rng: np.random.Generator, times: Ints, instance: dict[str, str], restarts: bool) -> Iterator[Column]:
    def column(name: str, values: Floats, at: Ints = times, **extra: str) -> Column:
        return Series.of(name, labels_of({**instance, **extra})), at, values.astype(np.float64)

    def counter(steps: Floats) -> Floats:
        total = np.cumsum(steps)
        middle = len(times) - 60
        return np.where(np.arange(len(times)) > middle, total - total[middle], total) if restarts else total

    for kind in ("used", "free", "cached", "buffers"):
        yield column("demo_memory_usage_bytes", rng.integers(10**8, 10**10, len(times)), type=kind)
    for mode in ("idle", "user", "system"):
        yield column("demo_cpu_usage_seconds_total", counter(rng.exponential(2, len(times))), mode=mode)
    yield column("demo_disk_usage_bytes", np.cumsum(rng.integers(100, 1_000, len(times))) + 10**10)
    yield column("demo_disk_total_bytes", np.full(len(times), 2.6e11))
    yield column("demo_num_cpus", np.full(len(times), 4.0))
    runs = times // 60_000 * 60
    yield column("demo_batch_last_success_timestamp_seconds", runs.astype(np.float64))
    some = np.arange(len(times)) % 90 < 12
    yield column("demo_intermittent_metric", rng.random(some.sum()), at=times[some])
    for method, path in (("GET", "/api/foo"), ("POST", "/api/bar")):
        labels = {"method": method, "path": path, "status": "200"}
        counts = np.zeros(len(times))
        for bound in ("0.0001", "0.001", "0.01", "0.1", "1", "+Inf"):
            counts = counts + counter(rng.poisson(3, len(times)))
            yield column("demo_api_request_duration_seconds_bucket", counts, le=bound, **labels)
        yield column("demo_api_request_duration_seconds_count", counts, **labels)
        yield column("demo_api_request_duration_seconds_sum", counts * 0.02, **labels)


def test_the_templates_expand() -> None:
    queries = list(expanded())
    assert len(yaml.safe_load(QUERIES.read_text())["test_cases"]) == 118
    assert len(queries) == len(set(queries)) == 539
    assert not any("{{" in query for query, _ in queries)


def test_answers_are_prometheus_s(tmp_path: Path) -> None:
    end_ms = (int(time.time()) - 3 * 3_600) * 1_000
    columns = list(demo(np.random.default_rng(7), end_ms - 100 * 60_000, end_ms))
    (tmp_path / "samples.om").write_text("".join(open_metrics(columns)))
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", f"{tmp_path}/samples.om", f"{tmp_path}/data"]
    subprocess.run(load, check=True, capture_output=True)
    embedded = Embedded(tmp_path / "store")
    embedded.write(columns)
    span = (end_ms - 720_000 + 37, end_ms - 120_000 + 37)
    found, wrong = Comparison(), []
    loms = engine_query(Engine(embedded.source))
    with prometheus(tmp_path, "global: {}\n") as url:
        theirs = http_query(url)
        for query, fails in expanded():
            compare_one(found, theirs, loms, query, [(*span, 10_000), (*span, None)], TOLERANCE)
            if fails and query not in OTHERWISE and loms(query, *span, 10_000) != REFUSED:
                wrong.append(query)
    embedded.close()
    assert wrong == []
    differing = {line.split(" ~ ")[0] for line in found.differences}
    assert differing == set(OTHERWISE), "\n".join(found.differences[:40])
    assert len(differing) / len(found.points) < 0.01
    assert sum(found.points.values()) > 100_000
