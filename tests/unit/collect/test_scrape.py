"""One target's scraper: real reader, fakes for the network, the translator and the sink.

Expected values follow Prometheus's documentation of staleness and of the automatically generated series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from loms.collect.protocols import Plan, Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core import guard
from loms.core.clock import ManualClock
from loms.core.errors import TargetError
from loms.core.model import Floats, Ids, Ints, Labels, SampleBatch, Series, Shape, is_stale, labels_of
from loms.ingest.exposition import ExpositionReader

TARGET = Target(job="vllm", instance="h:8000", url="http://h:8000/metrics", interval_seconds=5)
IDENTITY = labels_of({"job": "vllm", "instance": "h:8000"})
STALE = "stale"


class FakeFetcher:
    """Answers with the given bodies or errors, in order; the last one stays."""

    def __init__(self, clock: ManualClock, answers: Sequence[str | TargetError], seconds: float = 0.0) -> None:
        self.answers = list(answers)
        self.clock = clock
        self.seconds = seconds
        self.running = 0
        self.most_at_once = 0

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0)
        self.clock.advance(self.seconds)
        self.running -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TargetError):
            raise answer
        return Response(200, "text/plain", answer.encode())


@dataclass(frozen=True)
class FakePlan:
    """Doubles the value at each position of ``doubled``."""

    doubled: tuple[int, ...] = ()
    derived: tuple[Series, ...] = ()
    aliases: tuple[Series, ...] = ()
    keep: Ints | None = None
    engine: str = "fake"
    version: str = "1"
    model: str = "m"

    def derive(self, values: Floats, /) -> Floats:
        return 2.0 * values[list(self.doubled)]


@dataclass
class FakeTranslator:
    """Serves the plans in order, one per call; the last one stays."""

    plans: list[Plan] = field(default_factory=lambda: [FakePlan()])
    raw_ids: list[Ids] = field(default_factory=list)

    def plan(self, shape: Shape, raw_ids: Ids, /) -> Plan:
        self.raw_ids.append(raw_ids)
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]


class BrokenTranslator:
    def plan(self, shape: Shape, raw_ids: Ids, /) -> Plan:
        raise ZeroDivisionError


class Bench:
    """A scraper with everything around it, and what came out in readable form."""

    def __init__(
        self,
        *answers: str | TargetError,
        target: Target = TARGET,
        translator: FakeTranslator | BrokenTranslator | None = None,
        seconds: float = 0.0,
        timer_error: float = 0.0,
    ) -> None:
        """``seconds``: how long a fetch takes. ``timer_error``: how much too late (or early) the loop's timer fires."""
        self.timer_error = timer_error
        self.clock = ManualClock(now_ms=1_000_000)
        self.fetcher = FakeFetcher(self.clock, answers, seconds)
        self.batches: list[SampleBatch] = []
        self.enough = (0, asyncio.Event())
        """How many batches to wait for, and what to set then."""
        self.translator = translator or FakeTranslator()
        self.scraper = Scraper(
            target,
            fetcher=self.fetcher,
            reader=ExpositionReader(),
            translator=self.translator,
            sink=self._take,
            clock=self.clock,
            sleep=self._sleep,
        )

    def _take(self, batch: SampleBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) == self.enough[0]:
            self.enough[1].set()

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(max(0.0, seconds + self.timer_error))
        await asyncio.sleep(0)

    def scrape(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self._scrape())

    async def _scrape(self) -> None:
        await self.scraper.scrape_now()
        self.clock.advance(5)

    def rows(self, batch: int) -> dict[str, Labels]:
        return {s.name: s.labels for s in self.batches[batch].series}

    def samples(self, batch: int) -> dict[str, float | str]:
        """Name (with its own labels) → value or STALE, checked to be written once."""
        known = {s.id: s for b in self.batches for s in b.series}
        found: dict[str, float | str] = {}
        b = self.batches[batch]
        for series, value, stale in zip(b.series_ids.tolist(), b.values.tolist(), is_stale(b.values), strict=True):
            s = known[series]
            own = ",".join(f"{k}={v}" for k, v in s.labels if (k, v) not in IDENTITY)
            name = f"{s.name}{{{own}}}" if own else s.name
            assert name not in found
            found[name] = STALE if stale else value
        return found

    def of_target(self, batch: int) -> dict[str, float | str]:
        """Without the series that the scraper makes itself."""
        own = ("up", "scrape_", "loms_scrape_failed")
        return {name: value for name, value in self.samples(batch).items() if not name.startswith(own)}


