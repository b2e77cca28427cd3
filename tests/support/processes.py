"""Real processes for tests: LOMS itself, a webhook receiver, and how to wait for what they do."""

from __future__ import annotations

import json
import math
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], seconds: float, what: str, pause: float = 0.2) -> None:
    """Wait for something that happens in another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(pause)


def status(url: str, tls: ssl.SSLContext | None = None) -> int:
    """HTTP status of a GET; 0 when there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=10, context=tls) as response:
            answered: int = response.status
            return answered
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def post(url: str, body: Mapping[str, object]) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        response.read()


class Loms:
    """``loms up`` in a process of its own, watching these instances; a context manager.

    ``settings`` are merged into the configuration's sections. After `stop` or `kill`, `start` starts it again on the
    same data and port. ``command`` may be another one than ``up``, with its options; ``tls``
    says whom to trust where the configuration has a certificate.
    """

    def __init__(
        self,
        folder: Path,
        instances: Sequence[str],
        settings: Mapping[str, Any] | None = None,
        command: Sequence[str] = ("up",),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._command = command
        self._tls = tls
        self.port = free_port()
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.log = folder / "loms.log"
        self.config = folder / "loms.yaml"
        config: dict[str, Any] = {
            "server": {"port": self.port},
            "store": {"path": str(folder / "data")},
            "scrape": {"discover": {"enabled": False}, "jobs": [{"name": "engines", "targets": list(instances)}]},
            "receive": {"otlp_http_port": None, "otlp_grpc_port": None},  # several LOMS run at once
        }
        for section, values in (settings or {}).items():
            if isinstance(values, Mapping):
                config.setdefault(section, {}).update(values)
            else:
                config[section] = values
        self.config.write_text(json.dumps(config))  # JSON is YAML
        self.start()

    def __enter__(self) -> Loms:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loms", *self._command, "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(self._ready, 60, "LOMS's start")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def get(self, path: str, **parameters: str) -> Any:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=20) as response:
            return json.load(response)

    def value(self, expr: str) -> float:
        """The one value of an instant query; NaN when it gives none."""
        result = self.get("/api/v1/query", query=expr)["data"]["result"]
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else math.nan

    def engine(self, instance: str) -> dict[str, Any]:
        """The row of ``/api/engines``; empty before the engine is known."""
        return next((row for row in self.get("/api/engines") if row["instance"] == instance), {})

    def incidents(self, instance: str, state: str = "all") -> list[dict[str, Any]]:
        found = self.get("/api/incidents", state=state)["incidents"]
        return [incident for incident in found if incident["group"].get("instance") == instance]

    def _ready(self) -> bool:
        assert self._process.poll() is None, f"LOMS ended while starting:\n{self.log.read_text()[-3000:]}"
        return status(f"{self.url}/readyz", self._tls) == 200


class Receiver:
    """A webhook receiver that keeps what it gets; a context manager."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        received = self.payloads

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def alerts(self, status: str, instance: str) -> list[dict[str, Any]]:
        """Alerts of this status about an instance, in the order in which they came."""
        return [
            alert
            for payload in self.payloads
            for alert in payload["alerts"]
            if alert["status"] == status and alert["labels"].get("instance") == instance
        ]
