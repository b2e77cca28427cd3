"""The probe against a scripted engine: the real reader and translator, fakes for what is outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from loms.collect.probe import Answer, Probe, Recall, Usage
from loms.collect.protocols import ScrapeOutcome
from loms.collect.targets import ProbeSettings, Target
from loms.core.clock import ManualClock
from loms.core.errors import StoreError
from loms.core.model import Exposition, SampleBatch, Series, is_stale, labels_of
from loms.engines.engine import Identity
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

TARGET = Target(
    "engines",
    "127.0.0.1:8000",
    "http://127.0.0.1:8000/metrics",
    labels=labels_of({"deployment_zone": "lab"}),
    probe=ProbeSettings(interval_seconds=15, deadline_seconds=8),
)
INPUT = "llm_engine_tokens_input_total"


@dataclass
class Bench:
    """A world of one engine: its counters, its scraper, the probe, and what was written."""

    settings: ProbeSettings = TARGET.probe
    recall: Recall | None = None
    restoring: bool = False
    engine_text: Callable[[Bench], str] = lambda bench: bench.vllm()
    requests: int = 0
    tokens: int = 0
    running: int = 0
    reachable: bool = True
    answer: Callable[[Bench], Awaitable[Answer]] | None = None
    asked: list[tuple[int, str]] = field(default_factory=list)
    batches: list[SampleBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.target = replace(TARGET, probe=self.settings)
        self.translator = Translator(self.target.identity, restoring=self.restoring)
        self.reader = ExpositionReader()
        self.last: ScrapeOutcome | None = None
        self.names: dict[int, Series] = {}
        self.canonical: dict[str, float] = {}
        self.probe = Probe(self, self.translator, self.write, self.clock, self.ask, self.recall)

    def vllm(self) -> str:
        own = 'engine="0",model_name="smol"'
        return (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{own}}} {self.running}\n"
            f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{{{own}}} {2 * self.tokens}\n"
            f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{{{own}}} {self.tokens}\n"
            "# TYPE vllm:request_success_total counter\n"
            f'vllm:request_success_total{{{own},finished_reason="length"}} {self.requests}\n'
        )

    async def scrape_now(self) -> ScrapeOutcome:
        if not self.reachable:
            self.last = ScrapeOutcome(self.clock.now_ms(), 0.0, reason="timeout", message="no answer")
            return self.last
        exposition = self.reader.read(self.engine_text(self).encode(), "text/plain")
        plan = self.translator.plan(exposition.shape, self.ids(exposition))
        derived = plan.derive(exposition.values)
        self.canonical |= {s.name: v for s, v in zip(plan.derived, derived.tolist(), strict=True) if v == v}
        self.last = ScrapeOutcome(self.clock.now_ms(), 0.001, exposition, plan)
        return self.last

    def ids(self, exposition: Exposition) -> np.ndarray:
        if getattr(self, "_shape", None) is not exposition.shape:
            self._shape = exposition.shape
            pairs = zip(exposition.shape.names, exposition.shape.labels, strict=True)
            own = dict(self.target.identity)
            self._ids = np.array([Series.of(n, labels_of({**dict(ls), **own})).id for n, ls in pairs], dtype=np.uint64)
        return self._ids

    async def ask(self, target: Target, model: str) -> Answer:
        self.asked.append((self.clock.now_ms(), model))
        return await self.answer(self) if self.answer else await answered(self)

    def write(self, batch: SampleBatch) -> None:
        self.batches.append(batch)
        self.names |= {series.id: series for series in batch.series}

    def pass_seconds(self, seconds: int, each: Callable[[], None] = lambda: None) -> None:
        """Scrape once a second, as the loop would, and let the probe look."""

        async def run() -> None:
            for _ in range(seconds):
                each()
                await self.scrape_now()
                await self.probe.tick()
                self.clock.advance(1)

        asyncio.run(run())

    def written(self, name: str, **labels: str) -> list[float]:
        """All values of one series, in order."""
        wanted = {i for i, s in self.names.items() if s.name == name and labels.items() <= dict(s.labels).items()}
        return [
            v
            for b in self.batches
            for i, v in zip(b.series_ids.tolist(), b.values.tolist(), strict=True)
            if i in wanted
        ]

    def times(self, name: str) -> list[tuple[int, bool]]:
        """Time in ms of each sample of one series, in the order of writing, and whether it is a stale marker."""
        wanted = {i for i, s in self.names.items() if s.name == name}
        return [
            (at, bool(is_stale(np.array([v]))[0]))
            for b in self.batches
            for i, at, v in zip(b.series_ids.tolist(), b.timestamps_ms.tolist(), b.values.tolist(), strict=True)
            if i in wanted
        ]

    def outcomes(self) -> dict[str, float]:
        found = {dict(s.labels)["outcome"] for s in self.names.values() if s.name == "loms_probe_requests_total"}
        counts = {outcome: self.written("loms_probe_requests_total", outcome=outcome)[-1] for outcome in found}
        return {outcome: count for outcome, count in counts.items() if count}


async def answered(bench: Bench) -> Answer:
    bench.requests, bench.tokens = bench.requests + 1, bench.tokens + 1
    bench.clock.advance(0.25)
    return Answer("ok", True, Usage(2, 1, 0, "length"))


async def silent(bench: Bench) -> Answer:
    bench.clock.advance(8)
    return Answer("timeout", False, detail="no answer")


def test_an_idle_engine_is_asked_once_an_interval_and_its_counters_do_not_show_it() -> None:
    bench = Bench(requests=3, tokens=40)
    bench.pass_seconds(50)
    assert [model for _, model in bench.asked] == ["smol"] * 3
    gaps = np.diff([at for at, _ in bench.asked])
    assert gaps.min() >= 15_000
    assert bench.written("loms_probe_success") == [1, 1, 1]
    assert bench.written("loms_probe_duration_seconds") == [0.25] * 3
    assert bench.outcomes() == {"ok": 3}
    assert bench.canonical[INPUT] == 80
    assert bench.canonical["llm_engine_requests_finished_total"] == 3
    assert bench.requests == 6


def test_probe_series_carry_the_labels_of_the_engines_own() -> None:
    bench = Bench()
    bench.pass_seconds(20)
    success = next(s for s in bench.names.values() if s.name == "loms_probe_success")
    assert dict(success.labels) == {
        "deployment_zone": "lab",
        "engine": "vllm",
        "hop": "engine",
        "instance": "127.0.0.1:8000",
        "job": "engines",
        "model": "smol",
    }


def test_an_engine_that_works_is_never_asked() -> None:
    bench = Bench()

    def work() -> None:
        bench.tokens += 1

    bench.pass_seconds(60, work)
    assert bench.asked == []
    assert bench.written("loms_probe_success") == []


def test_a_slow_scrape_interval_does_not_make_a_working_engine_look_still() -> None:
    """Scraped every 60 s: the scrape right before the probe shows that it moved."""
    bench = Bench()

    async def run() -> None:
        for _ in range(5):
            await bench.scrape_now()
            for _ in range(60):
                bench.tokens += 1
                await bench.probe.tick()
                bench.clock.advance(1)

    asyncio.run(run())
    assert bench.asked == []


def test_a_frozen_engine_fails_its_probe_and_is_asked_again_each_interval() -> None:
    bench = Bench(running=4, tokens=7, answer=silent)
    bench.pass_seconds(40)
    assert len(bench.asked) >= 3
    assert set(bench.written("loms_probe_success")) == {0}
    assert set(bench.written("loms_probe_duration_seconds")) == {8}
    assert set(bench.outcomes()) == {"timeout"}
    # Its counters stand still, so nothing of them is held back.
    assert bench.canonical[INPUT] == 14


def test_the_verdict_ends_when_the_engine_moves_by_itself_again() -> None:
    bench = Bench(tokens=7, answer=silent)
    bench.pass_seconds(16)
    assert bench.written("loms_probe_success") == [0]
    bench.tokens += 5
    bench.pass_seconds(1)
    values = np.array(bench.written("loms_probe_success"))
    assert is_stale(values).tolist() == [False, True]
    assert bench.canonical[INPUT] == 24
    bench.answer = None
    bench.pass_seconds(17)
    assert bench.written("loms_probe_success")[-1] == 1


def test_a_failed_scrape_does_not_end_the_verdict_on_a_frozen_engine() -> None:
    bench = Bench(tokens=7, answer=silent)
    bench.pass_seconds(16)
    assert bench.written("loms_probe_success") == [0]
    bench.reachable = False
    bench.pass_seconds(1)
    bench.reachable = True
    bench.pass_seconds(3)
    assert bench.written("loms_probe_success") == [0]
    bench.pass_seconds(16)
    assert set(bench.written("loms_probe_success")) == {0}


def test_scrapes_that_fail_now_and_then_do_not_keep_a_frozen_engine_from_being_asked() -> None:
    bench = Bench(tokens=7, answer=silent)
    for _ in range(12):
        bench.reachable = True
        bench.pass_seconds(9)
        bench.reachable = False
        bench.pass_seconds(1)
    assert len(bench.asked) >= 5


def test_the_end_of_a_verdict_comes_after_it_even_where_the_engine_woke_before() -> None:
    async def wakes(bench: Bench) -> Answer:
        bench.clock.advance(6)
        bench.tokens += 5
        await bench.scrape_now()
        bench.clock.advance(2)
        return Answer("timeout", False)

    bench = Bench(tokens=7, answer=wakes)

    async def run() -> None:
        for _ in range(16):
            await bench.scrape_now()
            await bench.probe.tick()
            bench.clock.advance(1)
        await bench.probe.tick()

    asyncio.run(run())
    (verdict, first), (end, second) = bench.times("loms_probe_success")
    assert (first, second) == (False, True)
    assert end > verdict


def test_the_counters_stay_visible() -> None:
    """A selector looks back five minutes, a rate over one minute needs two samples."""
    bench = Bench()

    def work() -> None:
        bench.tokens += 1

    bench.pass_seconds(400, work)
    times = sorted({at for at, _ in bench.times("loms_probe_requests_total")})
    assert max(np.diff(times)) <= 20_000


def test_a_clock_that_is_put_back_does_not_stop_the_probes() -> None:
    bench = Bench(tokens=7)
    bench.pass_seconds(20)
    bench.clock._start_ms -= 3_600_000
    bench.pass_seconds(32)
    assert len(bench.asked) == 3
    assert bench.times("loms_probe_success")[-1][0] < 1_000_000


def test_a_probe_among_users_requests_is_unattributed_but_its_tokens_are_known() -> None:
    async def crowded(bench: Bench) -> Answer:
        bench.requests, bench.tokens = bench.requests + 1, bench.tokens + 30
        return await answered(bench)

    bench = Bench(answer=crowded)
    bench.pass_seconds(18)
    assert bench.outcomes() == {"unattributed": 1}
    assert bench.written("loms_probe_success") == [1]
    assert bench.canonical[INPUT] == 60
    assert bench.canonical["llm_engine_requests_finished_total"] == 1


def test_an_answer_without_usage_cannot_be_attributed() -> None:
    async def vague(bench: Bench) -> Answer:
        return replace(await answered(bench), usage=None)

    bench = Bench(answer=vague)
    bench.pass_seconds(18)
    assert bench.outcomes() == {"unattributed": 1}


def test_counters_that_show_the_probe_late_are_waited_for() -> None:
    bench = Bench()
    shown = {"requests": 0, "tokens": 0, "scrapes": 0}

    def late(bench: Bench) -> str:
        """The exposition lags two scrapes behind an answered request."""
        if bench.requests > shown["requests"]:
            shown["scrapes"] += 1
            if shown["scrapes"] > 2:
                shown.update(requests=bench.requests, tokens=bench.tokens, scrapes=0)
        return replace_counts(bench, shown["requests"], shown["tokens"])

    bench.engine_text = late
    bench.pass_seconds(17)
    assert bench.outcomes() == {"ok": 1}
    assert bench.canonical[INPUT] == 0


def test_counters_that_never_show_the_probe_are_not_waited_for_long() -> None:
    def blind(bench: Bench) -> str:
        if bench.asked:
            bench.clock.advance(0.6)
        return replace_counts(bench, 0, 0)

    bench = Bench(engine_text=blind)
    bench.pass_seconds(16)
    assert bench.outcomes() == {"unattributed": 1}


def replace_counts(bench: Bench, requests: int, tokens: int) -> str:
    real = bench.requests, bench.tokens
    bench.requests, bench.tokens = requests, tokens
    text = bench.vllm()
    bench.requests, bench.tokens = real
    return text


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        (Answer("http", None, detail="401"), []),
        (Answer("http", False, detail="500"), [0]),
        (Answer("refused", False), [0]),
        (Answer("refused", None, detail="no such host"), []),
    ],
)
def test_only_answers_that_tell_of_the_engine_give_a_verdict(answer: Answer, success: list[float]) -> None:
    async def give(bench: Bench) -> Answer:
        return answer

    bench = Bench(answer=give)
    bench.pass_seconds(17)
    assert bench.written("loms_probe_success") == success
    assert bench.outcomes() == {answer.outcome: 1}


def test_the_counters_are_there_before_the_first_probe() -> None:
    bench = Bench()
    bench.pass_seconds(2)
    assert bench.written("loms_probe_requests_total", outcome="ok") == [0]
    assert bench.written("loms_probe_requests_total", outcome="timeout") == [0]


def test_switched_off_it_asks_nothing_and_writes_nothing() -> None:
    bench = Bench(settings=ProbeSettings(enabled=False))
    bench.pass_seconds(40)
    assert (bench.asked, bench.batches) == ([], [])


def test_a_target_that_is_no_engine_is_not_asked() -> None:
    bench = Bench(engine_text=lambda bench: "# TYPE go_goroutines gauge\ngo_goroutines 7\n")
    bench.pass_seconds(40)
    assert (bench.asked, bench.batches) == ([], [])


def test_a_target_whose_scrapes_fail_is_not_asked() -> None:
    bench = Bench()
    bench.pass_seconds(5)
    bench.reachable = False
    bench.pass_seconds(40)
    assert bench.asked == []


def test_the_configured_model_is_asked_for() -> None:
    bench = Bench(settings=ProbeSettings(model="other"))
    bench.pass_seconds(17)
    assert [model for _, model in bench.asked] == ["other"]


def test_llamacpp_is_asked_too_and_judged_by_its_tokens() -> None:
    def text(bench: Bench) -> str:
        return (
            f"llamacpp:prompt_tokens_total {2 * bench.tokens}\nllamacpp:prompt_tokens_cached_total 0\n"
            f"llamacpp:tokens_predicted_total {bench.tokens}\nllamacpp:requests_processing 0\n"
        )

    bench = Bench(engine_text=text)
    bench.pass_seconds(20)
    assert bench.asked == []  # its model is not known yet
    bench.translator.identified(Identity("b1", "smol"))
    bench.pass_seconds(20)
    assert [model for _, model in bench.asked] == ["smol"]
    assert bench.outcomes() == {"ok": 1}
    assert bench.canonical[INPUT] == 0


def test_being_cancelled_under_way_ends_the_holding_back() -> None:
    bench = Bench()

    under_way = asyncio.Event()

    async def never(bench: Bench) -> Answer:
        bench.tokens += 3
        under_way.set()
        await asyncio.Event().wait()
        raise AssertionError

    bench.answer = never

    async def run() -> None:
        for _ in range(15):
            await bench.scrape_now()
            await bench.probe.tick()
            bench.clock.advance(1)
        task = asyncio.create_task(bench.probe.tick())
        await under_way.wait()
        await bench.scrape_now()
        assert bench.canonical[INPUT] == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bench.scrape_now()

    asyncio.run(run())
    assert bench.canonical[INPUT] == 6


def test_earlier_probes_stay_subtracted_after_a_restart() -> None:
    before = Bench(tokens=10)
    before.pass_seconds(20)
    assert before.outcomes() == {"ok": 1}
    assert before.last is not None
    assert before.last.exposition is not None
    raw = dict(zip(before.ids(before.last.exposition).tolist(), before.last.exposition.values.tolist(), strict=True))
    plan = before.last.plan
    assert plan is not None
    own = {s.id: before.canonical[s.name] for s in plan.derived}

    async def recall(ids: Sequence[int], until_ms: int | None = None) -> Mapping[int, tuple[int, float]]:
        return {i: (1, v) for i, v in (raw | own).items() if i in ids}

    after = Bench(tokens=before.tokens, requests=before.requests, restoring=True, recall=recall)
    after.pass_seconds(3)
    assert after.canonical[INPUT] == 20


def test_being_killed_under_way_takes_nothing_from_users() -> None:
    """The newest canonical samples are then older than the newest raw ones."""
    before = Bench(tokens=10)
    before.pass_seconds(20)
    exposition, plan = before.last.exposition, before.last.plan
    raw = dict(zip(before.ids(exposition).tolist(), exposition.values.tolist(), strict=True))
    own = {s.id: before.canonical[s.name] for s in plan.derived}
    asked: list[int | None] = []

    async def recall(ids: Sequence[int], until_ms: int | None = None) -> Mapping[int, tuple[int, float]]:
        asked.append(until_ms)
        known = {i: (1_000, v) for i, v in (raw | own).items()}
        if until_ms is None:  # held back since: users' 50 tokens
            known |= {i: (9_000, v + 50) for i, v in raw.items()}
        return {i: sample for i, sample in known.items() if i in ids}

    after = Bench(tokens=before.tokens + 60, requests=before.requests + 60, restoring=True, recall=recall)
    after.pass_seconds(3)
    assert asked == [None, 1_000]
    assert after.canonical[INPUT] == 20 + 2 * 60
    assert after.canonical["llm_engine_requests_finished_total"] == 60


def test_a_store_that_does_not_answer_costs_only_the_memory() -> None:
    async def recall(ids: Sequence[int], until_ms: int | None = None) -> Mapping[int, tuple[int, float]]:
        raise StoreError("the store is closed")

    bench = Bench(tokens=5, restoring=True, recall=recall)
    bench.pass_seconds(3)
    assert bench.canonical[INPUT] == 10


def test_the_counters_of_an_engine_that_cannot_be_asked_wait_no_longer_than_others() -> None:
    async def recall(ids: Sequence[int], until_ms: int | None = None) -> Mapping[int, tuple[int, float]]:
        return {}

    def triton(bench: Bench) -> str:
        family = "nv_inference_queue_duration_us"
        return f'# TYPE {family} counter\n{family}{{model="m",version="1"}} 2000000\n'

    bench = Bench(restoring=True, recall=recall, engine_text=triton)
    bench.pass_seconds(20)
    assert bench.canonical["llm_engine_request_queue_duration_seconds_sum"] == 2
    assert bench.asked == []
    assert not any(name.startswith("loms_probe_") for name in (series.name for series in bench.names.values()))
