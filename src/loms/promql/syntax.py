"""The syntax tree of a PromQL expression: frozen nodes, durations in milliseconds, parentheses gone.

A node's ``place`` is where it begins in the text, ``line:column``; it does not count when nodes are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

MatchOp = Literal["=", "!=", "=~", "!~"]
ValueType = Literal["scalar", "vector", "matrix", "string"]
Cardinality = Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"]
At = Literal["start", "end"] | int
"""``@`` modifier: the query's own start or end, or a moment in milliseconds."""

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})
NAME = "__name__"
Extension = Literal["", "anchored", "smoothed"]


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; an absent label has the value ``""``. Regexes must match the whole value."""

    name: str
    op: MatchOp
    value: str


Matchers = tuple[Matcher, ...]


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Selector:
    matchers: Matchers
    offset_ms: int = 0
    at: At | None = None
    extension: Extension = ""
    """``anchored`` and ``smoothed``: what lies just outside the window is taken into account."""
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Range:
    """A selector with a window, ``metric[5m]``; offset and ``@`` are the selector's."""

    selector: Selector
    range_ms: int
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Subquery:
    expr: Node
    range_ms: int
    step_ms: int | None
    offset_ms: int = 0
    at: At | None = None
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Negation:
    expr: Node
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of two vectors find each other; ``include`` are the labels of ``group_left(…)``.

    ``fill_left`` and ``fill_right`` stand for the value of a series that has no partner on that side.
    """

    cardinality: Cardinality = "one-to-one"
    on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Node
    right: Node
    matching: Matching
    returns_bool: bool = False
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Aggregation:
    op: str
    expr: Node
    labels: tuple[str, ...] = ()
    without: bool = False
    param: Node | None = None
    place: str = field(default="1:1", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    args: tuple[Node, ...]
    returns: ValueType
    place: str = field(default="1:1", compare=False, repr=False)


Node = Number | Text | Selector | Range | Subquery | Negation | Binary | Aggregation | Call


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    if isinstance(node, Binary):
        return (node.left, node.right)
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Aggregation):
        return (node.expr,) if node.param is None else (node.param, node.expr)
    if isinstance(node, Negation | Subquery):
        return (node.expr,)
    return (node.selector,) if isinstance(node, Range) else ()


def _operand_type(node: Node) -> ValueType:
    if isinstance(node, Negation):
        return value_type(node.expr)
    assert isinstance(node, Binary)
    return "vector" if "vector" in (value_type(node.left), value_type(node.right)) else "scalar"


def _call_type(node: Node) -> ValueType:
    assert isinstance(node, Call)
    return node.returns


_TYPES: dict[type, ValueType | Callable[[Node], ValueType]] = {
    Number: "scalar",
    Text: "string",
    Selector: "vector",
    Aggregation: "vector",
    Range: "matrix",
    Subquery: "matrix",
    Negation: _operand_type,
    Binary: _operand_type,
    Call: _call_type,
}


def value_type(node: Node) -> ValueType:
    """The type that an expression evaluates to."""
    found = _TYPES[type(node)]
    return found if isinstance(found, str) else found(node)
