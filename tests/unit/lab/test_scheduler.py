"""Schedules small enough to work out on paper."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from loms.core.errors import ConfigError
from loms.lab.replay import replay
from loms.lab.scheduler import EngineConfig, Outcome, Request, Scheduler, StepCost

ROUND = StepCost(
    fixed_seconds=1.0,
    prefill_token_seconds=0.1,
    decode_sequence_seconds=0.5,
    context_token_seconds=0.0,
    jitter=0.0,
)


def request(name: str, prompt: int | Iterable[int], reply: int, arrived: float = 0.0) -> Request:
    """A number of prompt tokens stands for tokens that nobody else has."""
    if isinstance(prompt, int):
        prompt = [hash((ord(name), index)) for index in range(prompt)]
    return Request(name, tuple(prompt), tuple(range(-reply, 0)), arrived)


def told(outcomes: Iterable[Outcome]) -> list[tuple[float, str]]:
    """Time and names of who said something, per step."""
    return [
        (round(outcome.at, 6), "".join(emission.sequence.request.id for emission in outcome.emissions))
        for outcome in outcomes
    ]


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_decoding_goes_first() -> None:
    scheduler = Scheduler(
        EngineConfig(max_num_batched_tokens=8, num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    )
    outcomes = list(replay(scheduler, [request("a", 10, 3), request("b", 3, 2)]))
    # 8 of a's 10 tokens; then a's 2 and b's 3; then one of each; then a alone.
    assert told(outcomes) == [(1.8, ""), (3.3, "ab"), (5.3, "ab"), (6.8, "a")]
    assert [(o.step.prefill_tokens, o.step.decode_sequences) for o in outcomes] == [(8, 0), (5, 0), (0, 2), (0, 1)]
    gaps = [
        emission.gap for outcome in outcomes for emission in outcome.emissions if emission.sequence.request.id == "a"
    ]
    assert gaps == [None, pytest.approx(2.0), pytest.approx(1.5)]
    assert scheduler.idle
    assert scheduler.pool.used == 0


def test_decodes_leave_what_is_left_of_the_budget_to_a_new_prompt() -> None:
    scheduler = Scheduler(
        EngineConfig(max_num_batched_tokens=4, num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    )
    outcomes = list(replay(scheduler, [request("a", 4, 4), request("b", 7, 1, arrived=0.5)]))
    # a's prompt fills the budget; then a decodes while b gets 3, 3 and 1 tokens.
    assert told(outcomes) == [(1.4, "a"), (3.2, "a"), (5.0, "a"), (6.6, "ab")]


def test_no_more_sequences_than_max_num_seqs() -> None:
    scheduler = Scheduler(EngineConfig(max_num_seqs=2, num_blocks=64, block_size=4, max_model_len=64, cost=ROUND))
    outcomes = list(replay(scheduler, [request(name, 2, 2) for name in "abcd"]))
    assert [names for _, names in told(outcomes)] == ["ab", "ab", "cd", "cd"]


def test_attention_over_the_context_costs_time() -> None:
    cost = StepCost(0.0, 0.0, 0.0, context_token_seconds=1.0, jitter=0.0)
    scheduler = Scheduler(EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=cost))
    outcomes = list(replay(scheduler, [request("a", 5, 3)]))
    assert told(outcomes) == [(5.0, "a"), (11.0, "a"), (18.0, "a")]


def test_the_sequence_admitted_last_is_preempted_and_says_everything_all_the_same() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=4, block_size=4, max_model_len=16, cost=ROUND))
    outcomes = list(replay(scheduler, [request("a", 7, 6), request("b", 7, 6)]))
    # Two blocks each hold 8 tokens. The third step needs a third block for a's ninth: b loses both of its blocks,
    # and gets room again when a has ended after its sixth token.
    assert [names for _, names in told(outcomes)] == ["ab", "ab", "a", "a", "a", "a", "b", "b", "b", "b"]
    assert [len(outcome.step.preempted) for outcome in outcomes] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    resumed = outcomes[6]
    # b comes back with 7 + 2 tokens: its first block is still cached (a took the second), so 5 are computed again.
    assert (resumed.step.prefill_tokens, resumed.step.lookup_tokens, resumed.step.hit_tokens) == (5, 0, 0)
    assert resumed.emissions[0].gap == pytest.approx(outcomes[6].at - outcomes[1].at)


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    config = EngineConfig(
        max_num_batched_tokens=8, num_blocks=5, block_size=4, max_model_len=20, cost=ROUND, prefix_caching=False
    )
    outcomes = list(replay(Scheduler(config), [request("a", 3, 6), request("b", 15, 1)]))
    # b's prompt comes in as 5 and 7 tokens (3 blocks); then a takes the last block and b cannot have a fourth. It
    # would fit again at once, with 7 tokens, but starts over in the next step.
    scheduled = [[(sequence.request.id, count) for sequence, count in outcome.step.scheduled] for outcome in outcomes]
    assert scheduled[:4] == [[("a", 3), ("b", 5)], [("a", 1), ("b", 7)], [("a", 1)], [("a", 1), ("b", 7)]]
    assert [len(outcome.step.preempted) for outcome in outcomes[:4]] == [0, 0, 1, 0]


def test_preempted_sequences_wait_in_the_order_in_which_they_came() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=6, block_size=4, max_model_len=24, cost=ROUND))
    order: list[str] = []
    for outcome in replay(scheduler, [request(name, 7, 8) for name in "abc"]):
        order += [emission.sequence.request.id for emission in outcome.emissions if emission.last]
        arrived = [s.request.id for s in (*scheduler.running, *scheduler.waiting)]
        assert arrived == sorted(arrived)
    assert order == ["a", "b", "c"]


def test_prefix_hits_are_whole_blocks_and_leave_a_token_to_compute() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    scheduler = Scheduler(config)
    prompt = range(100, 110)
    outcomes = list(
        replay(
            scheduler,
            [
                request("a", prompt, 1, arrived=0.0),
                request("b", prompt, 1, arrived=10.0),  # 10 tokens: blocks 0-3 and 4-7
                request("c", list(prompt)[:8], 1, arrived=20.0),  # 8 tokens: the last one is computed, so one block
                request("d", [1, *prompt], 1, arrived=30.0),  # another beginning: nothing
            ],
        )
    )
    assert [(o.step.lookup_tokens, o.step.hit_tokens) for o in outcomes] == [(10, 0), (10, 8), (8, 4), (11, 0)]
    assert [outcome.step.prefill_tokens for outcome in outcomes] == [10, 2, 4, 11]


def test_equal_prompts_of_one_step_share_blocks() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND))
    outcomes = list(replay(scheduler, [request("a", range(9), 2), request("b", range(9), 2)]))
    assert outcomes[0].step.prefill_tokens == 9 + 1
    assert outcomes[0].step.hit_tokens == 8


def test_said_tokens_are_cached_too() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND))
    first = request("a", range(6), 7)
    conversation = [*first.prompt, *first.reply, 999]
    outcomes = list(replay(scheduler, [first, request("b", conversation, 1, arrived=50.0)]))
    # 6 + 7 tokens, the last of which was never computed: 12 are, in three full blocks.
    assert outcomes[-1].step.hit_tokens == 12


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND, prefix_caching=False)
    scheduler = Scheduler(config)
    outcomes = list(replay(scheduler, [request("a", range(9), 1), request("b", range(9), 1, arrived=9.0)]))
    assert [(o.step.lookup_tokens, o.step.hit_tokens, o.step.prefill_tokens) for o in outcomes] == [(0, 0, 9)] * 2


def test_an_abort_frees_the_blocks_at_once_even_in_the_middle_of_a_step() -> None:
    scheduler = Scheduler(EngineConfig(max_num_seqs=1, num_blocks=16, block_size=4, max_model_len=64, cost=ROUND))
    scheduler.submit(request("a", 5, 5), 0.0)
    scheduler.submit(request("b", 5, 5), 0.0)
    step = scheduler.begin(0.0)
    assert step is not None
    assert scheduler.pool.used == 2
    scheduler.abort("a")
    scheduler.abort("b")
    scheduler.abort("never heard of")
    assert scheduler.pool.used == 0
    assert scheduler.complete(step, 1.0).emissions == ()
    assert scheduler.idle
    assert scheduler.begin(1.0) is None


def test_a_leak_keeps_its_share_and_ends_in_an_engine_that_serves_nobody() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=4, block_size=4, max_model_len=16, cost=ROUND))
    scheduler.leak_share = 0.5
    requests = [request(name, 7, 2, arrived=index * 100.0) for index, name in enumerate("abcde")]
    ended = [e.sequence.request.id for o in replay(scheduler, requests) for e in o.emissions if e.last]
    # Two blocks a request (7 + 1 computed tokens), one of them lost: 4, 3, 2 and then 1 block are left.
    assert ended == ["a", "b", "c"]
    assert scheduler.pool.utilization == 0.75
    assert [sequence.request.id for sequence in scheduler.waiting] == ["d", "e"]
    assert scheduler.begin(1000.0) is None
    scheduler.recover_leaked()
    assert scheduler.pool.used == 0
    step = scheduler.begin(1000.0)
    assert step is not None
    assert [sequence.request.id for sequence, _ in step.scheduled] == ["d", "e"]


def test_a_small_share_adds_up_over_requests() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=16, block_size=4, max_model_len=16, cost=ROUND))
    scheduler.leak_share = 0.25
    leaked = []
    for index, name in enumerate("abcd"):
        list(replay(scheduler, [request(name, 7, 2, arrived=index * 100.0)]))
        leaked.append(len(scheduler.pool.leaked))
    assert leaked == [0, 1, 1, 2]


def test_slowdown_stretches_steps() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    normal, slow = Scheduler(config), Scheduler(config)
    slow.slowdown = 3.0
    ends = [list(replay(scheduler, [request("a", 5, 4)]))[-1].at for scheduler in (normal, slow)]
    assert ends[1] == pytest.approx(3 * ends[0])


def test_the_seed_decides_the_jitter() -> None:
    def ends(seed: int) -> list[float]:
        scheduler = Scheduler(EngineConfig(seed=seed))
        return [outcome.at for outcome in replay(scheduler, [request("a", 50, 20)])]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


def test_what_never_fits_is_refused() -> None:
    scheduler = Scheduler(EngineConfig(num_blocks=4, block_size=4, max_model_len=16))
    scheduler.submit(request("a", 10, 6), 0.0)
    for prompt, reply in ((10, 7), (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="request b has"):
            scheduler.submit(request("b", prompt, reply), 0.0)
    with pytest.raises(ConfigError, match="3 blocks of 4 tokens cannot hold"):
        EngineConfig(num_blocks=3, block_size=4, max_model_len=16)
    with pytest.raises(ConfigError, match="at least 1"):
        EngineConfig(max_num_seqs=0)


def test_the_defaults_are_half_loaded_at_four_requests_a_second_and_overloaded_at_twelve() -> None:
    def load(rate: float, seconds: float = 120.0) -> tuple[float, int, list[float], list[float]]:
        scheduler = Scheduler(EngineConfig())
        requests = [
            Request(str(i), tuple(hash((i, k)) for k in range(200)), tuple(range(60)), i / rate)
            for i in range(int(rate * seconds))
        ]
        busy, queue, first, gaps = 0.0, 0, [], []
        for outcome in replay(scheduler, requests):
            if outcome.at > seconds:
                continue
            busy += outcome.step.seconds
            queue = len(scheduler.waiting)
            for emission in outcome.emissions:
                if emission.gap is None:
                    first.append(outcome.at - emission.sequence.request.arrived)
                else:
                    gaps.append(emission.gap)
        return busy / seconds, queue, first, gaps

    _, queue, first, gaps = load(4.0)
    assert queue == 0
    assert 0.05 <= sum(first) / len(first) <= 0.15
    assert 0.01 <= sum(gaps) / len(gaps) <= 0.025
    _, queue, first, _ = load(12.0)
    assert queue > 100
    assert first[-1] > 10
