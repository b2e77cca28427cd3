"""The agent of one process: every target gets a reader, a translator, a scraper, a probe and an identity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from weakref import WeakKeyDictionary

from loms.agent import targets as configured
from loms.agent.contracts import LOOK_SECONDS, ContractWatch, Forgetful, Notes, Sight
from loms.agent.metadata import DescribedReader, DescribedSink, Note
from loms.agent.reader import AnswerReader
from loms.agent.status import engine_status
from loms.agent.users import UsersOfMetrics
from loms.collect.completion import CompletionClient
from loms.collect.discovery import FileDiscovery, PortDiscovery, Static
from loms.collect.http import HttpFetcher
from loms.collect.pool import ScrapePool
from loms.collect.probe import Probe, Recall
from loms.collect.protocols import Discovery
from loms.collect.required import Required, lacking
from loms.collect.scrape import Scraper, TargetStatus
from loms.collect.targets import Target
from loms.core.clock import Clock
from loms.core.guard import guard
from loms.core.model import EngineStatus, Labels, Shape, Sink
from loms.core.settings import Config, ScrapeJob
from loms.engines.custom import declare
from loms.engines.engine import known_paths, recognise
from loms.engines.identity import keep_identified
from loms.engines.translate import Translator
from loms.ingest.exposition import Limits
from loms.ingest.governance import Governed
from loms.ingest.memory import WriteAhead

_log = logging.getLogger("loms.agent")

PORTS_JOB = "discovered"
"""Job of the engines that were found by their port."""


class Agent:
    """Collects until cancelled. ``own_port`` is the port of LOMS's own ``/metrics``, None to leave it out."""

    def __init__(
        self,
        config: Config,
        sink: Sink,
        clock: Clock,
        *,
        recall: Recall | None = None,
        notes: Callable[[str], Notes] | None = None,
        note: Note = lambda _: None,
        own_port: int | None = None,
    ) -> None:
        """``notes`` gives by its kind what outlives the process: ``folded`` (which label values have series of their
        own, and what the others have counted) and ``contract`` (what each target has exposed). ``note`` is told what
        metric families are.

        Raises `ConfigError` for a target or a declared engine that cannot be.
        """
        declare(config.engines)
        self._config = config
        self._note = note
        self._sink = DescribedSink(sink, note)
        self._clock = clock
        self._recall = recall
        self._folded = notes("folded") if notes else None
        self._users = UsersOfMetrics(config, clock)
        self._contracts = ContractWatch(
            config.contracts, sink, clock, notes("contract") if notes else Forgetful(), self._users
        )
        self._own = [configured.own(config, own_port)] if own_port and config.scrape.own_metrics else []
        self._static = configured.static(config)
        self._translators: MutableMapping[Scraper, Translator] = WeakKeyDictionary()
        self._memories: MutableMapping[Scraper, WriteAhead] = WeakKeyDictionary()
        self._pool: ScrapePool | None = None

    async def run(self) -> None:
        """Scrape, probe and identify whatever the discoveries find, until cancelled."""
        fetcher, api = HttpFetcher(), CompletionClient()
        limits = self._config.scrape.limits
        reading = Limits(samples=limits.samples, label_value_length=limits.label_value_length)
        folded = dict(await asyncio.to_thread(self._folded.load)) if self._folded else {}

        def save(target: Target, text: str) -> None:
            folded[target.job, target.instance] = text
            if self._folded:
                self._folded.save(target.job, target.instance, text)

        def make(target: Target) -> Scraper:
            translator = Translator(
                target.identity,
                drop=self._config.scrape.drop,
                restoring=self._recall is not None,
            )
            policy = self._config.labels.model_copy(update={"max_series": target.max_series})
            memory = folded.get((target.job, target.instance), "")
            governed = Governed(AnswerReader(reading), policy, self._clock, memory=memory)
            ahead = WriteAhead(governed, self._sink, partial(save, target))
            scraper = Scraper(
                target,
                fetcher=fetcher,
                reader=DescribedReader(governed, self._note),
                translator=translator,
                sink=ahead,
                clock=self._clock,
                remark=governed.remark,
            )
            self._translators[scraper], self._memories[scraper] = translator, ahead
            return scraper

        async def probing(scraper: Scraper) -> None:
            subject = self._translators[scraper]
            await Probe(scraper, subject, self._sink, self._clock, api, self._recall).run()

        async def identifying(scraper: Scraper) -> None:
            with guard("identify"):
                translator, get = self._translators[scraper], partial(api.get, scraper.target)
                await keep_identified(translator, get, on_news=scraper.scrape_now)

        async def remembering(scraper: Scraper) -> None:
            await self._memories[scraper].run()

        self._pool = ScrapePool(make, [probing, identifying, remembering])
        ports = self._ports(fetcher, reading)
        watching = asyncio.create_task(self._watch_contracts(), name="contracts")
        try:
            await self._pool.run([Static([*self._static, *self._own]), *self._files(), *ports])
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            await api.close()
            await fetcher.close()

    def targets(self) -> list[TargetStatus]:
        """One row per target."""
        return self._pool.status() if self._pool else []

    def exposed(self) -> list[tuple[Labels, Shape]]:
        """Of every target with a good newest scrape: its labels, and what it exposes."""
        scrapers = self._pool.scrapers if self._pool else ()
        return [(s.target.identity, s.last.exposition.shape) for s in scrapers if s.last and s.last.exposition]

    def problems(self) -> list[str]:
        """What discoveries, and whoever looks for the users of a metric, could not read."""
        found = self._pool.problems() if self._pool else []
        return [*found, self._users.problem] if self._users.problem else found

    def engines(self) -> list[EngineStatus]:
        """One row per target that is, or was at its last good scrape, a known engine."""
        scrapers = self._pool.scrapers if self._pool else ()
        rows = [engine_status(s, self._translators[s], self._contracts.findings(s)) for s in scrapers]
        return [row for row in rows if row is not None]

    def scrapes(self, job: str, instance: str) -> bool:
        """Whether this is one of the agent's own targets."""
        scrapers = self._pool.scrapers if self._pool else ()
        return any((one.target.job, one.target.instance) == (job, instance) for one in scrapers)

    async def _watch_contracts(self) -> None:
        """Look at every target now and then. What takes a while, or may wait for the store, happens in a thread."""
        await asyncio.to_thread(self._users.read)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looking = asyncio.ensure_future(asyncio.to_thread(self._look, self._sights()))
            try:
                with guard("contracts"):
                    await asyncio.shield(looking)
            finally:
                await asyncio.wait((looking,))  # the store must not be closed under it

    def _sights(self) -> dict[Scraper, Sight | None]:
        """The newest good scrape of every target whose engine is known, if it has one."""
        found: dict[Scraper, Sight | None] = {}
        for scraper in self._pool.scrapers if self._pool else ():
            translator, last = self._translators[scraper], scraper.last
            plan = translator.newest
            found[scraper] = None
            if last is None or last.exposition is None or plan is None or last.plan is not plan or not plan.engine:
                continue
            if translator.settled:
                worked = any(translator.progress(last.exposition).values())
                target = scraper.target
                found[scraper] = Sight(target.job, target.instance, plan, last.exposition.shape, worked)
        return found

    def _look(self, sights: Mapping[Scraper, Sight | None]) -> None:
        self._contracts.keep_only(tuple(sights))
        for scraper, sight in sights.items():
            if self._contracts.due(scraper, sight):
                with guard("contracts"):
                    self._contracts.look(scraper, sight)
        self._contracts.save()

    def _files(self) -> list[Discovery]:
        return [
            Required(
                FileDiscovery(job.file_sd, configured.template(self._config, job), scheme=job.scheme, path=job.path),
                self._config.labels.required,
            )
            for job in self._config.scrape.jobs
            if job.file_sd
        ]

    def _ports(self, fetcher: HttpFetcher, reading: Limits) -> list[Discovery]:
        discover = self._config.scrape.discover
        if not discover.enabled:
            return []
        template = configured.unnamed(self._config, ScrapeJob(name=PORTS_JOB))
        if label := lacking(template, self._config.labels.required):
            _log.info("engines are not looked for by their port: they would have no label %r (labels.required)", label)
            return []
        return [
            PortDiscovery(
                host=discover.host,
                ports=discover.ports,
                template=template,
                fetcher=fetcher,
                make_reader=lambda _: AnswerReader(reading),
                recognise=recognise,
                clock=self._clock,
                paths=known_paths(),
                poll_seconds=discover.interval,
                forget_after_seconds=discover.forget_after,
            )
        ]
