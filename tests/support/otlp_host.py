"""A small gRPC server that keeps what is exported to it and answers what it is told to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Called:
    path: str
    metadata: Mapping[str, str | bytes]
    body: bytes


class OtlpHost(grpc.GenericRpcHandler):
    """A context manager. The prepared answers (code, text, details) come one after the other, then OK for good."""

    def __init__(self, answers: Iterable[tuple[int, str, bytes]] = ()) -> None:
        self.called: list[Called] = []
        self._answers = iter(answers)
        self._server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        metadata = dict(handler_call_details.invocation_metadata)

        def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
            self.called.append(Called(path, metadata, body))
            code, text, details = next(self._answers, (0, "", b""))
            if code:
                context.set_trailing_metadata((("grpc-status-details-bin", details),))
                context.abort(_CODES[code], text)
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)
