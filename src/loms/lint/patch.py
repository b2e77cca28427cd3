"""Rewrites as a unified diff, which ``patch -p1`` and ``git apply`` take.

Only the names change, character by character; the files are never written anew. A name stands on one line and so does
its successor, so lines keep their numbers and the diff follows without a search for what is common.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from loms.lint.place import Source
from loms.lint.problem import Edit, Problem

_CONTEXT = 3


def patch(problems: Iterable[Problem]) -> str:
    """One diff over all files that the problems' edits touch; ``""`` where nothing is to be changed.

    Paths are relative to the directory that the files were named from; a path from the root loses its first slash.
    """
    edits: dict[str, dict[int, Edit]] = {}
    for problem in problems:
        for edit in problem.edits:
            edits.setdefault(edit.source.file, {})[edit.start] = edit
    return "".join(line for _, found in sorted(edits.items()) for line in _file(list(found.values())))


def _file(edits: list[Edit]) -> Iterator[str]:
    source = edits[0].source
    name = posixpath.normpath(source.file).lstrip("/")
    name += "\t" if any(sign.isspace() for sign in name) else ""
    yield f"--- a/{name}\n+++ b/{name}\n"
    old = [line + "\n" for line in source.text.split("\n")]
    if old[-1] == "\n":
        old.pop()
    else:
        old[-1] += "\\ No newline at end of file\n"
    new = _changed(source, edits)
    for start, end in _hunks(sorted(new), len(old)):
        yield f"@@ -{start + 1},{end - start} +{start + 1},{end - start} @@\n"
        at = start
        while at < end:
            run = at
            while run in new and run < end:
                run += 1
            yield from (f"-{old[i]}" for i in range(at, run))
            yield from (f"+{new[i]}{old[i].partition(chr(10))[2]}" for i in range(at, run))
            if run == at:
                yield f" {old[at]}"
                run += 1
            at = run


def _changed(source: Source, edits: list[Edit]) -> dict[int, str]:
    """Number of each line, from 0, that changes → the line with all its edits."""
    lines: dict[int, str] = {}
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        number = source.line(edit.start) - 1
        first = source.breaks[number - 1] + 1 if number else 0
        last = source.breaks[number] + 1 if number < len(source.breaks) else len(source.text)
        line = lines.get(number, source.text[first:last].removesuffix("\n") + "\n")
        lines[number] = line[: edit.start - first] + edit.new + line[edit.end - first :]
    return lines


def _hunks(changed: list[int], total: int) -> Iterator[tuple[int, int]]:
    """Ranges of lines with what changes in them and three more on each side."""
    start, end = changed[0] - _CONTEXT, changed[0] + _CONTEXT + 1
    for line in changed[1:]:
        if line - _CONTEXT > end:
            yield max(start, 0), min(end, total)
            start = line - _CONTEXT
        end = line + _CONTEXT + 1
    yield max(start, 0), min(end, total)
