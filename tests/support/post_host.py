"""A small HTTP server that keeps what is posted to it and answers what it is told to; with or without TLS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

TLS = Path(__file__).parents[1] / "data/tls"
"""A server's certificate for ``localhost`` by a CA of the tests' own."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 204
    headers: Mapping[str, str] | None = None
    text: str = ""
    drip: bool = False
    """After the head (or, without ``text``, in it) comes one byte after the other, for ever."""


@dataclass(frozen=True, slots=True)
class Posted:
    path: str
    headers: Mapping[str, str]
    body: bytes


class PostHost:
    """A context manager. The prepared ``answers`` are given one after the other, then 204 for good."""

    def __init__(self, answers: Iterable[Answer] = (), *, tls: bool = False) -> None:
        self.posted: list[Posted] = []
        self.arrived = threading.Semaphore(0)
        self.ended = threading.Event()
        host, prepared = self, iter(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                host.posted.append(Posted(self.path, dict(self.headers.items()), body))
                answer = next(prepared, Answer())
                self.send_response(answer.status)
                for name, value in (answer.headers or {}).items():
                    self.send_header(name, value)
                text = answer.text.encode()
                if answer.drip:
                    self.end_headers() if text else self.flush_headers()
                    with suppress(OSError):
                        while not host.ended.wait(0.02):
                            self.wfile.write(b"x")
                    return
                if answer.status != 204:
                    self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                host.arrived.release()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.url = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{self.port}/api/v1/write"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
