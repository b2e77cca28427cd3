"""What translation adds to a scrape: the same scrapes with and without it, in turns.

One target's scraper (`loms.collect.scrape`) takes expositions from memory and gives its batches to nobody, so that what
remains is reading, translating and arranging columns. Each recording's values grow from scrape to scrape. Rounds with
and without translation take turns, so that a busy machine weighs on both; CPU time is what counts, and the median.

``--json`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingest import variants

from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.model import Floats, Ids, Ints, Labels, SampleBatch, Series, Shape
from loms.engines.engine import Identity
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[1] / "tests/data"
RECORDINGS = {
    "vllm 0.32": "vllm-0.32.0/loaded.txt",
    "sglang 0.5.23": "sglang-0.5.23/loaded.txt",
    "triton 2.51": "triton-2.51.0/loaded.txt",
    "llama.cpp b11434": "llamacpp-11434.0.0/loaded.txt",
    "tgi 3.3": "written/tgi-3.3.7.txt",
    "tensorrt-llm 1.3": "written/tensorrt-llm-1.3.0.txt",
    "dynamo worker 1.6": "written/dynamo-1.6.1-worker.txt",
    "dcgm 4.5": "written/dcgm-4.5.3.txt",
}
SCRAPES = 64


class Memory:
    """A fetcher that answers from memory."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        self._bodies = bodies
        self._turn = 0

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        self._turn += 1
        return Response(200, "text/plain; version=0.0.4", self._bodies[self._turn % len(self._bodies)])


class Nothing:
    """A plan, and the translator that makes it, for a target of which nothing is known."""

    engine = version = model = ""
    aliases: tuple[Series, ...] = ()
    derived: tuple[Series, ...] = ()
    labels: Labels = ()
    keep: Ints | None = None

    def plan(self, shape: Shape, raw_ids: Ids, /) -> Nothing:
        return self

    def derive(self, values: Floats, /) -> Floats:
        return values[:0]


class Bench:
    """One target, scraped ``SCRAPES`` times a round."""

    def __init__(self, bodies: Sequence[bytes], translator: Translator | Nothing) -> None:
        self.rows = 0
        self._clock = ManualClock(1_790_000_000_000)
        self._target = Target("bench", "127.0.0.1:8000", "http://127.0.0.1:8000/metrics")
        self.translator = translator
        self._scraper = Scraper(
            self._target,
            fetcher=Memory(bodies),
            reader=ExpositionReader(),
            translator=translator,
            sink=self._take,
            clock=self._clock,
        )

    def _take(self, batch: SampleBatch) -> None:
        self.rows = len(batch)

    async def round(self) -> float:
        """Microseconds of CPU for one scrape."""
        began = time.process_time()
        for _ in range(SCRAPES):
            self._clock.advance(5)
            await self._scraper.scrape_now()
        return (time.process_time() - began) / SCRAPES * 1e6


def reading(bodies: Sequence[bytes], reader: ExpositionReader) -> float:
    """Microseconds of CPU to read one exposition."""
    began = time.process_time()
    for body in bodies:
        reader.read(body, "text/plain; version=0.0.4")
    return (time.process_time() - began) / len(bodies) * 1e6


async def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, of one recording."""
    bodies = variants(path)
    translator = Translator((("instance", "127.0.0.1:8000"), ("job", "bench")))
    translator.identified(Identity("", "m"))
    bare, whole, reader = Bench(bodies, Nothing()), Bench(bodies, translator), ExpositionReader()
    began = time.process_time()
    await bare.round()
    cold_bare = time.process_time() - began
    began = time.process_time()
    await whole.round()
    cold = time.process_time() - began
    reading(bodies, reader)
    times: dict[str, list[float]] = {"read": [], "without": [], "with": []}
    for _ in range(rounds):
        times["read"].append(reading(bodies, reader))
        times["without"].append(await bare.round())
        times["with"].append(await whole.round())
    read, without, with_it = (statistics.median(values) for values in times.values())
    return {
        "engine": translator.engine,
        "samples": len(reader.read(bodies[0], "text/plain").values),
        "rows_without": bare.rows,
        "rows_with": whole.rows,
        "read_us": round(read, 1),
        "scrape_without_us": round(without, 1),
        "scrape_with_us": round(with_it, 1),
        "translation_us": round(with_it - without, 1),
        "on_top_of_reading": round((with_it - without) / read, 3),
        "on_top_of_scrape": round((with_it - without) / without, 3),
        "first_plan_ms": round((cold - cold_bare) * 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = {}
    for name, file in RECORDINGS.items():
        results[name] = asyncio.run(measure(DATA / file, 7 if options.quick else 41))
        if not options.json:
            one = results[name]
            scrape = f"scrape {one['scrape_without_us']:6.0f} → {one['scrape_with_us']:6.0f} µs"
            share = f"{one['on_top_of_reading']:5.0%} of reading, {one['on_top_of_scrape']:5.0%} of the scrape"
            print(
                f"{name:18} {one['samples']:5} samples  read {one['read_us']:6.0f} µs  {scrape}"
                f"  translation {one['translation_us']:5.0f} µs = {share}",
                flush=True,
            )
    if options.json:
        print(json.dumps({"machine": platform.platform(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
