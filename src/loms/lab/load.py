"""An open-loop load generator for anything that speaks OpenAI's HTTP API, with the client's own clocks.

Open loop: requests arrive as a Poisson process whatever the engine does, as users do; an engine that slows down gets a
queue, not fewer requests (see Schroeder, Wierman, Harchol-Balter, "Open Versus Closed", NSDI 2006). What would exceed
``max_in_flight`` is skipped and counted, so that a frozen engine does not collect connections without end.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import aiohttp
import numpy as np

from loms.core.clock import Clock, SystemClock

_WORDS = (
    "the", "sea", "has", "many", "ships", "and", "each", "ship", "its", "own", "song", "some", "men", "sail", "far",
    "from", "home", "while", "moon", "is", "over", "cold", "water", "they", "eat", "bread", "drink", "green", "tea",
    "play", "chess", "tell", "of", "old", "towns", "rain", "train", "birds", "hills", "that", "no", "map", "shows",
)  # fmt: skip

Outcome = Literal["ok", "aborted", "http", "timeout", "refused", "broken"]
"""``aborted`` by this client on purpose; ``http`` for a status other than 200; ``broken`` for an answer cut short."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in words or tokens: lognormal around ``median``, cut off at ``low`` and ``high``."""

    median: int
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0 for a fixed length."""
    low: int = 1
    high: int = 100_000

    def draw(self, random: np.random.Generator) -> int:
        drawn = self.median * float(np.exp(self.sigma * random.standard_normal()))
        return min(max(round(drawn), self.low), self.high)


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """What arrives. The same profile gives the same requests at the same offsets."""

    rate: float = 4.0
    """Requests per second."""
    seconds: float = 30.0
    """Arrivals end after this time; answers are still awaited."""
    prompt_words: Lengths = Lengths(200)
    """Short common words, about one token each in any tokenizer."""
    output_tokens: Lengths = Lengths(60)
    tenants: int = 4
    prefix_words: int = 0
    """How many of the prompt's words are the same for all requests of a tenant."""
    stream_share: float = 1.0
    abort_share: float = 0.0
    """Share of the streaming requests that are given up after a few tokens."""
    chat: bool = True
    seed: int = 0
    max_in_flight: int = 64
    timeout_seconds: float = 60.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request's body, for instance ``{"ignore_eos": True}``."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One arrival, ``offset`` seconds after the start."""

    offset: float
    tenant: int
    prompt: str
    max_tokens: int
    stream: bool
    abort_after: int | None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the client saw of one request; durations in seconds by its own clock, from just before sending."""

    planned: PlannedRequest
    started: float
    """Seconds after the start of the load."""
    outcome: Outcome
    status: int
    """HTTP status, 0 when there was no answer."""
    e2e_seconds: float
    ttft_seconds: float | None = None
    """To the first token of a streamed answer; None for plain ones and where none came."""
    gaps: tuple[float, ...] = ()
    """Between successive chunks with text."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    """As the engine's usage says; 0 where it said nothing."""
    chunks: int = 0
    """Chunks with text."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The records of a run, in the order in which the requests ended."""

    seconds: float
    records: tuple[RequestRecord, ...]
    skipped: int
    """Arrivals left out because ``max_in_flight`` were under way."""

    def summary(self) -> dict[str, Any]:
        """Counts, token totals, and the 50th, 95th and 99th percentile of the latencies in seconds (None: no data)."""
        answered = [record for record in self.records if record.outcome == "ok"]
        ttft = [record.ttft_seconds for record in answered if record.ttft_seconds is not None]
        return {
            "seconds": round(self.seconds, 3),
            "requests": len(self.records),
            "skipped": self.skipped,
            "outcomes": dict(Counter(record.outcome for record in self.records)),
            "prompt_tokens": sum(record.prompt_tokens for record in self.records),
            "cached_tokens": sum(record.cached_tokens for record in self.records),
            "completion_tokens": sum(record.completion_tokens for record in self.records),
            "ttft_seconds": _percentiles(ttft),
            "inter_chunk_seconds": _percentiles([gap for record in answered for gap in record.gaps]),
            "e2e_seconds": _percentiles([record.e2e_seconds for record in answered]),
        }


def _percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"p50": round(float(p50), 5), "p95": round(float(p95), 5), "p99": round(float(p99), 5)}


