"""A small stand-in for the server: the page's files, and its API with made-up but moving data of five engines.

Four simulated vLLM engines, one of which stopped four minutes ago, and a llama.cpp that has no latency histograms.
Values follow from the time and the engine alone, so a query answers the same however often it is asked. Tests switch
what they need by `FakeApi`'s attributes.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loms.core.clock import iso_utc

POLICY = "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
STALLED, SLOW, LLAMA = "127.0.0.1:9103", "127.0.0.1:9102", "127.0.0.1:8080"
UNCLOSED = "1:9: parse error: unclosed left parenthesis"
NO_HISTOGRAM = "llama.cpp exposes no latency histograms"
KV = "llm_engine_kv_cache_utilization_ratio"
UNAVAILABLE = {
    "gen_ai_server_time_to_first_token_seconds": NO_HISTOGRAM,
    "gen_ai_server_request_duration_seconds": NO_HISTOGRAM,
    "llm_engine_inter_token_latency_seconds": NO_HISTOGRAM,
    "llm_engine_request_queue_duration_seconds": NO_HISTOGRAM,
    "llm_engine_request_prefill_duration_seconds": NO_HISTOGRAM,
    "llm_engine_request_decode_duration_seconds": NO_HISTOGRAM,
    KV: "this llama.cpp (b11434) no longer exposes the use of its KV cache",
    "llm_engine_prefix_cache_lookup_tokens_total": "llama.cpp does not count prefix cache look-ups",
    "llm_engine_requests_preempted_total": "llama.cpp does not preempt",
}


@dataclass(frozen=True, slots=True)
class Signal:
    """A metric's usual value and how far it wanders, as fractions of it; ``slow`` is a load that swells in minutes."""

    level: float
    noise: float
    slow: float = 0.3
    most: float = math.inf


SIGNALS = {
    "time_to_first_token": Signal(0.09, 0.25),
    "inter_token": Signal(0.021, 0.15),
    "request_duration": Signal(2.4, 0.2),
    "tokens_output": Signal(612.0, 0.08),
    "tokens_input": Signal(2130.0, 0.2),
    "kv_cache_utilization": Signal(0.52, 0.03, most=1.0),
    "requests_running": Signal(8.0, 0.1),
    "requests_waiting": Signal(0.8, 0.9, slow=1.0),
    "queue_duration": Signal(0.03, 0.5),
    "prefill_duration": Signal(0.055, 0.2),
    "decode_duration": Signal(2.2, 0.1),
    "prefix_cache_hit": Signal(0.71, 0.05, most=1.0),
    "preempted": Signal(0.4, 1.0, slow=1.0),
}
QUANTILES = {"0.5": 0.8, "0.9": 1.9, "0.99": 4.2}


