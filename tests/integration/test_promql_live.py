"""LOMS and Prometheus scrape the same fleet for ten minutes and then answer the same questions.

Two scrapers never come at the same instant, so the fleet is served in snapshots with timestamps in their lines, ten
seconds apart. Both scrapers come every second, and the next snapshot is taken when both have stored the last one: ten
minutes of scrapes pass in about two.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from integration.promql_compare import compare, expressions_of, http_query, prometheus
from support.http_host import TEXT, Host
from support.processes import Loms, wait_until

from loms.lab.fleet import Fleet
from loms.lab.load import Lengths, LoadGenerator, LoadProfile

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="Debian's prometheus is not installed"),
]
EXPRESSIONS = [
    # What the scrapers say of themselves differs: they count their own scrapes, not the snapshots. And which of two
    # engines with equal values is the top one is nobody's promise.
    expr
    for expr in expressions_of(Path(__file__).parents[1] / "promql" / "expressions.txt")
    if not re.search(r"\bup\b|scrape_|topk|bottomk", expr)
]
MINUTES = 10
SNAPSHOT_MS = 10_000
SAMPLE = re.compile(r"^(?!#)(.+)$", re.MULTILINE)


class Snapshots:
    """The expositions of a fleet, frozen and stamped; each engine on a port of its own."""

    def __init__(self, urls: tuple[str, ...], first_ms: int) -> None:
        self._urls = urls
        self.at_ms = first_ms
        self._texts: list[bytes] = []
        self._hosts = [Host(lambda _, number=number: (TEXT, self._texts[number])) for number in range(len(urls))]
        self.ports = [host.port for host in self._hosts]
        self.take()

    def take(self) -> None:
        texts = []
        for url in self._urls:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                texts.append(SAMPLE.sub(rf"\g<1> {self.at_ms}", answer.read().decode()).encode())
        self._texts = texts

    def advance(self) -> None:
        self.at_ms += SNAPSHOT_MS
        self.take()

    def close(self) -> None:
        for host in self._hosts:
            host.__exit__()


@pytest.fixture
def snapshots() -> Iterator[Snapshots]:
    """Four engines under different loads."""
    # Beside the whole seconds, at which subqueries look, no sample lies on the edge of any window.
    first_ms = int(time.time()) * 1000 - MINUTES * 60_000 - 563
    with Fleet(4) as fleet:
        taken = Snapshots(fleet.urls, first_ms)

        async def load() -> None:
            rates = (0.5, 1.5, 3.0, 6.0)
            profiles = [
                LoadProfile(
                    rate=rate, seconds=1e9, prompt_words=Lengths(150, 0.5), output_tokens=Lengths(50, 0.5), seed=i
                )
                for i, rate in enumerate(rates)
            ]
            pairs = zip(fleet.engines, profiles, strict=True)
            await asyncio.gather(*(LoadGenerator(e.url, e.model, p, keep=10).run() for e, p in pairs))

        loop = asyncio.new_event_loop()
        task = loop.create_task(load())
        thread = threading.Thread(target=lambda: _until_cancelled(loop, task), daemon=True)
        thread.start()
        yield taken
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
        taken.close()


def _until_cancelled(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        loop.close()


def test_both_answer_alike_on_what_both_scraped(snapshots: Snapshots, tmp_path: Path) -> None:
    groups = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"instance": f"engine-{i}:8000", "job": "vllm" if i < 4 else "canary", "deployment_zone": "lab"},
        }
        for i, port in enumerate(snapshots.ports, 1)
    ]
    (tmp_path / "targets.json").write_text(json.dumps(groups))
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: vllm, file_sd_configs: [{{files: ['{tmp_path}/targets.json']}}]}}]\n"
    )
    settings = {
        "scrape": {
            "interval": "1s",
            "timeout": "1s",
            "discover": {"enabled": False},
            "own_metrics": False,
            "jobs": [{"name": "vllm", "file_sd": [f"{tmp_path}/targets.json"], "probe": False}],
        },
        "store": {"flush_interval": "200ms"},
        "rules": {"builtin": False},
    }
    with ExitStack() as stack:
        url = stack.enter_context(prometheus(tmp_path, config))
        loms = stack.enter_context(Loms(tmp_path, [], settings))
        begin_ms = snapshots.at_ms

        def seen(base: str, at_ms: int) -> int:
            """How many engines' newest snapshot has arrived at ``base``."""
            query = "count(timestamp(vllm:num_requests_running) == " + f"{at_ms / 1000:.3f})"
            return sum(int(v) for row in http_query(base)(query, at_ms, at_ms, None).values() for v in row.values())

        def await_both() -> None:
            for base in (url, loms.url):
                wait_until(lambda base=base: seen(base, snapshots.at_ms) == 4, 60, f"getting every engine to {base}")

        await_both()
        while snapshots.at_ms < begin_ms + MINUTES * 60_000:
            snapshots.advance()
            await_both()
        whole = "count_over_time(vllm:num_requests_running[10m])"
        for base in (url, loms.url):
            counts = http_query(base)(whole, snapshots.at_ms + 1, snapshots.at_ms + 1, None)
            assert [v for row in counts.values() for v in row.values()] == [MINUTES * 60_000 / SNAPSHOT_MS] * 4, base

        start_ms, end_ms = begin_ms // 1000 * 1000 + 60_250, snapshots.at_ms // 1000 * 1000 - 750
        found = compare(url, http_query(loms.url), EXPRESSIONS, start_ms, end_ms, 17_000)
    assert found.differences == [], "\n".join(found.differences[:20])
    assert len(EXPRESSIONS) >= 60
    assert len(found.empty) <= len(EXPRESSIONS) // 10, found.empty
    assert sum(found.points.values()) > 5_000
