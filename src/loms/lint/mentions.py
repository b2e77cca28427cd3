"""The names of metrics that an expression mentions, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from loms.core.errors import QueryError
from loms.lint.lexemes import LISTS, Lexeme, lexemes, nested
from loms.promql.parse import parse
from loms.promql.syntax import NAME, Text

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_NAMES = rf"{_NAME.pattern}(?:\|{_NAME.pattern})*"
_CHOICE = re.compile(rf"\^?(?:\((?:\?:)?({_NAMES})\)|({_NAMES}))\$?")
_WORDS = LISTS | {"bool", "offset", "and", "or", "unless", "atan2", "inf", "nan", "start", "end"}
_AGGREGATIONS = frozenset(
    {"sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "topk", "bottomk", "quantile", "count_values"}
    | {"limitk", "limit_ratio"}
)


@dataclass(frozen=True, slots=True)
class Mention:
    """``start`` and ``end`` bound the name in the text. ``choice`` numbers the regex that offers it among others."""

    name: str
    start: int
    end: int
    choice: int = -1
    pattern: bool = False
    """``name`` is a regular expression for names."""


def mentions(text: str) -> tuple[Mention, ...]:
    """In the order of the text; matchers that exclude a name do not mention it."""
    items = lexemes(text)
    around = nested(items)
    found: list[Mention] = []
    for i, item in enumerate(items):
        before = items[i - 1].text if i else ""
        after = items[i + 1].text if i + 1 < len(items) else ""
        if item.kind == "word" and around[i] in ("", "("):
            if not _is_syntax(item.text.lower(), after):
                found.append(Mention(item.text, item.start, item.end))
        elif item.kind == "string" and around[i] == "{":
            if before in ("=", "=~") and i > 1 and items[i - 2].text.strip("\"'`") == NAME:
                found += _matched(item, before, len(found))
            elif before in ("{", ",") and after in (",", "}"):
                found += _matched(item, "=", len(found))
    return tuple(found)


def _is_syntax(word: str, after: str) -> bool:
    return after == "(" or word in _WORDS or (word in _AGGREGATIONS and after.lower() in ("by", "without"))


def alternatives(pattern: str) -> list[tuple[str, int]] | None:
    """The names that ``a|b``, ``(a|b)`` or ``^a$`` offers, each with its place; None for any other regex.

    >>> alternatives("^(up|ALERTS)$"), alternatives("node_.*")
    ([('up', 2), ('ALERTS', 5)], None)
    """
    match = _CHOICE.fullmatch(pattern)
    if match is None:
        return None
    inner = match.lastindex or 0
    return [(name[0], match.start(inner) + name.start()) for name in _NAME.finditer(match[inner])]


def _matched(item: Lexeme, sign: str, choice: int) -> Iterator[Mention]:
    """The names in the value of a matcher: one, several (``a|b``), or a pattern."""
    value, start = item.text[1:-1], item.start + 1
    offered = alternatives(value) if sign == "=~" else [(value, 0)] if _NAME.fullmatch(value) else []
    if offered is None:
        yield Mention(_unquoted(item.text), start, item.end - 1, choice, pattern=True)
    else:
        yield from (Mention(name, start + at, start + at + len(name), choice) for name, at in offered)


def _unquoted(text: str) -> str:
    try:
        node = parse(text)
    except QueryError:
        return text[1:-1]
    return node.value if isinstance(node, Text) else text[1:-1]
