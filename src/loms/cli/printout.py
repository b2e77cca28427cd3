"""Reports on standard output: wrapped between words on a terminal, one line each elsewhere, and no word ever broken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP = 2
_HANGING = 4
_NARROW = 30


class Printout:
    """Takes rich's markup."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._width = self._console.width if self._console.file.isatty() else None

    def say(self, text: str, indent: int = 0) -> None:
        self._put(" " * indent, self._lines(Text.from_markup(text), indent))

    def rows(self, title: tuple[str, str, str], rows: Sequence[tuple[str, str, str]]) -> None:
        """Two short columns and a long one, which stands below them where it is too narrow for a word."""
        cells = [tuple(map(Text.from_markup, row)) for row in (title, *rows)]
        widths = [max(row[column].cell_len for row in cells) + _GAP for column in (0, 1)]
        left = sum(widths)
        for short, state, text in cells:
            longest = max(map(cell_len, text.plain.split()), default=0)
            room = text.cell_len if self._width is None else self._width - left
            below = text.cell_len > room < max(longest, _NARROW)
            short.pad_right(widths[0] - short.cell_len)
            state.pad_right(widths[1] - state.cell_len)
            indent = _HANGING if below else left
            lines = self._lines(text, indent)
            first = Text() if below else lines.pop(0)
            self._put("", [short + state + first])
            self._put(" " * indent, lines)

    def _lines(self, text: Text, indent: int) -> list[Text]:
        whole = list(text.split(allow_blank=True))
        if self._width is None:
            return whole
        return [part for line in whole for part in line.divide(_breaks(line.plain, self._width - indent))]

    def _put(self, indent: str, lines: Iterable[Text]) -> None:
        for line in lines:
            line = Text(indent) + line
            line.rstrip()
            self._console.print(line, soft_wrap=True)


def _breaks(line: str, width: int) -> list[int]:
    """Where a line is to be broken so that its parts are no wider, unless a word alone is."""
    breaks, start = [], 0
    for word in re.finditer(r"\S+", line):
        if cell_len(line[start : word.end()]) > width and line[start : word.start()].strip():
            start = word.start()
            breaks.append(start)
    return breaks
