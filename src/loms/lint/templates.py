"""Expressions with template variables → texts of the same length that PromQL can parse.

The same length keeps every character at its place, so what is found in the stand-in is found in the original. What a
variable will hold is not known; from what stands around it follows whether it is a duration, a number, a name, a
function, a string or a list of matchers.
"""

from __future__ import annotations

from loms.lint.lexemes import LISTS, MATCH_SIGNS, Lexeme, lexemes, nested

_MARK = "zZ"
"""Names in a stand-in that hold this are not known."""
_NUMBERS = frozenset({"__range_s", "__range_ms", "__interval_ms", "__from", "__to", "__rate_interval_ms"})
_UNITS = frozenset("smhdwy")
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "^", "<", ">", "==", "!=", ">=", "<="})


def stands_in(name: str) -> bool:
    """Whether this name or value comes from a variable, so that nothing is known of it."""
    return _MARK in name or "$" in name or "[[" in name


def stand_in(length: int) -> str:
    """A name of this length for which `stands_in` is true."""
    return (_MARK * length)[:length]


def readings(text: str) -> tuple[str, ...]:
    """What the template may read as, best guess first; the text itself where it has no variables."""
    items = lexemes(text)
    if not any(item.kind == "variable" for item in items):
        return (text,)
    return tuple(dict.fromkeys(_reading(text, items, second) for second in (False, True)))


def _reading(text: str, items: list[Lexeme], second: bool) -> str:
    """``second`` takes a number for a name, or a name for a number, wherever both are possible."""
    around = nested(items)
    out = list(text)
    for i, item in enumerate(items):
        if item.kind != "variable":
            continue
        before = items[i - 1] if i else None
        after = items[i + 1] if i + 1 < len(items) else None
        new = _stand_in(item, before, after, around[i], second)
        out[item.start : item.end] = new.ljust(item.end - item.start)[: item.end - item.start]
        if not new and after is not None and after.text == ",":
            out[after.start] = " "
    return "".join(out)


def _stand_in(item: Lexeme, before: Lexeme | None, after: Lexeme | None, around: str, second: bool) -> str:
    length = item.end - item.start
    number, name = "1".rjust(length, "0"), stand_in(length)
    previous, following = (before.text if before else ""), (after.text if after else "")
    joined = (before is not None and before.end == item.start and before.kind in ("word", "number", "variable")) or (
        after is not None and after.start == item.end and after.kind in ("word", "number", "variable")
    )
    if around == "[" or previous.lower() == "offset":
        return _duration(length, before, after, item)
    if around == "{" and previous in MATCH_SIGNS:
        return f'"{stand_in(max(length - 2, 0))}"'
    if around == "{" and not joined and following not in MATCH_SIGNS:
        return ""
    if item.text.strip("${}[]").partition(":")[0] in _NUMBERS or previous == "@":
        return number
    if joined or around in ("{", "by"):
        return name
    if following == "(" or following.lower() in LISTS:
        return next((word for word in (("rate",) if second else ("max",)) if len(word) <= length), name)
    is_number = previous in _OPERATORS or (previous, following) in (("(", ","), (",", ")"))
    return number if is_number != second else name


def _duration(length: int, before: Lexeme | None, after: Lexeme | None, item: Lexeme) -> str:
    """``[$window]``, and also ``[${seconds}s]`` and ``[5$unit]``."""
    if before is not None and before.kind == "number" and before.end == item.start:
        return "m"
    if after is not None and after.start == item.end and after.kind == "word" and after.text[0] in _UNITS:
        return "1".rjust(length, "0")
    return "1m".rjust(length, "0")