def test_a_good_scrape() -> None:
    bench = Bench('a{x="1"} 2\nb 3\na{x="1"} 9\n', seconds=0.25)
    bench.scrape()
    assert bench.samples(0) == {
        "a{x=1}": 2.0,
        "b": 3.0,
        "up": 1.0,
        "scrape_duration_seconds": 0.25,
        "scrape_samples_scraped": 3.0,
        "scrape_samples_post_metric_relabeling": 3.0,
        "scrape_series_added": 2.0,
    }
    assert set(bench.batches[0].timestamps_ms.tolist()) == {1_000_000}, "all carry the scrape's start"
    assert bench.rows(0)["a"] == labels_of({**dict(IDENTITY), "x": "1"})
    assert bench.rows(0)["up"] == IDENTITY
    assert all(Series.of(s.name, s.labels) == s for s in bench.batches[0].series)


def test_an_unchanged_shape_brings_no_rows_and_the_same_ids() -> None:
    bench = Bench("a 1\n", "a 2\n")
    bench.scrape(2)
    assert bench.batches[1].series == ()
    assert bench.batches[1].series_ids is bench.batches[0].series_ids
    assert bench.samples(1)["scrape_series_added"] == 0.0
    assert bench.of_target(1) == {"a": 2.0}


def test_a_series_that_vanishes_gets_one_marker_at_the_next_scrapes_time() -> None:
    bench = Bench("a 1\nb 1\n", "a 2\n", "a 3\n", "a 4\nb 4\n")
    bench.scrape(4)
    assert [bench.of_target(i) for i in range(4)] == [
        {"a": 1.0, "b": 1.0},
        {"a": 2.0, "b": STALE},
        {"a": 3.0},
        {"a": 4.0, "b": 4.0},
    ]
    assert set(bench.batches[1].timestamps_ms.tolist()) == {1_005_000}
    assert [bench.samples(i)["scrape_series_added"] for i in range(4)] == [2.0, 0.0, 0.0, 1.0]
    assert set(bench.rows(3)) == {"b"}


def test_a_failed_scrape_ends_everything_and_says_why() -> None:
    bench = Bench("a 1\n", TargetError("it is gone", reason="refused", hint="start it"), "a 2\n")
    bench.scrape(2)
    assert bench.samples(1) == {
        "a": STALE,
        "up": 0.0,
        "scrape_duration_seconds": 0.0,
        "scrape_samples_scraped": 0.0,
        "scrape_samples_post_metric_relabeling": 0.0,
        "scrape_series_added": 0.0,
        "loms_scrape_failed{reason=refused}": 1.0,
    }
    assert set(bench.batches[1].timestamps_ms.tolist()) == {1_005_000}
    status = bench.scraper.status()
    assert (status.up, status.health, status.last_error) == (False, "down", "it is gone (start it)")

    bench.scrape()
    assert bench.of_target(2) == {"a": 2.0}
    assert bench.samples(2)["loms_scrape_failed{reason=refused}"] == STALE
    assert bench.samples(2)["scrape_series_added"] == 0.0, "as in Prometheus: known from the last good scrape"
    assert bench.scraper.status().health == "up"


def test_a_clock_that_is_put_right_is_followed_back() -> None:
    """It ran an hour ahead; samples of the future would not be stored."""
    bench = Bench("a 1\n", "a 2\n", "a 3\n")
    bench.clock.advance(3600)
    bench.scrape()
    bench.clock._start_ms -= 3_600_000
    bench.scrape(2)
    ahead, *right = [int(batch.timestamps_ms[0]) for batch in bench.batches]
    assert ahead == 1_000_000 + 3_600_000
    assert right == [1_005_000, 1_010_000]


def test_a_clock_that_is_slewed_back_a_little_is_not() -> None:
    bench = Bench("a 1\n", "a 2\n")
    bench.scrape()
    bench.clock._start_ms -= 5_500
    bench.scrape()
    first, second = (int(batch.timestamps_ms[0]) for batch in bench.batches)
    assert second == first + 1


def test_another_reason_ends_the_one_before() -> None:
    refused, timeout = (TargetError(r, reason=r) for r in ("refused", "timeout"))
    bench = Bench(refused, refused, timeout)
    bench.scrape(3)
    failed = [{k: v for k, v in bench.samples(i).items() if k.startswith("loms")} for i in range(3)]
    assert failed == [
        {"loms_scrape_failed{reason=refused}": 1.0},
        {"loms_scrape_failed{reason=refused}": 1.0},
        {"loms_scrape_failed{reason=timeout}": 1.0, "loms_scrape_failed{reason=refused}": STALE},
    ]


