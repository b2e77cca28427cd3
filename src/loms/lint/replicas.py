"""``replicas_added``: what all ranks of a model tell alike is added up or averaged like work of their own."""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.problem import Problem, problem
from loms.lint.query import Query, names
from loms.lint.scope import Scope, selectors
from loms.promql.syntax import Aggregation, Binary, Call, Node, Selector

_ADDS = {"sum": "adds up", "avg": "averages"}
_PASS_ON = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_NO_VALUE = frozenset({"absent", "absent_over_time", "timestamp"})


def added_replicas(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a metric. A ratio of two sums over the same ranks is right, and passed over."""
    seen: set[str] = set()
    for selector, above in selectors(query):
        told = _replicas(selector, query, scope)
        found = _adding(told, (*above, selector))
        if not told or found is None or _is_ratio(found, above, query, scope):
            continue
        node, over = found
        written = names(selector, query)[0]
        if written not in seen:
            seen.add(written)
            labels = ", ".join(sorted(over))
            text = f"{node.op} {_ADDS[node.op]} {written} over {labels}, whose series tell the same thing several times"
            advice = f"put max without ({labels}) between {node.op} and the metric or its rate, or pick one of them"
            yield problem(query, "replicas_added", "warning", f"{text}: {advice}")


def _replicas(selector: Selector, query: Query, scope: Scope) -> frozenset[str]:
    """The labels of a gauge or counter over which it is told several times, but for those that are picked or single."""
    found: frozenset[str] = frozenset()
    picked = {matcher.name for matcher in selector.matchers if matcher.op == "="}
    for series in scope.series(selector, query):
        if series.type in ("gauge", "counter") and series.labels is not None:
            values = {label: scope.target.values.get((series.family, label)) for label in scope.target.replicas}
            single = {label for label, known in values.items() if known is not None and len(known) == 1}
            found |= (series.labels & scope.target.replicas) - picked - single
    return found


def _adding(labels: frozenset[str], chain: tuple[Node, ...]) -> tuple[Aggregation, frozenset[str]] | None:
    """The innermost sum or mean over some of these labels of the last node, and which of them it is over."""
    for i in range(len(chain) - 2, -1, -1):
        node, child = chain[i], chain[i + 1]
        match node:
            case Aggregation(op=op):
                if child is not node.expr:
                    return None
                lost = frozenset(label for label in labels if (label in node.labels) == node.without)
                if lost and op in _ADDS:
                    return node, lost
                labels -= frozenset() if op in _PASS_ON else lost
            case Binary(op=op):
                if op in ("and", "unless") and child is node.right:
                    return None
                if node.matching.cardinality == "one-to-one" and op not in ("and", "or", "unless"):
                    kept = frozenset(node.matching.labels)
                    labels = labels & kept if node.matching.on else labels - kept
            case Call(function=name) if name in _NO_VALUE:
                return None
    return None


def _is_ratio(found: tuple[Aggregation, frozenset[str]], above: tuple[Node, ...], query: Query, scope: Scope) -> bool:
    """Whether the sum is divided by another one over the same labels, or that by it."""
    chain = above[: above.index(found[0]) + 1]
    for i in range(len(chain) - 2, -1, -1):
        node = chain[i]
        if isinstance(node, Aggregation):
            return False
        if isinstance(node, Binary) and node.op == "/":
            for other, path in selectors(query):
                beside = node in path and chain[i + 1] not in path
                same = _adding(_replicas(other, query, scope), (*path, other)) if beside else None
                if same is not None and same[1] == found[1]:
                    return True
    return False