@dataclass
class FakeApi:
    """The server's state. ``now_ms`` is the clock of everything it tells."""

    now_ms: Callable[[], int]
    web: Path
    engines: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What the search for targets could not read."""
    status: dict[str, Any] = field(default_factory=dict)
    outage: bool = False
    """Drop every API connection without an answer."""
    locked: bool = False
    """Answer every API request with 401."""
    below: str = ""
    """Serve everything below this path only, as behind a proxy."""
    refused: str = ""
    """Answer range queries that contain this with an error."""
    queries: list[dict[str, str]] = field(default_factory=list)
    """Parameters of every range query, in order."""

    def __post_init__(self) -> None:
        start = self.now_ms()
        store = {"samples": 48_312_077, "parts": 12, "series": 2834, "bytes_on_disk": 187_000_000}
        self.status |= {"version": "0.1.0", "started_ms": start - 176_800_000, "store": store, "dropped_samples": {}}
        self.began_ms = 0
        """Nothing was recorded before."""
        self.stalled_ms = start - 252_000
        self.frozen_kv = self.value("kv_cache_utilization", STALLED, self.stalled_ms, 1.0)
        self.slow_ms = start - 3 * 3600_000 - 420_000
        for n, zone in enumerate(("eu-1a", "eu-1a", "eu-1b", "eu-1b")):
            self.engines.append(engine(f"127.0.0.1:{9101 + n}", zone))
        self.engines.append(
            engine(LLAMA, "local")
            | {"engine": "llama.cpp", "version": "b11434", "model": "SmolLM2-135M-Instruct-Q4_1", "simulated": False}
            | {"state": "idle", "state_reason": "nothing to do", "job": "local", "unavailable": UNAVAILABLE}
        )
        self.engines[2] |= {"state": "stalled", "since_ms": self.stalled_ms, "last_progress_ms": self.stalled_ms}
        self.engines[2]["state_reason"] = (
            "no progress for 4 min 10 s while 8 requests run and 23 requests wait; /health may still say 200"
        )
        self.engines[3] |= {"state": "long_prefill", "since_ms": start - 9_000}
        self.engines[3]["state_reason"] = "no progress for 9 s while 1 request runs; within its allowance"
        self.trouble = ""
        self.incidents += [self.stall_incident(), self.latency_incident()]
        self.targets += [target(e, start) for e in self.engines]

    def stall_incident(self) -> dict[str, Any]:
        where = f'instance="{STALLED}", job="fleet"'
        counters = "llm_engine_tokens_output_total|llm_engine_requests_finished_total"
        return incident(
            "stall-1",
            f"{STALLED} has stopped: requests wait and nothing moves",
            "critical",
            self.stalled_ms + 15_000,
            alert(
                "EngineStalled",
                "critical",
                {"instance": STALLED, "engine": "vllm", "model": "Qwen2.5-7B-Instruct", "deployment_zone": "eu-1b"},
                (self.stalled_ms, self.stalled_ms + 15_000, None),
                {
                    "summary": "No token, step or finished request since "
                    + iso_utc(self.stalled_ms)
                    + " while 8 requests run and 23 wait. /health still answers 200.",
                    "description": "The engine's core makes no progress; its HTTP front does not notice.",
                    "next_step": "Take it out of the load balancer, record its stacks (py-spy dump), then restart it.",
                    "runbook_url": "https://runbooks.example/engine-stalled",
                },
                [
                    evidence(
                        f"last progress at {iso_utc(self.stalled_ms)}",
                        f'sum by (__name__) ({{__name__=~"{counters}", {where}}})',
                        self.stalled_ms / 1000,
                        "timestamp",
                    ),
                    evidence("8 requests run", f"llm_engine_requests_running{{{where}}}", 8.0, "requests"),
                    evidence("23 requests wait", f"llm_engine_requests_waiting{{{where}}}", 23.0, "requests"),
                    evidence("use of the KV cache stands still", f"{KV}{{{where}}}", self.frozen_kv, "ratio"),
                    evidence("/health answers 200 all the while", "", None, ""),
                ],
            ),
        )

    def latency_incident(self) -> dict[str, Any]:
        start = self.slow_ms
        expr = (
            "histogram_quantile(0.99, sum by (instance, le) "
            f'(rate(gen_ai_server_time_to_first_token_seconds_bucket{{instance="{SLOW}"}}[1m])))'
        )
        return incident(
            "latency-1",
            f"{SLOW}: P99 of time to first token is 3.1 s, usually 380 ms",
            "warning",
            start + 30_000,
            alert(
                "LatencyAboveBaseline",
                "warning",
                {"instance": SLOW, "engine": "vllm", "model": "Qwen2.5-7B-Instruct"},
                (start, start + 30_000, start + 420_000),
                {
                    "summary": "P99 of time to first token is 3.1 s, usually 380 ms",
                    "next_step": "Look at its queue and at what changed in the load.",
                },
                [evidence("P99 of time to first token", expr, 3.1, "seconds")],
            ),
        )

    def resolve(self, which: str) -> None:
        """End an incident now."""
        at = self.now_ms()
        for item in self.incidents:
            if item["id"] == which:
                item |= {"state": "resolved", "resolved_at_ms": at}
                for one in item["alerts"]:
                    one |= {"state": "resolved", "resolved_at_ms": at}

    def value(self, name: str, instance: str, at_ms: float, factor: float) -> float | None:
        """What the metric of ``SIGNALS`` read then; None: no sample, NaN: nothing to measure."""
        signal = SIGNALS[name]
        stopped = instance == STALLED and at_ms > self.stalled_ms
        since = (at_ms - self.stalled_ms) / 1000
        if stopped and name == "requests_waiting":
            return min(23.0, 1 + since // 9)
        if stopped and name == "requests_running":
            return 8.0
        if stopped and name == "kv_cache_utilization":
            at_ms = self.stalled_ms
        elif stopped and name.startswith("tokens"):
            return max(0.0, 600.0 * (1 - since / 60))
        elif stopped:
            return math.nan if since > 60 else None
        if instance == SLOW and name == "time_to_first_token":
            factor *= 1 + 7 * math.exp(-(((at_ms - self.slow_ms - 200_000) / 130_000) ** 2))
        seed = sum(map(ord, instance + name))
        minutes, odd = at_ms / 60_000, seed % 7 / 7 + 0.6
        swell = math.sin(minutes / 9 * odd + seed) + 0.6 * math.sin(minutes / 2.3 * odd + 2 * seed)
        jitter = math.sin(at_ms / 1000 * 12.9898 + seed) * 43758.5453
        scale = 0.05 if instance == LLAMA else 0.8 + 0.4 * (seed % 5 / 5)
        wander = 1 + signal.slow * 0.6 * swell + signal.noise * (jitter - math.floor(jitter) - 0.5)
        value = min(signal.most, max(0.0, signal.level * scale * wander)) * factor
        return float(round(value)) if name.startswith("requests") else value

    def rows(self, expr: str, times: list[float]) -> Iterator[dict[str, Any]]:
        """Series of an expression: for each engine it selects that has the metric."""
        chosen = re.search(r'instance="([^"]*)"', expr)
        if "__name__=~" in expr:
            for name, speed in (("llm_engine_tokens_output_total", 600), ("llm_engine_requests_finished_total", 4)):
                moved = [min(0.0, t - self.stalled_ms / 1000) + 9000 for t in times]
                values = [[t, repr(speed * s)] for t, s in zip(times, moved, strict=True)]
                yield {"metric": {"__name__": name}, "values": values}
            return
        name = next((key for key in SIGNALS if key in expr), "")
        quantile = re.search(r"histogram_quantile\(([\d.]+)", expr)
        factor = QUANTILES[quantile[1]] if quantile else 1.0
        for one in self.engines if name else ():
            instance = one["instance"]
            if (chosen and chosen[1] != instance) or any(metric in expr for metric in one["unavailable"]):
                continue
            read = [(t, self.value(name, instance, t * 1000, factor)) for t in times if t * 1000 >= self.began_ms]
            values = [[t, "NaN" if math.isnan(v) else repr(v)] for t, v in read if v is not None]
            yield {"metric": {"instance": instance}, "values": values}

    def query_range(self, params: dict[str, str]) -> tuple[int, Any]:
        """Prometheus's answer, or its objection to an expression whose brackets do not match."""
        self.queries.append(params)
        expr = params["query"]
        if expr.count("(") != expr.count(")"):
            return 400, {"status": "error", "errorType": "bad_data", "error": UNCLOSED}
        if self.refused and self.refused in expr:
            return 422, {"status": "error", "errorType": "execution", "error": "query timed out"}
        start, end, step = (float(params[key]) for key in ("start", "end", "step"))
        times = [start + i * step for i in range(int((end - start) / step + 1e-9) + 1)]
        return 200, {"status": "success", "data": {"resultType": "matrix", "result": list(self.rows(expr, times))}}

    def answer(self, path: str, params: dict[str, str]) -> tuple[int, Any]:
        """Status and JSON of an API request."""
        if self.locked:
            return 401, {"status": "error", "errorType": "unauthorized", "error": "a token is needed"}
        if path.startswith("/api/incidents/"):
            found = [i for i in self.incidents if i["id"] == path.removeprefix("/api/incidents/")]
            return (200, found[0]) if found else (404, {"detail": "there is no incident of this id"})
        state = params.get("state", "all")
        routes: dict[str, Callable[[], tuple[int, Any]]] = {
            "/api/engines": lambda: (200, self.engines),
            "/api/incidents": lambda: (
                200,
                {"incidents": [i for i in self.incidents if state in ("all", i["state"])], "trouble": self.trouble},
            ),
            "/api/targets": lambda: (200, {"targets": self.targets, "problems": self.problems}),
            "/api/status": lambda: (200, self.status),
            "/api/v1/query_range": lambda: self.query_range(params),
        }
        return routes.get(path, lambda: (404, {"detail": f"{path} is not there"}))()


