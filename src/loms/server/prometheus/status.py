"""Targets, metadata and the state of the process, as Prometheus's API has them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from loms import __version__
from loms.collect.scrape import TargetStatus
from loms.core.clock import iso_utc
from loms.core.config import show
from loms.core.errors import QueryError
from loms.core.log import redact
from loms.core.metadata import metadata_of
from loms.core.model import Labels, Metadata, Shape
from loms.core.units import format_duration
from loms.promql.parse import parse_selector
from loms.promql.regexes import matches
from loms.promql.source import Cancel
from loms.promql.syntax import Matcher, Matchers
from loms.server.api import Collected
from loms.server.prometheus.answer import Answer, Answering, Parameters
from loms.server.prometheus.rules import NEVER
from loms.server.runtime import Server
from loms.store.statistics import statistics

LIKE_VERSION = "3.0.0"
"""The Prometheus whose API this is: clients decide by it what they may ask."""
MOST_ROWS = 10_000


def router(server: Server, collected: Collected, answering: Answering) -> APIRouter:
    """Routes under ``/api/v1``, and ``/-/healthy`` and ``/-/ready``."""
    api, answers = APIRouter(tags=["prometheus"]), _Answers(server, collected)
    routes: dict[str, Callable[[Parameters, Cancel], Answer]] = {
        "targets": answers.targets,
        "targets/metadata": answers.target_metadata,
        "scrape_pools": answers.scrape_pools,
        "metadata": answers.metadata,
        "status/buildinfo": answers.build,
        "status/runtimeinfo": answers.runtime,
        "status/flags": answers.flags,
        "status/config": lambda *_: Answer.of({"yaml": show(server.config)}),
        "status/tsdb": answers.tsdb,
        "status/walreplay": lambda *_: Answer.of({"min": 0, "max": 0, "current": 0}),
    }
    for path, work in routes.items():
        api.add_api_route(f"/api/v1/{path}", _route(answering, work), methods=["GET"], response_model=None, name=path)

    @api.api_route("/-/healthy", methods=["GET", "HEAD"], include_in_schema=False)
    def healthy() -> Response:
        """The process answers."""
        return PlainTextResponse("LOMS is healthy.\n")

    @api.api_route("/-/ready", methods=["GET", "HEAD"], include_in_schema=False)
    def ready() -> Response:
        """The store takes and answers, and rules are evaluated."""
        trouble = server.trouble()
        return PlainTextResponse(f"{trouble or 'LOMS is ready.'}\n", 503 if trouble else 200)

    @api.options("/api/v1/{path:path}", include_in_schema=False)
    def options() -> Response:
        """Pages of other origins are told nothing, so their browsers let them ask nothing."""
        return Response(status_code=204, headers={"Allow": "GET, POST, OPTIONS"})

    return api


def _route(answering: Answering, work: Callable[[Parameters, Cancel], Answer]) -> Callable[..., Any]:
    async def route(request: Request) -> Response:
        return await answering(request, work)

    return route


class _Answers:
    def __init__(self, server: Server, collected: Collected) -> None:
        self._server = server
        self._collected = collected

    def targets(self, parameters: Parameters, _: Cancel) -> Answer:
        state, pool = parameters.text("state").lower(), parameters.text("scrapePool")
        rows: Sequence[TargetStatus] = self._collected.targets()
        active = state in ("", "any", "active")
        found = [_target(row, self._server.config.server.external_url) for row in rows if pool in ("", row.job)]
        counts = dict.fromkeys(sorted({row.job for row in rows}), 0)
        dropped = {"droppedTargetCounts": counts if state in ("", "any", "dropped") else None}
        return Answer.of({"activeTargets": found if active else [], "droppedTargets": [], **dropped})

    def scrape_pools(self, _: Parameters, __: Cancel) -> Answer:
        return Answer.of({"scrapePools": sorted({row.job for row in self._collected.targets()})})

    def target_metadata(self, parameters: Parameters, _: Cancel) -> Answer:
        limit, metric = _number(parameters, "limit"), parameters.text("metric")
        matchers: Matchers = ()
        if text := parameters.text("match_target"):
            try:
                matchers = parse_selector(text)
            except QueryError as error:
                raise QueryError(f'invalid parameter "match_target": {error.message}') from None
        found: list[dict[str, Any]] = []
        exposed: Sequence[tuple[Labels, Shape]] = self._collected.exposed()
        for labels, shape in exposed:
            if limit is not None and len(found) >= limit:
                break
            if not all(_fits(matcher, dict(labels).get(matcher.name, "")) for matcher in matchers):
                continue
            for one in metadata_of(shape):
                named = {} if metric else {"metric": one.family}
                if metric in ("", one.family):
                    found.append({"target": dict(labels), **named, **_described(one)})
        return Answer.of(found)

    def metadata(self, parameters: Parameters, _: Cancel) -> Answer:
        """Of each family one entry, the newest, so that ``limit_per_metric`` is only checked."""
        limit, _per_metric = _number(parameters, "limit"), _number(parameters, "limit_per_metric")
        most = None if limit is None or limit < 0 else limit
        known = self._server.metadata.of(parameters.text("metric") or None, most)
        return Answer.of({family: [_described(one)] for family, one in known.items()})

    def build(self, _: Parameters, __: Cancel) -> Answer:
        empty = dict.fromkeys(("branch", "buildUser", "buildDate", "goVersion"), "")
        return Answer.of({"version": LIKE_VERSION, "revision": f"loms-{__version__}", **empty})

    def runtime(self, _: Parameters, __: Cancel) -> Answer:
        server = self._server
        started = iso_utc(server.started_ms)
        return Answer.of(
            {
                "startTime": started,
                "CWD": str(Path.cwd()),
                "hostname": os.uname().nodename,
                "serverTime": iso_utc(server.clock.now_ms()),
                "reloadConfigSuccess": True,
                "lastConfigTime": started,
                "corruptionCount": 0,
                "goroutineCount": threading.active_count(),
                "GOMAXPROCS": os.cpu_count() or 1,
                "GOMEMLIMIT": 2**63 - 1,
                "GOGC": "",
                "GODEBUG": "",
                "storageRetention": format_duration(server.config.store.retention),
            }
        )

    def flags(self, _: Parameters, __: Cancel) -> Answer:
        """The settings for which Prometheus has a flag, under its name."""
        config = self._server.config
        return Answer.of(
            {
                "query.lookback-delta": format_duration(config.query.lookback),
                "query.max-samples": str(config.query.max_samples),
                "query.timeout": format_duration(config.query.timeout),
                "storage.tsdb.path": str(config.store.path),
                "storage.tsdb.retention.time": format_duration(config.store.retention),
                "web.enable-admin-api": "false",
                "web.enable-lifecycle": "false",
                "web.enable-remote-write-receiver": "true",
                "web.external-url": redact(config.server.external_url or ""),
                "web.listen-address": f"{config.server.host}:{config.server.port}",
            }
        )

    def tsdb(self, parameters: Parameters, _: Cancel) -> Answer:
        limit = _number(parameters, "limit", "a positive number")
        limit = 10 if limit is None else limit
        if limit < 1:
            raise QueryError("limit must be a positive number")
        if limit > MOST_ROWS:
            raise QueryError(f"limit must not exceed {MOST_ROWS}")
        found = statistics(self._server.database, limit)
        lists = {
            "seriesCountByMetricName": found.series_by_metric,
            "labelValueCountByLabelName": found.values_by_label,
            "memoryInBytesByLabelName": found.bytes_by_label,
            "seriesCountByLabelValuePair": found.series_by_pair,
        }
        return Answer.of(
            {
                "headStats": {
                    "numSeries": found.series,
                    "numLabelPairs": found.label_pairs,
                    "chunkCount": found.parts,
                    "minTime": found.first_ms,
                    "maxTime": found.last_ms,
                },
                **{name: [{"name": key, "value": count} for key, count in rows] for name, rows in lists.items()},
            }
        )


def _target(row: TargetStatus, external_url: str | None) -> dict[str, Any]:
    url, interval, timeout = (
        redact(row.url),
        format_duration(row.interval_seconds),
        format_duration(row.timeout_seconds),
    )
    parts, labels = urlsplit(url), dict(row.labels)
    return {
        "discoveredLabels": {
            "__address__": parts.netloc,
            "__metrics_path__": parts.path,
            "__scheme__": parts.scheme,
            "__scrape_interval__": interval,
            "__scrape_timeout__": timeout,
            **{name: value for name, value in labels.items() if name != "instance"},
        },
        "labels": labels,
        "scrapePool": row.job,
        "scrapeUrl": url,
        "globalUrl": _from_elsewhere(url, external_url),
        "lastError": "" if row.up else redact(row.last_error),
        "lastScrape": NEVER if row.last_scrape_ms is None else iso_utc(row.last_scrape_ms),
        "lastScrapeDuration": row.duration_seconds or 0,
        "health": row.health,
        "scrapeInterval": interval,
        "scrapeTimeout": timeout,
    }


def _from_elsewhere(url: str, external_url: str | None) -> str:
    """A target on this machine as others reach it: under the host of LOMS's own external URL, if it has one."""
    parts, host = urlsplit(url), urlsplit(external_url or "").hostname
    if host is None or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return url
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"{f'[{host}]' if ':' in host else host}{port}").geturl()


def _fits(matcher: Matcher, value: str) -> bool:
    found = matches(matcher.value, [value])[0] if "~" in matcher.op else value == matcher.value
    return found != matcher.op.startswith("!")


def _described(one: Metadata) -> dict[str, str]:
    return {"type": one.type, "unit": one.unit, "help": one.help}


def _number(parameters: Parameters, name: str, kind: str = "a number") -> int | None:
    text = parameters.text(name)
    try:
        return int(text) if text else None
    except ValueError:
        raise QueryError(f"{name} must be {kind}") from None
