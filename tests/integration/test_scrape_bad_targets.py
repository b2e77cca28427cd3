"""Targets that misbehave, over real sockets: each gives one clear message and ``up 0``, and harms no other."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from loms.collect.http import HttpFetcher
from loms.collect.pool import ScrapePool
from loms.collect.scrape import Scraper, TargetStatus
from loms.collect.targets import Target, Tls
from loms.core.clock import SystemClock
from loms.core.model import SampleBatch, Series, Sink
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader, Limits

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
TLS = HERE.parent / "data/tls"
LIMIT = 1 << 20
PLAIN = Tls()

FAULTS = {
    "/malformed": ("malformed", "line 2: the labels cannot be read from 'x=1} 2' on: 'b{x=1} 2'"),
    "/html": ("malformed", "the content type is 'text/html', which is not a metrics text (is this the metrics path?"),
    "/latin1": ("malformed", "line 2: the text is not UTF-8 (byte 0xf6"),
    "/error500": ("http", "the answer is HTTP 500"),
    "/missing": ("http", "the answer is HTTP 404 (is this the metrics path?)"),
    "/off": ("http", "the answer is HTTP 501 (are metrics switched on? loms doctor names the flags)"),
    "/endless": ("too_large", f"the answer is larger than {LIMIT} bytes (raise the body limit)"),
    "/bomb": ("too_large", f"the answer is larger than {LIMIT} bytes when decompressed"),
    "/many": ("too_many_samples", "there are more than 1000 samples"),
    "/drip": ("incomplete", "the answer was not complete after 2 s ("),
    "/hang": ("timeout", "connected, but there was no answer within 2 s"),
    "/redirect-loop": ("http", "more than 10 redirects"),
    "/cut": ("connection", "the connection was closed after 18 of 23 bytes"),
    "/not-http": ("http", "the answer is not HTTP (is this the right port?)"),
}


@dataclass
class Journal:
    """What reached the sink: per series its batches' times and values."""

    series: dict[int, Series] = field(default_factory=dict)
    samples: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, batch: SampleBatch, /) -> None:
        self.series.update((s.id, s) for s in batch.series)
        columns = zip(batch.series_ids.tolist(), batch.timestamps_ms.tolist(), batch.values.tolist(), strict=True)
        for series, at_ms, value in columns:
            self.samples[series].append((at_ms, value))
        self.more.set()

    def of(self, name: str, instance: str) -> list[tuple[int, float]]:
        ids = [s.id for s in self.series.values() if s.name == name and ("instance", instance) in s.labels]
        return self.samples[ids[0]] if ids else []


def target(instance: str, url: str, tls: Tls = PLAIN) -> Target:
    patient = instance not in ("/drip", "/hang")
    return Target(
        job="bad",
        instance=instance,
        url=url,
        interval_seconds=60.0,
        timeout_seconds=60.0 if patient else 2.0,
        tls=tls,
        body_limit_bytes=LIMIT,
    )


def scraper(target: Target, fetcher: HttpFetcher, sink: Sink) -> Scraper:
    return Scraper(
        target,
        fetcher=fetcher,
        reader=ExpositionReader(Limits(samples=1000)),
        translator=Translator(target.identity),
        sink=sink,
        clock=SystemClock(),
    )


Scraped = tuple[dict[str, TargetStatus], Journal, int]


