"""What Grafana's Prometheus data source asks, call by call, as its sources have it (grafana/grafana: pkg/promlib and
packages/grafana-prometheus, version 12).

The backend sends panel queries as forms or, for a data source set to GET, in the URL; what only knows GET is asked by
GET; whatever refuses a POST with 400 or 405 is asked again by GET.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Pairs = Sequence[tuple[str, str]]
SERIES_LIMIT = "40000"


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any


class Grafana:
    """A data source at ``url``, which may end in a slash."""

    def __init__(self, url: str, method: Literal["GET", "POST"] = "POST", token: str = "") -> None:
        self._url = url.rstrip("/")
        self._method = method
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def save_and_test(self) -> dict[str, Reply]:
        """The button of that name: an instant query, then what kind of server this is."""
        return {
            "health": self._form("query", [("query", "1+1"), ("time", "4")]),
            "kind": self._get("status/buildinfo"),
        }

    def open(self, now: float) -> dict[str, Reply]:
        """What is asked once, when the data source is first used."""
        half_an_hour_ago = str(round((now - 1800) * 1000))  # in milliseconds, where the API wants seconds
        exemplars = {"query": "test", "start": half_an_hour_ago, "end": str(round(now * 1000))}
        start, end = _snapped(now)
        return {
            "rules": self._get("rules"),
            "exemplars": self._get("query_exemplars", **exemplars),
            "metrics": self._get("label/__name__/values", limit=SERIES_LIMIT, start=start, end=end),
            "labels": self._form("labels", [("limit", SERIES_LIMIT), ("start", start), ("end", end)]),
            "metadata": self._get("metadata", limit=SERIES_LIMIT),
        }

    def panel(self, expr: str, now: float, span: float = 900, step: float = 15) -> dict[str, Reply]:
        """A graph with exemplars, and the table beside it."""
        end = math.floor(now / step) * step
        start = math.floor((now - span) / step) * step
        times = [("start", _seconds(start)), ("end", _seconds(end))]
        return {
            "range": self._form("query_range", [("query", expr), *times, ("step", _seconds(step))]),
            "instant": self._form("query", [("query", expr), ("time", _seconds(now)), ("timeout", "30s")]),
            "panel exemplars": self._form("query_exemplars", [("query", expr), *times]),
        }

    def builder(self, metric: str, label: str, now: float) -> dict[str, Reply]:
        """The query builder: what goes with a metric; and the same through series, for older servers."""
        start, end = _snapped(now)
        times = [("start", start), ("end", end)]
        match = ("match[]", f'{{__name__="{metric}"}}')
        return {
            "labels of": self._form("labels", [("limit", SERIES_LIMIT), *times, match]),
            "values of": self._get(f"label/{label}/values", limit=SERIES_LIMIT, **dict([*times, match])),
            "series of": self._form("series", [*times, match, ("limit", SERIES_LIMIT)]),
            "escaped": self._get(f"label/{escaped(label)}/values", **dict(times)),
        }

    def variables(self, metric: str, label: str, now: float) -> dict[str, Reply]:
        """Template variables: label_values(metric, label), label_names(), metrics(.*), query_result(…), a metric."""
        start, end = str(math.floor(now - 900)), str(math.ceil(now))
        times = {"start": start, "end": end}
        return {
            "label_values": self._get(f"label/{label}/values", **{"match[]": metric}, **times),
            "label_names": self._form("labels", list(times.items())),
            "metrics": self._get("label/__name__/values", **times),
            "query_result": self._form("query", [("query", f"sum by ({label}) ({metric})"), ("time", end)]),
            "series": self._form("series", [("match[]", metric), *times.items()]),
        }

    def alerting(self) -> dict[str, Reply]:
        """The list of alert rules of a data source, and what its settings page and monitoring mixins read."""
        paths = ("rules", "alerts", "targets", "alertmanagers", "targets/metadata")
        paths += ("status/config", "status/flags", "status/runtimeinfo", "status/tsdb", "status/walreplay")
        return {path: self._get(path) for path in paths}

    def everything(self, expr: str, metric: str, label: str, now: float, step: float = 15) -> dict[str, Reply]:
        """All of it, in the order of a session."""
        return {
            **self.save_and_test(),
            **self.open(now),
            **self.panel(expr, now, step=step),
            **self.builder(metric, label, now),
            **self.variables(metric, label, now),
            **self.alerting(),
        }

    def _get(self, path: str, **parameters: str) -> Reply:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        return self._ask(urllib.request.Request(f"{self._url}/api/v1/{path}{query}"))

    def _form(self, path: str, pairs: Pairs) -> Reply:
        if self._method == "POST":
            body = urllib.parse.urlencode(pairs).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            reply = self._ask(urllib.request.Request(f"{self._url}/api/v1/{path}", body, headers))
            if reply.status not in (400, 405):
                return reply
        return self._get(path, **dict(pairs))

    def _ask(self, request: urllib.request.Request) -> Reply:
        for name, value in self._headers.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Reply(response.status, json.loads(response.read() or b"null"))
        except urllib.error.HTTPError as error:
            return Reply(error.code, json.loads(error.read()))


def _snapped(now: float) -> tuple[str, str]:
    """The last quarter of an hour in whole minutes, as its cache has it."""
    return str(math.floor((now - 900) / 60) * 60), str(math.ceil(now / 60) * 60)


def _seconds(at: float) -> str:
    return f"{at:.3f}".rstrip("0").rstrip(".")


def escaped(label: str) -> str:
    """A label's name as it stands in a path when it is no plain word."""
    hexed = "".join("__" if c == "_" else c if c.isalnum() and c.isascii() else f"_{ord(c):x}_" for c in label)
    return f"U__{hexed}"


def shape_faults(theirs: Any, ours: Any, added: frozenset[str], where: str = "") -> list[str]:
    """Where ``ours`` lacks a key of ``theirs``, has one that is not in ``added``, or another type."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        free = not theirs.keys() & ours.keys() and bool(theirs) and bool(ours)
        if free or where.endswith((".labels", ".annotations", ".metric", ".target", ".discoveredLabels", "flags.data")):
            return [f"{where}: {one!r}" for one in ours.values() if not isinstance(one, str | list | dict)]
        faults = [f"{where}.{key} is missing" for key in theirs if key not in ours]
        faults += [f"{where}.{key} is not Prometheus's" for key in ours if key not in theirs and key not in added]
        both = [key for key in theirs if key in ours]
        return faults + [f for key in both for f in shape_faults(theirs[key], ours[key], added, f"{where}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list):
        pairs = zip(theirs[:1], ours[:1], strict=False)
        return [fault for a, b in pairs for fault in shape_faults(a, b, added, f"{where}[]")]
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (theirs, ours))
    same = numbers or type(theirs) is type(ours)
    return [] if same else [f"{where}: {type(ours).__name__} instead of {type(theirs).__name__}"]
