"""What the series of a metric family are called, as the text format 0.0.4 and OpenMetrics have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loms.core.semconv import CATALOGUE

HISTOGRAM = ("_bucket", "_sum", "_count")
"""What follows a histogram's name in its series."""
_COUNTED = frozenset({"histogram", "summary"})
_PARTS = (
    ("_bucket", "", frozenset({"histogram", "gaugehistogram"})),
    ("_sum", "", _COUNTED),
    ("_count", "", _COUNTED),
    ("_gsum", "", frozenset({"gaugehistogram"})),
    ("_gcount", "", frozenset({"gaugehistogram"})),
    ("_created", "_total", frozenset({"counter"})),
    ("_created", "", _COUNTED | {"counter"}),
)


def owners(name: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Family, part and the family's possible types, for a name that may be one series of a family.

    >>> [(family, part) for family, part, types in owners("x_sum") if "summary" in types]
    [('x', '_sum')]
    """
    for part, end, types in _PARTS:
        if name.endswith(part):
            yield name.removesuffix(part) + end, part, types


def family_of(name: str, types: Mapping[str, str]) -> tuple[str, str]:
    """Family and part of a series, by the families' types; the name itself and no part for whatever is none of theirs.

    >>> family_of("x_bucket", {"x": "histogram"}), family_of("x_sum", {"x_sum": "gauge"})
    (('x', '_bucket'), ('x_sum', ''))
    """
    found = ((family, part) for family, part, kinds in owners(name) if types.get(family) in kinds)
    family, part = next(found, (name, ""))
    # Clients of 0.0.4 write a TYPE line of its own for the time at which a series was created.
    return (name, "") if name in types and part != "_created" else (family, part)


def suffixes(metric: str, part: str = "") -> tuple[tuple[str, str], ...]:
    """What follows the family's name in the raw and in the canonical series of this metric (OpenTelemetry name).

    ``part``: the only series of a canonical histogram for which a plain counter stands.
    """
    if part:
        return (("", part),)
    return tuple((s, s) for s in HISTOGRAM) if CATALOGUE[metric].instrument == "histogram" else (("", ""),)
