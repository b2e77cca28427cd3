"""Somebody else's Prometheus: a `loms.core.model.Querier` over the HTTP API of anything that speaks it.

What Prometheus, VictoriaMetrics, Thanos and Mimir answer alike (prometheus.io/docs/prometheus/latest/querying/api).
Queries go as form-encoded POST, so that long expressions fit; where that is not taken, as GET. The semantics are the
other side's: Prometheus 2 counts the left edge of a window in, and how far an instant query looks back is set there.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

import numpy as np
import urllib3

from loms import __version__
from loms.core import settings
from loms.core.errors import (
    ConfigError,
    LomsError,
    QueryCancelledError,
    QueryError,
    QueryLimitError,
    QueryTimeoutError,
    TargetError,
)
from loms.core.log import redact
from loms.core.model import Floats, Frame, Ints, Labels, Metadata, labels_of
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult

MAX_POINTS = 11_000
"""Evaluation times that Prometheus computes for one range query."""
_KEPT_WARNINGS = 100
_READ_BYTES = 1 << 16
_ERRORS: Mapping[str, type[QueryError]] = {
    "bad_data": QueryError,
    "execution": QueryLimitError,
    "timeout": QueryTimeoutError,
    "canceled": QueryCancelledError,
}
"""errorType → what it is here. What a query ran into on the way (``execution``) may be a limit or the data."""
_REFUSED = frozenset({400, 422})
"""HTTP statuses for a wrong query; VictoriaMetrics writes the number where Prometheus writes the errorType."""

_log = logging.getLogger("loms.remote")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the API is, and how it is called in messages."""

    url: str
    shown: str
    username: str
    password: str

    @classmethod
    def of(cls, url: str) -> _Place:
        """Raises `ConfigError` for what is no http(s) URL."""
        try:
            parts = urlsplit(url.strip())
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if not host or parts.scheme not in ("http", "https"):
            raise ConfigError(
                f"source {redact(url)!r} is not an http or https URL", hint="for example http://prometheus:9090"
            )
        path = parts.path.rstrip("/").removesuffix("/api/v1")
        whole = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        return cls(whole, whole, unquote(parts.username or ""), unquote(parts.password or ""))


