"""Regular expressions as PromQL has them: RE2, matching the whole text, ``.`` matching newlines too.

Arrow carries RE2, so they are applied to whole columns at once and in linear time whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from loms.core.errors import QueryError

_GROUP = re.compile(r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\((?:\?P?<(\w+)>|(?!\?))", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})|\\")


def anchored(pattern: str) -> str:
    """The pattern as RE2 text that matches only a whole value."""
    return f"^(?s:{pattern})$"


@lru_cache(maxsize=256)
def check(pattern: str) -> None:
    """Raises `QueryError` for a pattern that RE2 does not take. (`anchored` could make ``a)|(b`` look whole.)"""
    try:
        pc.match_substring_regex(pa.array([""], pa.string()), pattern)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise QueryError(f"parse error: error parsing regexp: {reason}") from None


def matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """For each text, whether the pattern matches all of it."""
    check(pattern)
    found = pc.match_substring_regex(pa.array(texts, pa.string()), anchored(pattern)).to_pylist()
    return [bool(one) for one in found]


def fitting(op: str, value: str, texts: Sequence[str]) -> list[bool]:
    """For each text, whether the matcher (``=``, ``!=``, ``=~`` or ``!~``) takes it."""
    found = [text == value for text in texts] if op in ("=", "!=") else matches(value, texts)
    return [not fits for fits in found] if op.startswith("!") else found


def replaced(pattern: str, template: str, texts: Sequence[str]) -> list[str | None]:
    """For each text that the pattern matches whole, the template with ``$1``, ``${name}`` filled in; else None.

    A group that is not there is empty, ``$$`` is a dollar sign (Go's ``regexp.Expand``).
    """
    groups = [match[1] or "" for match in _GROUP.finditer(pattern) if match[0].startswith("(")]

    def reference(match: re.Match[str]) -> str:
        key = match[1] or match[2]
        if key is None:
            return r"\\" if match[0] == "\\" else "$"
        if key.isdecimal():
            return rf"\{int(key)}" if int(key) <= min(len(groups), 9) else ""
        return rf"\{groups.index(key) + 1}" if key in groups else ""

    filled = _REFERENCE.sub(reference, template)
    hits = matches(pattern, texts)
    new = pc.replace_substring_regex(pa.array(texts, pa.string()), anchored(pattern), filled).to_pylist()
    return [text if hit else None for hit, text in zip(hits, new, strict=True)]
