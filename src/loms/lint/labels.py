"""``unknown_label``: a label that the metric does not have is matched, grouped by or joined on.

``matcher_never_matches``: the label is there, but none of its values is the one that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from loms.core.errors import QueryError
from loms.lint.problem import Problem, Severity, problem
from loms.lint.query import Query, walk
from loms.lint.scope import Scope, metric, selectors
from loms.lint.target import Series
from loms.lint.templates import stands_in
from loms.promql.regexes import matches
from loms.promql.syntax import NAME, Aggregation, Binary, Call, Matcher, Negation, Node, Range, Selector, Subquery, Text

_KEEPS_ALL = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_OPEN = frozenset({"absent", "absent_over_time", "info", "vector"})
"""Functions whose labels come from elsewhere."""


def unknown_labels(query: Query, scope: Scope) -> Iterator[Problem]:
    """One problem a label and place of use."""
    seen: set[str] = set()
    for found in _problems(query, scope):
        if found.text not in seen:
            seen.add(found.text)
            yield found


def _problems(query: Query, scope: Scope) -> Iterator[Problem]:
    for selector, _ in selectors(query):
        for series in scope.series(selector, query):
            for matcher in selector.matchers:
                yield from _matcher(matcher, series, query, scope)
            for label in query.labels:
                if series.labels is not None and label not in series.labels and not stands_in(label):
                    yield problem(query, "unknown_label", "warning", f"{series.name} has no label {label}")
    for node, _ in walk(query.node) if query.node is not None else ():
        if isinstance(node, Aggregation) and not node.without and node.op not in _KEEPS_ALL:
            yield from _lacking(node.labels, node.expr, f"{node.op} by", query, scope)
        elif isinstance(node, Binary):
            if node.matching.on:
                yield from _lacking(node.matching.labels, node.left, "on", query, scope)
                yield from _lacking(node.matching.labels, node.right, "on", query, scope)
            if node.matching.include:
                many_left = node.matching.cardinality == "many-to-one"
                one, way = (node.right, "group_left") if many_left else (node.left, "group_right")
                yield from _lacking(node.matching.include, one, way, query, scope)


def _matcher(matcher: Matcher, series: Series, query: Query, scope: Scope) -> Iterator[Problem]:
    if matcher.name == NAME or series.labels is None or stands_in(matcher.name):
        return
    asked = f'{matcher.name}{matcher.op}"{matcher.value}"'
    try:
        if matcher.name not in series.labels:
            yield from _absent(matcher, asked, series, query, scope)
        elif not stands_in(matcher.value):
            values = scope.target.values.get((series.family, matcher.name))
            if values and not any(_holds(matcher, tuple(values))):
                known = ", ".join(sorted(values)[:5])
                text = f"{asked} never holds: {matcher.name} of {series.name} has the values {known}"
                yield problem(query, "matcher_never_matches", "warning", text)
    except QueryError as error:
        yield problem(query, "parse_error", "error", error.message.replace("parse error: ", ""))


def _absent(matcher: Matcher, asked: str, series: Series, query: Query, scope: Scope) -> Iterator[Problem]:
    """A label that is not there has the value ``""``: the matcher either excludes all series or does nothing."""
    text = f"{series.name} has no label {matcher.name}"
    if stands_in(matcher.value):
        yield problem(query, "unknown_label", "warning", f"{text}: {asked} shows nothing but for All")
    elif _holds(matcher, ("",))[0]:
        if matcher.value not in ("", ".*"):
            yield problem(query, "unknown_label", "warning", f"{text}: {asked} does nothing")
    else:
        promise = scope.target.promised(series.name)
        severity: Severity = "warning" if promise and matcher.name in promise.family.labels else "error"
        yield problem(query, "unknown_label", severity, f"{text}: {asked} never holds")


def _holds(matcher: Matcher, values: tuple[str, ...]) -> list[bool]:
    if matcher.op in ("=", "!="):
        return [(value == matcher.value) == (matcher.op == "=") for value in values]
    return [hit == (matcher.op == "=~") for hit in matches(matcher.value, values)]


def _lacking(labels: tuple[str, ...], node: Node, way: str, query: Query, scope: Scope) -> Iterator[Problem]:
    there = _labels(node, query, scope, ())
    for label in labels:
        if there is not None and label not in there and not stands_in(label):
            text = f"{way} ({label}): what it is applied to has no label {label}"
            yield problem(query, "unknown_label", "warning", text)


def _labels(node: Node, query: Query, scope: Scope, through: tuple[str, ...]) -> frozenset[str] | None:
    """All labels that a result can have; None where that is not known. Recording rules are looked through."""
    match node:
        case Selector():
            return _selected(node, query, scope, through)
        case Range(selector=inner) | Subquery(expr=inner) | Negation(expr=inner):
            return _labels(inner, query, scope, through)
        case Aggregation():
            return _aggregated(node, _labels(node.expr, query, scope, through))
        case Binary():
            return _joined(node, *(_labels(side, query, scope, through) for side in (node.left, node.right)))
        case Call():
            return _called(node, [_labels(arg, query, scope, through) for arg in node.args])
    return frozenset()


def _selected(node: Selector, query: Query, scope: Scope, through: tuple[str, ...]) -> frozenset[str] | None:
    rule, name = scope.recorded(node, query), metric(node)
    if rule is not None and rule.node is not None:
        inner = _labels(rule.node, rule, scope, (*through, name)) if name not in through else None
        return None if inner is None else inner | frozenset(rule.expression.adds)
    series = scope.series(node, query)
    if not series or any(one.labels is None for one in series):
        return None
    return frozenset().union(*(one.labels or () for one in series))


def _aggregated(node: Aggregation, inner: frozenset[str] | None) -> frozenset[str] | None:
    if node.op in _KEEPS_ALL:
        return inner
    if node.without:
        left = None if inner is None else inner - frozenset(node.labels)
    else:
        left = frozenset(node.labels) if inner is None else inner & frozenset(node.labels)
    made = frozenset({node.param.value}) if node.op == "count_values" and isinstance(node.param, Text) else frozenset()
    return None if left is None else left | made


def _joined(node: Binary, left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if left is None or right is None or node.op in ("and", "unless"):
        return left if node.op in ("and", "unless") else None
    if node.op == "or":
        return left | right
    many, one = (right, left) if node.matching.cardinality == "one-to-many" else (left, right)
    if node.matching.cardinality in ("many-to-one", "one-to-many"):
        return many | frozenset(node.matching.include)
    if node.matching.on:
        return many & frozenset(node.matching.labels)
    return (many or one) - frozenset(node.matching.labels)


def _called(node: Call, args: list[frozenset[str] | None]) -> frozenset[str] | None:
    if node.returns == "scalar":
        return frozenset()
    if node.function in _OPEN or None in args:
        return None
    found = frozenset().union(*(arg for arg in args if arg is not None))
    if node.function in ("label_replace", "label_join"):
        name = node.args[1]
        return found | {name.value} if isinstance(name, Text) else None
    return found - {"le"} if node.function == "histogram_quantile" else found
