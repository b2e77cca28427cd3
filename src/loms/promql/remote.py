"""Somebody else's Prometheus: a `loms.core.model.Querier` over the HTTP API of anything that speaks it.

What Prometheus, VictoriaMetrics, Thanos and Mimir answer alike (prometheus.io/docs/prometheus/latest/querying/api).
Queries go as form-encoded POST, so that long expressions fit; where that is not taken, as GET. The semantics are the
other side's: Prometheus 2 counts the left edge of a window in, and how far an instant query looks back is set there.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

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
from loms.core.model import Floats, Frame, Ints, Labels, Metadata, labels_of
from loms.promql.remote_http import Place, TooLongError, body_of, pool, within
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult

MAX_POINTS = 11_000
"""Evaluation times that Prometheus computes for one range query."""
_KEPT_WARNINGS = 100
_KEPT_FAILURES = 100
_LATEST_SECONDS = 1e11
"""Timestamps of that size have milliseconds; what is beyond is none."""
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


class RemotePrometheus:
    """Queries over HTTP; safe to call from several threads.

    Every method raises `QueryError` (or one of its leaves) for what the other side says of a query, and `TargetError`
    where it cannot be reached or does not answer as Prometheus does; both name the endpoint.
    """

    def __init__(
        self,
        source: settings.Source,
        *,
        timeout_seconds: float = 30.0,
        allowed_seconds: float = 5.0,
        body_bytes: int = 1 << 28,
    ) -> None:
        """An answer has come whole ``allowed_seconds`` after the timeout that the other side is told, and has at most
        ``body_bytes`` once decompressed. Raises `ConfigError` for a wrong URL or TLS file.
        """
        self._source = source
        self._place = Place.of(source.url)
        self._timeout_seconds = timeout_seconds
        self._body_bytes = body_bytes
        self._deadline_seconds = timeout_seconds + allowed_seconds
        self._posts = True
        self._warned: dict[str, None] = {}
        self._pool = pool(source.tls, self._place.url)
        self._failing: dict[str, TargetError] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it asks, without credentials."""
        return self._place.shown

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the other side has warned of (partial answers among it), each text once."""
        return tuple(self._warned)

    @property
    def trouble(self) -> str:
        """Why what it was last asked for did not come; empty when all is well, and for what is wrong with a query."""
        with self._lock:
            return next((error.message for error in self._failing.values()), "")

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
                columns = np.round((at - start_ms) / step_ms).astype(np.int64)
                if not np.all((columns >= low) & (columns < high)):
                    raise self._malformed("query_range")
                row[columns] = values
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
        with self._understood("series"):
            return sorted({_labels(one) for one in found})

    def label_values(
        self, name: str, selectors: Sequence[str] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> list[str]:
        form = [*(("match[]", one) for one in selectors), *_span(start_ms, end_ms)]
        path = f"label/{quote(name, safe='')}/values"
        found = self.ask(path, form, get=True)
        if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
            raise self._malformed(path)
        return found

    def metadata(self) -> dict[str, Metadata]:
        """Family → what is known of it now; empty where the API has no such thing."""
        try:
            found = self.ask("metadata", (), get=True)
        except TargetError as error:
            if error.reason == "http":
                return {}
            raise
        with self._understood("metadata"):
            return {
                family: Metadata(
                    family, str(one.get("type") or "unknown"), str(one.get("help") or ""), str(one.get("unit") or "")
                )
                for family, several in found.items()
                for one in several[:1]
            }

    def ask(self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]], *, get: bool = False) -> Any:
        """The ``data`` of ``/api/v1/<path>``, as it came."""
        return self._asked(path, form, get)[0]

    def asked(self, path: str, form: Mapping[str, str]) -> Any:
        """The same of a query (``query``, ``query_range``), once it is known to be an answer to one."""
        data, warnings = self._asked(path, form, get=False)
        self._result(data, warnings, 0)
        return data

    # Answers

    def _evaluated(self, path: str, form: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
        timeout_ms = max(1, round(self._timeout_seconds * 1000))  # Prometheus takes no fraction of a unit
        text = f"{timeout_ms}ms" if timeout_ms % 1000 else f"{timeout_ms // 1000}s"
        return self._asked(path, {**form, "timeout": text}, get=False)

    def _asked(
        self, path: str, form: Mapping[str, str] | Sequence[tuple[str, str]], get: bool
    ) -> tuple[Any, tuple[str, ...]]:
        what = str(dict(form).get("query", path))
        try:
            found = self._answer(path, urlencode(form), get)
        except TargetError as error:
            self._note(what, error)
            raise
        except QueryError:
            self._note(what, None)
            raise
        self._note(what, None)
        return found

    def _note(self, what: str, error: TargetError | None) -> None:
        """Keep why it failed. Any answer shows that the other side is there, but not that a slow query has come."""
        with self._lock:
            self._failing.pop(what, None)
            if error is not None and len(self._failing) < _KEPT_FAILURES:
                self._failing[what] = error
            elif error is None:
                self._failing = {key: each for key, each in self._failing.items() if each.reason == "timeout"}

    def _answer(self, path: str, form: str, get: bool) -> tuple[Any, tuple[str, ...]]:
        status, body = self._exchange(path, form, get)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
            raise self._unreadable(path, status)
        if answer["status"] == "error":
            raise self._refusal(answer, status)
        with self._understood(path):
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

    @contextmanager
    def _understood(self, path: str) -> Iterator[None]:
        """What is read in here has the shape that Prometheus's answers have, or is said not to."""
        try:
            yield
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise self._malformed(path) from None

    def _warn(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < _KEPT_WARNINGS:
            self._warned[text] = None
            _log.warning("%s: %s", self.url, text)

    def _result(self, data: Any, warnings: tuple[str, ...], at_ms: int) -> Result:
        with self._understood("query"):
            kind, rows = data["resultType"], data["result"]
            if kind == "scalar":
                return ScalarResult(at_ms, float(rows[1]))
            if kind == "string":
                return StringResult(at_ms, str(rows[1]))
            labels = tuple(_labels(row["metric"]) for row in rows)
            if kind == "vector":
                values = np.array([float(row["value"][1]) for row in rows], dtype=np.float64)
                return VectorResult(at_ms, labels, values, warnings=warnings)
            if kind == "matrix":
                points = [row["values"] for row in rows]
                times = tuple(_milliseconds(each) for each in points)
                found = tuple(np.array([float(value) for _, value in each], dtype=np.float64) for each in points)
                return MatrixResult(labels, times, found, warnings=warnings)
        raise self._malformed("query")

    # HTTP

    def _exchange(self, path: str, form: str, get: bool) -> tuple[int, bytes]:
        url = f"{self._place.url}/api/v1/{path}"
        if not get and self._posts:
            headers = {**self._headers(), "Content-Type": "application/x-www-form-urlencoded"}
            status, body = self._request("POST", url, headers, form)
            if status not in (404, 405, 501):
                return status, body
            self._posts = status == 404  # a proxy that lets only GET through
        return self._request("GET", f"{url}?{form}" if form else url, self._headers(), None)

    def _request(self, method: str, url: str, headers: Mapping[str, str], form: str | None) -> tuple[int, bytes]:
        seconds = self._deadline_seconds
        timeout = urllib3.Timeout(connect=min(10.0, self._timeout_seconds), read=seconds)
        with within(seconds) as deadline:
            try:
                answer = self._pool.request(
                    method, url, body=form, headers=headers, timeout=timeout, retries=False, preload_content=False
                )
                with answer:
                    status, body = answer.status, body_of(answer, self._body_bytes)
            except TooLongError:
                raise QueryLimitError(
                    f"{self.url} answers with more than {self._body_bytes >> 20} MiB",
                    hint="narrow the selector, the range or the resolution",
                ) from None
            except (urllib3.exceptions.HTTPError, zlib.error, UnicodeError, OSError) as error:
                raise self._broken(error, deadline.passed) from None
            if deadline.passed:
                raise self._broken(None, passed=True)
            return status, body

    def _broken(self, error: Exception | None, passed: bool) -> TargetError:
        seconds = self._timeout_seconds
        if isinstance(error, urllib3.exceptions.NewConnectionError):
            return TargetError(f"nothing answers at {self.url}: {str(error).rpartition(': ')[2]}", reason="refused")
        if isinstance(error, urllib3.exceptions.ConnectTimeoutError):
            return TargetError(f"no connection to {self.url} within {min(10.0, seconds):g} s", reason="connect_timeout")
        if passed or isinstance(error, urllib3.exceptions.TimeoutError):
            return TargetError(f"{self.url} has not answered within {self._deadline_seconds:g} s", reason="timeout")
        if isinstance(error, urllib3.exceptions.SSLError):
            hint = "set source.tls.ca_file or server_name"
            return TargetError(f"no TLS connection to {self.url}: {error}", reason="tls", hint=hint)
        return TargetError(f"the connection to {self.url} broke: {error}", reason="connection")

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


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """Neighbouring index ranges of at most `MAX_POINTS`, together 0 to ``count``."""
    yield from pairwise([*range(0, count, MAX_POINTS), count] if count else [])


def _labels(found: Mapping[str, str]) -> Labels:
    if not all(isinstance(text, str) for text in found.values()):
        raise TypeError("labels are texts")
    return labels_of(found)


def _milliseconds(points: Sequence[Sequence[Any]]) -> Ints:
    seconds = np.array([time for time, _ in points], dtype=np.float64)
    if not np.all(np.abs(seconds) < _LATEST_SECONDS):
        raise ValueError("no timestamps")
    return np.round(seconds * 1000).astype(np.int64)


def _span(start_ms: int | None, end_ms: int | None) -> list[tuple[str, str]]:
    return [(name, f"{ms / 1000:.3f}") for name, ms in (("start", start_ms), ("end", end_ms)) if ms is not None]


def _hint(status: int) -> str:
    if status in (401, 403):
        return "it wants credentials: source.bearer_token, basic_auth or headers"
    return "is this the address of a Prometheus-compatible API?" if status in (301, 302, 307, 308, 404, 405) else ""


def _secret(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"source.basic_auth: {file} cannot be read: {error}") from None
