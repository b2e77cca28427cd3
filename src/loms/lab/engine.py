"""The simulated engine: an HTTP server that looks like vLLM and runs the engine model in real time.

``python -m loms.lab.engine --count 4`` serves four engines from one process on free loopback ports, prints one line of
JSON with their addresses once they answer, and stops on SIGTERM or Ctrl-C. All that it serves says it is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import TypeAdapter, ValidationError

from loms.core.clock import Clock, SystemClock
from loms.core.errors import LomsError
from loms.lab.child import end_with_parent
from loms.lab.exposition import CONTENT_TYPE, MetricsText
from loms.lab.faults import FAULTS, Fault, FaultBoard, Hang, KvLeak, Slow
from loms.lab.live import Answer, LiveEngine
from loms.lab.openai_api import ApiError, ChatAsk, CompletionAsk, Writer, bad_request, invalid, plan, usage
from loms.lab.scheduler import EngineConfig, Request

DEFAULT_MODEL = "simulated-8b"
VERSION = "0.32.0"
"""The vLLM whose metrics are spoken."""

_FAULT: TypeAdapter[Hang | Slow | KvLeak] = TypeAdapter(Fault)


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where a simulated engine answers."""

    name: str
    url: str
    model: str


class EngineServer:
    """One simulated engine behind HTTP. An async context manager: inside, it serves; afterwards, it has stopped."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        name: str = "sim",
        model: str = DEFAULT_MODEL,
        host: str = "127.0.0.1",
        port: int = 0,
        speed: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """``port`` 0 takes a free one; ``speed`` divides the duration of every step."""
        self._clock = clock or SystemClock()
        self._name, self._model, self._host, self._port = name, model, host, port
        self._engine = LiveEngine(config or EngineConfig(), self._clock, speed)
        self._faults = FaultBoard(self._engine)
        self._created = self._clock.now_ms() // 1000
        self._metrics = MetricsText(self._engine.stats, self._engine.config, model, self._clock.now_ms() / 1000)
        self._ids = count()
        self._runner = web.AppRunner(
            self._application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )

    async def __aenter__(self) -> EngineServer:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self.core = asyncio.create_task(self._engine.run(), name=f"core of {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._faults.clear_all()
        self.core.cancel()
        await asyncio.wait([self.core])
        await self._runner.cleanup()

    @property
    def address(self) -> EngineAddress:
        port = self._runner.addresses[0][1]
        return EngineAddress(self._name, f"http://{self._host}:{port}", self._model)

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[_errors], client_max_size=4 * 2**20)
        application.on_response_prepare.append(_sign)
        application.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._exposition),
                web.post("/lab/faults", self._switch_on),
                web.get("/lab/faults", self._list_faults),
                web.delete("/lab/faults", self._clear_faults),
                web.delete("/lab/faults/{name}", self._clear_faults),
            ]
        )
        return application

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, ChatAsk.model_validate(await _body(http)))

    async def _completion(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, CompletionAsk.model_validate(await _body(http)))

    async def _serve(self, http: web.Request, ask: ChatAsk | CompletionAsk) -> web.StreamResponse:
        arrived = self._clock.monotonic()
        if ask.model is not None and ask.model != self._model:
            raise ApiError(404, f"The model `{ask.model}` does not exist.", "NotFoundError", "model")
        made = plan(ask, self._engine.config.max_model_len)
        chat = isinstance(ask, ChatAsk)
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{self._name}-{next(self._ids)}"
        created = self._clock.now_ms() // 1000
        writer = Writer(made, chat=chat, request_id=request_id, created=created, model=self._model)
        answer = self._engine.ask(
            Request(request_id, made.prompt, made.reply, arrived, made.finish_reason, made.max_tokens)
        )
        try:
            if ask.stream:
                with_usage = ask.stream_options is not None and ask.stream_options.include_usage
                return await _stream(http, answer, writer, with_usage)
            await answer.finished()
            return web.json_response(writer.plain(_usage(answer)))
        finally:
            self._engine.abort(request_id)

    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "loms-lab (simulated)",
            "max_model_len": self._engine.config.max_model_len,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION, "simulated": True})

    async def _exposition(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _switch_on(self, http: web.Request) -> web.Response:
        self._faults.switch_on(_FAULT.validate_python(await _body(http)))
        return await self._list_faults(http)

    async def _list_faults(self, _: web.Request) -> web.Response:
        return web.json_response({"faults": self._faults.describe()})

    async def _clear_faults(self, http: web.Request) -> web.Response:
        name = http.match_info.get("name")
        if name is None:
            self._faults.clear_all()
        elif name in FAULTS:
            self._faults.clear(name)
        else:
            raise ApiError(404, f"There is no fault {name}; there are {', '.join(FAULTS)}.", "NotFoundError", "name")
        return await self._list_faults(http)


def _usage(answer: Answer) -> dict[str, Any]:
    return usage(len(answer.request.prompt), answer.emitted, answer.cached_tokens)


async def _stream(http: web.Request, answer: Answer, writer: Writer, with_usage: bool) -> web.StreamResponse:
    """Tokens as server-sent events as they are said; the headers go out at once, as vLLM's do."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    sent = 0
    while not answer.complete or sent < answer.emitted:
        emitted = await answer.beyond(sent)
        await response.write((writer.opening() if sent == 0 else b"") + writer.chunks(sent, emitted))
        sent = emitted
    await response.write(writer.closing(_usage(answer) if with_usage else None))
    await response.write_eof()
    return response


