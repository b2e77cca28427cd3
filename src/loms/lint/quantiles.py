"""``average_of_quantiles``: quantiles are added up or averaged, which gives no quantile of anything.

``quantile_without_le``: the buckets' bounds are summed away before ``histogram_quantile`` could use them.
"""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.problem import Problem, Severity, problem
from loms.lint.query import Query, walk
from loms.lint.scope import Scope, metric
from loms.promql.syntax import SET_OPERATORS, Aggregation, Binary, Call, Negation, Node, Range, Selector, Subquery

_QUANTILE = "histogram_quantile"
_MEANS = {
    "avg": "averaged",
    "sum": "added up",
    "stddev": "compared",
    "stdvar": "compared",
    "quantile": "averaged",
    "avg_over_time": "averaged",
    "sum_over_time": "added up",
    "quantile_over_time": "averaged",
}
_EXTREMES = {"max": "largest", "min": "smallest", "max_over_time": "largest", "min_over_time": "smallest"}
_SAME = frozenset({"abs", "ceil", "clamp", "clamp_max", "clamp_min", "floor", "label_join", "label_replace", "round"})
_SAME_SERIES = frozenset({"max", "min", "topk", "bottomk", "limitk"})


def averaged_quantiles(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem for each way that an expression treats quantiles so."""
    seen: set[str] = set()
    for node, _ in walk(query.node) if query.node is not None else ():
        match node:
            case Aggregation(op=way, expr=operand):
                pass
            case Call(function=way, args=(*_, Subquery() | Range() as operand)):
                pass
            case _:
                continue
        origin = _origin(operand, query, scope, ()) if way in _MEANS.keys() | _EXTREMES.keys() else ""
        if way in seen or not origin:
            continue
        seen.add(way)
        severity: Severity = "warning" if way in _MEANS else "info"
        if way in _MEANS:
            text = f"{way} of quantiles: quantiles cannot be {_MEANS[way]}; {_advice(origin)}"
        else:
            text = f"{way} of quantiles: the {_EXTREMES[way]} of several quantiles is not the quantile of all requests"
        yield problem(query, "average_of_quantiles", severity, text)


def lost_bounds(query: Query, scope: Scope) -> Iterator[Problem]:
    """Looks through recording rules as well: one that sums ``le`` away serves no quantile."""
    for node, _ in walk(query.node) if query.node is not None else ():
        if isinstance(node, Call) and node.function == _QUANTILE:
            cause = _loses_bounds(node.args[-1], query, scope, ())
            if cause:
                yield problem(query, "quantile_without_le", "error", f"{_QUANTILE} finds no buckets: {cause}")


def _advice(origin: str) -> str:
    if origin == _QUANTILE:
        return "sum the buckets' rates by (le) and take one"
    mean = f"sum(rate({origin}_sum[5m])) / sum(rate({origin}_count[5m]))"
    return f"{origin} is a summary and has no buckets: take the mean, {mean}, or a histogram if the engine has one"


def _origin(node: Node, query: Query, scope: Scope, through: tuple[str, ...]) -> str:
    """Where values that are quantiles come from: ``histogram_quantile``, or a summary; ``""`` if they are none.

    ``through`` are the recording rules on the way, which may be a ring.
    """
    match node:
        case Call(function=name):
            vectors = [arg for arg in node.args if isinstance(arg, (Selector, Call, Aggregation, Binary, Negation))]
            same = (_origin(arg, query, scope, through) for arg in vectors if name in _SAME)
            return _QUANTILE if name == _QUANTILE else next(filter(None, same), "")
        case Negation(expr=inner) | Subquery(expr=inner) | Range(selector=inner):
            return _origin(inner, query, scope, through)
        case Aggregation(op=op, expr=inner):
            return _origin(inner, query, scope, through) if op in _SAME_SERIES else ""
        case Binary(returns_bool=True):
            return ""
        case Binary(op=op):
            left, right = (_origin(side, query, scope, through) for side in (node.left, node.right))
            if op in ("and", "unless"):
                return left
            return "" if left and right and op not in SET_OPERATORS else left or right
        case Selector():
            summary = next((series.name for series in scope.series(node, query) if series.quantile), "")
            rule, name = scope.recorded(node, query), metric(node)
            if summary or rule is None or rule.node is None or name in through:
                return summary
            return _origin(rule.node, rule, scope, (*through, name))
    return ""


def _loses_bounds(node: Node, query: Query, scope: Scope, through: tuple[str, ...]) -> str:
    """How ``le`` gets lost on the way down to buckets of the target, in words; ``""`` if it does not."""
    match node:
        case Aggregation(op=op, expr=inner):
            if (("le" in node.labels) == node.without) and _has_buckets(inner, query, scope, through):
                kept = "".join(f", {label}" for label in node.labels)
                return f"{op} leaves le out" + ("" if node.without else f": write {op} by (le{kept})")
            return _loses_bounds(inner, query, scope, through)
        case Negation(expr=inner) | Subquery(expr=inner):
            return _loses_bounds(inner, query, scope, through)
        case Binary(left=left, right=right):
            return _loses_bounds(left, query, scope, through) or _loses_bounds(right, query, scope, through)
        case Call(args=args):
            return next(filter(None, (_loses_bounds(arg, query, scope, through) for arg in args)), "")
        case Selector():
            rule, name = scope.recorded(node, query), metric(node)
            if rule is not None and rule.node is not None and name not in through:
                cause = _loses_bounds(rule.node, rule, scope, (*through, name))
                return f"in the rule {name}, {cause}" if cause else ""
    return ""


def _has_buckets(node: Node, query: Query, scope: Scope, through: tuple[str, ...]) -> bool:
    for inner, _ in walk(node):
        if not isinstance(inner, Selector):
            continue
        if any(series.part == "_bucket" for series in scope.series(inner, query)):
            return True
        rule, name = scope.recorded(inner, query), metric(inner)
        if rule and rule.node and name not in through and _has_buckets(rule.node, rule, scope, (*through, name)):
            return True
    return False
