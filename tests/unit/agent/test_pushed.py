"""What is pushed of engines becomes the canonical series that scraping them would have written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from support.rescraped import OURS, START, STEP, live, run_of, samples_of, types_of

from loms.agent.pushed import FORGET_SECONDS, SETTLE_SECONDS, Pushed
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.model import Metadata, SampleBatch, Series
from loms.core.semconv import is_canonical

PLACE = ("llm", "e:8000")
TARGET = Target(*PLACE, "http://e:8000/metrics", labels=(("cluster", "north"), ("deployment_zone", "z")))


def raw_only(batch: SampleBatch, known: dict[int, Series]) -> SampleBatch:
    """A scrape as a Prometheus sends it on: its raw series, each named."""
    known.update((one.id, one) for one in batch.series if not one.name.startswith(OURS))
    kept = np.array([one in known for one in batch.series_ids.tolist()])
    ids = batch.series_ids[kept]
    return SampleBatch(ids, batch.timestamps_ms[kept], batch.values[kept], tuple(known[one] for one in ids.tolist()))


def pieces(batch: SampleBatch, count: int, chance: random.Random) -> Iterable[SampleBatch]:
    """The batch in any order, in parts."""
    order = np.array(chance.sample(range(len(batch)), len(batch)))
    names = {one.id: one for one in batch.series}
    for part in np.array_split(order, count):
        ids = batch.series_ids[part]
        series = tuple(names[one] for one in ids.tolist())
        yield SampleBatch(ids, batch.timestamps_ms[part], batch.values[part], series)


class Receiver:
    def __init__(self, scraped: bool = False, metadata: dict[str, Metadata] | None = None) -> None:
        self.clock, self.written = ManualClock(START), list[SampleBatch]()
        self.pushed = Pushed(self.written.append, self.clock, lambda: metadata or {}, lambda job, instance: scraped)

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        self.clock.advance(seconds)
        asyncio.run(self.pushed.look())


@pytest.mark.parametrize("run", ["vllm-0.32.0/run-full", "sglang-0.5.23/run-full", "triton-2.51.0/run"])
def test_canonical_series_are_those_of_live_scraping(run: str) -> None:
    texts: list[str | None] = [*run_of(run)]
    texts[3:3] = [None, None]
    batches = live(texts, TARGET)
    receiver, known, chance = Receiver(metadata=types_of(texts)), dict[int, Series](), random.Random(run)
    for batch in batches:
        for piece in pieces(raw_only(batch, known), 4, chance):
            receiver.pushed(piece)
        receiver.settle()
    written, ours = samples_of(batches), samples_of(receiver.written)
    raw = {one.id: one for batch in batches for one in batch.series if not one.name.startswith(OURS)}
    samples = {one for batch in receiver.written for one in batch.series_ids.tolist()}
    assert not samples & raw.keys(), "raw samples are stored by others"
    own = {one for one in written if dict(one)["__name__"].startswith(OURS)}
    aliases = {s for batch in batches for s in batch.series if is_canonical(s.name) and s.id in raw}
    assert {(one.name, one.labels) for one in aliases} <= {
        (one.name, one.labels) for batch in receiver.written for one in batch.series
    }
    names = {one.name for one in aliases}
    for labels in own:
        if dict(labels)["__name__"] not in names:
            assert ours[labels] == written[labels], labels
    status = receiver.pushed.engines()
    assert [(row.engine, row.instance, row.up) for row in status] == [(run.partition("-")[0], "e:8000", True)]


def test_a_scrape_is_translated_only_when_it_has_settled() -> None:
    batch = raw_only(live([run_of("vllm-0.32.0/run-full")[0]], TARGET)[0], {})
    receiver = Receiver()
    receiver.pushed(batch)
    receiver.settle(SETTLE_SECONDS / 2)
    assert receiver.written == []
    receiver.settle(SETTLE_SECONDS / 2)
    assert receiver.written


def test_what_comes_late_and_what_is_scraped_here_adds_nothing() -> None:
    texts = run_of("vllm-0.32.0/run-full")[:2]
    known = dict[int, Series]()
    first, second = (raw_only(batch, known) for batch in live(texts, TARGET))
    receiver = Receiver()
    receiver.pushed(second)
    receiver.settle()
    before = len(receiver.written)
    receiver.pushed(first)
    receiver.settle()
    assert before > 0
    assert len(receiver.written) == before
    here = Receiver(scraped=True)
    here.pushed(second)
    here.settle()
    assert here.written == []


def replica(name: str, shift_ms: int, scrapes: int) -> list[SampleBatch]:
    """What a server with ``external_labels: {ha: name}`` sends of an engine whose counter grows by 150 a scrape."""
    raw = []
    texts = [
        "# TYPE vllm:generation_tokens_total counter\n"
        f'vllm:generation_tokens_total{{model_name="m"}} {150 * n + shift_ms / 100}\n'
        f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="m"}} {n}\n'
        for n in range(scrapes)
    ]
    known = dict[int, Series]()
    for batch in live(texts, Target(*PLACE, "http://e:8000/metrics", labels=(("ha", name),))):
        one = raw_only(batch, known)
        raw.append(SampleBatch(one.series_ids, one.timestamps_ms + shift_ms, one.values, one.series))
    return raw


def test_of_two_servers_that_scrape_the_same_engine_one_counts() -> None:
    receiver = Receiver()
    for a, b in zip(replica("a", 0, 12), replica("b", 4000, 12), strict=True):
        receiver.pushed(a)
        receiver.settle(5)
        receiver.pushed(b)
        receiver.settle(10)
    tokens = {
        labels: points
        for labels, points in samples_of(receiver.written).items()
        if dict(labels)["__name__"] == "llm_engine_tokens_output_total" and "ha" not in dict(labels)
    }
    (points,) = tokens.values()
    values = [value for _, value in sorted(points.items())]
    assert len(values) >= 10
    assert {later - earlier for earlier, later in pairwise(values)} == {150.0}


def test_when_one_server_falls_silent_the_other_counts() -> None:
    receiver = Receiver()
    a, b = replica("a", 0, 3), replica("b", 4000, 12)
    for n, late in enumerate(b):
        if n < len(a):
            receiver.pushed(a[n])
        receiver.settle(5)
        receiver.pushed(late)
        receiver.settle(10)
    newest = max(at for batch in receiver.written for at in batch.timestamps_ms.tolist())
    assert newest == START + 11 * STEP + 4000


def test_what_is_left_when_it_ends_is_translated_at_once_and_a_later_one_goes_on() -> None:
    batches = [raw_only(one, {}) for one in live(run_of("vllm-0.32.0/run-full")[:2], TARGET)]
    known = {one.id: one for batch in batches for one in batch.series}
    second = SampleBatch(
        batches[0].series_ids, batches[0].timestamps_ms + STEP, batches[0].values + 1, tuple(known.values())
    )
    first = Receiver()
    first.pushed(batches[0])
    asyncio.run(first.pushed.finish())
    assert {at for batch in first.written for at in batch.timestamps_ms.tolist()} == {START}
    asked = []

    def left(place: tuple[str, str]) -> tuple[int, SampleBatch]:
        asked.append(place)
        return START, second

    clock, written = ManualClock(START + 2 * STEP), list[SampleBatch]()
    again = Pushed(written.append, clock, dict, lambda *_: False, left)
    third = SampleBatch(second.series_ids, second.timestamps_ms + STEP, second.values + 1, second.series)
    again(third)
    for _ in range(2):
        clock.advance(SETTLE_SECONDS)
        asyncio.run(again.look())
    assert asked == [PLACE]
    assert {at for batch in written for at in batch.timestamps_ms.tolist()} == {START + STEP, START + 2 * STEP}


def test_other_exporters_are_left_alone_and_targets_forgotten() -> None:
    receiver = Receiver()
    series = Series.of("node_load1", (("instance", "n:9100"), ("job", "node")))
    up = Series.of("up", (("instance", "n:9100"), ("job", "node")))
    ids = np.array([series.id, up.id], dtype=np.uint64)
    receiver.pushed(SampleBatch(ids, np.full(2, START), np.ones(2), (series, up)))
    receiver.settle()
    assert (receiver.written, receiver.pushed.engines()) == ([], [])
    receiver.pushed(raw_only(live([run_of("vllm-0.32.0/run-full")[0]], TARGET)[0], {}))
    receiver.settle()
    assert receiver.pushed.engines()
    receiver.settle(FORGET_SECONDS + STEP)
    assert receiver.pushed.engines() == []
