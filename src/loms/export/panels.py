"""What a dashboard is made of, and the PromQL that its panels share: canonical series, filtered by the variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loms.core.semconv import CATALOGUE

VARIABLES: Mapping[str, str] = {
    "deployment_zone": "Zone",
    "engine": "Engine",
    "model": "Model",
    "instance": "Instance",
    "hop": "Hop",
}
"""Labels by which a dashboard can be narrowed, in this order, and what they are called there."""

FILTER = ", ".join(f'{label}=~"${label}"' for label in VARIABLES)
ALIKE = "engine, model, hop"
"""What is never mixed: bucket bounds differ by engine, and the same request is seen at each hop."""
RATE = "$__rate_interval"

RED, AMBER, GREEN = "red", "orange", "green"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = "{{instance}} {{engine_index}}"
    right: bool = False
    """Drawn against an axis of its own, a share from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``unit`` is Grafana's name of it; widths add up to 24 for each line of a row."""

    title: str
    queries: tuple[Query, ...]
    unit: str
    description: str
    """What to do about it, too."""
    width: int = 8
    kind: Literal["lines", "number", "states"] = "lines"
    limits: Mapping[float, str] | None = None
    """From this value on, this colour."""
    below: str = GREEN
    """Colour below all limits."""
    most: float | None = None
    """Upper end of the axis, where the measure has one."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: rows of panels."""

    name: str
    title: str
    description: str
    rows: Mapping[str, tuple[Panel, ...]]

    @property
    def uid(self) -> str:
        return f"loms-{self.name}"

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows.values() for panel in row]


def series(canonical: str, suffix: str = "", matchers: str = "") -> str:
    """The series of a canonical metric that the variables leave."""
    name = CATALOGUE[canonical].prometheus + suffix
    return f"{name}{{{', '.join(filter(None, (matchers, FILTER)))}}}"


def per_second(canonical: str, suffix: str = "", matchers: str = "", over: str = RATE) -> str:
    return f"rate({series(canonical, suffix, matchers)}[{over}])"


def quantile(share: float, canonical: str, by: str = ALIKE) -> str:
    """A quantile over all that is alike, from the sum of their buckets."""
    buckets = per_second(canonical, "_bucket")
    return f"histogram_quantile({share:g}, sum by (le, {by}) ({buckets}))"


def quantiles(canonical: str, by: str = ALIKE, legend: str = "{{model}} {{hop}}") -> tuple[Query, ...]:
    """Its P50, P95 and P99."""
    return tuple(Query(quantile(share, canonical, by), f"P{share * 100:.0f} {legend}") for share in (0.5, 0.95, 0.99))


def mean(canonical: str, by: str = ALIKE) -> str:
    """The mean of what a histogram counted; it takes a sum and a count only."""
    total, count = per_second(canonical, "_sum"), per_second(canonical, "_count")
    return f"sum by ({by}) ({total}) / sum by ({by}) ({count})"
