"""Evaluating rule groups: one pure step at a given moment, over whatever answers PromQL.

Nothing here waits or looks at the time of day, so the same evaluator runs on the live store and over history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import LomsError, QueryError
from loms.core.guard import guard
from loms.core.model import STALE_NAN, Alert, Finding, Labels, Querier, SampleBatch, Series, Sink, labels_of
from loms.detect.detector import UNKNOWN, detectors
from loms.rules.inputs import Inputs
from loms.rules.lifecycle import Lifecycle, Match, Observed
from loms.rules.rule import Group, Rule, Templates

RESTORE_GRACE_MS = 60_000
"""For so long after a restart the absence of data does not resolve an alert."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What one evaluation of one rule gave."""

    group: Group
    rule: Rule
    alerts: tuple[Alert, ...]
    """Pending and firing ones, and those resolved by this evaluation."""
    error: str
    """Empty when the evaluation went well; else the alerts are as they were before."""
    at_ms: int
    seconds: float
    """How long the evaluation took."""


@dataclass(frozen=True, slots=True)
class _Known:
    finding: Finding
    since_ms: int


class Evaluator:
    """Evaluates groups when they are due and keeps their alerts.

    With a ``sink`` it also writes ``ALERTS{alertname, alertstate, …} 1`` as Prometheus does, so that a rule can say
    ``unless on (instance) ALERTS{alertname="EngineDead"}``. One thread evaluates; `results`, `states` and
    `states_since_ms` may be read from others.
    """

    def __init__(self, querier: Querier, groups: Sequence[Group], clock: Clock, sink: Sink | None = None) -> None:
        self.groups = tuple(groups)
        self._querier = querier
        self._clock = clock
        self._sink = sink
        self._inputs = Inputs(querier)
        self._lifecycles = [[Lifecycle(rule) for rule in group.rules] for group in self.groups]
        self._results: dict[tuple[int, int], RuleResult] = {}
        self._due_ms: list[int | None] = [None] * len(self.groups)
        self._states: dict[str, _Known] = {}
        self._published: list[dict[Labels, Series]] = [{} for _ in self.groups]
        self._announced: set[int] = set()

    def restore(self, alerts: Iterable[Alert], at_ms: int) -> None:
        """Go on with the firing alerts from before a restart; those of rules that no longer exist are left out."""
        for alert in alerts:
            for group, lifecycles in zip(self.groups, self._lifecycles, strict=True):
                for rule, lifecycle in zip(group.rules, lifecycles, strict=True):
                    if rule.made(alert):
                        lifecycle.restore(alert, at_ms + RESTORE_GRACE_MS)
                        break

    def next_due_ms(self) -> int | None:
        """When the next group is due; None when there is none, 0 before the first evaluation."""
        return min((due or 0 for due in self._due_ms), default=None)

    def evaluate(self, at_ms: int) -> list[RuleResult]:
        """Evaluate the groups that are due at ``at_ms``. One rule's failure is its own (`RuleResult.error`)."""
        results: list[RuleResult] = []
        findings: dict[str, list[Finding] | LomsError] = {}
        for number, group in enumerate(self.groups):
            due = self._due_ms[number]
            if due is not None and at_ms < due - 2 * group.interval_ms:
                due = None  # the clock was set back
            if due is not None and at_ms + group.interval_ms // 20 < due:
                continue
            missed = 0 if due is None else max(0, at_ms - due) // group.interval_ms
            selfmetrics.evaluations_missed.inc(missed)
            self._due_ms[number] = (at_ms if due is None else due + missed * group.interval_ms) + group.interval_ms
            with selfmetrics.evaluation_seconds.time():
                for position, rule in enumerate(group.rules):
                    result = self._rule(group, rule, self._lifecycles[number][position], findings, at_ms)
                    self._results[number, position] = result
                    results.append(result)
            self._publish(number, at_ms)
        self._count()
        return results

    def alerts(self) -> list[Alert]:
        """All pending and firing alerts."""
        return [alert for group in self._lifecycles for lifecycle in group for alert in lifecycle.alerts]

    def results(self) -> list[RuleResult]:
        """The newest result of every rule that has been evaluated, in the order of the groups."""
        known = dict(self._results)  # at once, since another thread may be evaluating
        return [known[place] for place in sorted(known)]

    def states(self) -> dict[str, Finding]:
        """Instance → what the state detector last saw there, healthy states included."""
        return {instance: known.finding for instance, known in self._states.items()}

    def states_since_ms(self) -> dict[str, int]:
        """Instance → when its state of `states` began."""
        return {instance: known.since_ms for instance, known in self._states.items()}

    def _rule(
        self,
        group: Group,
        rule: Rule,
        lifecycle: Lifecycle,
        findings: dict[str, list[Finding] | LomsError],
        at_ms: int,
    ) -> RuleResult:
        began, error, resolved = self._clock.monotonic(), "failed unexpectedly; the log has the details", list[Alert]()
        with guard(f"rule {rule.name}"):
            try:
                observed = self._detected(rule, findings, at_ms) if rule.detector else self._queried(rule, at_ms)
                resolved = lifecycle.step(observed, at_ms)
                error = ""
            except LomsError as known:
                error = known.message
        if error:
            selfmetrics.evaluation_failures.labels(rule.name).inc()
        seconds = self._clock.monotonic() - began
        return RuleResult(group, rule, (*lifecycle.alerts, *resolved), error, at_ms, seconds)

    def _queried(self, rule: Rule, at_ms: int) -> Observed:
        frame = self._querier.instant(rule.expr, at_ms)
        matches: dict[Labels, Match] = {}
        for row, value in zip(frame.labels, frame.last.tolist() if len(frame.labels) else (), strict=True):
            if np.isnan(value):
                continue
            own = {key: text for key, text in row.items() if key != "__name__"}
            labels = _alert_labels(rule, own, value, "warning")
            if labels in matches:
                raise QueryError("two results have the same labels once the rule's own are applied")
            matches[labels] = Match(labels, _rendered(rule.annotations, own, value), value, expr=rule.expr)
        return Observed(tuple(matches.values()))

    def _detected(self, rule: Rule, cache: dict[str, list[Finding] | LomsError], at_ms: int) -> Observed:
        """Findings that count for ``rule``. A detector with one configuration runs once, however many rules use it."""
        key = f"{rule.detector} {rule.config.model_dump_json() if rule.config else ''}"
        if key not in cache:
            cache[key] = self._run(rule, at_ms)
        findings = cache[key]
        if isinstance(findings, LomsError):
            raise findings
        matches, unknown, healthy = [], [], []
        for finding in findings:
            if finding.severity != "none" and (not rule.kinds or finding.kind in rule.kinds):
                matches.append(_match(rule, finding))
            elif finding.kind == UNKNOWN:
                unknown.append(finding.labels)
            else:
                healthy.append(finding.labels)
        return Observed(matches, unknown, healthy)

    def _run(self, rule: Rule, at_ms: int) -> list[Finding] | LomsError:
        detector = detectors[rule.detector]()
        config = rule.config or detector.Config()
        try:
            frames = {name: self._inputs.frame(each, at_ms) for name, each in detector.inputs(config).items()}
        except LomsError as error:
            return error
        findings = detector.detect(frames, at_ms, config)
        if detector.reports_state:
            self._note_states(findings, detector.kinds, at_ms)
        return findings

    def _note_states(self, findings: Iterable[Finding], worst_first: Sequence[str], at_ms: int) -> None:
        """Keep the worst state of each instance. Not knowing does not end a bad state, only a good one."""
        states: dict[str, _Known] = {}
        for finding in sorted(findings, key=lambda f: worst_first.index(f.kind)):
            instance = dict(finding.labels).get("instance", "")
            known = self._states.get(instance)
            if finding.kind == UNKNOWN and known and known.finding.severity != "none":
                states.setdefault(instance, known)
            since_ms = known.since_ms if known and known.finding.kind == finding.kind else at_ms
            states.setdefault(instance, _Known(finding, since_ms))
        self._states = states  # at once, for readers in other threads

    def _publish(self, number: int, at_ms: int) -> None:
        """Write ``ALERTS`` of one group: 1 for what is pending or firing, a stale marker for what no longer is."""
        if self._sink is None:
            return
        before = self._published[number]
        now: dict[Labels, Series] = {}
        for lifecycle in self._lifecycles[number]:
            for alert in lifecycle.alerts:
                labels = labels_of({**dict(alert.labels), "alertstate": alert.state})
                now[labels] = before.get(labels) or Series.of("ALERTS", labels)
        gone = [series for labels, series in before.items() if labels not in now]
        written = [*now.values(), *gone]
        self._published[number] = now
        if written:
            fresh = tuple(series for series in written if series.id not in self._announced)
            self._announced.update(series.id for series in fresh)
            self._sink(
                SampleBatch(
                    series_ids=np.array([series.id for series in written], dtype=np.uint64),
                    timestamps_ms=np.full(len(written), at_ms, dtype=np.int64),
                    values=np.array([1.0] * len(now) + [STALE_NAN] * len(gone)),
                    series=fresh,
                )
            )

    def _count(self) -> None:
        alerts = self.alerts()
        for state in ("pending", "firing"):
            selfmetrics.alerts.labels(state).set(sum(alert.state == state for alert in alerts))


def _match(rule: Rule, finding: Finding) -> Match:
    own = dict(finding.labels)
    labels = _alert_labels(rule, own, finding.value, finding.severity)
    annotations = dict(_rendered(rule.annotations, own, finding.value))
    annotations.setdefault("summary", finding.summary)
    annotations["finding"] = finding.summary
    expr = next((e.expr for e in finding.evidence if e.expr), "")
    return Match(labels, labels_of(annotations), finding.value, finding.evidence, expr)


def _alert_labels(rule: Rule, own: Mapping[str, str], value: float, severity: str) -> Labels:
    """The subject's labels, then the rule's, then ``alertname``; ``severity`` where the rule names none."""
    return labels_of({**own, "severity": severity, **dict(_rendered(rule.labels, own, value)), "alertname": rule.name})


def _rendered(templates: Templates, labels: Mapping[str, str], value: float) -> Labels:
    return labels_of({key: template.render(labels, value) for key, template in templates})
