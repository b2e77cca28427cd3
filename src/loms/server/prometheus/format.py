"""A syntax tree as PromQL text, on one line or laid out as Prometheus's formatter does.

Parentheses stand where they are needed: those of the original text are not in the tree.
"""

from __future__ import annotations

import re

from loms.promql.lexer import quoted
from loms.promql.syntax import (
    COMPARISONS,
    NAME,
    Aggregation,
    At,
    Binary,
    Call,
    Matcher,
    Matching,
    Negation,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
)
from loms.server.wire import format_value

_WIDTH = 100
"""What is longer is laid out over several lines."""
_BINDING = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_SIGN, _TIGHT = 5, 7
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_WHOLE_UNITS_MS = (("y", 31_536_000_000), ("w", 604_800_000))
"""Used only where nothing is left over."""
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def pretty(node: Node, depth: int = 0) -> str:
    """Over several lines where one would be too long, each ``depth`` two spaces in."""
    indent = "  " * depth
    if len(flat(node)) <= _WIDTH or isinstance(node, Selector | Range | Number | Text):
        return indent + flat(node)
    if isinstance(node, Binary):
        left, right = (_operand(node, child, depth + 1) for child in (node.left, node.right))
        return f"{left}\n{indent}{_operator(node)}\n{right}"
    if isinstance(node, Negation):
        return f"{indent}-{_enclosed(node.expr, _binding(node.expr) <= _SIGN, depth).strip()}"
    if isinstance(node, Subquery):
        return _enclosed(node.expr, _binding(node.expr) < _TIGHT, depth) + _subquery_window(node)
    head, parts = _parts(node)
    inner = ",\n".join(pretty(part, depth + 1) for part in parts)
    return f"{indent}{head}(\n{inner}\n{indent})"


def flat(node: Node) -> str:
    """On one line."""
    if isinstance(node, Number):
        return format_value(node.value)
    if isinstance(node, Text):
        return quoted(node.value)
    if isinstance(node, Selector):
        return _selector(node) + _moved(node.at, node.offset_ms, node.extension)
    if isinstance(node, Range):
        one = node.selector
        window = f"[{duration(node.range_ms)}]"
        return f"{_selector(one)}{window}{f' {one.extension}' if one.extension else ''}{_moved(one.at, one.offset_ms)}"
    if isinstance(node, Subquery):
        return _in_parentheses(flat(node.expr), _binding(node.expr) < _TIGHT) + _subquery_window(node)
    if isinstance(node, Negation):
        return "-" + _in_parentheses(flat(node.expr), _binding(node.expr) <= _SIGN)
    if isinstance(node, Binary):
        left, right = (_in_parentheses(flat(child), _is_weaker(node, child)) for child in (node.left, node.right))
        return f"{left} {_operator(node)} {right}"
    head, parts = _parts(node)
    return f"{head}({', '.join(map(flat, parts))})"


def duration(ms: int) -> str:
    """As Prometheus writes it.

    >>> duration(5_400_000), duration(1_209_600_000), duration(0), duration(86_400_001)
    ('1h30m', '2w', '0s', '1d1ms')
    """
    out = ""
    for unit, size in _WHOLE_UNITS_MS:
        if ms and ms % size == 0:
            return f"{out}{ms // size}{unit}"
    for unit, size in _UNITS_MS:
        count, ms = divmod(ms, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"


def name_of(node: Selector) -> str:
    """The metric's name, if it can stand before the braces; else empty."""
    names = [m.value for m in node.matchers if m.name == NAME and m.op == "=" and _METRIC.fullmatch(m.value)]
    return names[0] if names else ""


def _parts(node: Aggregation | Call) -> tuple[str, tuple[Node, ...]]:
    if isinstance(node, Call):
        return node.function, node.args
    grouping = f"{'without' if node.without else 'by'} ({', '.join(map(_label, node.labels))})"
    head = f"{node.op} {grouping} " if node.without or node.labels else node.op
    return head, (node.expr,) if node.param is None else (node.param, node.expr)


def _binding(node: Node) -> int:
    if isinstance(node, Binary):
        return _BINDING[node.op]
    signed = isinstance(node, Negation) or (isinstance(node, Number) and format_value(node.value).startswith("-"))
    return _SIGN if signed else _TIGHT


def _is_weaker(node: Binary, child: Node) -> bool:
    """Whether an operand needs parentheses."""
    own, its = _BINDING[node.op], _binding(child)
    if child is node.right:
        return isinstance(child, Binary) and (its < own or (its == own and node.op != "^"))
    return its < own or (its == own and node.op == "^")


def _operand(node: Binary, child: Node, depth: int) -> str:
    return _enclosed(child, _is_weaker(node, child), depth)


def _enclosed(node: Node, needed: bool, depth: int) -> str:
    indent = "  " * depth
    if not needed:
        return pretty(node, depth)
    if len(flat(node)) + 2 <= _WIDTH:
        return f"{indent}({flat(node)})"
    return f"{indent}(\n{pretty(node, depth + 1)}\n{indent})"


def _in_parentheses(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _operator(node: Binary) -> str:
    return node.op + (" bool" if node.returns_bool else "") + _matched(node.matching)


def _matched(matching: Matching) -> str:
    side = {"many-to-one": "left", "one-to-many": "right"}.get(matching.cardinality, "")
    out = ""
    if matching.labels or matching.on or side:
        out += f" {'on' if matching.on else 'ignoring'} ({', '.join(map(_label, matching.labels))})"
    if side:
        out += f" group_{side} ({', '.join(map(_label, matching.include))})"
    left, right = matching.fill_left, matching.fill_right
    if left is not None and left == right:
        return f"{out} fill ({format_value(left)})"
    out += "" if left is None else f" fill_left ({format_value(left)})"
    return out if right is None else f"{out} fill_right ({format_value(right)})"


def _selector(node: Selector) -> str:
    name = name_of(node)
    rest = sorted(_matcher(m) for m in node.matchers if not (name and m == Matcher(NAME, "=", name)))
    return name + (f"{{{','.join(rest)}}}" if rest or not name else "")


def _matcher(matcher: Matcher) -> str:
    return f"{_label(matcher.name)}{matcher.op}{quoted(matcher.value)}"


def _label(name: str) -> str:
    return name if _LABEL.fullmatch(name) else quoted(name)


def _subquery_window(node: Subquery) -> str:
    step = "" if node.step_ms is None else duration(node.step_ms)
    return f"[{duration(node.range_ms)}:{step}]{_moved(node.at, node.offset_ms)}"


def _moved(at: At | None, offset_ms: int, extension: str = "") -> str:
    """The ``@`` and ``offset`` modifiers."""
    out = "" if at is None else f" @ {at}()" if isinstance(at, str) else f" @ {at / 1000:.3f}"
    out += f" {extension}" if extension else ""
    return out + (f" offset {'-' if offset_ms < 0 else ''}{duration(abs(offset_ms))}" if offset_ms else "")