@pytest.mark.parametrize(
    ("body", "reason", "complaint"),
    [
        ("a 1\nb x\n", "malformed", "http://h:8000/metrics: line 2: the value 'x' is not a number: 'b x'"),
        ("a 1\nb 1\nc 1\n", "too_many_samples", "http://h:8000/metrics: there are 3 samples, more than the limit of 2"),
    ],
)
def test_an_exposition_that_is_refused(body: str, reason: str, complaint: str) -> None:
    bench = Bench("a 1\n", body, target=replace(TARGET, sample_limit=2))
    bench.scrape(2)
    assert bench.of_target(1) == {"a": STALE}
    assert bench.samples(1)[f"loms_scrape_failed{{reason={reason}}}"] == 1.0
    assert complaint in bench.scraper.status().last_error


def test_timestamps_in_the_text_are_kept_and_their_series_never_marked() -> None:
    bench = Bench("a 1 77\nb 1\n", "b 1\n", TargetError("gone", reason="refused"))
    bench.scrape(3)
    times = dict(zip(bench.samples(0), bench.batches[0].timestamps_ms.tolist(), strict=True))
    assert (times["a"], times["b"], times["up"]) == (77, 1_000_000, 1_000_000)
    assert [bench.of_target(i) for i in range(3)] == [{"a": 1.0, "b": 1.0}, {"b": 1.0}, {"b": STALE}]


def test_timestamps_can_be_ignored() -> None:
    bench = Bench("a 1 77\n", "b 1\n", target=replace(TARGET, honor_timestamps=False))
    bench.scrape(2)
    assert set(bench.batches[0].timestamps_ms.tolist()) == {1_000_000}
    assert bench.of_target(1) == {"a": STALE, "b": 1.0}


def test_a_target_that_goes_leaves_markers_for_all_of_its_series() -> None:
    bench = Bench("a 1\n")
    bench.scrape()
    bench.scraper.finish()
    meta = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
    more = ("scrape_samples_post_metric_relabeling", "scrape_series_added")
    assert bench.samples(1) == dict.fromkeys(("a", *meta, *more), STALE)


def test_a_target_that_goes_while_it_fails() -> None:
    bench = Bench("a 1\n", TargetError("gone", reason="refused"))
    bench.scrape(2)
    bench.scraper.finish()
    assert bench.of_target(2) == {}, "its series ended with the failure"
    assert bench.samples(2)["up"] == STALE
    assert bench.samples(2)["loms_scrape_failed{reason=refused}"] == STALE


def test_a_target_that_was_never_scraped_leaves_nothing() -> None:
    bench = Bench("a 1\n")
    bench.scraper.finish()
    assert bench.batches == []
    assert bench.scraper.status().health == "unknown"


def test_time_never_stands_still_within_a_target() -> None:
    bench = Bench("a 1\n")
    for _ in range(3):
        asyncio.run(bench.scraper.scrape_now())
    assert [b.timestamps_ms[0] for b in bench.batches] == [1_000_000, 1_000_001, 1_000_002]


