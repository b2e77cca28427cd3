"""``misleading_metric``: the engine's own rate, mean or ratio, over a time that nobody who asks has chosen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from loms.lint.problem import Problem, problem
from loms.lint.query import Query, names
from loms.lint.scope import Scope, selectors
from loms.lint.target import Series, Target

_MISLEADS = re.compile(
    r"\bsince (?:the )?start\b|\blast (?:\w+ )?(?:scrape|batch|interval|step)\b|\bthe log's interval\b"
    r"|\bleft standing\b|\bsliding window\b|\btyped as\b|\bcounts up\b|\bNaN\b|-1\b|\bnever set\b"
)
"""Of the reasons why an engine's table leaves a family aside, those that a reader of its values must know."""


def misleading_metrics(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a family. The sum and the count of a summary do not mislead."""
    if query.expression.purpose == "variable":
        return
    seen: set[str] = set()
    for selector, _ in selectors(query):
        for series in scope.series(selector, query):
            reason = _reason(series, scope.target)
            if reason and series.family not in seen:
                seen.add(series.family)
                written = names(selector, query)
                name = written[0] if len(written) == 1 else series.name
                yield problem(query, "misleading_metric", "info", f"{name} misleads: {reason}")


def _reason(series: Series, target: Target) -> str:
    if series.part:
        return ""
    said = (reason for pattern, reason in target.aside.items() if fnmatchcase(series.family, pattern))
    return next((reason for reason in said if _MISLEADS.search(reason)), "")
