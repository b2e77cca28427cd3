"""Where a text stands: in a file, on a line, and, character by character, in the file's own writing."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Style = Literal["json", "plain", "single", "double", "block"]
"""How a text is written: a JSON string, or one of YAML's scalars (``block`` is ``|`` and ``>``)."""

_WORD = re.compile(r"[A-Za-z0-9_:]+")
_ESCAPES: dict[Style, re.Pattern[str]] = {
    "json": re.compile(r"\\(?:u.{4}|.)", re.DOTALL),
    "double": re.compile(r"\\(?:x.{2}|u.{4}|U.{8}|.)", re.DOTALL),
}
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")
_HEADER = re.compile(r"[^\n]*\n")


@dataclass(frozen=True, slots=True)
class Place:
    """``where`` says in words what stands there: ``latency / alert TTFTHigh``."""

    file: str
    line: int
    where: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.where}"


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One file as it was read."""

    file: str
    text: str
    breaks: tuple[int, ...]

    @classmethod
    def of(cls, file: str, text: str) -> Source:
        return cls(file, text, tuple(match.start() for match in re.finditer("\n", text)))

    def line(self, offset: int) -> int:
        """The line, from 1, of one character."""
        return bisect_left(self.breaks, offset) + 1


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    """A text inside a file. ``start`` and ``end`` bound its writing in ``outer.text``, or in the file itself."""

    text: str
    source: Source
    start: int
    end: int
    style: Style
    outer: Excerpt | None = None
    """The text that this one is written in, where a file holds a file (JSON in a ConfigMap)."""

    def offset(self, at: int) -> int | None:
        """Where in the file the word of character ``at`` is written; None where that is not certain.

        A character of no word is taken to be at the end of the word before it on its line, else at the word after it.
        Escapes, indentation and folding never stand inside a metric's name, so writing and text are walked word by
        word. Where their words differ (an escape that makes a letter), no place is certain.
        """
        places = _places(self)
        if places is None:
            return None
        starts, written = places
        word = max(bisect_right(starts, at) - 1, 0)
        end = starts[word] + _word_length(self.text, starts[word])
        if "\n" in self.text[end:at] and word + 1 < len(starts):
            word += 1
        found = written[word] + min(max(at - starts[word], 0), _word_length(self.text, starts[word]))
        return found if self.outer is None else self.outer.offset(found)

    @property
    def line(self) -> int:
        """The line in the file where the writing begins."""
        return self.source.line(file_offset(self.source, self.outer, self.start))


def file_offset(source: Source, outer: Excerpt | None, offset: int) -> int:
    """An offset in ``outer.text`` (or the file) as an offset in the file, to the nearest word."""
    if outer is None:
        return offset
    found = outer.offset(offset)
    return file_offset(source, outer.outer, outer.start) if found is None else found


@lru_cache(maxsize=512)
def _places(excerpt: Excerpt) -> tuple[list[int], list[int]] | None:
    """Word by word: where it starts in the text, and where in the writing around it."""
    around = excerpt.source.text if excerpt.outer is None else excerpt.outer.text
    text = [match.span() for match in _WORD.finditer(excerpt.text)]
    raw = [match.span() for match in _WORD.finditer(_bare(around[excerpt.start : excerpt.end], excerpt.style))]
    same = len(text) == len(raw) and all(
        excerpt.text[a:b] == around[excerpt.start + c : excerpt.start + d]
        for (a, b), (c, d) in zip(text, raw, strict=True)
    )
    if not same or not text:
        return None
    return [start for start, _ in text], [excerpt.start + start for start, _ in raw]


def _bare(writing: str, style: Style) -> str:
    """The writing with blanks where it has escapes, a YAML anchor or tag, or a block scalar's first line."""
    if style in _ESCAPES:
        return _ESCAPES[style].sub(_blank, writing)
    if style != "json":
        writing = _PROPERTIES.sub(_blank, writing, count=1) if writing[:1] in ("&", "!") else writing
    return _HEADER.sub(_blank, writing, count=1) if style == "block" else writing


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _word_length(text: str, start: int) -> int:
    match = _WORD.match(text, start)
    return len(match[0]) if match else 0