@pytest.fixture(scope="module")
def scraped(bad_ports: dict[str, int]) -> Scraped:
    """All targets scraped at once, twice: status by instance, what was written, and the peak of memory in bytes."""
    base = f"http://127.0.0.1:{bad_ports['http']}"
    targets = [
        *(target(path, base + path) for path in ("/good", "/duplicates", *FAULTS)),
        target("closed", f"http://127.0.0.1:{bad_ports['closed']}/metrics"),
        target("no name", "http://name.invalid/metrics"),
        target("unknown authority", f"https://127.0.0.1:{bad_ports['tls']}/good"),
        target("other name", f"https://127.0.0.1:{bad_ports['tls']}/good", Tls(ca_file=str(TLS / "ca.pem"))),
        target("no tls", f"https://127.0.0.1:{bad_ports['http']}/good"),
        target("no ca file", f"https://127.0.0.1:{bad_ports['tls']}/good", Tls(ca_file="/nowhere/ca.pem")),
    ]
    journal = Journal()

    async def run() -> dict[str, TargetStatus]:
        fetcher = HttpFetcher()
        scrapers = [scraper(t, fetcher, journal) for t in targets]
        for _ in range(2):
            await asyncio.gather(*(s.scrape_now() for s in scrapers))
        await fetcher.close()
        return {s.target.instance: s.status() for s in scrapers}

    tracemalloc.start()
    try:
        rows = asyncio.run(run())
        return rows, journal, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("instance", "reason", "complaint"),
    [
        *((path, reason, complaint) for path, (reason, complaint) in FAULTS.items()),
        ("closed", "refused", "connection refused, nothing listens at 127.0.0.1:"),
        ("no name", "dns", "the name name.invalid cannot be resolved"),
        ("unknown authority", "tls", "is not accepted: self-signed certificate in certificate chain"),
        ("other name", "tls", "is not accepted: IP address mismatch"),
        ("no tls", "tls", "no TLS connection to 127.0.0.1:"),
        ("no ca file", "tls", "the TLS files /nowhere/ca.pem cannot be used: No such file or directory"),
    ],
)
def test_a_fault_is_one_clear_message_and_up_0(scraped: Scraped, instance: str, reason: str, complaint: str) -> None:
    rows, journal, _ = scraped
    row = rows[instance]
    assert (row.health, row.up, row.samples) == ("down", False, 0)
    assert complaint in row.last_error
    assert row.last_error.startswith(row.url)
    assert "\n" not in row.last_error
    assert len(row.last_error) < 400
    assert [value for _, value in journal.of("up", instance)] == [0.0, 0.0]
    failed = [
        s for s in journal.series.values() if s.name == "loms_scrape_failed" and ("instance", instance) in s.labels
    ]
    assert [dict(s.labels)["reason"] for s in failed] == [reason]


def test_duplicate_series_are_counted_and_told_and_the_target_is_up(scraped: Scraped) -> None:
    rows, journal, _ = scraped
    row = rows["/duplicates"]
    assert (row.health, row.samples) == ("up", 2)
    assert "2 samples repeat a series" in row.last_error
    assert {value for _, value in journal.of("a", "/duplicates")} == {1.0}


def test_a_good_target_among_them_is_fine(scraped: Scraped) -> None:
    rows, journal, _ = scraped
    assert (rows["/good"].health, rows["/good"].last_error) == ("up", "")
    assert [value for _, value in journal.of("up", "/good")] == [1.0, 1.0]


def test_others_are_scraped_while_some_hang(bad_ports: dict[str, int]) -> None:
    base = f"http://127.0.0.1:{bad_ports['http']}"
    slow = [
        replace(target(f"{path} {i}", base + path), interval_seconds=100.0, timeout_seconds=100.0)
        for path in ("/hang", "/drip")
        for i in range(10)
    ]
    good = replace(target("/good", f"{base}/good"), interval_seconds=1.0, timeout_seconds=1.0)
    journal = Journal()

    async def run() -> dict[str, TargetStatus]:
        fetcher = HttpFetcher()
        pool = ScrapePool(lambda target: scraper(target, fetcher, journal))
        await pool.update([*slow, good])
        hanging = [asyncio.create_task(s.scrape_now()) for s in pool.scrapers if s.target != good]
        async with asyncio.timeout(90):
            while len(journal.of("up", "/good")) < 3:
                journal.more.clear()
                await journal.more.wait()
        rows = {row.instance: row for row in pool.status()}
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await pool.close()
        await fetcher.close()
        return rows

    rows = asyncio.run(run())
    assert {row.health for row in rows.values() if row.instance != "/good"} == {"unknown"}, "still under way"


def test_memory_stays_bounded(scraped: Scraped) -> None:
    _, _, peak = scraped
    assert peak < 40 * LIMIT, "a few answers of at most 1 MiB each, held and decoded; the bomb alone would be 200 MiB"
