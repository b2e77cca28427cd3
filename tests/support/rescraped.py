"""What live scraping of a run of recorded texts writes: what putting scrapes together again is held against."""

from __future__ import annotations

import asyncio
import gzip
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.errors import TargetError
from loms.core.model import Labels, Metadata, SampleBatch, is_stale
from loms.engines.engine import Identity
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[1] / "data"
START, STEP = 1_800_000_000_000, 15_000
TEXT = "text/plain; version=0.0.4"
OURS = ("llm_", "gen_ai_", "loms_", "http_server_", "hw_")
"""How canonical series and LOMS's own begin."""
Samples = dict[Labels, dict[int, float]]


class Texts:
    """Answers one text after the other; None is a refused connection."""

    def __init__(self, clock: ManualClock, texts: Iterable[str | None]) -> None:
        self._clock, self._texts = clock, iter(texts)

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        text = next(self._texts)
        if text is None:
            raise TargetError("refused", reason="refused")
        return Response(200, TEXT, text.encode())


def run_of(name: str) -> list[str]:
    files = sorted((DATA / name).iterdir(), key=lambda file: int(file.name.partition(".")[0]))
    return [gzip.decompress(file.read_bytes()).decode() for file in files]


def live(texts: Sequence[str | None], target: Target) -> list[SampleBatch]:
    """What LOMS writes when it scrapes this target every 15 s."""
    clock, batches = ManualClock(START), list[SampleBatch]()
    translator = Translator(target.identity)
    translator.identified(Identity())
    scraper = Scraper(
        target,
        fetcher=Texts(clock, texts),
        reader=ExpositionReader(),
        translator=translator,
        sink=batches.append,
        clock=clock,
    )

    async def scrape() -> None:
        for _ in texts:
            await scraper.scrape_now()
            clock.advance(STEP / 1000)

    asyncio.run(scrape())
    return batches


def samples_of(batches: Iterable[SampleBatch]) -> Samples:
    """Series (with ``__name__``, aliases as well) → samples; a staleness marker is infinite."""
    names: dict[int, set[Labels]] = defaultdict(set)
    found: Samples = defaultdict(dict)
    for batch in batches:
        for series in batch.series:
            names[series.id].add(tuple(sorted((*series.labels, ("__name__", series.name)))))
        values = np.where(is_stale(batch.values), np.inf, batch.values)
        for one, at, value in zip(
            batch.series_ids.tolist(), batch.timestamps_ms.tolist(), values.tolist(), strict=True
        ):
            for labels in names[one]:
                found[labels][at] = value
    return found


def types_of(texts: Sequence[str | None]) -> dict[str, Metadata]:
    found = ExpositionReader().read(next(text for text in texts if text).encode(), TEXT).shape.types
    return {family: Metadata(family, kind) for family, kind in found.items()}
