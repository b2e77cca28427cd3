"""What is found in an expression, and all findings together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loms.lint.mentions import Mention
from loms.lint.place import Place, Source
from loms.lint.query import Query

Severity = Literal["error", "warning", "info"]
"""``error``: shows or does nothing, or the wrong thing; ``warning``: may mislead; ``info``: good to know."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters ``start`` to ``end`` of a file that ``new`` takes the place of."""

    source: Source
    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Problem:
    """``text`` says what is wrong and what to do; ``rewrite`` is the expression with that done, where it is safe."""

    kind: str
    severity: Severity
    place: Place
    expression: str
    text: str
    rewrite: str = ""
    edits: tuple[Edit, ...] = field(default=(), repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "file": self.place.file,
            "line": self.place.line,
            "where": self.place.where,
            "expression": self.expression,
            "text": self.text,
            "rewrite": self.rewrite or None,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Problems by file, line and kind; how many expressions and which files were looked at."""

    problems: tuple[Problem, ...]
    expressions: int
    files: tuple[str, ...]

    def count(self, severity: Severity) -> int:
        return sum(problem.severity == severity for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json`` and the HTTP API."""
        return {
            "problems": [problem.as_json() for problem in self.problems],
            "expressions": self.expressions,
            "files": list(self.files),
            "errors": self.count("error"),
            "warnings": self.count("warning"),
        }


def problem(query: Query, kind: str, severity: Severity, text: str) -> Problem:
    """A problem of a whole expression."""
    return Problem(kind, severity, query.expression.place, query.expression.text, text)


def dead(query: Query, severity: Severity, text: str, at: Sequence[Mention]) -> Problem:
    """A dead metric, at the line of its first mention."""
    excerpt, place = query.expression.excerpt, query.expression.place
    line = excerpt.offset(at[0].start)
    place = place if line is None else replace(place, line=excerpt.source.line(line))
    return Problem("dead_metric", severity, place, query.expression.text, text)


def renamed(found: Problem, query: Query, at: Sequence[Mention], new: Mapping[str, str]) -> Problem:
    """The problem with the edits that put ``new`` in the place of the names ``at``, and the expression after all of
    ``new``. Nothing is edited where the file's own writing of a name is uncertain; the text then says so.
    """
    expression, rewrite = query.expression, query.expression.text
    for mention in reversed(query.mentions):
        if mention.name in new:
            rewrite = rewrite[: mention.start] + new[mention.name] + rewrite[mention.end :]
    edits: list[Edit] = []
    for mention in at:
        for writing in (expression.excerpt, *expression.twins):
            start = writing.offset(mention.start)
            if start is None:
                text = f"{found.text}; the file writes it with escapes, so change it by hand"
                return replace(found, text=text, rewrite=rewrite)
            edits.append(Edit(writing.source, start, start + mention.end - mention.start, new[mention.name]))
    return replace(found, rewrite=rewrite, edits=tuple(edits))