async def _body(http: web.Request) -> Any:
    try:
        return json.loads(await http.read())
    except ValueError as error:
        raise bad_request(f"The body is not JSON: {error}") from error


async def _sign(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "loms-lab"


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body, status=error.status)
    except ValidationError as error:
        refused = invalid(error)
        return web.json_response(refused.body, status=refused.status)
    except web.HTTPException as error:
        refused = ApiError(error.status, f"{error.reason}: {request.method} {request.path}", "NotFoundError")
        return web.json_response(refused.body, status=error.status)


async def serve(servers: Sequence[EngineServer]) -> None:
    """Serve until SIGTERM or SIGINT; announces the addresses on stdout as one line of JSON."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        addresses = [server.address for server in servers]
        line = {"urls": [address.url for address in addresses], "engines": [asdict(address) for address in addresses]}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        stop = asyncio.create_task(stopped.wait())
        done, _ = await asyncio.wait([stop, *(server.core for server in servers)], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loms.lab.engine", description="Simulated LLM engines.")
    defaults = EngineConfig()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="first port; 0 takes free ones")
    parser.add_argument("--count", type=int, default=1, help="number of engines")
    parser.add_argument("--name", default="sim", help="name of the engines; several get -0, -1, …")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="served model name")
    parser.add_argument("--speed", type=float, default=1.0, help="divides the duration of every step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-num-seqs", type=int, default=defaults.max_num_seqs)
    parser.add_argument("--max-num-batched-tokens", type=int, default=defaults.max_num_batched_tokens)
    parser.add_argument("--num-blocks", type=int, default=defaults.num_blocks)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len)
    parser.add_argument("--jitter", type=float, default=defaults.cost.jitter, help="random variation of a step")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--end-with-stdin", action="store_true", help="stop when standard input is closed")
    arguments = parser.parse_args(argv)
    if arguments.count < 1:
        parser.error("--count must be at least 1")
    if not 0 <= arguments.port <= 65536 - arguments.count:
        parser.error("--port must be between 0 and 65535, for every engine")
    if not arguments.speed > 0:
        parser.error("--speed must be above 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        config = EngineConfig(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            num_blocks=options.num_blocks,
            max_model_len=options.max_model_len,
            prefix_caching=not options.no_prefix_caching,
            cost=replace(EngineConfig().cost, jitter=options.jitter),
        )
        servers = [
            EngineServer(
                replace(config, seed=options.seed + number),
                name=options.name if options.count == 1 else f"{options.name}-{number}",
                model=options.model,
                host=options.host,
                port=options.port + number if options.port else 0,
                speed=options.speed,
            )
            for number in range(options.count)
        ]
        if options.end_with_stdin:
            end_with_parent()
        asyncio.run(serve(servers))
    except LomsError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host} port {options.port}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
