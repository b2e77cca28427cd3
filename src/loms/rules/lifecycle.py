"""The life of a rule's alerts: pending, firing, resolved, as Prometheus has it.

An alert is pending from the first evaluation in which its rule holds, firing once it has held for ``for``, and
resolved when it holds no longer, after ``keep_firing_for``. Two things are added, so that missing data neither start
nor end an alert: a detector that cannot tell (`loms.detect.detector.UNKNOWN`) leaves the alerts of its subject as they
are, and alerts read back after a restart get a while before their absence counts, since the first evaluation may find
nothing scraped yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loms.core.model import Alert, Evidence, Labels
from loms.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Match:
    """A rule holds for one label set."""

    labels: Labels
    annotations: Labels
    value: float
    evidence: tuple[Evidence, ...] = ()
    expr: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one evaluation says about a rule's subjects."""

    matches: Sequence[Match]
    unknown: Sequence[Labels] = ()
    """Subjects of which nothing can be said now."""
    healthy: Sequence[Labels] = ()
    """Subjects that were seen to be well: not merely absent."""


@dataclass(slots=True)
class _Entry:
    alert: Alert
    absent_since_ms: int | None = None
    lenient_until_ms: int = 0


class Lifecycle:
    """The alerts of one rule."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._entries: dict[Labels, _Entry] = {}

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Pending and firing ones."""
        return tuple(entry.alert for entry in self._entries.values())

    def restore(self, alert: Alert, lenient_until_ms: int) -> None:
        """Go on with a firing alert from before a restart."""
        self._entries[alert.labels] = _Entry(alert, lenient_until_ms=lenient_until_ms)

    def step(self, observed: Observed, at_ms: int) -> list[Alert]:
        """Take in one evaluation; returns the alerts that were resolved by it."""
        held = {self._hold(match, at_ms) for match in observed.matches}
        resolved = []
        for labels, entry in list(self._entries.items()):
            if labels in held or any(same_subject(labels, subject) for subject in observed.unknown):
                continue
            if entry.alert.state == "pending":
                del self._entries[labels]
            elif self._is_over(entry, observed.healthy, at_ms):
                del self._entries[labels]
                resolved.append(replace(entry.alert, state="resolved", resolved_at_ms=at_ms))
        return resolved

    def _hold(self, match: Match, at_ms: int) -> Labels:
        """Start or go on with the alert of ``match``; returns the labels under which it is kept."""
        labels = self._known_as(match.labels)
        entry = self._entries.get(labels)
        if entry is None:
            alert = Alert(self._rule.name, labels, match.annotations, "pending", match.value, at_ms)
            entry = self._entries[labels] = _Entry(alert)
        alert = replace(
            entry.alert,
            annotations=match.annotations,
            value=match.value,
            evidence=match.evidence,
            expr=match.expr,
        )
        if alert.state == "pending" and at_ms - alert.active_at_ms >= self._rule.for_ms:
            alert = replace(alert, state="firing", fired_at_ms=at_ms)
        entry.alert, entry.absent_since_ms = alert, None
        return labels

    def _known_as(self, labels: Labels) -> Labels:
        """A detector's subject may lose or gain labels (a dead engine's model is forgotten); its alert stays."""
        if labels in self._entries or not self._rule.detector:
            return labels
        return next((known for known in self._entries if same_subject(known, labels)), labels)

    def _is_over(self, entry: _Entry, healthy: Iterable[Labels], at_ms: int) -> bool:
        if at_ms < entry.lenient_until_ms and not any(same_subject(entry.alert.labels, each) for each in healthy):
            return False
        if entry.absent_since_ms is None:
            entry.absent_since_ms = at_ms
        return at_ms - entry.absent_since_ms >= self._rule.keep_firing_for_ms


def same_subject(a: Labels, b: Labels) -> bool:
    """Whether two label sets name the same instance and contradict one another in nothing.

    >>> same_subject((("instance", "a:1"), ("model", "m")), (("instance", "a:1"), ("job", "j")))
    True
    """
    left, right = dict(a), dict(b)
    shared = left.keys() & right.keys()
    return "instance" in shared and all(left[key] == right[key] for key in shared)