def arrivals(profile: LoadProfile) -> Iterator[PlannedRequest]:
    """The requests of a profile, by ascending offset. Pure: the seed decides everything."""
    random = np.random.default_rng(profile.seed)
    prefixes = [
        _text(np.random.default_rng((profile.seed, tenant)), profile.prefix_words) for tenant in range(profile.tenants)
    ]
    offset = 0.0
    while (offset := offset + float(random.exponential(1 / profile.rate))) < profile.seconds:
        tenant = int(random.integers(profile.tenants))
        words = profile.prompt_words.draw(random) - profile.prefix_words
        stream = bool(random.random() < profile.stream_share)
        abort = stream and bool(random.random() < profile.abort_share)
        yield PlannedRequest(
            offset,
            tenant,
            f"{prefixes[tenant]} {_text(random, max(words, 1))}".strip(),
            profile.output_tokens.draw(random),
            stream,
            int(random.integers(1, 8)) if abort else None,
        )


def _text(random: np.random.Generator, words: int) -> str:
    return " ".join(_WORDS[index] for index in random.integers(len(_WORDS), size=words))


class LoadGenerator:
    """Sends a profile's requests to one engine; `run` once. Records beyond ``keep`` push out the oldest."""

    def __init__(
        self,
        url: str,
        model: str,
        profile: LoadProfile,
        *,
        clock: Clock | None = None,
        keep: int = 100_000,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.profile = profile
        self.in_flight = 0
        self.skipped = 0
        self.records: deque[RequestRecord] = deque(maxlen=keep)
        self._url = url.rstrip("/") + ("/v1/chat/completions" if profile.chat else "/v1/completions")
        self._model = model
        self._clock = clock or SystemClock()
        self._headers = dict(headers or {})

    async def run(self) -> LoadReport:
        """Send until the profile's time is over and wait for the answers. Cancelling it gives up what is under way."""
        begin = self._clock.monotonic()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=self.profile.timeout_seconds)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as session,
            asyncio.TaskGroup() as group,
        ):
            for planned in arrivals(self.profile):
                await asyncio.sleep(max(0.0, begin + planned.offset - self._clock.monotonic()))
                if self.in_flight >= self.profile.max_in_flight:
                    self.skipped += 1
                    continue
                self.in_flight += 1
                group.create_task(self._request(session, planned, begin))
        return LoadReport(self._clock.monotonic() - begin, tuple(self.records), self.skipped)

    async def _request(self, session: aiohttp.ClientSession, planned: PlannedRequest, begin: float) -> None:
        exchange = _Exchange(planned, self._clock)
        started = self._clock.monotonic()
        outcome: Outcome
        try:
            async with session.post(self._url, json=self._body(planned)) as response:
                exchange.status = response.status
                outcome = await exchange.read(response)
        except TimeoutError:
            outcome = "timeout"
        except aiohttp.ClientConnectorError as error:
            outcome, exchange.detail = "refused", str(error)
        except (aiohttp.ClientError, ValueError) as error:
            outcome, exchange.detail = "broken", str(error)
        finally:
            self.in_flight -= 1
        self.records.append(exchange.record(started, begin, outcome))

    def _body(self, planned: PlannedRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "max_tokens": planned.max_tokens, "stream": planned.stream}
        if self.profile.chat:
            body["messages"] = [{"role": "user", "content": planned.prompt}]
        else:
            body["prompt"] = planned.prompt
        if planned.stream:
            body["stream_options"] = {"include_usage": True}
        return {**body, **self.profile.extra}


class _Exchange:
    """What accumulates while one answer comes in."""

    def __init__(self, planned: PlannedRequest, clock: Clock) -> None:
        self.status = 0
        self.detail = ""
        self._planned = planned
        self._clock = clock
        self._moments: list[float] = []
        """When each chunk with text was there."""
        self._usage: Mapping[str, Any] = {}

    async def read(self, response: aiohttp.ClientResponse) -> Outcome:
        if response.status != 200:
            self.detail = (await response.text())[:500]
            return "http"
        if not self._planned.stream:
            self._usage = (await response.json()).get("usage") or {}
            return "ok"
        async for data in _events(response):
            if data == b"[DONE]":
                return "ok"
            event = json.loads(data)
            self._usage = event.get("usage") or self._usage
            if _has_text(event):
                self._moments.append(self._clock.monotonic())
                if len(self._moments) == self._planned.abort_after:
                    return "aborted"
        self.detail = "the stream ended without [DONE]"
        return "broken"

    def record(self, started: float, begin: float, outcome: Outcome) -> RequestRecord:
        moments = self._moments
        return RequestRecord(
            planned=self._planned,
            started=started - begin,
            outcome=outcome,
            status=self.status,
            e2e_seconds=self._clock.monotonic() - started,
            ttft_seconds=moments[0] - started if moments else None,
            gaps=tuple(after - before for before, after in pairwise(moments)),
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            cached_tokens=(self._usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            completion_tokens=self._usage.get("completion_tokens", 0),
            chunks=len(moments),
            detail=self.detail,
        )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of server-sent events (one ``data:`` line each, as all these engines write them)."""
    rest = b""
    async for block in response.content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _has_text(event: Mapping[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            return True
    return False
