"""All scrapers of a process: they start and end as discoveries say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from loms.collect.protocols import Discovery
from loms.collect.scrape import Scraper, TargetStatus
from loms.collect.targets import Target
from loms.core import selfmetrics
from loms.core.guard import guard

Companion = Callable[[Scraper], Coroutine[Any, Any, None]]
"""Runs beside a scraper as long as its target lives (the probe)."""


class ScrapePool:
    """Runs one scraper per target.

    ``make`` builds a target's scraper; ``companions`` run beside each. Equal targets are scraped once; of one that
    was found by several discoveries, the first in the order of `run` counts.
    """

    def __init__(self, make: Callable[[Target], Scraper], companions: Sequence[Companion] = ()) -> None:
        self._make = make
        self._companions = companions
        self._scrapers: dict[Target, Scraper] = {}
        self._tasks: dict[Target, list[asyncio.Task[None]]] = {}
        self._found: dict[Discovery, Sequence[Target]] = {}
        self._changing = asyncio.Lock()

    @property
    def scrapers(self) -> tuple[Scraper, ...]:
        return tuple(self._scrapers.values())

    def status(self) -> list[TargetStatus]:
        """One row per target, by job and instance."""
        return sorted((s.status() for s in self._scrapers.values()), key=lambda row: (row.job, row.instance, row.url))

    def problems(self) -> list[str]:
        """What discoveries could not read, one sentence each."""
        return [problem for discovery in self._found for problem in discovery.problems]

    def last_good_ms(self, target: Target) -> int | None:
        """When the target's last good scrape began; None if there was none (or it is not a target)."""
        scraper = self._scrapers.get(target)
        return scraper.last_good_ms if scraper else None

    async def run(self, discoveries: Sequence[Discovery]) -> None:
        """Follow the discoveries until cancelled; then stop scraping, without marking anything stale."""
        self._found = dict.fromkeys(discoveries, ())
        try:
            async with asyncio.TaskGroup() as group:
                for discovery in discoveries:
                    group.create_task(self._follow(discovery))
        finally:
            await self.close()

    async def update(self, targets: Iterable[Target]) -> None:
        """Scrape exactly these targets from now on. A target that is gone gets its stale markers."""
        async with self._changing:
            wanted = dict.fromkeys(targets)
            for target in [t for t in self._scrapers if t not in wanted]:
                scraper = self._scrapers.pop(target)
                await self._stop(self._tasks.pop(target))
                scraper.finish()
            for target in wanted:
                if target not in self._scrapers:
                    scraper = self._scrapers[target] = self._make(target)
                    work = [scraper.run(), *(companion(scraper) for companion in self._companions)]
                    self._tasks[target] = [asyncio.create_task(task) for task in work]
            self._count()

    async def close(self) -> None:
        """End all scraping. A process that stops is not a target that is gone, so nothing is marked stale."""
        async with self._changing:
            await self._stop([task for tasks in self._tasks.values() for task in tasks])
            self._tasks.clear()
            self._scrapers.clear()

    async def _follow(self, discovery: Discovery) -> None:
        while True:
            with guard("discovery"):
                self._found[discovery] = await discovery.refresh(self.last_good_ms)
                await self.update(self._merged())
            await asyncio.sleep(discovery.poll_seconds)

    def _merged(self) -> list[Target]:
        """Every target once. What was found by its port only is left out where it was also named."""
        named = {_endpoint(t) for found in self._found.values() for t in found if t.discovered_by != "ports"}
        return [
            t
            for found in self._found.values()
            for t in found
            if t.discovered_by != "ports" or _endpoint(t) not in named
        ]

    def _count(self) -> None:
        counts = Counter(target.discovered_by for target in self._scrapers)
        for kind in ("static", "file_sd", "ports"):
            selfmetrics.targets.labels(kind).set(counts[kind])

    @staticmethod
    async def _stop(tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel until all have ended: a task can lose a cancellation (`asyncio.wait_for` up to Python 3.11 does when
        what it waits for is done at the same moment)."""
        running = set(tasks)
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=1.0)


def _endpoint(target: Target) -> tuple[str, int]:
    host = target.address.host
    return ("127.0.0.1" if host in ("localhost", "::1") else host, target.address.port)
