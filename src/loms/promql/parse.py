"""PromQL text → syntax tree. The grammar and its type checks are promql-parser's; this turns its tree into ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import promql_parser

from loms.core.errors import QueryError
from loms.promql.syntax import (
    NAME,
    Aggregation,
    At,
    Binary,
    Call,
    Cardinality,
    Matcher,
    Matchers,
    Matching,
    MatchOp,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
    ValueType,
)

MAX_DEPTH = 150
MAX_OPERATORS = 2_000
"""promql-parser recurses on the machine's stack, which tens of thousands of parentheses or operators overflow."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATIONS: dict[str, MatchOp] = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
_CARDINALITIES: dict[str, Cardinality] = {
    "VectorMatchCardinality.OneToOne": "one-to-one",
    "VectorMatchCardinality.ManyToOne": "many-to-one",
    "VectorMatchCardinality.OneToMany": "one-to-many",
    "VectorMatchCardinality.ManyToMany": "many-to-many",
}
_TYPES: dict[str, ValueType] = {
    "ValueType.Scalar": "scalar",
    "ValueType.Vector": "vector",
    "ValueType.Matrix": "matrix",
    "ValueType.String": "string",
}
_LEXEME = re.compile(
    r"""(?P<raw>`[^`]*`) | (?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*') | (?P<comment>\#[^\n]*)
    | (?P<before_epoch>@\s*-) | (?P<operator>[-+*/%^(<>=!]|\b(?:and|or|unless|atan2)\b)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """The syntax tree of one expression.

    Raises `QueryError` (``bad_data``) where Prometheus would, and for what is not supported: negative ``@``
    times, ``or`` between matchers, ``fill`` modifiers, nesting deeper than `MAX_DEPTH`.
    """
    prepared = _prepare(text)
    try:
        return _node(promql_parser.parse(prepared), 0)
    except (ValueError, OverflowError) as error:
        raise QueryError(f"parse error: {error}", hint=f"the expression is: {text[:200]}") from None


def parse_selector(text: str) -> Matchers:
    """The matchers of a plain series selector, as ``match[]`` of the Prometheus API takes it."""
    node = parse(text)
    if not isinstance(node, Selector):
        raise QueryError(f"parse error: {text[:200]!r} is not a series selector", hint='write name{label="value"}')
    return node.matchers


def _prepare(text: str) -> str:
    """Raw strings become quoted ones, which is all that promql-parser reads; what would crash it is refused."""
    operators = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal operators
        operators += match.lastgroup == "operator"
        if match.lastgroup == "before_epoch":
            raise QueryError("parse error: the @ modifier takes no time before 1970")
        return json.dumps(match[0][1:-1], ensure_ascii=False) if match.lastgroup == "raw" else match[0]

    prepared = _LEXEME.sub(replace, text)
    if operators > MAX_OPERATORS:
        raise QueryError(f"parse error: more than {MAX_OPERATORS} operators and parentheses in one expression")
    return prepared


def _node(tree: Any, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise QueryError(f"parse error: the expression is nested more than {MAX_DEPTH} levels deep")
    return _BUILDERS[type(tree)](tree, depth + 1)


def _ms(duration: timedelta | None) -> int:
    return 0 if duration is None else duration // timedelta(milliseconds=1)


def _at(modifier: Any) -> At | None:
    if modifier is None:
        return None
    kind = str(modifier.type)
    if kind == "AtModifierType.At":
        return _ms(modifier.at - _EPOCH)
    return "start" if kind == "AtModifierType.Start" else "end"


def _selector(tree: Any, depth: int) -> Selector:
    if tree.matchers.or_matchers:
        raise QueryError("parse error: 'or' between label matchers is not PromQL", hint="join two selectors by 'or'")
    matchers = [Matcher(m.name, _OPERATIONS[str(m.op)], m.value) for m in tree.matchers.matchers]
    if tree.name:
        matchers.insert(0, Matcher(NAME, "=", tree.name))
    return Selector(tuple(matchers), _ms(tree.offset), _at(tree.at))


def _range(tree: Any, depth: int) -> Range:
    return Range(_selector(tree.vector_selector, depth), _ms(tree.range))


def _subquery(tree: Any, depth: int) -> Subquery:
    step = None if tree.step is None else _ms(tree.step)
    return Subquery(_node(tree.expr, depth), _ms(tree.range), step, _ms(tree.offset), _at(tree.at))


def _binary(tree: Any, depth: int) -> Binary:
    modifier, matching, returns_bool = tree.modifier, Matching(), False
    if modifier is not None:
        if modifier.fill_values.lhs is not None or modifier.fill_values.rhs is not None:
            raise QueryError("parse error: fill modifiers are not supported")
        matching = Matching(
            _CARDINALITIES[str(modifier.card)],
            modifier.matching is not None and str(modifier.matching.type) == "LabelModifierType.Include",
            tuple(modifier.matching.labels) if modifier.matching is not None else (),
            tuple(modifier.group_labels or ()),
        )
        returns_bool = modifier.return_bool
    return Binary(str(tree.op), _node(tree.lhs, depth), _node(tree.rhs, depth), matching, returns_bool)


def _aggregation(tree: Any, depth: int) -> Aggregation:
    without = tree.modifier is not None and str(tree.modifier.type) == "AggModifierType.Without"
    labels = tuple(tree.modifier.labels) if tree.modifier is not None else ()
    param = None if tree.param is None else _node(tree.param, depth)
    return Aggregation(str(tree.op), _node(tree.expr, depth), labels, without, param)


def _call(tree: Any, depth: int) -> Call:
    args = tuple(_node(argument, depth) for argument in tree.args)
    return Call(tree.func.name, args, _TYPES[str(tree.func.return_type)])


_BUILDERS: dict[type, Callable[[Any, int], Node]] = {
    promql_parser.NumberLiteral: lambda tree, depth: Number(tree.val),
    promql_parser.StringLiteral: lambda tree, depth: Text(tree.val),
    promql_parser.ParenExpr: lambda tree, depth: _node(tree.expr, depth),
    promql_parser.UnaryExpr: lambda tree, depth: Negation(_node(tree.expr, depth)),
    promql_parser.VectorSelector: _selector,
    promql_parser.MatrixSelector: _range,
    promql_parser.SubqueryExpr: _subquery,
    promql_parser.BinaryExpr: _binary,
    promql_parser.AggregateExpr: _aggregation,
    promql_parser.Call: _call,
}