class RemotePrometheus:
    """Queries over HTTP; safe to call from several threads.

    Every method raises `QueryError` (or one of its leaves) for what the other side says of a query, and `TargetError`
    where it cannot be reached or does not answer as Prometheus does; both name the endpoint.
    """

    def __init__(self, source: settings.Source, *, timeout_seconds: float = 30.0, body_bytes: int = 1 << 30) -> None:
        """``body_bytes`` bounds an answer once decompressed. Raises `ConfigError` for a wrong URL or TLS file."""
        self._source = source
        self._place = _Place.of(source.url)
        self._timeout_seconds = timeout_seconds
        self._body_bytes = body_bytes
        self._posts = True
        self._warned: dict[str, None] = {}
        self._pool = _pool(source.tls, self._place.url)

    @property
    def url(self) -> str:
        """Where it asks, without credentials."""
        return self._place.shown

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the other side has warned of (partial answers among it), each text once."""
        return tuple(self._warned)

    def close(self) -> None:
        self._pool.clear()

    # Queries

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame:
        """The expression at each step, series sorted by labels. A span of many steps is asked for in parts."""
        times = np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)
        rows: dict[Labels, Floats] = {}
        for low, high in _parts(len(times)):
            result = self.query_range(expr, int(times[low]), int(times[high - 1]), step_ms)
            for labels, at, values in zip(result.labels, result.times_ms, result.values, strict=True):
                row = rows.setdefault(labels, np.full(len(times), np.nan))
                row[np.round((at - start_ms) / step_ms).astype(np.int64)] = values
        ordered = sorted(rows)
        stacked: Floats = np.array([rows[labels] for labels in ordered]).reshape(len(ordered), len(times))
        return Frame(tuple(dict(labels) for labels in ordered), times, stacked)

    def instant(self, expr: str, at_ms: int) -> Frame:
        """The expression at one time: a frame of one column."""
        result = self.query(expr, at_ms)
        at: Ints = np.array([at_ms], dtype=np.int64)
        if isinstance(result, VectorResult):
            return Frame(tuple(dict(labels) for labels in result.labels), at, result.values[:, None])
        if isinstance(result, ScalarResult):
            return Frame(({},), at, np.array([[result.value]]))
        raise QueryError(f"{self.url}: an expression of this type gives no frame", hint="wrap it in a function")

    def query(self, expr: str, at_ms: int) -> Result:
        """An instant query; of a range vector, its raw samples."""
        return self._result(*self._evaluated("query", {"query": expr, "time": f"{at_ms / 1000:.3f}"}), at_ms)

    def query_range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> MatrixResult:
        """A range query of at most `MAX_POINTS` steps: each series with the points that it has."""
        times = {"start": start_ms, "end": end_ms, "step": step_ms}
        form = {"query": expr, **{name: f"{ms / 1000:.3f}" for name, ms in times.items()}}
        result = self._result(*self._evaluated("query_range", form), end_ms)
        if not isinstance(result, MatrixResult):
            raise self._malformed("query_range")
        return result

    def series(self, selectors: Sequence[str], start_ms: int | None = None, end_ms: int | None = None) -> list[Labels]:
        """Labels of the series that match any of the selectors."""
        found = self.ask("series", [*(("match[]", one) for one in selectors), *_span(start_ms, end_ms)])
        return sorted({labels_of(one) for one in found})

    def label_values(
        self, name: str, selectors: Sequence[str] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> list[str]:
        form = [*(("match[]", one) for one in selectors), *_span(start_ms, end_ms)]
        return list(self.ask(f"label/{quote(name, safe='')}/values", form, get=True))

    def metadata(self) -> dict[str, Metadata]:
        """Family → what is known of it now; empty where the API has no such thing."""
        try:
            found = self.ask("metadata", (), get=True)
        except TargetError as error:
            if error.reason == "http":
                return {}
            raise
        return {
            family: Metadata(family, one.get("type") or "unknown", one.get("help") or "", one.get("unit") or "")
            for family, several in found.items()
            for one in several[:1]
        }

    def ask(self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]], *, get: bool = False) -> Any:
        """The ``data`` of ``/api/v1/<path>``, as it came."""
        return self._asked(path, form, get)[0]

    # Answers

    def _evaluated(self, path: str, form: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
        return self._asked(path, {**form, "timeout": f"{self._timeout_seconds:g}s"}, get=False)

    def _asked(
        self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]], get: bool
    ) -> tuple[Any, tuple[str, ...]]:
        status, body = self._exchange(path, urlencode(form), get)
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
            raise self._unreadable(path, status)
        if answer["status"] == "error":
            raise self._refusal(answer, status)
        warnings = [str(text) for text in (*(answer.get("warnings") or ()), *(answer.get("infos") or ()))]
        if answer.get("isPartial"):
            warnings.append("the answer is partial: not every storage node answered")
        for text in warnings:
            self._warn(text)
        return answer.get("data"), tuple(warnings)

    def _refusal(self, answer: Mapping[str, Any], status: int) -> LomsError:
        kind, text = str(answer.get("errorType", "")), f"{self.url}: {answer.get('error', 'no reason given')}"
        if kind in _ERRORS:
            return _ERRORS[kind](text)
        if status in _REFUSED:
            return QueryError(text)
        return TargetError(text, reason="http", hint=_hint(status))

    def _unreadable(self, path: str, status: int) -> TargetError:
        if status == 200:
            return self._malformed(path)
        return TargetError(f"{self.url} answers HTTP {status} for /api/v1/{path}", reason="http", hint=_hint(status))

    def _malformed(self, path: str) -> TargetError:
        return TargetError(
            f"{self.url} does not answer /api/v1/{path} as Prometheus does",
            reason="malformed",
            hint="is this the address of a Prometheus-compatible API? some need a path, such as /prometheus",
        )

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < _KEPT_WARNINGS:
            self._warned[text] = None
            _log.warning("%s: %s", self.url, text)

    def _result(self, data: Any, warnings: tuple[str, ...], at_ms: int) -> Result:
        try:
            kind, rows = data["resultType"], data["result"]
            if kind == "scalar":
                return ScalarResult(at_ms, float(rows[1]))
            if kind == "string":
                return StringResult(at_ms, str(rows[1]))
            labels = tuple(labels_of(row["metric"]) for row in rows)
            if kind == "vector":
                values = np.array([float(row["value"][1]) for row in rows], dtype=np.float64)
                return VectorResult(at_ms, labels, values, warnings=warnings)
            if kind != "matrix":
                raise self._malformed("query")
            points = [row["values"] for row in rows]
            times = tuple(_milliseconds(each) for each in points)
            found = tuple(np.array([float(value) for _, value in each], dtype=np.float64) for each in points)
            return MatrixResult(labels, times, found, warnings=warnings)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise self._malformed("query") from None

    # HTTP

    def _exchange(self, path: str, form: str, get: bool) -> tuple[int, bytes]:
        url = f"{self._place.url}/api/v1/{path}"
        if not get and self._posts:
            headers = {**self._headers(), "Content-Type": "application/x-www-form-urlencoded"}
            status, body = self._request("POST", url, headers, form)
            if status not in (404, 405):
                return status, body
            self._posts = status == 404  # a proxy that lets only GET through
        return self._request("GET", f"{url}?{form}" if form else url, self._headers(), None)

    def _request(self, method: str, url: str, headers: Mapping[str, str], form: str | None) -> tuple[int, bytes]:
        timeout = urllib3.Timeout(connect=min(10.0, self._timeout_seconds), read=self._timeout_seconds + 5)
        try:
            answer = self._pool.request(
                method, url, body=form, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
            with answer:
                return answer.status, self._body(answer)
        except urllib3.exceptions.NewConnectionError as error:
            reason = str(error).rpartition(": ")[2]
            raise TargetError(f"nothing answers at {self.url}: {reason}", reason="refused") from None
        except urllib3.exceptions.ConnectTimeoutError:
            raise TargetError(f"no connection to {self.url} within 10 s", reason="connect_timeout") from None
        except urllib3.exceptions.TimeoutError:
            raise TargetError(
                f"{self.url} has not answered for {self._timeout_seconds + 5:g} s", reason="timeout"
            ) from None
        except urllib3.exceptions.SSLError as error:
            raise TargetError(
                f"no TLS connection to {self.url}: {error}", reason="tls", hint="set source.tls.ca_file or server_name"
            ) from None
        except (urllib3.exceptions.HTTPError, UnicodeError, OSError) as error:
            raise TargetError(f"the connection to {self.url} broke: {error}", reason="connection") from None

    def _body(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        parts, size = [], 0
        for part in answer.stream(_READ_BYTES, decode_content=True):
            size += len(part)
            if size > self._body_bytes:
                raise QueryLimitError(
                    f"{self.url} answers with more than {self._body_bytes >> 20} MiB",
                    hint="narrow the selector, the range or the resolution",
                )
            parts.append(part)
        return b"".join(parts)

    def _headers(self) -> dict[str, str]:
        source, auth = self._source, self._source.basic_auth
        headers = {"User-Agent": f"loms/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"}
        username, password = self._place.username, self._place.password
        if auth is not None:
            username = auth.username
            password = auth.password.get_secret_value() if auth.password else _secret(auth.password_file)
        if source.bearer_token is not None:
            headers["Authorization"] = f"Bearer {source.bearer_token.get_secret_value()}"
        elif username:
            headers |= {
                name.title(): text
                for name, text in urllib3.util.make_headers(basic_auth=f"{username}:{password}").items()
            }
        return headers | {name: text.get_secret_value() for name, text in source.headers.items()}


def _pool(tls: settings.Tls, url: str) -> urllib3.PoolManager:
    if not url.startswith("https:"):
        return urllib3.PoolManager(maxsize=4)
    try:
        context = ssl.create_default_context(cafile=_path(tls.ca_file))
        if tls.cert_file is not None:
            context.load_cert_chain(str(tls.cert_file.expanduser()), _path(tls.key_file))
    except OSError as error:  # a file that is there and wrong is an SSLError, which is one too
        named = " or ".join(str(file) for file in (tls.ca_file, tls.cert_file, tls.key_file) if file)
        raise ConfigError(f"source.tls: {named} cannot be used: {error.strerror or error}") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the configuration asks for it
    if tls.server_name is None:
        return urllib3.PoolManager(maxsize=4, ssl_context=context)
    name = tls.server_name
    return urllib3.PoolManager(maxsize=4, ssl_context=context, server_hostname=name, assert_hostname=name)


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """Neighbouring index ranges of at most `MAX_POINTS`, together 0 to ``count``."""
    yield from pairwise([*range(0, count, MAX_POINTS), count] if count else [])


def _milliseconds(points: Sequence[Sequence[Any]]) -> Ints:
    seconds = np.array([time for time, _ in points], dtype=np.float64)
    return np.round(seconds * 1000).astype(np.int64)


def _span(start_ms: int | None, end_ms: int | None) -> list[tuple[str, str]]:
    return [(name, f"{ms / 1000:.3f}") for name, ms in (("start", start_ms), ("end", end_ms)) if ms is not None]


def _hint(status: int) -> str:
    if status in (401, 403):
        return "it wants credentials: source.bearer_token, basic_auth or headers"
    return "is this the address of a Prometheus-compatible API?" if status in (301, 302, 307, 308, 404, 405) else ""


def _path(file: Path | None) -> str | None:
    return str(file.expanduser()) if file else None


def _secret(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"source.basic_auth: {file} cannot be read: {error}") from None
