"""A discrete-event model of an LLM engine: continuous batching over paged KV blocks.

Follows the V1 scheduler of vLLM (docs.vllm.ai, "Architecture Overview"; Orca, Yu et al., OSDI 2022, for iteration-level
batching; Sarathi-Serve, arXiv:2403.02310, for chunked prefill). Each step has a budget of tokens. Sequences that run
are served first and in the order of their admission (one token each while decoding), then waiting ones are admitted
with what is left of the budget, a prompt in chunks if need be. When no block is free, the sequence admitted last is
preempted: it loses its blocks, goes back to the head of the queue, and computes them again later.

Nothing here reads a clock: time is an argument in seconds, so a test or a replay runs as fast as it can.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from loms.core.errors import ConfigError
from loms.lab.kvcache import BlockPool, chained_hash

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one step takes, in seconds: linear in what the step has to do, times a random factor near 1."""

    fixed_seconds: float = 0.008
    prefill_token_seconds: float = 0.00025
    decode_sequence_seconds: float = 0.0005
    context_token_seconds: float = 5e-7
    """Per token that attention reads, summed over the sequences of the step."""
    jitter: float = 0.05
    """Standard deviation of the logarithm of the random factor."""

    def seconds(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        return (
            self.fixed_seconds
            + self.prefill_token_seconds * prefill_tokens
            + self.decode_sequence_seconds * decode_sequences
            + self.context_token_seconds * context_tokens
        )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Size of an engine. The defaults carry about 8 requests/s of 200 prompt and 60 output tokens."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    num_blocks: int = 512
    block_size: int = 16
    max_model_len: int = 4096
    prefix_caching: bool = True
    cost: StepCost = field(default_factory=StepCost)
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = (self.max_num_seqs, self.max_num_batched_tokens, self.num_blocks, self.block_size, self.max_model_len)
        if min(sizes) < 1:
            raise ConfigError("every size of a simulated engine must be at least 1")
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ConfigError(
                f"{self.num_blocks} blocks of {self.block_size} tokens cannot hold one sequence of "
                f"max_model_len {self.max_model_len}",
                hint="raise num_blocks or lower max_model_len",
            )


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What a client asked for. ``reply`` is the text the model is going to say, at least one token."""

    id: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    arrived: float
    finish_reason: FinishReason = "length"
    max_tokens: int | None = None
    """As asked for, where the client said so."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the engine; times in seconds on the caller's clock."""

    request: Request
    queued: float
    tokens: list[int]
    """The prompt and what has been said so far."""
    computed: int = 0
    """Leading tokens whose keys and values are in blocks."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    filed: int = 0
    """Leading blocks that the prefix cache already knows."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when first admitted."""
    preemptions: int = 0
    preemptions_told: int = 0
    """Preemptions already counted in the statistics."""
    admitted: float = math.nan
    first_token: float = math.nan
    last_token: float = math.nan
    """NaN until it has happened."""
    ended: bool = False

    @property
    def emitted(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass, decided at ``started`` and lasting ``seconds``."""

    started: float
    seconds: float
    scheduled: tuple[tuple[Sequence, int], ...]
    """Sequences with how many of their tokens are computed."""
    prefill_tokens: int
    decode_sequences: int
    preempted: tuple[Sequence, ...]
    lookup_tokens: int
    """Tokens of newly admitted sequences looked up in the prefix cache; repeated admissions are left out."""
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class Emission:
    """One token said at the end of a step."""

    sequence: Sequence
    index: int
    gap: float | None
    """Seconds since the sequence's token before; None for the first."""
    last: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step brought, at time ``at``."""

    step: Step
    at: float
    emissions: tuple[Emission, ...]


class Scheduler:
    """The engine's core. ``begin`` decides a step, ``complete`` ends it; requests come and go in between."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.slowdown = 1.0
        """Factor on the duration of a step."""
        self.leak_share = 0.0
        """Share of the blocks of a finished request that are not given back."""
        self._leak_owed = 0.0
        self._random = np.random.default_rng(config.seed)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def check(self, request: Request) -> None:
        """Raise ValueError when a request could never be served."""
        length = len(request.prompt) + len(request.reply)
        if not request.prompt or not request.reply or length > self.config.max_model_len:
            raise ValueError(f"request {request.id} has {length} tokens, at most {self.config.max_model_len} fit")

    def submit(self, request: Request, now: float) -> Sequence:
        """Queue a request that passes `check`."""
        self.check(request)
        sequence = Sequence(request, now, list(request.prompt))
        self.waiting.append(sequence)
        return sequence

    def abort(self, request_id: str) -> None:
        """Drop a request and free its blocks at once; unknown and ended ids are ignored."""
        for queue in (self.running, self.waiting):
            for sequence in queue:
                if sequence.request.id == request_id:
                    sequence.ended = True
                    self.pool.release(sequence.blocks)
                    sequence.blocks = []
                    queue.remove(sequence)
                    return

    def recover_leaked(self) -> None:
        """Give leaked blocks back and stop leaking."""
        self.leak_share = self._leak_owed = 0.0
        self.pool.recover()

    def begin(self, now: float) -> Step | None:
        """Decide the next step; None when there is nothing to do, or nothing that fits (then something must change)."""
        scheduled: list[tuple[Sequence, int]] = []
        preempted: list[Sequence] = []
        budget = self._continue_running(self.config.max_num_batched_tokens, scheduled, preempted)
        lookups = hits = 0
        if not preempted:
            lookups, hits = self._admit(budget, now, scheduled)
        if not scheduled and not preempted:
            return None
        prefill = decode = context = 0
        for sequence, count in scheduled:
            context += sequence.computed + count
            if sequence.emitted and count == 1:
                decode += 1
            else:
                prefill += count
        seconds = self.config.cost.seconds(prefill, decode, context) * self.slowdown
        if self.config.cost.jitter > 0:
            seconds *= math.exp(self.config.cost.jitter * self._random.standard_normal())
        return Step(now, seconds, tuple(scheduled), prefill, decode, tuple(preempted), lookups, hits)

    def complete(self, step: Step, now: float) -> Outcome:
        """End a step: every sequence that has computed all its tokens says one more."""
        emissions = []
        for sequence, count in step.scheduled:
            if sequence.ended:
                continue
            sequence.computed += count
            if sequence.computed == len(sequence.tokens):
                emissions.append(self._emit(sequence, now))
        if any(emission.last for emission in emissions):
            self.running = [sequence for sequence in self.running if not sequence.ended]
        return Outcome(step, now, tuple(emissions))

    def _continue_running(self, budget: int, scheduled: list[tuple[Sequence, int]], preempted: list[Sequence]) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if not self._reserve(sequence, count, preempted):
                break
            scheduled.append((sequence, count))
            budget -= count
            index += 1
        return budget

    def _reserve(self, sequence: Sequence, count: int, preempted: list[Sequence]) -> bool:
        """Blocks for ``count`` more tokens, taken from the sequences admitted last; False if it fell itself."""
        needed = self.pool.blocks_for(sequence.computed + count) - len(sequence.blocks)
        while needed > 0:
            fresh = self.pool.allocate(needed)
            if fresh is not None:
                sequence.blocks.extend(fresh)
                break
            victim = self.running.pop()
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        self._file_full_blocks(sequence, sequence.computed + count)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit(self, budget: int, now: float, scheduled: list[tuple[Sequence, int]]) -> tuple[int, int]:
        """Take waiting sequences in order until one does not fit; (tokens looked up, tokens found) in the cache."""
        lookups = hits = 0
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            shared = self._cached_prefix(sequence)
            found = len(shared) * self.config.block_size
            count = min(len(sequence.tokens) - found, budget)
            fresh = self.pool.allocate(self.pool.blocks_for(found + count) - len(shared), shared)
            if fresh is None:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.blocks = [*shared, *fresh]
            sequence.computed = found
            sequence.filed = len(shared)
            if sequence.preemptions == 0:
                lookups += len(sequence.tokens) if self.config.prefix_caching else 0
                hits += found
            if math.isnan(sequence.admitted):
                sequence.admitted, sequence.cached_tokens = now, found
            self._file_full_blocks(sequence, found + count)
            scheduled.append((sequence, count))
            budget -= count
        return lookups, hits

    def _cached_prefix(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the sequence's beginning; its last token is always computed, it yields the next one."""
        if not self.config.prefix_caching:
            return []
        full = (len(sequence.tokens) - 1) // self.config.block_size
        return self.pool.match(self._hashes(sequence, full))

    def _hashes(self, sequence: Sequence, blocks: int) -> list[int]:
        size, hashes = self.config.block_size, sequence.hashes
        while len(hashes) < blocks:
            start = len(hashes) * size
            hashes.append(chained_hash(hashes[-1] if hashes else 0, sequence.tokens[start : start + size]))
        return hashes[:blocks]

    def _file_full_blocks(self, sequence: Sequence, computed: int) -> None:
        """Blocks filled by this step may be shared by whatever is scheduled after: that runs in this pass or later."""
        full = computed // self.config.block_size
        if full > sequence.filed and self.config.prefix_caching:
            hashes = self._hashes(sequence, full)
            for index in range(sequence.filed, full):
                self.pool.file(sequence.blocks[index], hashes[index])
            sequence.filed = full

    def _emit(self, sequence: Sequence, now: float) -> Emission:
        reply, index = sequence.request.reply, sequence.emitted
        gap = now - sequence.last_token if index else None
        sequence.tokens.append(reply[index])
        sequence.last_token = now
        if index == 0:
            sequence.first_token = now
        last = index + 1 == len(reply)
        if last:
            sequence.ended = True
            self._free_finished(sequence)
        return Emission(sequence, index, gap, last)

    def _free_finished(self, sequence: Sequence) -> None:
        self._leak_owed += self.leak_share * len(sequence.blocks)
        kept = min(int(self._leak_owed), len(sequence.blocks))
        self._leak_owed -= kept
        boundary = len(sequence.blocks) - kept
        self.pool.leak(sequence.blocks[boundary:])
        self.pool.release(sequence.blocks[:boundary])
        sequence.blocks = []
