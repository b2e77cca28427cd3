"""A syntax tree as the JSON of Prometheus 3's ``/api/v1/parse_query``, which its own page draws."""

from __future__ import annotations

from typing import Any

from loms.promql.signatures import SIGNATURES
from loms.promql.syntax import (
    SET_OPERATORS,
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
    value_type,
)
from loms.server.prometheus.format import name_of
from loms.server.wire import format_value


def tree_of(node: Node) -> dict[str, Any]:
    """The node with all below it. What is not in LOMS's tree (parentheses, computed durations) is not in it either."""
    if isinstance(node, Number):
        return {"type": "numberLiteral", "val": format_value(node.value)}
    if isinstance(node, Text):
        return {"type": "stringLiteral", "val": node.value}
    if isinstance(node, Selector):
        return {"type": "vectorSelector", **_selector(node)}
    if isinstance(node, Range):
        return {"type": "matrixSelector", **_selector(node.selector), "range": node.range_ms, "rangeExpr": None}
    if isinstance(node, Subquery):
        return {
            "type": "subquery",
            "expr": tree_of(node.expr),
            "range": node.range_ms,
            "rangeExpr": None,
            "step": node.step_ms or 0,
            "stepExpr": None,
            **_moved(node),
        }
    if isinstance(node, Negation):
        return {"type": "unaryExpr", "op": "-", "expr": tree_of(node.expr)}
    if isinstance(node, Call):
        return {"type": "call", "func": _function(node), "args": [tree_of(one) for one in node.args]}
    if isinstance(node, Aggregation):
        return {
            "type": "aggregation",
            "op": node.op,
            "expr": tree_of(node.expr),
            "param": None if node.param is None else tree_of(node.param),
            "grouping": list(node.labels),
            "without": node.without,
        }
    return {
        "type": "binaryExpr",
        "op": node.op,
        "lhs": tree_of(node.left),
        "rhs": tree_of(node.right),
        "matching": _matching(node),
        "bool": node.returns_bool,
    }


def _selector(node: Selector) -> dict[str, Any]:
    return {
        "name": name_of(node),
        "matchers": [{"name": m.name, "value": m.value, "type": m.op} for m in node.matchers],
        "anchored": node.extension == "anchored",
        "smoothed": node.extension == "smoothed",
        **_moved(node),
    }


def _moved(node: Selector | Subquery) -> dict[str, Any]:
    return {
        "offset": node.offset_ms,
        "offsetExpr": None,
        "timestamp": node.at if isinstance(node.at, int) else None,
        "startOrEnd": node.at if isinstance(node.at, str) else None,
    }


def _function(node: Call) -> dict[str, Any]:
    signature = SIGNATURES[node.function]
    return {
        "name": node.function,
        "argTypes": list(signature.arguments),
        "variadic": -1 if signature.optional is None else signature.optional,
        "returnType": node.returns,
    }


def _matching(node: Binary) -> dict[str, Any] | None:
    """None where a side is a scalar."""
    if "scalar" in (value_type(node.left), value_type(node.right)):
        return None
    matching = node.matching
    return {
        "card": "many-to-many" if node.op in SET_OPERATORS else matching.cardinality,
        "labels": list(matching.labels),
        "on": matching.on,
        "include": list(matching.include),
        "fillValues": {"lhs": matching.fill_left, "rhs": matching.fill_right},
    }
