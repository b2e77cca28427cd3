"""One PromQL expression that somebody wrote into a rule, a dashboard or a scaler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loms.lint.place import Excerpt, Place

Purpose = Literal["alert", "record", "panel", "scaler", "variable"]
Dialect = Literal["promql", "grafana", "variable", "adapter", "printf", "name"]
"""PromQL as it is; with Grafana's variables; a Grafana variable's query; with prometheus-adapter's ``<<…>>``; with the
verbs of a template's ``printf``; or nothing but the name of a metric."""


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    place: Place
    purpose: Purpose
    excerpt: Excerpt = field(repr=False)
    dialect: Dialect = "promql"
    defines: str = ""
    """The name under which others use the result: of a recording rule, or of a metric that an adapter serves."""
    adds: tuple[str, ...] = ()
    """Labels that a recording rule gives to its result."""
    labels: tuple[str, ...] = ()
    """Labels that are asked of the series beside the text (an HPA's selector)."""
    series: str = ""
    """What ``<<.Series>>`` stands for, where that is one name."""
    twins: tuple[Excerpt, ...] = field(default=(), repr=False)
    """Places where the same text stands once more and has to change along."""
