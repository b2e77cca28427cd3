"""What an engine counts, against a schedule worked out by hand (the first one of test_scheduler)."""

from __future__ import annotations

import pytest

from loms.lab.replay import replay
from loms.lab.scheduler import EngineConfig, Request, Scheduler, StepCost
from loms.lab.stats import EngineStats, Histogram, one_two_five

ROUND = StepCost(1.0, 0.1, 0.5, 0.0, jitter=0.0)


def run(config: EngineConfig, *requests: Request) -> tuple[EngineStats, Scheduler]:
    scheduler, stats = Scheduler(config), EngineStats(config.max_model_len)
    for outcome in replay(scheduler, requests):
        stats.record(outcome, scheduler)
    return stats, scheduler


def request(name: str, prompt: int, reply: int, *, reason: str = "length", arrived: float = 0.0) -> Request:
    tokens = tuple(hash((ord(name), index)) for index in range(prompt))
    return Request(name, tokens, tuple(range(reply)), arrived, "stop" if reason == "stop" else "length", reply)


def test_a_hand_worked_schedule() -> None:
    config = EngineConfig(max_num_batched_tokens=8, num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    stats, _ = run(config, request("a", 10, 3), request("b", 3, 2, reason="stop"))
    # Steps end at 1.8 (silent), 3.3 (a and b), 5.3 (a, b ends), 6.8 (a ends); b is admitted at 1.8.
    assert (stats.prompt_tokens, stats.generated_tokens) == (13, 5)
    assert stats.finished == {"length": 1, "stop": 1}
    assert (stats.iteration_tokens.count, stats.iteration_tokens.total) == (3, 13 + 2 + 2 + 1)
    assert (stats.ttft_seconds.count, stats.ttft_seconds.total) == (2, pytest.approx(6.6))
    assert (stats.inter_token_seconds.count, stats.inter_token_seconds.total) == (3, pytest.approx(2.0 + 1.5 + 2.0))
    assert stats.e2e_seconds.total == pytest.approx(6.8 + 5.3)
    assert stats.queue_seconds.total == pytest.approx(1.8)
    assert stats.prefill_seconds.total == pytest.approx(3.3 + 1.5)
    assert stats.decode_seconds.total == pytest.approx(3.5 + 2.0)
    assert stats.inference_seconds.total == pytest.approx(6.8 + 3.5)
    assert stats.time_per_output_token_seconds.total == pytest.approx(3.5 / 2 + 2.0)
    assert (stats.request_prompt_tokens.total, stats.request_generated_tokens.total) == (13, 5)
    assert (stats.running, stats.waiting, stats.kv_utilization) == (0, 0, 0.0)


def test_gauges_are_those_after_the_step() -> None:
    config = EngineConfig(max_num_seqs=1, num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    scheduler, stats = Scheduler(config), EngineStats(64)
    seen = []
    for outcome in replay(scheduler, [request("a", 7, 2), request("b", 3, 1)]):
        stats.record(outcome, scheduler)
        seen.append((stats.running, stats.waiting, stats.kv_utilization))
    assert seen == [(1, 1, 2 / 16), (0, 1, 0.0), (0, 0, 0.0)]


def test_a_preemption_is_counted_when_the_request_speaks_again_and_its_repeated_work_is_not() -> None:
    config = EngineConfig(num_blocks=4, block_size=4, max_model_len=16, cost=ROUND)
    scheduler, stats = Scheduler(config), EngineStats(16)
    counted = []
    for outcome in replay(scheduler, [request("a", 7, 6), request("b", 7, 6)]):
        stats.record(outcome, scheduler)
        counted.append(stats.preemptions)
    assert counted == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert stats.iteration_tokens.total == 14 + 12
    assert (stats.prefix_lookup_tokens, stats.prefix_hit_tokens) == (14, 0)
    assert stats.request_preemptions.total == 1


def test_cached_prompt_tokens() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    first = request("a", 10, 2)
    again = Request("again", first.prompt, first.reply, 50.0)
    stats, _ = run(config, first, again)
    assert (stats.prompt_tokens, stats.cached_tokens) == (20, 8)
    assert (stats.prefix_lookup_tokens, stats.prefix_hit_tokens) == (20, 8)
    assert stats.request_computed_tokens.total == 10 + 2
    assert stats.iteration_tokens.total == 12 + 4
    assert stats.request_max_tokens.count == 1


def test_an_aborted_request_is_counted_nowhere_but_in_its_tokens() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    scheduler, stats = Scheduler(config), EngineStats(64)
    for outcome in replay(scheduler, [request("a", 7, 9)]):
        stats.record(outcome, scheduler)
        if stats.generated_tokens == 3:
            scheduler.abort("a")
    assert (stats.prompt_tokens, stats.generated_tokens) == (7, 3)
    assert sum(stats.finished.values()) == 0
    assert stats.e2e_seconds.count == 0


def test_what_a_request_waited_outside_the_core_is_no_queue_time() -> None:
    config = EngineConfig(num_blocks=16, block_size=4, max_model_len=64, cost=ROUND)
    scheduler, stats = Scheduler(config), EngineStats(64)
    scheduler.submit(request("a", 5, 1), 100.0)  # arrived at 0
    step = scheduler.begin(100.0)
    assert step is not None
    stats.record(scheduler.complete(step, 101.5), scheduler)
    assert (stats.queue_seconds.total, stats.prefill_seconds.total, stats.ttft_seconds.total) == (0.0, 1.5, 101.5)


def test_a_value_on_a_bound_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.cumulative() == [2, 4, 5]
    assert (histogram.count, histogram.total) == (5, 7.5)


def test_token_bounds_follow_the_length_of_the_model() -> None:
    assert one_two_five(512)[-3:] == (100.0, 200.0, 500.0)
    assert one_two_five(1024)[-1] == 1000.0
