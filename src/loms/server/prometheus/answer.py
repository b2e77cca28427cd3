"""One request to Prometheus's API: its parameters, the work in a thread, and the envelope of its answer.

Source of forms and codes: Prometheus 3, web/api/v1/api.go, and its documentation ("HTTP API").
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from fastapi import Request
from fastapi.responses import Response
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect

from loms.core import selfmetrics
from loms.core.errors import LomsError, QueryCancelledError, QueryError, QueryTimeoutError
from loms.core.memory import give_back
from loms.promql.parse import parse
from loms.promql.regexes import well_formed
from loms.promql.source import Cancel, TurnError
from loms.server.wire import FURTHEST_SECONDS, parse_seconds, parse_time

_STATUS = {"bad_data": 400, "execution": 422, "canceled": 499, "timeout": 503, "internal": 500}
CONCURRENT_QUERIES = 3
"""Fewer than the store has readers, so that slow dashboards do not hold up the rules."""
MOST_FORM_BYTES = 10 * 2**20
"""Of a form's body, as in Go's library."""
MOST_NOTES = 10
"""Warnings, and infos, that one answer tells; of more it tells how many."""
TRUNCATED = "results truncated due to limit"


@dataclass(frozen=True, slots=True)
class Answer:
    """``data`` is JSON text; None is an answer without any content."""

    data: str | None
    warnings: Sequence[str] = ()
    infos: Sequence[str] = ()

    @classmethod
    def of(cls, data: object, warnings: Sequence[str] = ()) -> Answer:
        return cls(to_json(data), warnings)


class Parameters:
    """Of the URL's query and, before them, of a form: a parameter may stand several times."""

    def __init__(self, given: dict[str, list[str]]) -> None:
        self._given = given

    def text(self, name: str) -> str:
        """The first of this name; empty where there is none."""
        return self._given.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        return self._given.get(name, [])

    def count(self, name: str) -> int:
        """A limit; 0 is none. Raises `QueryError` in the words of Go's ``strconv.Atoi``."""
        try:
            count = whole_number(self.text(name) or "0")
        except ValueError as error:
            raise QueryError(f'invalid parameter "{name}": {error}') from None
        if count < 0:
            raise QueryError(f'invalid parameter "{name}": {name} must be non-negative')
        return count

    def span(self) -> tuple[int | None, int | None]:
        """``start`` and ``end`` in milliseconds; both None when together they mean all of time."""
        start, end = (self._bound(name, default) for name, default in (("start", 0), ("end", FURTHEST_SECONDS * 1000)))
        return (None, None) if start <= 0 and end >= FURTHEST_SECONDS * 1000 else (start, end)

    def _bound(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        if not text:
            return default_ms
        try:
            return parse_time(name, text, clamped=True)
        except QueryError as error:
            reason = error.message.partition(": ")[2]
            raise QueryError(f"invalid parameter \"{name}\": invalid time value for '{name}': {reason}") from None


def whole_number(text: str, function: str = "Atoi") -> int:
    """Raises `ValueError` in the words of Go's ``strconv``."""
    digits = text.removeprefix("-" if text.startswith("-") else "+")
    plain = digits.isascii() and digits.isdecimal()
    if not plain or len(digits) > 18:
        reason = "value out of range" if plain else "invalid syntax"
        raise ValueError(f"strconv.{function}: parsing {json.dumps(text)}: {reason}")
    return int(text)


Work = Callable[[Parameters, Cancel], Answer]


class Answering:
    """Runs the work of requests in threads, so many at a time; ends it when its client goes away.

    A large query that must wait for another (`loms.promql.source.Capacity`) waits outside, so that light ones go on:
    it is begun anew, one such query beside the others at a time. All waiting counts towards a query's timeout.
    """

    def __init__(self, concurrent: int = CONCURRENT_QUERIES, timeout_seconds: float = 30.0) -> None:
        self._limiter = anyio.CapacityLimiter(concurrent)
        self._large = anyio.CapacityLimiter(1)
        self._timeout_seconds = timeout_seconds

    async def __call__(self, request: Request, work: Work) -> Response:
        """What ``work`` returns or raises, as Prometheus says it."""
        try:
            parameters = await parameters_of(request)
            timeout = self._timeout_seconds
            with suppress(QueryError, ValueError):  # the work tells what is wrong with it
                timeout = min(timeout, parse_seconds(parameters.text("timeout") or f"{timeout}"))
            return await self.run(request, lambda cancel: respond(work(parameters, cancel)), timeout)
        except LomsError as error:
            return refuse(error)

    async def run(
        self, request: Request, work: Callable[[Cancel], Response], timeout_seconds: float | None = None
    ) -> Response:
        """``work`` in a thread; its `Cancel` is cancelled when the client goes away. The body must have been read.

        Raises `QueryTimeoutError` when its turn does not come in time.
        """
        cancel, began = Cancel(), anyio.current_time()
        ends = began + (self._timeout_seconds if timeout_seconds is None else timeout_seconds)
        watching = asyncio.create_task(_cancel_when_gone(request, cancel))
        try:
            cancel.turn = "leave"
            try:
                async with _turn(self._limiter, ends):
                    cancel.waited_seconds = anyio.current_time() - began
                    return await _in_thread(work, cancel)
            except TurnError:
                cancel.turn = "first"
            async with _turn(self._large, ends):
                cancel.waited_seconds = anyio.current_time() - began
                return await _in_thread(work, cancel)
        finally:
            watching.cancel()
            await asyncio.wait((watching,))


@asynccontextmanager
async def _turn(limiter: anyio.CapacityLimiter, ends: float) -> AsyncIterator[None]:
    """One of the limiter's places. Raises `QueryTimeoutError` when there is none until ``ends``."""
    holder = object()
    try:
        with anyio.fail_after(max(ends - anyio.current_time(), 0.0)):
            await limiter.acquire_on_behalf_of(holder)
    except TimeoutError:
        raise QueryTimeoutError("query timed out in query queue") from None
    try:
        yield
    finally:
        limiter.release_on_behalf_of(holder)


async def _in_thread(work: Callable[[Cancel], Response], cancel: Cancel) -> Response:
    done = await anyio.to_thread.run_sync(_settled, work, cancel, limiter=anyio.CapacityLimiter(1))
    if isinstance(done, Response):
        if cancel.large:
            done.background = BackgroundTask(give_back)
        return done
    if cancel.large:
        await anyio.to_thread.run_sync(give_back)
    raise done


def _settled(work: Callable[[Cancel], Response], cancel: Cancel) -> Response | LomsError | TurnError:
    """What the work returns or raises; of an error nothing but itself, for its frames hold all that was read."""
    try:
        return work(cancel)
    except (LomsError, TurnError) as error:
        traceback.clear_frames(error.__traceback__)
        error.__context__ = None
        return error.with_traceback(None)


async def _cancel_when_gone(request: Request, cancel: Cancel) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    await asyncio.to_thread(cancel.cancel)


async def read_body(request: Request, limit: int) -> bytes | None:
    """The whole body; None when it is larger than ``limit`` bytes. Raises `QueryCancelledError` when it breaks off."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                return None
    except ClientDisconnect:
        raise QueryCancelledError("the client went away") from None
    return bytes(body)


async def parameters_of(request: Request) -> Parameters:
    """Raises `QueryError` for a form that is too large."""
    body = await read_body(request, MOST_FORM_BYTES)
    if body is None:
        raise QueryError("error parsing form values: http: POST too large")
    given: dict[str, list[str]] = {}
    for text in (body.decode(errors="replace") if request.method == "POST" else "", request.url.query):
        for name, values in parse_qs(text, keep_blank_values=True).items():
            given.setdefault(name, []).extend(values)
    return Parameters(given)


def selectors_of(parameters: Parameters) -> list[str]:
    """The ``match[]`` parameters. Raises `QueryError` for one that is no selector, or would match anything."""
    selectors = parameters.all("match[]")
    for text in selectors:
        try:
            parse(text)
        except QueryError as error:
            if "at least one non-empty matcher" not in error.message:
                raise
            raise QueryError("match[] must contain at least one non-empty matcher") from None
    return selectors


def respond(answer: Answer) -> Response:
    if answer.data is None:
        return Response(status_code=204)
    notes = [(name, _bounded(told, name)) for name, told in (("warnings", answer.warnings), ("infos", answer.infos))]
    further = "".join(f',"{name}":{to_json(told)}' for name, told in notes if told)
    body = f'{{"status":"success","data":{answer.data}{further}}}'
    return Response(body, media_type="application/json")


def _bounded(told: Sequence[str], name: str) -> list[str]:
    left_out = len(told) - MOST_NOTES
    shown = list(told[:MOST_NOTES])
    return [*shown, f"{left_out} more {name.removesuffix('s')} annotations omitted"] if left_out > 0 else shown


def refuse(error: LomsError) -> Response:
    """An error as an answer, counted."""
    kind = error.kind if isinstance(error, QueryError) else "internal"
    selfmetrics.query_failures.labels(kind).inc()
    body = {"status": "error", "errorType": kind, "error": error.message}
    return Response(to_json(body), _STATUS[kind], media_type="application/json")


def to_json(value: object) -> str:
    return well_formed(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
