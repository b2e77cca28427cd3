"""LOMS's own API: engines with their state, incidents with their evidence, targets, rules, status."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Query

from loms import __version__
from loms.core import selfmetrics
from loms.core.log import redact
from loms.core.model import Alert, EngineStatus, Finding, Incident, Labels, Shape
from loms.core.units import format_duration
from loms.server.runtime import Server
from loms.store.cardinality import SHORTEST_SECONDS, By, cardinality


@dataclass(frozen=True, slots=True)
class Collected:
    """What the collecting side of the process tells the API. A server without an agent has nothing to tell."""

    engines: Callable[[], Sequence[EngineStatus]] = field(default=lambda: ())
    targets: Callable[[], Sequence[Any]] = field(default=lambda: ())
    problems: Callable[[], Sequence[str]] = field(default=lambda: ())
    exposed: Callable[[], Sequence[tuple[Labels, Shape]]] = field(default=lambda: ())
    """Each target's labels and what it exposes."""


def router(server: Server, collected: Collected) -> APIRouter:
    """Routes under ``/api``."""
    api = APIRouter(prefix="/api", tags=["loms"])

    @api.get("/engines")
    def engines() -> list[dict[str, Any]]:
        """Every engine with its state, since when, and which signals it cannot give (with the reason)."""
        states, since = server.evaluator.states(), server.evaluator.states_since_ms()
        return [_engine_json(row, states.get(row.instance), since.get(row.instance)) for row in collected.engines()]

    @api.get("/incidents")
    def incidents(
        state: Literal["open", "resolved", "all"] = "all", limit: int = Query(100, ge=1, le=1000)
    ) -> dict[str, Any]:
        """Newest first; ``trouble`` says why there may be more than these."""
        found = [incident_json(one) for one in server.state.incidents(state, limit)]
        return {"incidents": found, "trouble": server.trouble()}

    @api.get("/incidents/{incident_id}")
    def incident(incident_id: str) -> dict[str, Any]:
        """One incident with all its alerts."""
        found = server.state.incident(incident_id)
        if found is None:
            raise HTTPException(404, f"there is no incident {incident_id}")
        return incident_json(found)

    @api.get("/targets")
    def targets() -> dict[str, Any]:
        """What is scraped, and how it goes."""
        rows = [asdict(row) for row in collected.targets()]
        for row in rows:
            row["url"], row["last_error"] = redact(row["url"]), redact(row["last_error"])
            row["labels"] = dict(row["labels"])
        return {"targets": rows, "problems": list(collected.problems())}

    @api.get("/rules")
    def rules() -> dict[str, Any]:
        """Every rule with its newest evaluation."""
        results = {(r.group.file, r.group.name, r.rule.name, r.rule.line): r for r in server.evaluator.results()}
        rows = []
        for group in server.evaluator.groups:
            for rule in group.rules:
                result = results.get((group.file, group.name, rule.name, rule.line))
                rows.append(
                    {
                        "group": group.name,
                        "file": group.file,
                        "line": rule.line,
                        "name": rule.name,
                        "expr": rule.expr,
                        "detector": rule.detector,
                        "for_seconds": rule.for_ms / 1000,
                        "health": "unknown" if result is None else "err" if result.error else "ok",
                        "error": result.error if result else "",
                        "evaluated_at_ms": result.at_ms if result else None,
                        "seconds": result.seconds if result else None,
                        "alerts": [alert_json(alert) for alert in result.alerts] if result else [],
                    }
                )
        return {"rules": rows}

    @api.get("/series/top")
    def series_top(
        by: By = "metric",
        limit: int = Query(20, ge=1, le=10_000),
        since: float = Query(SHORTEST_SECONDS, le=1e9),
    ) -> dict[str, Any]:
        """The metrics and targets with the most series, or the labels with the most values; ``since`` in seconds."""
        return _largest(server, by, limit, since)

    @api.get("/status")
    def status() -> dict[str, Any]:
        """Version, uptime, how much is stored and what was dropped."""
        discover = server.config.scrape.discover
        return {
            "version": __version__,
            "started_ms": server.started_ms,
            "now_ms": server.clock.now_ms(),
            "retention_seconds": server.config.store.retention,
            "discovery": {"host": discover.host, "ports": list(discover.ports)} if discover.enabled else None,
            "store": asdict(server.database.figures()),
            "remote_write": [asdict(out.standing()) for out in server.remote_writes],
            "otlp_forward": [asdict(out.standing()) for out in server.otlp_outs],
            "dropped_samples": {
                sample.labels["reason"]: sample.value
                for family in selfmetrics.samples_dropped.collect()
                for sample in family.samples
                if sample.name.endswith("_total")
            },
        }

    return api


def _largest(server: Server, by: By, limit: int, since: float) -> dict[str, Any]:
    if not since >= SHORTEST_SECONDS:
        least = format_duration(SHORTEST_SECONDS)
        raise HTTPException(400, f"since: at least {least}, for when a series was seen is noted once a day only")
    report = asdict(cardinality(server.database, server.clock.now_ms(), by, limit=limit, since_seconds=since))
    rows = [{key: value for key, value in row.items() if value is not None} for row in report["rows"]]
    return report | {"rows": rows}


def incident_json(incident: Incident) -> dict[str, Any]:
    """An incident as the API gives it."""
    return {
        "id": incident.id,
        "title": incident.title,
        "state": incident.state,
        "severity": incident.severity,
        "group": dict(incident.group),
        "opened_at_ms": incident.opened_at_ms,
        "updated_at_ms": incident.updated_at_ms,
        "resolved_at_ms": incident.resolved_at_ms,
        "alerts": [alert_json(alert) for alert in incident.alerts],
    }


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert as the API gives it; numbers that JSON lacks are null."""
    labels = dict(alert.labels)
    return {
        "rule": alert.rule,
        "fingerprint": alert.fingerprint,
        "state": alert.state,
        "severity": labels.get("severity", "none"),
        "labels": labels,
        "annotations": dict(alert.annotations),
        "value": _number(alert.value),
        "active_at_ms": alert.active_at_ms,
        "fired_at_ms": alert.fired_at_ms,
        "resolved_at_ms": alert.resolved_at_ms,
        "expr": alert.expr,
        "evidence": [
            {"text": fact.text, "expr": fact.expr, "value": _number(fact.value), "unit": fact.unit}
            for fact in alert.evidence
        ],
    }


def _engine_json(row: EngineStatus, finding: Finding | None, since_ms: int | None) -> dict[str, Any]:
    progress = next((e.value for e in finding.evidence if e.unit == "timestamp"), None) if finding else None
    return asdict(row) | {
        "state": finding.kind if finding else "unknown",
        "state_reason": finding.summary if finding else "not evaluated yet",
        "since_ms": since_ms,
        "last_progress_ms": None if progress is None else round(progress * 1000),
        "contract": [
            {"kind": odd.kind, "severity": odd.severity, "family": dict(odd.labels)["family"], "text": odd.summary}
            for odd in row.contract
        ],
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