def engine(instance: str, zone: str) -> dict[str, Any]:
    """A simulated vLLM, busy."""
    return {
        "instance": instance,
        "job": "fleet",
        "engine": "vllm",
        "model": "Qwen2.5-7B-Instruct",
        "version": "0.32.0",
        "zone": zone,
        "simulated": True,
        "up": True,
        "state": "busy",
        "state_reason": "7 requests run, progress 1 s ago",
        "since_ms": None,
        "last_progress_ms": None,
        "unavailable": {},
        "contract": [],
    }


def target(of: dict[str, Any], at_ms: int) -> dict[str, Any]:
    """The scrape target of an engine, up."""
    return {
        "job": of["job"],
        "instance": of["instance"],
        "url": f"http://{of['instance']}/metrics",
        "engine": of["engine"],
        "up": True,
        "health": "up",
        "last_error": "",
        "last_scrape_ms": at_ms - 1200,
        "duration_seconds": 0.008,
        "samples": 532,
        "interval_seconds": 5.0,
        "discovered_by": "static",
    }


def incident(which: str, title: str, severity: str, opened_ms: int, one: dict[str, Any]) -> dict[str, Any]:
    """An incident of one alert, open unless the alert has ended."""
    ended = one["resolved_at_ms"]
    return {
        "id": which,
        "title": title,
        "state": "resolved" if ended else "open",
        "severity": severity,
        "group": {"instance": one["labels"]["instance"]},
        "opened_at_ms": opened_ms,
        "updated_at_ms": ended or opened_ms,
        "resolved_at_ms": ended,
        "alerts": [one],
    }


