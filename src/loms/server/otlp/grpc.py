"""OTLP over gRPC: the three export services. gzip is gRPC's own; messages come as bytes and are decoded here.

Source: opentelemetry.io/docs/specs/otlp (OTLP/gRPC).
"""

from __future__ import annotations

import hmac
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import grpc

from loms.core.errors import LomsError
from loms.core.settings import ServerTls
from loms.ingest.otlp.limits import Signal
from loms.server.otlp.receiver import Answer, OtlpReceiver, refusal

THREADS = 2
CALLS_AT_ONCE = 16
"""Beyond it a call is refused (RESOURCE_EXHAUSTED), and comes again."""
STOP_SECONDS = 3.0

_SERVICES: dict[Signal, str] = {
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}


class OtlpGrpc:
    """A gRPC server in threads of its own. A context manager: leaving it lets calls under way come to their end."""

    def __init__(
        self, receiver: OtlpReceiver, host: str, port: int, token: str | None = None, tls: ServerTls | None = None
    ) -> None:
        """Listen on ``host:port`` (0: any free port).

        With ``token``, calls must bring it as ``authorization: Bearer …``. Raises `LomsError` when somebody else has
        the port, or when the files of ``tls`` cannot be used.
        """
        self._receiver = receiver
        self._token = token.encode() if token else None
        most = min(receiver.settings.decompressed, receiver.settings.otlp_message)
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix="otlp-grpc"),
            options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=CALLS_AT_ONCE,
        )
        for signal, service in _SERVICES.items():
            handler = grpc.unary_unary_rpc_method_handler(partial(self._export, signal))
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        taken = f"cannot listen on {address} for OTLP over gRPC"
        try:  # gRPC would write a line of its own to stderr
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            raise LomsError(f"{taken}: {error.strerror or error}") from None
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
                self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except OSError as error:
            raise LomsError(f"{error.filename}: {error.strerror}") from None
        except RuntimeError:
            raise LomsError(f"{taken}: somebody else has the port") from None

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(STOP_SECONDS).wait()

    def _export(self, signal: Signal, body: bytes, context: grpc.ServicerContext) -> bytes:
        answer = self._receiver.take(signal, body) if self._admits(context) else _unknown(signal)
        content: bytes = answer.message.SerializeToString()
        if answer.grpc:
            context.set_trailing_metadata((("grpc-status-details-bin", content),))
            status: Any = answer.message
            context.abort(_CODES[answer.grpc], status.message)
        return content

    def _admits(self, context: grpc.ServicerContext) -> bool:
        if self._token is None:
            return True
        offered = str(dict(context.invocation_metadata()).get("authorization", ""))
        scheme, _, given = offered.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(self._token, given.encode())


def _unknown(signal: Signal) -> Answer:
    return refusal(
        signal, 401, "a token is needed: authorization: Bearer …", grpc=grpc.StatusCode.UNAUTHENTICATED.value[0]
    )


_CODES = {code.value[0]: code for code in grpc.StatusCode}
