"""Type checks of the grammar, with Prometheus's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loms.core.errors import QueryError
from loms.promql import regexes
from loms.promql.lexer import quoted
from loms.promql.signatures import SIGNATURES, WITH_PARAMETER
from loms.promql.syntax import (
    COMPARISONS,
    NAME,
    SET_OPERATORS,
    Aggregation,
    Binary,
    Call,
    Matcher,
    Node,
    Selector,
    ValueType,
    value_type,
)

DOCUMENTED: Mapping[ValueType, str] = {
    "scalar": "scalar",
    "string": "string",
    "matrix": "range vector",
    "vector": "instant vector",
}
"""Types as messages call them."""


def check_binary(node: Binary) -> tuple[str, bool]:
    """What is wrong with an operator and its operands ("": nothing), and whether the operator is to be shown."""
    kinds, matching = {value_type(node.left), value_type(node.right)}, node.matching
    fills = matching.fill_left is not None or matching.fill_right is not None
    if node.returns_bool and node.op not in COMPARISONS:
        return "bool modifier can only be used on comparison operators", True
    if node.op in COMPARISONS and not node.returns_bool and kinds == {"scalar"}:
        return "comparisons between scalars must use BOOL modifier", True
    if matching.on and (both := [one for one in matching.labels if one in matching.include]):
        return f'label "{both[0]}" must not occur in ON and GROUP clause at once', True
    if not kinds <= {"scalar", "vector"}:
        return "binary expression must contain only scalar and instant vector types", False
    if "scalar" in kinds and matching.labels:
        return "vector matching only allowed between instant vectors", False
    if "scalar" in kinds and fills:
        return "filling in missing series only allowed between instant vectors", False
    if "scalar" in kinds and node.op in SET_OPERATORS:
        return f'set operator "{node.op}" not allowed in binary scalar expression', False
    if node.op in SET_OPERATORS and matching.cardinality != "one-to-one":
        return f'no grouping allowed for "{node.op}" operation', False
    if node.op in SET_OPERATORS and fills:
        return "filling in missing series not allowed for set operators", False
    return "", False


def check_operand(node: Node) -> str:
    """What is wrong with what stands behind a sign."""
    if (kind := value_type(node)) in ("scalar", "vector"):
        return ""
    return f'unary expression only allowed on expressions of type scalar or instant vector, got "{DOCUMENTED[kind]}"'


def check_aggregation(node: Aggregation) -> tuple[Node, str] | None:
    """Where and what is wrong with the types of an aggregation."""
    if value_type(node.expr) != "vector":
        return node.expr, f"expected type instant vector in aggregation expression, got {_kind(node.expr)}"
    if node.param is not None and value_type(node.param) != (wanted := WITH_PARAMETER[node.op]):
        return node.param, f"expected type {wanted} in aggregation parameter, got {_kind(node.param)}"
    return None


def check_call(name: str, args: tuple[Node, ...], place: str) -> Call | tuple[str, str]:
    """The call, or where and what is wrong with it."""
    signature = SIGNATURES.get(name)
    if signature is None:
        return place, f"unknown function with name {quoted(name)}"
    if problem := signature.wrong_count(name, len(args)):
        return place, problem
    for number, argument in enumerate(args):
        if value_type(argument) != (wanted := signature.of(number)):
            message = f'expected type {DOCUMENTED[wanted]} in call to function "{name}", got {_kind(argument)}'
            return argument.place, message
    if name == "info" and len(args) > 1 and not isinstance(args[1], Selector):
        return args[1].place, "expected label selectors only"
    return Call(name, args, signature.returns, place)


def check_matchers(name: str | None, matchers: Sequence[Matcher]) -> str:
    """What is wrong with a selector's matchers beside a ``name`` before the braces."""
    twice = [one.value for one in matchers if one.name == NAME and one.op == "="]
    if name is not None and twice:
        return f"metric name must not be set twice: {quoted(name)} or {quoted(twice[0])}"
    for one in matchers:
        if one.op in ("=~", "!~"):
            try:
                regexes.check(one.value)
            except QueryError as error:
                return error.message.removeprefix("parse error: ")
    return ""


def matches_everything(matchers: Iterable[Matcher]) -> bool:
    """Whether a series without any label would match, and so all series might."""
    return all(_accepts_nothing(one) for one in matchers)


def _accepts_nothing(matcher: Matcher) -> bool:
    found = regexes.matches(matcher.value, [""])[0] if "~" in matcher.op else matcher.value == ""
    return found is not matcher.op.startswith("!")


def _kind(node: Node) -> str:
    return DOCUMENTED[value_type(node)]
