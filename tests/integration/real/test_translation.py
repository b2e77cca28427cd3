"""What canonical series say of a real engine, against what its client measured.

The scrape loop, the translator and the probe run in this process; only the store is a list.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import pytest

from loms.collect.completion import CompletionClient
from loms.collect.http import HttpFetcher
from loms.collect.probe import Probe
from loms.collect.scrape import Scraper
from loms.collect.targets import ProbeSettings, Target
from loms.core.clock import SystemClock
from loms.core.model import SampleBatch, Series
from loms.engines.identity import keep_identified
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader
from loms.lab.load import Lengths, LoadGenerator, LoadProfile, LoadReport, RequestRecord, arrivals

pytestmark = [pytest.mark.integration, pytest.mark.real]

TTFT = "gen_ai_server_time_to_first_token_seconds"
E2E = "gen_ai_server_request_duration_seconds"
ITL = "llm_engine_inter_token_latency_seconds"
FINISHED = "llm_engine_requests_finished_total"
INPUT, CACHED = "llm_engine_tokens_input_total", "llm_engine_tokens_input_cached_total"
OUTPUT = "llm_engine_tokens_output_total"

OVERHEAD_SECONDS = 0.15
"""What may pass between the engine's clock and the client's: HTTP on a machine that does other work, too."""


@dataclass
class Watched:
    """One engine as LOMS sees it."""

    url: str
    model: str
    scraper: Scraper
    translator: Translator
    samples: dict[int, float]
    series: dict[int, list[Series]]

    async def scrape(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """Newest value of every canonical series, after a scrape."""
        assert (await self.scraper.scrape_now()).ok
        return {
            (row.name, frozenset(row.labels)): self.samples[i]
            for i, rows in self.series.items()
            for row in rows
            if i in self.samples and dict(row.labels).get("engine") == self.translator.engine
        }

    async def settled(self) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
        """The same once nothing runs or waits, which engines say a moment after the last answer."""
        async with asyncio.timeout(30):
            while True:
                values = await self.scrape()
                if total(values, "llm_engine_requests_running") + total(values, "llm_engine_requests_waiting") == 0:
                    return values
                await asyncio.sleep(0.1)

    async def load(self, profile: LoadProfile) -> LoadReport:
        report = await LoadGenerator(self.url, self.model, profile).run()
        assert {record.outcome for record in report.records} == {"ok"}, report.summary()
        return report


def total(values: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    wanted = frozenset(labels.items())
    return sum(value for (n, ls), value in values.items() if n == name and wanted <= ls)


@asynccontextmanager
async def watched(url: str, model: str, probe: ProbeSettings | None = None) -> AsyncIterator[Watched]:
    """Scrape one engine; with ``probe``, also ask it for tokens while it is idle."""
    settings = probe or ProbeSettings(enabled=False)
    target = Target(
        "engines", url.rpartition("/")[2], f"{url}/metrics", interval_seconds=1, timeout_seconds=1, probe=settings
    )
    samples: dict[int, float] = {}
    series: dict[int, list[Series]] = {}

    def sink(batch: SampleBatch) -> None:
        samples.update(zip(batch.series_ids.tolist(), batch.values.tolist(), strict=True))
        for row in batch.series:
            series.setdefault(row.id, []).append(row)

    translator = Translator(target.identity)
    fetcher, clock, client = HttpFetcher(), SystemClock(), CompletionClient()
    scraper = Scraper(target, fetcher=fetcher, reader=ExpositionReader(), translator=translator, sink=sink, clock=clock)
    tasks = [
        asyncio.create_task(keep_identified(translator, partial(client.get, target))),
        asyncio.create_task(scraper.run()),
        asyncio.create_task(Probe(scraper, translator, sink, clock, client).run()),
    ]
    try:
        async with asyncio.timeout(30):
            while translator.identity is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield Watched(url, model, scraper, translator, samples, series)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await client.close()
        await fetcher.close()


def observe(
    body: Callable[[Watched], Awaitable[None]], url: str, model: str, probe: ProbeSettings | None = None
) -> None:
    async def run() -> None:
        async with watched(url, model, probe) as engine:
            await body(engine)

    asyncio.run(run())


MIXED = LoadProfile(
    rate=3,
    seconds=5,
    prompt_words=Lengths(60, 0.5),
    output_tokens=Lengths(16, 0.5, 2, 40),
    prefix_words=30,
    stream_share=0.5,
    extra={"ignore_eos": True},
)


def test_vllm_counts_what_its_client_counts(vllm) -> None:
    async def body(engine: Watched) -> None:
        before = await engine.settled()
        report = await engine.load(MIXED)
        after = await engine.settled()

        def grown(name: str, **labels: str) -> float:
            return total(after, name, **labels) - total(before, name, **labels)

        records = report.records
        streamed = [record for record in records if record.planned.stream]
        assert 0 < len(streamed) < len(records)
        assert grown(INPUT) == sum(record.prompt_tokens for record in records)
        assert grown(CACHED) == sum(record.cached_tokens for record in records)
        assert grown(OUTPUT) == sum(record.completion_tokens for record in records)
        assert grown(FINISHED) == len(records)
        assert grown(FINISHED, outcome="success", finish_reason="length") == len(records)
        assert grown(f"{E2E}_count") == len(records)
        assert grown(f"{TTFT}_count") == len(records)
        assert grown(f"{ITL}_count") == sum(record.completion_tokens - 1 for record in records)
        assert total(after, "llm_engine_info", version="0.32.0", model=engine.model) == 1
        assert total(after, "llm_engine_kv_cache_capacity") > 10_000

    observe(body, vllm.url, vllm.model)


def test_llamacpp_counts_what_its_client_counts(llama) -> None:
    async def body(engine: Watched) -> None:
        before = await engine.settled()
        report = await engine.load(MIXED)
        after = await engine.settled()
        for name, amount in (
            (INPUT, sum(record.prompt_tokens for record in report.records)),
            (CACHED, sum(record.cached_tokens for record in report.records)),
            (OUTPUT, sum(record.completion_tokens for record in report.records)),
        ):
            assert total(after, name, model=engine.model) - total(before, name) == amount, name
        assert "no latency histograms" in (engine.scraper.last.plan.unavailable)[TTFT]

    observe(body, llama.url, llama.model)


def single(tokens: int) -> LoadProfile:
    """A profile of which exactly one request comes."""
    profile = LoadProfile(
        rate=20, seconds=0.05, prompt_words=Lengths(120), output_tokens=Lengths(tokens), extra={"ignore_eos": True}
    )
    return next(p for seed in range(100) if len(list(arrivals(p := replace(profile, seed=tokens + seed)))) == 1)


def test_vllm_latencies_lie_in_the_bucket_that_holds_the_clients(vllm) -> None:
    """One streamed request at a time, so that what a histogram gained is that request's."""

    async def body(engine: Watched) -> None:
        for tokens in (8, 24, 48):
            before = await engine.settled()
            (record,) = (await engine.load(single(tokens))).records
            after = await engine.settled()
            assert record.completion_tokens == tokens
            check_bucket(before, after, TTFT, record.ttft_seconds or 0.0)
            check_bucket(before, after, E2E, record.e2e_seconds)
            check_mean(before, after, record)

    observe(body, vllm.url, vllm.model)


