"""Rules and alerts as Prometheus's API has them. A detector's rule is an alerting rule whose query is its own text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from loms.core.clock import iso_utc
from loms.core.errors import QueryError
from loms.core.model import Alert
from loms.promql.parse import parse
from loms.promql.source import Cancel
from loms.rules.evaluate import Evaluator, RuleResult
from loms.rules.rule import Group, Rule
from loms.server.prometheus.answer import Answer, Answering, Parameters, whole_number
from loms.server.prometheus.format import flat
from loms.server.wire import format_exponent

NEVER = "0001-01-01T00:00:00Z"
"""Go's time of nothing."""
_TRUE, _FALSE = frozenset({"1", "t", "true"}), frozenset({"0", "f", "false"})


def router(evaluator: Evaluator, answering: Answering) -> APIRouter:
    """Routes under ``/api/v1``."""
    api, answers = APIRouter(prefix="/api/v1", tags=["prometheus"]), _Answers(evaluator)

    @api.get("/rules")
    async def rules(request: Request) -> Response:
        """Rule groups: ``type``, ``rule_name[]``, ``rule_group[]``, ``file[]``, ``exclude_alerts``, ``group_limit``,
        ``group_next_token``.
        """
        return await answering(request, answers.rules)

    @api.get("/alerts")
    async def alerts(request: Request) -> Response:
        """Pending and firing alerts."""
        return await answering(request, answers.alerts)

    @api.get("/alertmanagers")
    async def alertmanagers(request: Request) -> Response:
        """None: LOMS notifies by itself."""
        return await answering(request, lambda *_: Answer.of({"activeAlertmanagers": [], "droppedAlertmanagers": []}))

    return api


class _Answers:
    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def rules(self, parameters: Parameters, _: Cancel) -> Answer:
        kind, with_alerts = _kind(parameters), not _flag(parameters, "exclude_alerts")
        page, token = _page(parameters)
        names, groups, files = (frozenset(parameters.all(f"{key}[]")) for key in ("rule_name", "rule_group", "file"))
        results = {(r.group.file, r.group.name, r.rule.line): r for r in self._evaluator.results()}
        found: list[dict[str, Any]] = []
        following, begun = "", not token
        for group in self._evaluator.groups if kind != "record" else ():
            begun = begun or token == _token(group)
            if not begun or (groups and group.name not in groups) or (files and group.file not in files):
                continue
            rules = [
                (rule, results.get((group.file, group.name, rule.line)))
                for rule in group.rules
                if not names or rule.name in names
            ]
            if rules and page and len(found) == page:
                following = _token(group)
                break
            if rules:
                found.append(
                    _group(group, [_rule(rule, result, with_alerts) for rule, result in rules], results.values())
                )
        if not begun:
            raise QueryError(
                f"invalid parameter \"group_next_token\": invalid group_next_token '{token}'. were rule groups changed?"
            )
        return Answer.of({"groups": found, **({"groupNextToken": following} if following else {})})

    def alerts(self, _: Parameters, __: Cancel) -> Answer:
        active = [alert_json(alert) for result in self._evaluator.results() for alert in _active(result.alerts)]
        return Answer.of({"alerts": active})


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert in Prometheus's form."""
    return {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "state": alert.state,
        "activeAt": iso_utc(alert.active_at_ms),
        "value": format_exponent(alert.value),
    }


def query_of(rule: Rule) -> str:
    """The rule's PromQL in its usual spelling; of a detector its name and the kinds that count."""
    if not rule.detector:
        return flat(parse(rule.expr))
    kinds = f" kinds: {', '.join(sorted(rule.kinds))}" if rule.kinds else ""
    return f"detector: {rule.detector}{kinds}"


def _group(group: Group, rules: list[dict[str, Any]], results: Iterable[RuleResult]) -> dict[str, Any]:
    own = [result for result in results if result.group is group]
    return {
        "name": group.name,
        "file": group.file,
        "rules": rules,
        "interval": group.interval_ms / 1000,
        "limit": 0,
        "evaluationTime": sum(result.seconds for result in own),
        "lastEvaluation": iso_utc(max(result.at_ms for result in own)) if own else NEVER,
    }


def _rule(rule: Rule, result: RuleResult | None, with_alerts: bool) -> dict[str, Any]:
    active = _active(result.alerts) if result else []
    states = {alert.state for alert in active}
    error = result.error if result else ""
    return {
        "state": next((state for state in ("firing", "pending") if state in states), "inactive"),
        "name": rule.name,
        "query": query_of(rule),
        "duration": rule.for_ms / 1000,
        "keepFiringFor": rule.keep_firing_for_ms / 1000,
        "labels": {key: template.text for key, template in rule.labels},
        "annotations": {key: template.text for key, template in rule.annotations},
        "alerts": [alert_json(alert) for alert in active] if with_alerts else None,
        "health": "unknown" if result is None else "err" if error else "ok",
        **({"lastError": error} if error else {}),
        "evaluationTime": result.seconds if result else 0,
        "lastEvaluation": iso_utc(result.at_ms) if result else NEVER,
        "type": "alerting",
    }


def _active(alerts: Iterable[Alert]) -> list[Alert]:
    return [alert for alert in alerts if alert.state != "resolved"]


def _kind(parameters: Parameters) -> str:
    kind = parameters.text("type").lower()
    if kind not in ("", "alert", "record"):
        raise QueryError(f'invalid parameter "type": not supported value "{kind}"')
    return kind


def _flag(parameters: Parameters, name: str) -> bool:
    text = parameters.text(name).lower()
    if text and text not in _TRUE | _FALSE:
        reason = f'strconv.ParseBool: parsing "{text}": invalid syntax'
        raise QueryError(f'invalid parameter "{name}": error converting {name}: {reason}')
    return text in _TRUE


def _page(parameters: Parameters) -> tuple[int, str]:
    """How many groups at most (0: all), and with which to begin (empty: the first)."""
    limit, token = parameters.text("group_limit"), parameters.text("group_next_token")
    if token and not limit:
        raise QueryError(
            'invalid parameter "group_next_token": group_limit needs to be present in order to paginate over the groups'
        )
    if not limit:
        return 0, token
    try:
        count = whole_number(limit, "ParseInt")
    except ValueError as error:
        raise QueryError(f'invalid parameter "group_limit": group_limit needs to be a valid number: {error}') from None
    if count <= 0:
        raise QueryError('invalid parameter "group_limit": group_limit needs to be greater than 0')
    return count, token


def _token(group: Group) -> str:
    return hashlib.sha256(f"{group.file};{group.name}".encode()).hexdigest()
