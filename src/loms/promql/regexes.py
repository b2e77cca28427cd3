"""Regular expressions as PromQL has them: RE2, matching the whole text, ``.`` matching newlines too.

Arrow carries RE2, so they are applied to whole columns at once and in linear time whatever the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from loms.core.errors import QueryError

MOST_CHARACTERS = 100_000
"""Of one pattern: some thousands of names, beyond which RE2 refuses most patterns anyway."""
_NAME_START = re.compile(r"\?P?<(\w+)>")
_REFERENCE = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)\})")
_SPECIAL = re.compile(r"[\\\[(]")
_IN_CLASS = re.compile(r"\\|\[:|\]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def anchored(pattern: str) -> str:
    """The pattern as RE2 text that matches only a whole value."""
    return f"^(?s:{pattern})$"


def well_formed(text: str) -> str:
    """The text with U+FFFD for every byte that is no UTF-8 (a lone surrogate here), as Go's encoders write them."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


@lru_cache(maxsize=256)
def check(pattern: str) -> None:
    """Raises `QueryError` for a pattern that RE2 does not take. (`anchored` could make ``a)|(b`` look whole.)"""
    if len(pattern) > MOST_CHARACTERS:
        raise QueryError(f"parse error: error parsing regexp: more than {MOST_CHARACTERS} characters")
    if well_formed(pattern) != pattern:
        raise QueryError("parse error: error parsing regexp: invalid UTF-8")
    try:
        for text in (pattern, anchored(pattern)):  # an open ``\Q`` is one thing alone and another inside
            pc.match_substring_regex(pa.array([""], pa.string()), text)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise QueryError(f"parse error: error parsing regexp: {reason[:300]}") from None


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
    check(pattern)
    groups = _groups(pattern)
    names = {name: number for number, (_, _, name) in enumerate(groups, 1) if name}
    pieces: list[str | int] = []  # texts, and numbers of groups
    done = 0
    for match in _REFERENCE.finditer(template):
        pieces.append(template[done : match.start()])
        done = match.end()
        key = match[2] or match[3]
        pieces.append("$" if key is None else _group(key, len(groups), names))
    pieces.append(template[done:])
    wanted = sorted({piece for piece in pieces if isinstance(piece, int) and piece > 0})
    if not wanted:
        parts = [piece for piece in pieces if piece != ""]
        hits = matches(pattern, texts)
        if 0 not in parts:
            constant = "".join(map(str, parts))
            return [constant if hit else None for hit in hits]
        columns: dict[int, list[str | None]] = {
            0: [text if hit else None for hit, text in zip(hits, texts, strict=True)]
        }
    else:
        found = pc.extract_regex(pa.array(texts, pa.string()), anchored(_named(pattern, groups, wanted)))
        there = found.is_valid().to_pylist()
        columns = {group: found.field(f"g{group}").to_pylist() for group in wanted}
        columns[0] = [text if hit else None for hit, text in zip(there, texts, strict=True)]
    return [
        None if text is None else "".join(p if isinstance(p, str) else columns[p][row] or "" for p in pieces)
        for row, text in enumerate(columns[0])
    ]


def _group(key: str, count: int, names: Mapping[str, int]) -> int | str:
    """The number of the group that a reference means, 0 for the whole text; "" for none."""
    if key.isascii() and key.isdecimal() and len(key) < 9 and (key == "0" or key[0] != "0"):
        return int(key) if int(key) <= count else ""
    return names.get(key, "")


def _groups(pattern: str) -> list[tuple[int, int, str]]:
    """Of each capturing group of a pattern that `check` takes: where it opens, where its inside begins, its name."""
    found, at, last_class = [], 0, pattern.rfind(":]")
    while special := _SPECIAL.search(pattern, at):
        at = special.end()
        if pattern.startswith("\\Q", at - 1):
            end = pattern.find("\\E", at + 1)
            at = len(pattern) if end < 0 else end + 2
        elif special[0] == "\\":
            at += 1
        elif special[0] == "[":
            at = _class_end(pattern, at, last_class)
        elif name := _NAME_START.match(pattern, at):
            found.append((at - 1, name.end(), name[1]))
        elif not pattern.startswith("?", at):
            found.append((at - 1, at, ""))
    return found


def _class_end(pattern: str, at: int, last_class: int) -> int:
    """The place after the class of characters that begins before ``at``."""
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)
    while special := _IN_CLASS.search(pattern, at):
        at = special.end()
        if special[0] == "]":
            return at
        if special[0] == "\\":
            at += 1
        elif at <= last_class:  # ``[:`` without ``:]`` after it is just a bracket
            at = pattern.find(":]", at) + 2
    return len(pattern)


def _named(pattern: str, groups: Sequence[tuple[int, int, str]], wanted: Sequence[int]) -> str:
    """The pattern with the names ``g1``, ``g2`` … for the groups that are wanted, and no other groups."""
    parts, done = [], 0
    for number, (opens, inside, _) in enumerate(groups, 1):
        parts += [pattern[done:opens], f"(?P<g{number}>" if number in wanted else "(?:"]
        done = inside
    return "".join([*parts, pattern[done:]])
