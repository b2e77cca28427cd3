"""The engine model in real time: one task that decides steps, waits for them and hands tokens to their readers."""

from __future__ import annotations

import asyncio
from collections import deque

from loms.core.clock import Clock
from loms.lab.scheduler import EngineConfig, Outcome, Request, Scheduler, Sequence
from loms.lab.stats import EngineStats


class Answer:
    """One request as its reader sees it: how many tokens have been said, and a way to wait for more."""

    __slots__ = ("_more", "cached_tokens", "emitted", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.emitted = 0
        self.cached_tokens = 0
        self._more = asyncio.Event()

    @property
    def complete(self) -> bool:
        return self.emitted == len(self.request.reply)

    async def beyond(self, seen: int) -> int:
        """Wait until more than ``seen`` tokens have been said; how many there are."""
        while self.emitted <= seen:
            self._more.clear()
            await self._more.wait()
        return self.emitted

    async def finished(self) -> None:
        while not self.complete:
            await self.beyond(self.emitted)

    def say(self, sequence: Sequence) -> None:
        self.emitted = sequence.emitted
        self.cached_tokens = sequence.cached_tokens
        self._more.set()


class LiveEngine:
    """Runs a `Scheduler` against a clock. Requests and aborts wait in an inbox that the core reads between steps.

    A hanging core reads nothing and tells nothing, so whatever arrives meanwhile shows up in no figure.
    """

    def __init__(self, config: EngineConfig, clock: Clock, speed: float = 1.0) -> None:
        """``speed`` divides the duration of every step."""
        self.config = config
        self.stats = EngineStats(config.max_model_len)
        self._clock = clock
        self._speed = speed
        self._scheduler = Scheduler(config)
        self._scheduler.slowdown = 1.0 / speed
        self._answers: dict[str, Answer] = {}
        self._inbox: deque[Answer | str] = deque()
        self._changed = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    def ask(self, request: Request) -> Answer:
        """Hand a request in; raises ValueError when it could never be served."""
        self._scheduler.check(request)
        answer = Answer(request)
        self._answers[request.id] = answer
        self._inbox.append(answer)
        self._changed.set()
        return answer

    def abort(self, request_id: str) -> None:
        """The reader has gone; nothing happens if the request has ended."""
        if self._answers.pop(request_id, None) is not None:
            self._inbox.append(request_id)
            self._changed.set()

    def hang(self, on: bool) -> None:
        if on:
            self._thawed.clear()
        else:
            self._thawed.set()

    def slow(self, factor: float) -> None:
        self._scheduler.slowdown = factor / self._speed

    def leak(self, share: float) -> None:
        """0 ends the leak and gives the leaked blocks back."""
        if share > 0:
            self._scheduler.leak_share = share
        else:
            self._scheduler.recover_leaked()
            self._changed.set()

    async def run(self) -> None:
        """The core's loop; ends when it is cancelled."""
        while True:
            await self._thawed.wait()
            self._changed.clear()
            self._read_inbox()
            step = self._scheduler.begin(self._clock.monotonic())
            if step is None:
                self.stats.gauge(self._scheduler)
                await self._changed.wait()
                continue
            await asyncio.sleep(step.started + step.seconds - self._clock.monotonic())
            await self._thawed.wait()
            self._tell(self._scheduler.complete(step, self._clock.monotonic()))

    def _read_inbox(self) -> None:
        now = self._clock.monotonic()
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Answer):
                self._scheduler.submit(item.request, now)
            else:
                self._scheduler.abort(item)

    def _tell(self, outcome: Outcome) -> None:
        self.stats.record(outcome, self._scheduler)
        for emission in outcome.emissions:
            request_id = emission.sequence.request.id
            answer = self._answers.get(request_id)
            if answer is not None:
                answer.say(emission.sequence)
                if emission.last:
                    del self._answers[request_id]
