"""An expression made ready for the checks: its syntax tree, or why it has none, and the names it mentions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loms.core.errors import QueryError
from loms.lint.expression import Expression
from loms.lint.lexemes import lexemes
from loms.lint.mentions import Mention, alternatives, mentions
from loms.lint.templates import readings, stand_in, stands_in
from loms.promql.parse import parse
from loms.promql.syntax import (
    NAME,
    Aggregation,
    Binary,
    Call,
    Matcher,
    Negation,
    Node,
    Range,
    Selector,
    Subquery,
)

_LABEL_VALUES = re.compile(r"\s*label_values\(\s*(?:(?P<series>.+?)\s*,\s*)?(?P<label>\w+)\s*\)\s*", re.DOTALL)
_RESULT = re.compile(r"\s*query_result\((?P<series>.+)\)\s*", re.DOTALL)
_NO_SERIES = re.compile(r"\s*(?:metrics|label_names)\(.*\)\s*", re.DOTALL)
_VERB = re.compile(r"%[-+# 0]*[\d.]*[a-zA-Z]")
_SERIES = re.compile(r"<<\s*\.Series\s*>>")


@dataclass(frozen=True, slots=True)
class Query:
    """``text`` has the length of the expression's own, so that places are the same in both."""

    expression: Expression
    text: str
    node: Node | None
    error: str
    """Why there is no tree: what Prometheus would say, or that the variables leave too much open."""
    guessed: bool
    """The text has variables, so an error may be the guess's and not the author's."""
    mentions: tuple[Mention, ...]
    labels: tuple[str, ...]
    """Labels that are asked of the series beside the text."""


def read(expression: Expression) -> Query:
    """Never raises: what does not parse has an `error`."""
    text, labels = _promql(expression)
    if expression.dialect == "name":
        tree = Selector((Matcher(NAME, "=", text),))
        return Query(expression, text, tree, "", False, (Mention(text, 0, len(text)),), labels)
    if not text.strip():
        return Query(expression, text, None, "", False, (), labels)
    candidates = readings(text) if expression.dialect != "promql" else (text,)
    error = ""
    for candidate in candidates:
        try:
            return Query(expression, candidate, parse(candidate), "", candidate != text, mentions(candidate), labels)
        except QueryError as problem:
            error = error or problem.message.replace("parse error: ", "")
    return Query(expression, candidates[0], None, error, candidates[0] != text, mentions(candidates[0]), labels)


def _promql(expression: Expression) -> tuple[str, tuple[str, ...]]:
    """The text with blanks for what a Grafana variable has around its PromQL, and the labels asked for.

    The verbs of a ``printf`` become variables, whose values are as little known.
    """
    text = expression.text
    if expression.dialect == "printf":
        return _VERB.sub(lambda verb: "$".ljust(len(verb[0]), "v"), text), expression.labels
    if expression.dialect != "variable":
        return text, expression.labels
    values = _LABEL_VALUES.fullmatch(text)
    match = values or _RESULT.fullmatch(text)
    if match is None:
        return (" " * len(text) if _NO_SERIES.fullmatch(text) else text), ()
    inner = match["series"] or ""
    start = match.start("series") if inner else 0
    label = (values["label"],) if values and inner else ()
    return (" " * start + inner).ljust(len(text)), label


def series_name(name: str, query: Query) -> str:
    """The metric that a name in the tree stands for; ``""`` where a variable leaves that open."""
    if not stands_in(name):
        return name
    sign = next((i for i in lexemes(query.expression.text) if _SERIES.fullmatch(i.text)), None)
    return query.expression.series if sign and name == stand_in(sign.end - sign.start) else ""


def names(selector: Selector, query: Query) -> tuple[str, ...]:
    """The metrics that a selector asks for by name, also as ``a|b``; none where a pattern leaves them open."""
    found: list[str] = []
    for matcher in selector.matchers:
        if matcher.name != NAME:
            continue
        if matcher.op == "=":
            found.append(series_name(matcher.value, query))
        elif matcher.op == "=~":
            found += [name for name, _ in alternatives(matcher.value) or ()]
    return tuple(name for name in found if name)


def walk(node: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node with those around it, outermost first; a `Range` holds its selector."""
    yield node, above
    for child in children(node):
        yield from walk(child, (*above, node))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Range():
            return (node.selector,)
        case Subquery() | Negation():
            return (node.expr,)
        case Binary():
            return (node.left, node.right)
        case Aggregation():
            return (node.expr,) if node.param is None else (node.param, node.expr)
        case Call():
            return node.args
    return ()
