"""PromQL as a row of words and signs with their places, for what a syntax tree without places cannot tell.

It takes anything: what PromQL would refuse becomes single signs. Template variables (Grafana's ``$x``, ``${x:fmt}`` and
``[[x]]``, prometheus-adapter's ``<<.X>>``) are lexemes of their own, except inside strings.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LEXEME = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    | (?P<variable>\$\{[^{}]*\}|\$[A-Za-z_]\w*|\[\[\w+(?::\w+)?\]\]|<<[^<>]*>>)
    | (?P<word>[A-Za-z_:][\w:]*)
    | (?P<number>\.?\d[\w.]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)

MATCH_SIGNS = frozenset({"=", "!=", "=~", "!~"})
LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
"""Words that a list of labels in parentheses may follow."""


class Lexeme(NamedTuple):
    """``kind`` is string, variable, word, number or sign."""

    kind: str
    text: str
    start: int
    end: int


def lexemes(text: str) -> list[Lexeme]:
    """All lexemes but space and comments."""
    return [
        Lexeme(match.lastgroup or "sign", match[0], match.start(), match.end())
        for match in _LEXEME.finditer(text)
        if match.lastgroup != "space"
    ]


def nested(items: list[Lexeme]) -> list[str]:
    """For each lexeme the innermost thing open around it: ``{``, ``[``, ``(``, ``by`` (a list of labels) or ``""``."""
    closing = {"}": "{", "]": "[", ")": "("}
    around: list[str] = []
    stack = [""]
    for i, item in enumerate(items):
        if item.kind == "sign" and item.text in closing and len(stack) > 1:
            stack.pop()
        around.append(stack[-1])
        if item.kind == "sign" and item.text in closing.values():
            listed = item.text == "(" and i > 0 and items[i - 1].text.lower() in LISTS
            stack.append("by" if listed else item.text)
    return around
