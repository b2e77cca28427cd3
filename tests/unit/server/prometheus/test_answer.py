"""The envelope of answers, limits on requests, and what becomes of a query whose client goes away."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from loms.core.clock import SystemClock
from loms.core.errors import QueryTimeoutError, StoreError
from loms.promql.source import Budget, Cancel, Capacity, Limits
from loms.server.prometheus.answer import MOST_FORM_BYTES, Answer, Answering, Parameters, respond


def ask(work: Any, messages: list[Message], method: str = "GET", query: bytes = b"") -> tuple[int, Any]:
    """Status and body of the answer to a request whose messages these are; then the client stays."""
    given: Iterator[Message] = iter(messages)

    async def run() -> tuple[int, Any]:
        async def receive() -> Message:
            message = next(given, None)
            if message is None:
                await asyncio.Event().wait()
            assert message is not None
            return message

        scope = {"type": "http", "method": method, "path": "/", "query_string": query, "headers": []}
        response = await Answering()(Request(scope, receive), work)
        return response.status_code, json.loads(bytes(response.body) or b"null")

    return asyncio.run(run())


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


def echo(parameters: Parameters, _: Cancel) -> Answer:
    return Answer.of([parameters.text("a"), parameters.all("a")])


def test_a_form_comes_before_the_query_string() -> None:
    form = [body(b"a=1&a=", more=True), body(b"2")]
    assert ask(echo, form, "POST", b"a=3") == (200, {"status": "success", "data": ["1", ["1", "2", "3"]]})
    assert ask(echo, [body(b"a=1")], "GET", b"a=3")[1]["data"] == ["3", ["3"]]


def test_a_form_has_a_limit() -> None:
    status, told = ask(echo, [body(b"a" * MOST_FORM_BYTES, more=True), body(b"a")], "POST")
    assert (status, told["error"]) == (400, "error parsing form values: http: POST too large")


def test_warnings_and_infos_are_told_ten_of_each() -> None:
    notes = [f"note {n}" for n in range(12)]
    _, told = ask(lambda *_: Answer("1", notes, notes[:10]), [body(b"")])
    assert told["warnings"] == [*notes[:10], "2 more warning annotations omitted"]
    assert told["infos"] == notes[:10]
    assert ask(lambda *_: Answer.of([]), [body(b"")])[1] == {"status": "success", "data": []}
    assert ask(lambda *_: Answer(None), [body(b"")]) == (204, None)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(QueryTimeoutError("too slow"), 503, "timeout"), (StoreError("the disk is gone"), 500, "internal")],
)
def test_errors_have_prometheus_kinds_and_codes(error: Exception, status: int, kind: str) -> None:
    def work(*_: object) -> Answer:
        raise error

    assert ask(work, [body(b"")]) == (status, {"status": "error", "errorType": kind, "error": str(error)})


def test_a_query_ends_when_its_client_goes_away() -> None:
    ended = threading.Event()

    def work(_: Parameters, cancel: Cancel) -> Answer:
        with cancel.ending(ended.set):
            assert ended.wait(30)
        cancel.check()
        return Answer.of("never")

    status, told = ask(work, [body(b""), {"type": "http.disconnect"}])
    assert (status, told["errorType"]) == (499, "canceled")
    assert told["error"] == "query was canceled in expression evaluation"


def asked(query: bytes = b"") -> Request:
    """A request whose client stays."""
    messages: Iterator[Message] = iter([body(b"")])

    async def receive() -> Message:
        message = next(messages, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    return Request({"type": "http", "method": "GET", "path": "/", "query_string": query, "headers": []}, receive)


def test_waiting_for_a_place_counts_towards_the_timeout() -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(_: Parameters, cancel: Cancel) -> Answer:
        begun.set()
        assert done.wait(30)
        return Answer.of("slow")

    async def run() -> tuple[Any, Any, Any]:
        answering = Answering(concurrent=1, timeout_seconds=60)
        first = asyncio.create_task(answering(asked(), slow))
        await asyncio.to_thread(begun.wait, 30)
        refused = await answering(asked(b"timeout=10ms"), slow)
        waiting = asyncio.create_task(answering(asked(), lambda _, cancel: Answer.of(cancel.waited_seconds)))
        await asyncio.to_thread(done.wait, 0.05)
        done.set()
        return refused, await first, await waiting

    refused, first, waited = asyncio.run(run())
    assert (refused.status_code, json.loads(refused.body)["errorType"]) == (503, "timeout")
    assert json.loads(refused.body)["error"] == "query timed out in query queue"
    assert json.loads(first.body)["data"] == "slow"
    assert 0.05 <= json.loads(waited.body)["data"] < 60


def test_what_a_failed_query_had_read_is_let_go_of() -> None:
    class Read:
        """Something large."""

    kept: list[weakref.ref[Read]] = []

    def fails(_: Parameters, cancel: Cancel) -> Answer:
        read = Read()
        kept.append(weakref.ref(read))
        raise QueryTimeoutError("too slow")

    async def run() -> None:
        with pytest.raises(QueryTimeoutError):
            await Answering().run(asked(), lambda cancel: respond(fails(Parameters({}), cancel)))
        assert kept[0]() is None

    asyncio.run(run())


def test_light_queries_go_on_while_large_ones_wait() -> None:
    capacity, limits, clock = Capacity(light_samples=10), Limits(), SystemClock()
    begun, done, order = threading.Event(), threading.Event(), list[str]()

    def large(parameters: Parameters, cancel: Cancel) -> Answer:
        with Budget(limits, clock, cancel, capacity) as budget:
            budget.take_samples(11)
            order.append("large")
            begun.set()
            assert done.wait(30)
        return Answer.of("large")

    def light(parameters: Parameters, cancel: Cancel) -> Answer:
        with Budget(limits, clock, cancel, capacity) as budget:
            budget.take_samples(10)
            order.append("light")
        return Answer.of("light")

    async def run() -> list[Any]:
        answering = Answering(concurrent=2, timeout_seconds=60)
        heavy = [asyncio.create_task(answering(asked(), large))]
        await asyncio.to_thread(begun.wait, 30)
        heavy += [asyncio.create_task(answering(asked(), large)) for _ in range(4)]
        quick = [await asyncio.wait_for(answering(asked(), light), 30) for _ in range(3)]
        done.set()
        return [json.loads(bytes(one.body))["data"] for one in (*quick, *await asyncio.gather(*heavy))]

    assert asyncio.run(run()) == ["light"] * 3 + ["large"] * 5
    assert order == ["large", *["light"] * 3, *["large"] * 4]


@pytest.mark.parametrize("text", ["x", "1.5", "-1", "1e3", "9" * 30])
def test_limits_are_whole_numbers(text: str) -> None:
    status, told = ask(lambda p, _: Answer.of(p.count("limit")), [body(b"")], query=f"limit={text}".encode())
    assert (status, told["errorType"]) == (400, "bad_data")
    assert told["error"].startswith('invalid parameter "limit": ')


def test_all_of_time_is_no_limit_of_time() -> None:
    ends = {"start": ["-292273086-05-16T16:47:06Z"], "end": ["292277025-08-18T07:12:54.999999999Z"]}
    assert Parameters(ends).span() == (None, None)
    assert Parameters({}).span() == (None, None)
    assert Parameters({"start": ["5"]}).span() == (5_000, 9_223_372_036_000)
    assert Parameters({"start": ["-5"], "end": ["1790000000000"]}).span() == (None, None)
    assert Parameters({"end": ["7.5"]}).span() == (0, 7_500)


def test_a_form_that_breaks_off_is_no_fault_of_ours() -> None:
    status, told = ask(echo, [body(b"a=1", more=True), {"type": "http.disconnect"}], "POST")
    assert (status, told["errorType"]) == (499, "canceled")
