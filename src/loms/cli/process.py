"""The process behind ``loms up`` and ``loms server``: server and agent over one listener, ended in the right order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

from loms.agent.pushed import Pushed
from loms.agent.runtime import Agent
from loms.agent.stored import Left
from loms.core import log
from loms.core.clock import SystemClock
from loms.core.errors import ConfigError, LomsError
from loms.core.settings import Config, ServerTls
from loms.rules.shard import Shard
from loms.server.api import Collected
from loms.server.app import build
from loms.server.otlp.ports import otlp_ports
from loms.server.runtime import Server
from loms.store.target_notes import TargetNotes

_log = logging.getLogger("loms.up")


def serve(config: Config, *, collect: bool = True, shard: Shard | None = None) -> None:
    """Run until SIGINT or SIGTERM, with or without an agent that collects.

    Raises `LomsError` when it cannot start or a part of it ends by itself.
    """
    log.configure(config.log_level, as_json=config.log_json)
    tls = _checked(config.server.tls)
    asyncio.run(_serve(config, _listen(config.server.host, config.server.port), tls, collect, shard or Shard()))


def _checked(tls: ServerTls | None) -> dict[str, str]:
    """uvicorn's settings for TLS. Raises `ConfigError` when the certificate and its key cannot be used."""
    if tls is None:
        return {}
    certificate, key = str(tls.cert_file.expanduser()), str(tls.key_file.expanduser())
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(f"server.tls: {certificate} with {key} cannot be used: {error.strerror or error}") from None
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=512)
        # Accepted sockets inherit it. asyncio sets it only on sockets that were made with the protocol's number, and
        # without it an answer's body waits 40 ms for the acknowledgement of its head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise LomsError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="another port: loms up --port 8091"
        ) from None


async def _serve(config: Config, listener: socket.socket, tls: dict[str, str], collect: bool, shard: Shard) -> None:
    """Run until SIGINT or SIGTERM; then what is queued is written before the store is closed."""
    clock = SystemClock()
    host, port = listener.getsockname()[:2]
    url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
    with Server(config, clock, url, shard) as server:
        agent: Agent | None = None
        if collect:
            notes = partial(TargetNotes, server.database, clock)
            agent = Agent(
                config, server.sink, clock, recall=server.recall, notes=notes, note=server.metadata.note, own_port=port
            )
        scraped = agent.scrapes if agent else lambda *_: False
        pushed = Pushed(server.sink, clock, server.metadata.of, scraped, Left(server.engine, clock))
        server.listeners.append(pushed)
        parts = {"server": server.run(), "pushed": pushed.run(), **({"agent": agent.run()} if agent else {})}
        work = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        app = build(server, _collected(agent, pushed))
        listening: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off", **tls}
        http = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=3, **listening))
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn takes these over while it serves, and raises them again when it has shut down: by then they must
            # not kill, because what is queued is still to be written.
            signal.signal(number, lambda *_: setattr(http, "should_exit", True))
        for task in work:
            task.add_done_callback(lambda ended: _stop_if_failed(ended, http))
        part = f", shard {shard}" if shard.count > 1 else ""
        _log.info("LOMS is up: %s (data in %s%s)", url, server.database.where, part)
        try:
            with otlp_ports(config, server.otlp, app) as more:
                await http.serve(sockets=[listener, *more])
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await pushed.finish()
    for task in work:
        with suppress(asyncio.CancelledError):
            task.result()


def _collected(agent: Agent | None, pushed: Pushed) -> Collected:
    if agent is None:
        return Collected(pushed.engines)
    return Collected(lambda: [*agent.engines(), *pushed.engines()], agent.targets, agent.problems, agent.exposed)


def _stop_if_failed(task: asyncio.Task[None], http: uvicorn.Server) -> None:
    """A half-working monitor is worse than none: if collecting or evaluating ends, the process ends with its error."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s ended: %s", task.get_name(), task.exception())
        http.should_exit = True
