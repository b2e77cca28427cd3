"""LOMS and Prometheus scrape the same target: the same series must be visible after each scrape, with the same values.

The target (``/sequence`` in bad_targets.py) loses series, fails, clashes with target labels, sends timestamps,
repeats a series and breaks the format (in its first line: of an exposition that is broken further down, Prometheus
2.42 keeps the series before the fault alive, against its own documentation; LOMS ends all of them).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.processes import free_port

from loms.collect.http import HttpFetcher
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.clock import SystemClock
from loms.core.model import Labels, SampleBatch, Series, is_stale, labels_of
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Debian's prometheus is not installed to compare with"
    ),
]

SCRAPES = 7
CONFIG = """
scrape_configs:
  - job_name: seq
    scrape_interval: 1s
    scrape_timeout: 1s
    metrics_path: /sequence
    params: {{client: [prometheus]}}
    static_configs: [{{targets: ['127.0.0.1:{port}'], labels: {{rack: r1}}}}]
"""
Visible = dict[tuple[str, Labels], float]


@pytest.fixture
def prometheus(bad_ports: dict[str, int], tmp_path: Path) -> Iterator[str]:
    """Base URL of a Prometheus that scrapes the sequence."""
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=bad_ports["http"]))
    port = free_port()
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    ]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def query(base: str, expr: str, at_seconds: float | None = None) -> list[dict[str, Any]]:
    url = f"{base}/api/v1/query?query={quote(expr)}" + ("" if at_seconds is None else f"&time={at_seconds}")
    with urllib.request.urlopen(url, timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def prometheus_sees(base: str) -> list[Visible]:
    """What an instant query finds at the time of each scrape."""
    deadline = time.monotonic() + 90
    times: list[float] = []
    while len(times) < SCRAPES:
        assert time.monotonic() < deadline, "Prometheus did not scrape often enough"
        time.sleep(0.2)
        try:
            found = query(base, 'up{job="seq"}[10m]')
        except OSError:
            continue
        times = [at for at, _ in found[0]["values"]] if found else []
    seen = []
    for at in times[:SCRAPES]:
        visible = {}
        for row in query(base, '{job="seq"}', at):
            labels = dict(row["metric"])
            visible[labels.pop("__name__"), labels_of(labels)] = float(row["value"][1])
        seen.append(visible)
    return seen


def loms_sees(target: Target) -> list[Visible]:
    """The newest sample of each series after each scrape, unless it is a stale marker."""
    visible: Visible = {}
    series: dict[int, Series] = {}
    seen: list[Visible] = []

    def sink(batch: SampleBatch) -> None:
        series.update((s.id, s) for s in batch.series)
        for i, value, stale in zip(batch.series_ids, batch.values.tolist(), is_stale(batch.values), strict=True):
            key = series[int(i)].name, series[int(i)].labels
            visible.pop(key, None) if stale else visible.update({key: value})

    async def run() -> None:
        fetcher = HttpFetcher()
        scraper = Scraper(
            target,
            fetcher=fetcher,
            reader=ExpositionReader(),
            translator=Translator(target.identity),
            sink=sink,
            clock=SystemClock(),
        )
        for _ in range(SCRAPES):
            await scraper.scrape_now()
            seen.append(dict(visible))
        await fetcher.close()

    asyncio.run(run())
    return seen


def comparable(visible: Visible) -> Visible:
    """Without what is never equal and what LOMS adds."""
    return {k: v for k, v in visible.items() if k[0] != "scrape_duration_seconds" and not k[0].startswith("loms_")}


def test_the_same_series_are_visible_after_each_scrape(bad_ports: dict[str, int], prometheus: str) -> None:
    instance = f"127.0.0.1:{bad_ports['http']}"
    target = Target(
        job="seq",
        instance=instance,
        url=f"http://{instance}/sequence?client=loms",
        labels=labels_of({"rack": "r1"}),
        interval_seconds=30,
        timeout_seconds=30,
    )
    ours, theirs = loms_sees(target), prometheus_sees(prometheus)
    for scrape in range(SCRAPES):
        assert comparable(ours[scrape]) == comparable(theirs[scrape]), f"scrape {scrape}"
    assert [next(v for (name, _), v in seen.items() if name == "up") for seen in ours] == [1, 1, 0, 1, 1, 0, 1]
