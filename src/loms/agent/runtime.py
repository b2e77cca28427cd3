"""The agent of one process: every target gets a reader, a translator, a scraper, a probe and an identity."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from weakref import WeakKeyDictionary

from loms.agent import targets as configured
from loms.collect.completion import CompletionClient
from loms.collect.discovery import FileDiscovery, PortDiscovery, Static
from loms.collect.http import HttpFetcher
from loms.collect.pool import ScrapePool
from loms.collect.probe import Probe, Recall
from loms.collect.protocols import Discovery
from loms.collect.scrape import Scraper, TargetStatus
from loms.collect.targets import Target
from loms.core.clock import Clock
from loms.core.config import Config, ScrapeJob
from loms.core.guard import guard
from loms.core.model import EngineStatus, Sink
from loms.engines.engine import recognise
from loms.engines.identity import keep_identified
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader, Limits

PORTS_JOB = "discovered"
"""Job of the engines that were found by their port."""


class Agent:
    """Collects until cancelled. ``own_port`` is the port of LOMS's own ``/metrics``, None to leave it out."""

    def __init__(
        self, config: Config, sink: Sink, clock: Clock, *, recall: Recall | None = None, own_port: int | None = None
    ) -> None:
        self._config = config
        self._sink = sink
        self._clock = clock
        self._recall = recall
        self._own = [configured.own(config, own_port)] if own_port and config.scrape.own_metrics else []
        self._static = configured.static(config)
        self._translators: MutableMapping[Scraper, Translator] = WeakKeyDictionary()
        self._pool: ScrapePool | None = None

    async def run(self) -> None:
        """Scrape, probe and identify whatever the discoveries find, until cancelled."""
        fetcher, api = HttpFetcher(), CompletionClient()
        limits = self._config.scrape.limits
        reading = Limits(samples=limits.samples, label_value_length=limits.label_value_length)

        def make(target: Target) -> Scraper:
            translator = Translator(
                target.identity,
                drop=self._config.scrape.drop,
                restoring=self._recall is not None,
            )
            scraper = Scraper(
                target,
                fetcher=fetcher,
                reader=ExpositionReader(reading),
                translator=translator,
                sink=self._sink,
                clock=self._clock,
            )
            self._translators[scraper] = translator
            return scraper

        async def probing(scraper: Scraper) -> None:
            subject = self._translators[scraper]
            await Probe(scraper, subject, self._sink, self._clock, api, self._recall).run()

        async def identifying(scraper: Scraper) -> None:
            with guard("identify"):
                translator, get = self._translators[scraper], partial(api.get, scraper.target)
                await keep_identified(translator, get, on_news=scraper.scrape_now)

        self._pool = ScrapePool(make, [probing, identifying])
        ports = self._ports(fetcher, reading)
        try:
            await self._pool.run([Static([*self._static, *self._own]), *self._files(), *ports])
        finally:
            await api.close()
            await fetcher.close()

    def targets(self) -> list[TargetStatus]:
        """One row per target."""
        return self._pool.status() if self._pool else []

    def problems(self) -> list[str]:
        """What discoveries could not read."""
        return self._pool.problems() if self._pool else []

    def engines(self) -> list[EngineStatus]:
        """One row per target that is, or was at its last good scrape, a known engine."""
        rows = []
        for scraper in self._pool.scrapers if self._pool else ():
            plan, target = self._translators[scraper].newest, scraper.target
            if plan is None or not plan.engine:
                continue
            labels = dict(plan.labels)
            rows.append(
                EngineStatus(
                    instance=target.instance,
                    job=target.job,
                    engine=plan.engine,
                    model=plan.model,
                    version=plan.version,
                    zone=labels.get("deployment_zone", ""),
                    simulated=labels.get("simulated") == "true",
                    up=bool(scraper.last and scraper.last.ok),
                    unavailable=plan.unavailable,
                    unmapped=plan.unmapped,
                )
            )
        return rows

    def _files(self) -> list[Discovery]:
        return [
            FileDiscovery(job.file_sd, configured.template(self._config, job), scheme=job.scheme, path=job.path)
            for job in self._config.scrape.jobs
            if job.file_sd
        ]

    def _ports(self, fetcher: HttpFetcher, reading: Limits) -> list[Discovery]:
        discover = self._config.scrape.discover
        if not discover.enabled:
            return []
        return [
            PortDiscovery(
                host=discover.host,
                ports=discover.ports,
                template=configured.unnamed(self._config, ScrapeJob(name=PORTS_JOB)),
                fetcher=fetcher,
                make_reader=lambda _: ExpositionReader(reading),
                recognise=recognise,
                clock=self._clock,
                poll_seconds=discover.interval,
                forget_after_seconds=discover.forget_after,
            )
        ]
