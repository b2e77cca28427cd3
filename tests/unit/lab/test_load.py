"""The load generator: its plan, and its clocks and outcomes against servers that misbehave in known ways."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from aiohttp import web

from loms.lab.load import Lengths, LoadGenerator, LoadProfile, LoadReport, PlannedRequest, RequestRecord, arrivals


def test_the_seed_decides_the_plan() -> None:
    profile = LoadProfile(stream_share=0.5, abort_share=0.3)
    assert list(arrivals(profile)) == list(arrivals(profile))
    assert list(arrivals(profile)) != list(arrivals(replace(profile, seed=1)))


def test_arrivals_are_poisson() -> None:
    offsets = [planned.offset for planned in arrivals(LoadProfile(rate=20, seconds=500, prompt_words=Lengths(1)))]
    assert len(offsets) == pytest.approx(10_000, abs=400)  # four standard deviations
    gaps = [after - before for before, after in pairwise(offsets)]
    assert min(gaps) > 0
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.05)  # an exponential's deviation is its mean


def test_lengths_prefixes_and_shares() -> None:
    profile = LoadProfile(
        rate=100,
        seconds=20,
        prompt_words=Lengths(50, 0.5, low=30, high=80),
        output_tokens=Lengths(20, 0.3),
        tenants=3,
        prefix_words=25,
        stream_share=0.6,
        abort_share=0.5,
    )
    plan = list(arrivals(profile))
    words = [len(planned.prompt.split()) for planned in plan]
    assert (min(words), max(words)) == (30, 80)
    assert statistics.median(words) == pytest.approx(50, abs=3)
    assert statistics.median(planned.max_tokens for planned in plan) == pytest.approx(20, abs=1)
    prefixes = {(planned.tenant, " ".join(planned.prompt.split()[:25])) for planned in plan}
    assert len(prefixes) == 3
    assert sum(planned.stream for planned in plan) / len(plan) == pytest.approx(0.6, abs=0.06)
    aborted = [planned for planned in plan if planned.abort_after is not None]
    assert all(planned.stream for planned in aborted)
    assert len(aborted) / sum(planned.stream for planned in plan) == pytest.approx(0.5, abs=0.07)


def test_a_summary_by_hand() -> None:
    planned = PlannedRequest(0.0, 0, "hi", 3, True, None)
    records = (
        RequestRecord(planned, 0.0, "ok", 200, 1.0, 0.2, (0.1, 0.3), 10, 4, 3, 3),
        RequestRecord(planned, 0.1, "ok", 200, 3.0, 0.4, (), 20, 0, 1, 1),
        RequestRecord(planned, 0.2, "timeout", 0, 9.0),
    )
    summary = LoadReport(12.0, records, skipped=2).summary()
    assert summary["outcomes"] == {"ok": 2, "timeout": 1}
    assert (summary["requests"], summary["skipped"]) == (3, 2)
    assert (summary["prompt_tokens"], summary["cached_tokens"], summary["completion_tokens"]) == (30, 4, 4)
    assert summary["ttft_seconds"]["p50"] == pytest.approx(0.3)
    assert summary["inter_chunk_seconds"]["p50"] == pytest.approx(0.2)
    assert summary["e2e_seconds"]["p50"] == pytest.approx(2.0)
    assert LoadReport(1.0, (), 0).summary()["ttft_seconds"] is None


ONE = LoadProfile(rate=1000, seconds=0.01, prompt_words=Lengths(3), timeout_seconds=20)


async def one_record(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], profile: LoadProfile = ONE
) -> RequestRecord:
    """The record of the first request that a server with this one handler answers."""
    application = web.Application()
    application.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        report = await LoadGenerator(url, "m", replace(profile, max_in_flight=1)).run()
        return report.records[0]
    finally:
        await runner.cleanup()


def stream_of(*blocks: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for block in blocks:
            await response.write(block)
            await asyncio.sleep(0.01)
        return response

    return handler


CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def test_a_stream_cut_anywhere_is_read_whole() -> None:
    text = ROLE + CHUNK + CHUNK + CHUNK.replace(b"\n", b"\r\n") + USAGE + DONE
    record = asyncio.run(one_record(stream_of(*(text[at : at + 37] for at in range(0, len(text), 37)))))
    assert (record.outcome, record.status, record.chunks) == ("ok", 200, 3)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (7, 2, 3)
    assert len(record.gaps) == 2
    assert record.ttft_seconds is not None
    assert 0 < record.ttft_seconds + sum(record.gaps) <= record.e2e_seconds


def test_an_empty_first_message_is_no_token() -> None:
    record = asyncio.run(one_record(stream_of(ROLE, DONE)))
    assert (record.outcome, record.chunks, record.ttft_seconds) == ("ok", 0, None)


def test_a_stream_without_an_end_is_broken() -> None:
    record = asyncio.run(one_record(stream_of(CHUNK)))
    assert (record.outcome, record.detail) == ("broken", "the stream ended without [DONE]")


def test_a_stream_that_is_no_json_is_broken() -> None:
    assert asyncio.run(one_record(stream_of(b"data: {oops\n\n"))).outcome == "broken"


def test_an_error_status_keeps_what_the_engine_said() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too busy"}}, status=503)

    record = asyncio.run(one_record(refuse))
    assert (record.outcome, record.status) == ("http", 503)
    assert "too busy" in record.detail


def test_silence_is_a_timeout() -> None:
    async def wait(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    record = asyncio.run(one_record(wait, replace(ONE, timeout_seconds=0.2)))
    assert (record.outcome, record.status) == ("timeout", 0)


def test_an_abort_closes_the_connection_after_some_tokens() -> None:
    record = asyncio.run(one_record(stream_of(*[CHUNK] * 50, DONE), replace(ONE, abort_share=1.0)))
    assert record.outcome == "aborted"
    assert record.chunks == record.planned.abort_after


def test_plain_answers_have_usage_but_no_first_token() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream"] is False
        assert body["top_k"] == 3
        return web.json_response({"usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": None}})

    record = asyncio.run(one_record(answer, replace(ONE, stream_share=0.0, extra={"top_k": 3})))
    assert (record.outcome, record.prompt_tokens, record.completion_tokens) == ("ok", 5, 6)
    assert record.ttft_seconds is None


def test_a_port_where_nobody_listens_is_refused() -> None:
    profile = replace(ONE, rate=50, seconds=0.2)
    report = asyncio.run(LoadGenerator("http://127.0.0.1:9", "m", profile).run())
    assert {record.outcome for record in report.records} == {"refused"}
    assert len(report.records) == len(list(arrivals(profile)))


def test_what_would_exceed_the_bound_is_skipped_and_counted() -> None:
    async def scenario() -> tuple[int, int, int]:
        peak = now = 0

        async def wait(_: web.Request) -> web.StreamResponse:
            nonlocal peak, now
            now += 1
            peak = max(peak, now)
            await asyncio.sleep(0.3)
            now -= 1
            return web.json_response({})

        application = web.Application()
        application.router.add_post("/v1/chat/completions", wait)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        profile = replace(ONE, rate=100, seconds=0.5, max_in_flight=3, stream_share=0.0)
        report = await LoadGenerator(f"http://127.0.0.1:{runner.addresses[0][1]}", "m", profile).run()
        await runner.cleanup()
        assert len(report.records) + report.skipped == len(list(arrivals(profile)))
        return peak, len(report.records), report.skipped

    peak, sent, skipped = asyncio.run(scenario())
    assert peak <= 3
    assert sent >= 3
    assert skipped > 0