def alert(
    rule: str,
    severity: str,
    labels: dict[str, str],
    times_ms: tuple[int, int, int | None],
    annotations: dict[str, str],
    facts: list[dict[str, Any]],
) -> dict[str, Any]:
    """``times_ms``: first true, fired, resolved."""
    active, fired, ended = times_ms
    return {
        "rule": rule,
        "fingerprint": f"{sum(map(ord, rule)):016x}",
        "state": "resolved" if ended else "firing",
        "severity": severity,
        "labels": labels | {"alertname": rule, "severity": severity},
        "annotations": annotations,
        "value": 1.0,
        "active_at_ms": active,
        "fired_at_ms": fired,
        "resolved_at_ms": ended,
        "expr": "",
        "evidence": facts,
    }


def evidence(text: str, expr: str, value: float | None, unit: str) -> dict[str, Any]:
    """One fact."""
    return {"text": text, "expr": expr, "value": value, "unit": unit}


class FakeServer:
    """Serves a `FakeApi` on a free port of loopback, in a thread."""

    def __init__(self, api: FakeApi) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path.removeprefix(api.below))
                if not self.path.startswith(api.below):
                    self._send(404, "text/plain", b"not there")
                elif parts.path == "/" or parts.path.startswith("/web/"):
                    self._file(api.web / (parts.path.removeprefix("/web/").lstrip("/") or "index.html"))
                elif api.outage:
                    self.close_connection = True
                else:
                    params = {key: values[0] for key, values in parse_qs(parts.query).items()}
                    status, body = api.answer(parts.path, params)
                    self._send(status, "application/json", json.dumps(body).encode())

            def _file(self, path: Path) -> None:
                if path.is_file() and path.suffix in TYPES:
                    self._send(200, TYPES[path.suffix], path.read_bytes())
                else:
                    self._send(404, "text/plain", b"not there")

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                with suppress(ConnectionError):  # the page may have gone on meanwhile
                    self.end_headers()
                    self.wfile.write(body)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string(api.now_ms() / 1000 if timestamp is None else timestamp)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
