"""A small HTTP server of a test's own: whatever a function answers, path by path."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

TEXT = "text/plain; version=0.0.4; charset=utf-8"
Answer = Callable[[str], tuple[str, bytes] | int | None]
"""Path → content type and body, or a status alone (one of redirection leads back to the path); None for 404."""


class Host:
    """Answers GET at a port that the system chooses; a context manager."""

    def __init__(self, answer: Answer) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = answer(self.path) or 404
                content_type, body = ("text/plain", b"") if isinstance(found, int) else found
                self.send_response(found if isinstance(found, int) else 200)
                if isinstance(found, int) and 300 <= found < 400:
                    self.send_header("Location", self.path)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.instance = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