def buckets(values: Mapping[tuple[str, frozenset[tuple[str, str]]], float], family: str) -> dict[float, float]:
    """Upper bound → cumulative count."""
    found = {(n, ls): v for (n, ls), v in values.items() if n == f"{family}_bucket"}
    return {float(dict(labels)["le"]): value for (_, labels), value in sorted(found.items(), key=str)}


def bucket_of(bounds: list[float], seconds: float) -> tuple[float, float]:
    high = min(bound for bound in bounds if seconds <= bound)
    return max((bound for bound in bounds if bound < high), default=0.0), high


def check_bucket(before, after, family: str, client_seconds: float) -> None:
    """The engine's one new value lies in the client's bucket, or in that of a client without HTTP's overhead."""
    old, new = buckets(before, family), buckets(after, family)
    filled = min(bound for bound in new if new[bound] - old[bound] == 1)
    bounds = sorted(new)
    fair = {bucket_of(bounds, s)[1] for s in (client_seconds, max(0.0, client_seconds - OVERHEAD_SECONDS))}
    between = {bound for bound in bounds if min(fair) <= bound <= max(fair)}
    assert filled in between, (family, client_seconds, filled)
    assert new[float("inf")] - old[float("inf")] == 1


def check_mean(before, after, record: RequestRecord) -> None:
    """Inter-token latency: as many gaps as the client saw, and a mean that is the client's but for HTTP's overhead."""
    count = total(after, f"{ITL}_count") - total(before, f"{ITL}_count")
    assert count == record.completion_tokens - 1
    mean = (total(after, f"{ITL}_sum") - total(before, f"{ITL}_sum")) / count
    client = (record.e2e_seconds - (record.ttft_seconds or 0.0)) / count
    assert abs(client - mean) <= OVERHEAD_SECONDS / count + 0.005


@pytest.mark.parametrize("name", ["vllm", "llama"])
def test_probes_of_an_idle_engine_leave_no_trace(request, name: str) -> None:
    """A probe each second; what users did before, meanwhile and after is counted, and nothing else."""
    server = request.getfixturevalue(name)

    async def body(engine: Watched) -> None:
        async def probes(count: int) -> None:
            async with asyncio.timeout(60):
                while await asked(engine) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)

        before = await engine.settled()
        await probes(4)
        during = await engine.settled()
        for (series, labels), value in before.items():
            if not series.startswith("loms_") and series != "llm_engine_kv_cache_usage" and counted(series):
                assert during[series, labels] == value, (series, sorted(labels))
        report = await engine.load(MIXED)
        await probes(await asked(engine) + 2)
        after = await engine.settled()
        unattributed = total(after, "loms_probe_requests_total", outcome="unattributed")
        if unattributed == 0:  # a probe may fall among the load's requests; then it is counted, and says so
            grown = {name: total(after, name) - total(before, name) for name in (INPUT, OUTPUT)}
            assert grown[INPUT] == sum(record.prompt_tokens for record in report.records)
            assert grown[OUTPUT] == sum(record.completion_tokens for record in report.records)
        assert total(after, "loms_probe_requests_total", outcome="ok") >= 5
        assert total(after, "loms_probe_requests_total", outcome="timeout") == 0

    observe(body, server.url, server.model, ProbeSettings(interval_seconds=1, deadline_seconds=8))


async def asked(engine: Watched) -> float:
    values = await engine.scrape()
    return total(values, "loms_probe_requests_total", outcome="ok")


def counted(series: str) -> bool:
    return series.endswith(("_total", "_bucket", "_sum", "_count"))
