"""What an engine counts about itself, when and how vLLM 0.32 counts it (seen on recordings of the real engine).

- Prompt tokens are counted when a request says its first token, generated ones with every step.
- ``iteration_tokens`` has one observation per step that said something: prompt tokens computed (cached ones left
  out) plus tokens generated; work repeated after a preemption is not in it.
- A preemption is counted when the preempted request speaks again. An aborted request is counted nowhere.
- Gauges are those of the end of the last step.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from loms.lab.scheduler import Emission, FinishReason, Outcome, Scheduler, Sequence

TTFT_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
ITERATION_TOKENS = (1.0, 8.0, *(float(2**power) for power in range(4, 15)))
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to ``limit``: vLLM's bounds for token counts of a model of that length.

    >>> one_two_five(128)
    (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    """
    steps = (digit * 10.0**power for power in range(12) for digit in (1, 2, 5))
    return tuple(bound for bound in steps if bound <= limit)


class Histogram:
    """Observations by upper bound; the last slot is +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, +Inf last."""
        return list(accumulate(self.counts))


class EngineStats:
    """Counters, gauges and histograms of one engine; fed by `record` after every step."""

    def __init__(self, max_model_len: int) -> None:
        token_bounds = one_two_five(max_model_len)
        self.running = 0
        self.waiting = 0
        self.kv_utilization = 0.0
        self.prefix_lookup_tokens = 0
        self.prefix_hit_tokens = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.finished: dict[FinishReason, int] = {"stop": 0, "length": 0}
        self.request_prompt_tokens = Histogram(token_bounds)
        self.request_generated_tokens = Histogram(token_bounds)
        self.request_max_tokens = Histogram(token_bounds)
        self.request_computed_tokens = Histogram(token_bounds)
        self.request_choices = Histogram(CHOICES)
        self.request_preemptions = Histogram(PREEMPTIONS)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.ttft_seconds = Histogram(TTFT_SECONDS)
        self.inter_token_seconds = Histogram(TOKEN_SECONDS)
        self.time_per_output_token_seconds = Histogram(TOKEN_SECONDS)
        self.e2e_seconds = Histogram(REQUEST_SECONDS)
        self.queue_seconds = Histogram(REQUEST_SECONDS)
        self.inference_seconds = Histogram(REQUEST_SECONDS)
        self.prefill_seconds = Histogram(REQUEST_SECONDS)
        self.decode_seconds = Histogram(REQUEST_SECONDS)

    def gauge(self, scheduler: Scheduler) -> None:
        """Take the gauges as they are now."""
        self.running = len(scheduler.running)
        self.waiting = len(scheduler.waiting)
        self.kv_utilization = scheduler.pool.utilization

    def record(self, outcome: Outcome, scheduler: Scheduler) -> None:
        """Count one step."""
        self.prefix_lookup_tokens += outcome.step.lookup_tokens
        self.prefix_hit_tokens += outcome.step.hit_tokens
        tokens = 0
        for emission in outcome.emissions:
            tokens += 1 + self._token(emission, outcome.at)
            if emission.last:
                self._finished(emission.sequence)
        if outcome.emissions:
            self.generated_tokens += len(outcome.emissions)
            self.iteration_tokens.observe(tokens)
        self.gauge(scheduler)

    def _token(self, emission: Emission, at: float) -> int:
        """Count one token; prompt tokens that were computed for it."""
        sequence = emission.sequence
        self.preemptions += sequence.preemptions - sequence.preemptions_told
        sequence.preemptions_told = sequence.preemptions
        if emission.gap is not None:
            self.inter_token_seconds.observe(emission.gap)
            return 0
        self.ttft_seconds.observe(at - sequence.request.arrived)
        prompt, cached = len(sequence.request.prompt), sequence.cached_tokens
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        return prompt - cached

    def _finished(self, sequence: Sequence) -> None:
        request, generated = sequence.request, sequence.emitted
        admitted, first, last = sequence.admitted, sequence.first_token, sequence.last_token
        self.finished[request.finish_reason] += 1
        self.request_prompt_tokens.observe(len(request.prompt))
        self.request_generated_tokens.observe(generated)
        self.request_computed_tokens.observe(len(request.prompt) - sequence.cached_tokens)
        self.request_choices.observe(1)
        self.request_preemptions.observe(sequence.preemptions)
        if request.max_tokens is not None:
            self.request_max_tokens.observe(request.max_tokens)
        self.e2e_seconds.observe(last - request.arrived)
        self.queue_seconds.observe(admitted - sequence.queued)
        self.inference_seconds.observe(last - admitted)
        self.prefill_seconds.observe(first - admitted)
        self.decode_seconds.observe(last - first)
        self.time_per_output_token_seconds.observe((last - first) / (generated - 1) if generated > 1 else 0.0)
