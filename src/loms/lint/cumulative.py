"""``counter_as_gauge``: the value of a counter (or of a histogram's series) since the engine's start is used as it is.

``missing_rate``: a quantile is taken from all requests since the start.
``rate_of_gauge``: an increase is taken of something that goes up and down; ``deriv`` and ``delta`` are for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from loms.core.families import HISTOGRAM
from loms.lint.problem import Problem, Severity, problem
from loms.lint.query import Query, names
from loms.lint.scope import Scope, selectors
from loms.lint.target import Series
from loms.promql.syntax import COMPARISONS, Aggregation, Binary, Call, Node, Number, Range, Selector, Subquery

_INCREASES = frozenset({"rate", "increase", "irate"})
_FIT = _INCREASES | {"resets", "changes", "absent_over_time", "present_over_time", "count_over_time"}
_FIT_AT_ONCE = frozenset({"absent", "timestamp"})
_QUANTILES = frozenset({"histogram_quantile", "histogram_quantiles", "histogram_fraction"})
_GROWING = ("_total", *HISTOGRAM)
"""Ends of the names of recording rules that hand a counter on as one."""
_COUNTS = frozenset({"count", "group"})


def cumulative(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a kind and family. Names alone are not judged: an adapter may take their rate."""
    if query.expression.dialect == "name" or query.expression.purpose == "variable":
        return
    seen: set[tuple[str, str]] = set()
    for selector, above in selectors(query):
        for series in scope.series(selector, query):
            found = _as_gauge(series, selector, above, query) if series.cumulative else _as_counter(series, above)
            if found is not None and (found[0], series.family) not in seen:
                seen.add((found[0], series.family))
                yield problem(query, *found)


def _as_gauge(
    series: Series, selector: Selector, above: tuple[Node, ...], query: Query
) -> tuple[str, Severity, str] | None:
    what = "a counter" if series.type == "counter" else f"the {series.part} of a {series.type}"
    written = names(selector, query)
    name = written[0] if len(written) == 1 else series.name
    window, use = _window(above)
    if use in _FIT and not _reshaped(window):
        return None
    if use in _FIT:
        text = f"{use}() over a window of computed values misses the restarts of {name}: take the {use} first, then add"
        return "counter_as_gauge", _weight(query), text
    if use:
        text = f"{use}() takes {name}, {what}, for a gauge, and a restart for a fall: use increase() or rate()"
        return "counter_as_gauge", _weight(query), text
    if not _value_counts((*above, selector)) or query.expression.defines.endswith(_GROWING):
        return None
    if series.part == "_bucket" and any(isinstance(node, Call) and node.function in _QUANTILES for node in above):
        return "missing_rate", "error", f"the quantile is over all requests since the start: write rate({name}[5m])"
    text = f"{name} is {what} and grows until a restart: take its rate() or increase()"
    return "counter_as_gauge", "warning" if _since_ever(selector, above) else _weight(query), text


def _as_counter(series: Series, above: tuple[Node, ...]) -> tuple[str, Severity, str] | None:
    window, use = _window(above)
    if series.type != "gauge" or use not in _INCREASES or _reshaped(window):
        return None
    instead = "delta" if use == "increase" else "deriv"
    text = f"{use}() takes every fall of {series.name}, a gauge, for a restart: use {instead}()"
    return "rate_of_gauge", "warning", text


def _window(above: tuple[Node, ...]) -> tuple[tuple[Node, ...], str]:
    """The nodes between a selector and the window around it, and the function that takes the window."""
    for i in range(len(above) - 1, -1, -1):
        if isinstance(above[i], (Range, Subquery)):
            caller = above[i - 1] if i else None
            return above[i + 1 :], caller.function if isinstance(caller, Call) else ""
    return (), ""


def _reshaped(between: tuple[Node, ...]) -> bool:
    """Whether values are added or computed between the selector and its window, which hides single restarts."""
    return any(isinstance(node, (Aggregation, Binary)) for node in between)


def _value_counts(chain: tuple[Node, ...]) -> bool:
    """Whether the result depends on the value of the last node, and not only on there being one."""
    for i, (node, child) in enumerate(pairwise(chain)):
        counted = (
            (isinstance(node, Call) and node.function in _FIT_AT_ONCE)
            or (isinstance(node, Aggregation) and node.op in _COUNTS)
            or (isinstance(node, Binary) and node.op in ("and", "unless") and child is node.right)
        )
        if counted and not _compared(chain[i + 1 :]):
            return False
    return True


def _compared(above: tuple[Node, ...]) -> bool:
    return any(isinstance(node, Binary) and node.op in COMPARISONS for node in above)


def _since_ever(selector: Selector, above: tuple[Node, ...]) -> bool:
    """``x > 0`` asks whether it ever happened; ``x - x offset 1h`` is an increase but for restarts."""
    for node in above:
        if not isinstance(node, Binary):
            continue
        if node.op in COMPARISONS and Number(0.0) in (node.left, node.right):
            return True
        sides = (node.left, node.right)
        if node.op == "-" and all(isinstance(s, Selector) and s.matchers == selector.matchers for s in sides):
            return True
    return False


def _weight(query: Query) -> Severity:
    return "error" if query.expression.purpose in ("alert", "scaler") else "warning"
