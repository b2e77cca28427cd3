"""An engine's HTTP face made of written expositions, of which one can take another's place, as in an upgrade."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_SAMPLE = re.compile(r"^([^#\s{]+)(\{.*\})? (\S+)$", re.MULTILINE)
_CUMULATIVE = ("counter", "histogram")


class EngineServer:
    """Serves ``/metrics`` and ``/version``; a context manager.

    At each scrape every counter and histogram has grown by a hundredth of what the file says, from one time the file's
    values on, so that equal stories stay equal whichever file tells them.
    """

    def __init__(self, text: Path, version: str) -> None:
        self.version = version
        self.scrapes = 0
        self._exchange(text)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer("text/plain; version=0.0.4", owner.scraped())
                elif self.path == "/version":
                    self._answer("application/json", json.dumps({"version": owner.version}))
                else:
                    self.send_error(404)

            def _answer(self, content_type: str, text: str) -> None:
                body = text.encode()
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.instance = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> EngineServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def upgrade(self, text: Path, version: str, *, restarted: bool = False) -> None:
        """From the next scrape on this file is told. ``restarted``: the counters begin anew, at the file's values."""
        if restarted:
            self.scrapes = 0
        self.version = version
        self._exchange(text)

    def scraped(self) -> str:
        """The exposition of the next scrape."""
        self.scrapes += 1
        share = 1 + self.scrapes / 100
        return _SAMPLE.sub(lambda m: self._grown(m, share), self._text)

    def _exchange(self, path: Path) -> None:
        self._text = path.read_text()
        self._types = dict(_TYPE.findall(self._text))

    def _grown(self, sample: re.Match[str], share: float) -> str:
        name, labels, value = sample[1], sample[2] or "", sample[3]
        bases = (name, *(name.removesuffix(part) for part in ("_bucket", "_sum", "_count")))
        grows = any(self._types.get(base) in _CUMULATIVE for base in bases)
        return f"{name}{labels} {float(value) * share!r}" if grows else sample[0]
