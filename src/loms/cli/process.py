"""The process behind ``loms up``: server and agent over one listener, ended in the right order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import suppress
from functools import partial

import uvicorn

from loms.agent.runtime import Agent
from loms.core import log
from loms.core.clock import SystemClock
from loms.core.errors import LomsError
from loms.core.settings import Config
from loms.server.api import Collected
from loms.server.app import build
from loms.server.runtime import Server
from loms.store.target_notes import TargetNotes

_log = logging.getLogger("loms.up")


def serve(config: Config) -> None:
    """Run until SIGINT or SIGTERM. Raises `LomsError` when it cannot start or a part of it ends by itself."""
    log.configure(config.log_level, as_json=config.log_json)
    asyncio.run(_serve(config, _listen(config.server.host, config.server.port)))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise LomsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="another port: loms up --port 8091"
        ) from None


async def _serve(config: Config, listener: socket.socket) -> None:
    """Run until SIGINT or SIGTERM; then what is queued is written before the store is closed."""
    clock = SystemClock()
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    with Server(config, clock, url) as server:
        notes = partial(TargetNotes, server.database, clock)
        agent = Agent(config, server.writer, clock, recall=server.recall, notes=notes, own_port=port)
        app = build(server, Collected(agent.engines, agent.targets, agent.problems))
        http = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=3)
        )
        work = [asyncio.create_task(agent.run(), name="agent"), asyncio.create_task(server.run(), name="server")]
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn takes these over while it serves, and raises them again when it has shut down: by then they must
            # not kill, because what is queued is still to be written.
            signal.signal(number, lambda *_: setattr(http, "should_exit", True))
        for task in work:
            task.add_done_callback(lambda ended: _stop_if_failed(ended, http))
        _log.info("LOMS is up: %s (data in %s)", url, server.database.path)
        try:
            await http.serve(sockets=[listener])
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    for task in work:
        with suppress(asyncio.CancelledError):
            task.result()


def _stop_if_failed(task: asyncio.Task[None], http: uvicorn.Server) -> None:
    """A half-working monitor is worse than none: if collecting or evaluating ends, the process ends with its error."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended: %s", task.get_name(), task.exception())
        http.should_exit = True
