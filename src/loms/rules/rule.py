"""Alerting rules in groups, as they stand in a rule file after everything in it was checked."""

from __future__ import annotations

from dataclasses import dataclass

from loms.core.model import Alert
from loms.core.settings import Section
from loms.rules.template import Template

Templates = tuple[tuple[str, Template], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert: either a PromQL expression or a detector says when it is active."""

    name: str
    expr: str = ""
    """PromQL; empty for a detector's rule."""
    detector: str = ""
    config: Section | None = None
    """Of the detector."""
    kinds: frozenset[str] = frozenset()
    """The detector's findings that count; empty: all of a severity above ``none``."""
    for_ms: int = 0
    keep_firing_for_ms: int = 0
    labels: Templates = ()
    annotations: Templates = ()
    line: int = 0

    def made(self, alert: Alert) -> bool:
        """Whether the alert, perhaps from before a restart, is one of this rule's."""
        labels = dict(alert.labels)
        fixed = ((name, value.text) for name, value in self.labels if "{{" not in value.text)
        return self.name == alert.rule and all(labels.get(name) == text for name, text in fixed)


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together, in order, every ``interval_ms``."""

    name: str
    file: str
    interval_ms: int
    rules: tuple[Rule, ...]