class TestTranslation:
    canonical = Series.of("llm_x", IDENTITY)
    alias = Series(Series.of("a", IDENTITY).id, "llm_a", IDENTITY)

    def test_derived_series_have_samples_and_aliases_have_rows(self) -> None:
        bench = Bench("a 1\nb 4\n", translator=FakeTranslator([FakePlan((1,), (self.canonical,), (self.alias,))]))
        bench.scrape(2)
        assert bench.samples(0)["llm_x"] == 8.0
        assert {self.canonical, self.alias} <= set(bench.batches[0].series)
        assert bench.batches[0].series_ids.tolist().count(self.alias.id) == 1
        assert bench.batches[1].series == ()
        assert bench.scraper.status().engine == "fake"

    def test_the_translator_gets_the_stored_ids_and_the_same_array_while_the_shape_stays(self) -> None:
        translator = FakeTranslator()
        Bench("a 1\nb 4\n", translator=translator).scrape(2)
        assert translator.raw_ids[0].tolist() == [Series.of("a", IDENTITY).id, Series.of("b", IDENTITY).id]
        assert translator.raw_ids[1] is translator.raw_ids[0]

    def test_a_failed_scrape_ends_derived_series(self) -> None:
        plans = FakeTranslator([FakePlan((0,), (self.canonical,))])
        bench = Bench("a 1\n", TargetError("gone", reason="refused"), translator=plans)
        bench.scrape(2)
        assert bench.of_target(1) == {"a": STALE, "llm_x": STALE}

    def test_nan_holds_a_derived_value_back_without_ending_the_series(self) -> None:
        bench = Bench("a 1\n", "a NaN\n", "a 3\n", translator=FakeTranslator([FakePlan((0,), (self.canonical,))]))
        bench.scrape(3)
        assert "llm_x" not in bench.samples(1)
        assert bench.samples(2)["llm_x"] == 6.0
        assert bench.samples(1)["up"] == 1.0

    def test_dropped_raw_series_are_counted_but_not_stored(self) -> None:
        bench = Bench("a 1\nb 4\nc 5\n", translator=FakeTranslator([FakePlan(keep=np.array([0, 2]))]))
        bench.scrape()
        assert bench.of_target(0) == {"a": 1.0, "c": 5.0}
        assert "b" not in bench.rows(0)
        assert bench.samples(0)["scrape_samples_scraped"] == 3.0
        assert bench.samples(0)["scrape_samples_post_metric_relabeling"] == 2.0
        assert bench.samples(0)["scrape_series_added"] == 2.0

    def test_a_new_plan_for_the_same_shape(self) -> None:
        other = Series.of("llm_y", IDENTITY)
        plans: list[Plan] = [FakePlan((0,), (self.canonical,), keep=np.array([0])), FakePlan((1,), (other,))]
        bench = Bench("a 1\nb 4\n", translator=FakeTranslator(plans))
        bench.scrape(2)
        assert bench.of_target(0) == {"a": 1.0, "llm_x": 2.0}
        assert bench.of_target(1) == {"a": 1.0, "b": 4.0, "llm_y": 8.0, "llm_x": STALE}
        assert set(bench.rows(1)) == {"b", "llm_y"}

    def test_a_broken_translator_costs_no_raw_sample(self, caplog: pytest.LogCaptureFixture) -> None:
        failures = guard.failures["translate"]
        bench = Bench("a 1\n", translator=BrokenTranslator())
        bench.scrape()
        assert bench.of_target(0) == {"a": 1.0}
        assert bench.samples(0)["up"] == 1.0
        assert guard.failures["translate"] == failures + 1


class TestLoop:
    """Slots are at offset + n·interval, whatever happened before."""

    interval_ms = 5000
    offset_ms = round(TARGET.offset_seconds * 1000)

    def times(self, bench: Bench, scrapes: int) -> list[int]:
        async def run() -> None:
            task = asyncio.create_task(bench.scraper.run())
            bench.enough = (scrapes, asyncio.Event())
            await bench.enough[1].wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())
        return [int(b.timestamps_ms[0]) for b in bench.batches[:scrapes]]

    def test_every_slot(self) -> None:
        first, *more = self.times(Bench("a 1\n"), 4)
        assert first % self.interval_ms == self.offset_ms
        assert 1_000_000 < first <= 1_005_000
        assert more == [first + 5000, first + 10_000, first + 15_000]

    def test_slots_that_a_long_scrape_ran_over_are_left_out(self) -> None:
        first, second, *_ = self.times(Bench("a 1\n", seconds=7), 2)
        assert second == first + 10_000

    def test_a_timer_that_fires_early_does_not_make_a_slot_twice(self) -> None:
        first, *more = self.times(Bench("a 1\n", timer_error=-0.001), 3)
        assert more == [first + 5000, first + 10_000]

    def test_a_late_scrape_carries_its_own_time(self) -> None:
        first, second = self.times(Bench("a 1\n", timer_error=0.3), 2)
        assert first % self.interval_ms == self.offset_ms + 300
        assert second == first + 5000

    def test_scrapes_of_one_target_never_overlap(self) -> None:
        bench = Bench("a 1\n")

        async def run() -> None:
            await asyncio.gather(*(bench.scraper.scrape_now() for _ in range(5)))

        asyncio.run(run())
        assert len(bench.batches) == 5
        assert bench.fetcher.most_at_once == 1


def test_a_good_scrape_says_what_is_wrong_with_it_all_the_same() -> None:
    clock = ManualClock(1_000_000)
    remarks = iter(["", "7 series are too many", "7 series are too many"])
    scraper = Scraper(
        TARGET,
        fetcher=FakeFetcher(clock, ["a 1\n", "a 1\n", "a 1\na 2\n"]),
        reader=ExpositionReader(),
        translator=FakeTranslator(),
        sink=lambda _: None,
        clock=clock,
        remark=lambda: next(remarks),
    )
    expected = (
        "",
        "http://h:8000/metrics: 7 series are too many",
        "http://h:8000/metrics: 1 samples repeat a series; the first of each counts; 7 series are too many",
    )
    for message in expected:
        asyncio.run(scraper.scrape_now())
        status = scraper.status()
        assert (status.up, status.last_error) == (True, message)
