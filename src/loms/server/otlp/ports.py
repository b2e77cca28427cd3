"""OTLP's own ports, 4318 and 4317: opened if they are free, left out with a word in the log if they are not."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fastapi import FastAPI

from loms.core.errors import LomsError
from loms.core.settings import Config
from loms.server.otlp.grpc import OtlpGrpc
from loms.server.otlp.http import OtlpPort
from loms.server.otlp.receiver import OtlpReceiver

_log = logging.getLogger("loms.otlp")


@contextmanager
def otlp_ports(config: Config, receiver: OtlpReceiver, app: FastAPI) -> Iterator[list[socket.socket]]:
    """Answer gRPC until the block ends; yields the sockets that ``app``, not yet started, is to serve as well."""
    with ExitStack() as stack:
        sockets = []
        if listener := _http(config):
            app.add_middleware(OtlpPort, port=listener.getsockname()[1])
            sockets.append(stack.enter_context(listener))
        if grpc := _grpc(config, receiver):
            stack.enter_context(grpc)
        yield sockets


def _http(config: Config) -> socket.socket | None:
    host, port = config.server.host, config.receive.otlp_http_port
    if port is None:
        return None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        _log.warning("OTLP over HTTP is left out on port %d: %s", port, error.strerror or error)
        return None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _log.info("OTLP over HTTP: port %d", listener.getsockname()[1])
    return listener


def _grpc(config: Config, receiver: OtlpReceiver) -> OtlpGrpc | None:
    if config.receive.otlp_grpc_port is None:
        return None
    token = config.server.token.get_secret_value() if config.server.token else None
    try:
        grpc = OtlpGrpc(receiver, config.server.host, config.receive.otlp_grpc_port, token, config.server.tls)
    except LomsError as error:
        _log.warning("OTLP over gRPC is left out: %s", error.message)
        return None
    _log.info("OTLP over gRPC: port %d", grpc.port)
    return grpc
