"""Conservation laws of the engine model, for any engine and any load that Hypothesis can think of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from loms.lab.replay import replay
from loms.lab.scheduler import EngineConfig, Request, Scheduler, Step, StepCost
from loms.lab.stats import EngineStats

COSTS = st.builds(
    StepCost,
    fixed_seconds=st.floats(0.001, 0.1),
    prefill_token_seconds=st.floats(0, 0.01),
    decode_sequence_seconds=st.floats(0, 0.01),
    context_token_seconds=st.floats(0, 0.001),
    jitter=st.sampled_from([0.0, 0.2]),
)


@st.composite
def configs(draw: st.DrawFn, *, ample: bool = False) -> EngineConfig:
    """An engine of any small size; an ample one has blocks for everything that can run at once."""
    block_size, seats, longest = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(4, 40))
    least = -(-longest // block_size)
    return EngineConfig(
        max_num_seqs=seats,
        max_num_batched_tokens=draw(st.integers(1, 30)),
        num_blocks=least * seats if ample else least + draw(st.integers(0, 8)),
        block_size=block_size,
        max_model_len=longest,
        prefix_caching=draw(st.booleans()),
        cost=draw(COSTS),
        seed=draw(st.integers(0, 9)),
    )


@st.composite
def loads(draw: st.DrawFn, config: EngineConfig) -> list[Request]:
    """Requests that fit the engine, from an alphabet of two tokens so that prefixes meet."""
    requests, arrived = [], 0.0
    for number in range(draw(st.integers(1, 12))):
        arrived += draw(st.sampled_from([0.0, 0.0, 0.01, 0.3]))
        length = draw(st.integers(2, config.max_model_len))
        said = draw(st.integers(1, length - 1))
        prompt = draw(st.lists(st.integers(0, 1), min_size=length - said, max_size=length - said))
        requests.append(Request(str(number), tuple(prompt), tuple(range(said)), arrived))
    return requests


def check_blocks(scheduler: Scheduler) -> None:
    pool = scheduler.pool
    held = [set(sequence.blocks) for sequence in scheduler.running]
    assert pool.free + pool.used == pool.total
    assert pool.used == len(set.union(set(pool.leaked), *held))
    assert 0.0 <= pool.utilization <= 1.0
    for sequence in scheduler.running:
        assert len(sequence.blocks) * pool.block_size >= sequence.computed
    assert not any(sequence.blocks for sequence in scheduler.waiting)


def check_step(scheduler: Scheduler, step: Step) -> None:
    assert step.seconds > 0
    assert len(scheduler.running) <= scheduler.config.max_num_seqs
    assert sum(count for _, count in step.scheduled) <= scheduler.config.max_num_batched_tokens
    assert step.prefill_tokens + step.decode_sequences == sum(count for _, count in step.scheduled)
    arrivals = [int(sequence.request.id) for sequence in (*scheduler.running, *scheduler.waiting)]
    assert arrivals == sorted(arrivals)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_everything_asked_for_is_said_once_and_counted_once(data: st.DataObject) -> None:
    config = data.draw(configs())
    requests = data.draw(loads(config))
    scheduler, stats = Scheduler(config), EngineStats(config.max_model_len)
    said: Counter[str] = Counter()
    ended: list[str] = []
    preemptions, before = 0, 0.0
    for outcome in replay(scheduler, requests):
        stats.record(outcome, scheduler)
        check_blocks(scheduler)
        check_step(scheduler, outcome.step)
        assert outcome.at > before
        before = outcome.at
        preemptions += len(outcome.step.preempted)
        for emission in outcome.emissions:
            assert emission.index == said[emission.sequence.request.id]
            said[emission.sequence.request.id] += 1
            if emission.last:
                ended.append(emission.sequence.request.id)
    assert said == {request.id: len(request.reply) for request in requests}
    assert sorted(ended) == sorted(request.id for request in requests)
    assert scheduler.idle
    assert scheduler.pool.used == 0
    tokens = sum(len(request.reply) for request in requests)
    assert stats.generated_tokens == stats.request_generated_tokens.total == tokens
    assert stats.inter_token_seconds.count == tokens - len(requests)
    assert stats.prompt_tokens == sum(len(request.prompt) for request in requests)
    assert stats.iteration_tokens.total == stats.prompt_tokens - stats.cached_tokens + tokens
    assert stats.preemptions == stats.request_preemptions.total == preemptions
    assert stats.ttft_seconds.count == stats.e2e_seconds.count == sum(stats.finished.values()) == len(requests)
    assert stats.cached_tokens % config.block_size == 0
    if not config.prefix_caching:
        assert stats.prefix_lookup_tokens == stats.cached_tokens == 0


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_with_room_for_all_it_is_first_come_first_served(data: st.DataObject) -> None:
    config = data.draw(configs(ample=True))
    requests = data.draw(loads(config))
    admitted: dict[str, float] = {}
    first: list[int] = []
    for outcome in replay(Scheduler(config), requests):
        assert not outcome.step.preempted
        for sequence, _ in outcome.step.scheduled:
            admitted.setdefault(sequence.request.id, outcome.step.started)
        first += [int(emission.sequence.request.id) for emission in outcome.emissions if emission.index == 0]
    assert list(admitted) == [request.id for request in requests]
    assert first == sorted(first)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_time_passes_as_the_cost_model_says(data: st.DataObject) -> None:
    config = data.draw(configs())
    requests = data.draw(loads(config))
    if config.cost.jitter:
        return
    for outcome in replay(Scheduler(config), requests):
        step = outcome.step
        floor = config.cost.fixed_seconds + config.cost.prefill_token_seconds * step.prefill_tokens
        ceiling = config.cost.seconds(
            step.prefill_tokens, step.decode_sequences, len(step.scheduled) * config.max_model_len
        )
        assert floor <= step.seconds <= ceiling
        assert outcome.at == step.started + step.seconds


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_replay_is_the_same_every_time(data: st.DataObject) -> None:
    config = data.draw(configs())
    requests = data.draw(loads(config))

    def trace() -> list[tuple[float, tuple[tuple[str, int], ...]]]:
        return [
            (outcome.at, tuple((emission.sequence.request.id, emission.index) for emission in outcome.emissions))
            for outcome in replay(Scheduler(config), requests)
        ]

    assert trace() == trace()


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_aborts_and_leaks_lose_no_block(data: st.DataObject) -> None:
    """Any order of arrivals, aborts (also in the middle of a step), leaks and recoveries."""
    config = data.draw(configs())
    requests = data.draw(loads(config))
    scheduler = Scheduler(config)
    now, ended, aborted = 0.0, set[str](), set[str]()
    for request in requests:
        scheduler.submit(request, now)
        for _ in range(data.draw(st.integers(0, 4))):
            step = scheduler.begin(now)
            action = data.draw(st.sampled_from(["go on", "go on", "abort", "leak", "recover"]))
            if action == "abort":
                victim = data.draw(st.sampled_from(requests)).id
                scheduler.abort(victim)
                aborted.add(victim)
            elif action == "leak":
                scheduler.leak_share = data.draw(st.floats(0.1, 1.0))
            elif action == "recover":
                scheduler.recover_leaked()
            check_blocks(scheduler)
            if step is not None:
                now += step.seconds
                ended |= {e.sequence.request.id for e in scheduler.complete(step, now).emissions if e.last}
                check_blocks(scheduler)
    scheduler.recover_leaked()
    while (step := scheduler.begin(now)) is not None:
        now += step.seconds
        ended |= {e.sequence.request.id for e in scheduler.complete(step, now).emissions if e.last}
        check_blocks(scheduler)
    assert scheduler.idle
    assert scheduler.pool.used == 0
    assert {request.id for request in requests} - aborted <= ended
