"""``mixed_old_and_new``: the old and the new name of one signal are added, which counts it twice."""

from __future__ import annotations

from collections.abc import Iterator

from loms.lint.problem import Problem, problem
from loms.lint.query import Query, names, walk
from loms.lint.scope import Scope
from loms.promql.syntax import Aggregation, Binary, Node, Selector


def doubles(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a pair of names."""
    seen: set[tuple[str, str]] = set()
    for old, new in _pairs(query, scope):
        if (old, new) not in seen:
            seen.add((old, new))
            text = f"{new} took the place of {old}; where both are there their sum counts twice: write one of them"
            yield problem(query, "mixed_old_and_new", "error", text)


def _pairs(query: Query, scope: Scope) -> Iterator[tuple[str, str]]:
    """An old name and the new one that it is added to: by ``+``, or by a sum over a regex that matches both."""
    for node, above in walk(query.node) if query.node is not None else ():
        if isinstance(node, Binary) and node.op == "+":
            lists = [(_added(node.left, query), _added(node.right, query))]
        elif isinstance(node, Selector) and any(isinstance(one, Aggregation) and one.op == "sum" for one in above):
            lists = [(names(node, query), names(node, query))]
        else:
            continue
        for here, there in lists:
            for a in here:
                for b in there:
                    if a != b and scope.target.succeeds(b, a):
                        yield a, b
                    elif a != b and scope.target.succeeds(a, b) and here is not there:
                        yield b, a


def _added(node: Node, query: Query) -> tuple[str, ...]:
    return tuple(name for inner, _ in walk(node) if isinstance(inner, Selector) for name in names(inner, query))
