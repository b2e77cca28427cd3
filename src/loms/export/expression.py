"""PromQL as laid-out text: the few forms of which recording rules are made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import indent

from loms.engines.source import Matcher, Term

WIDTH = 100
"""An expression that is longer is broken into lines."""


@dataclass(frozen=True, slots=True)
class Step:
    """One ``label_replace``: where the label ``source`` matches ``regex`` (RE2, anchored), ``into`` gets ``value``.

    With an empty source and regex it always matches; an empty value takes the label away.
    """

    into: str
    value: str
    source: str = ""
    regex: str = ""

    def __str__(self) -> str:
        return ", ".join(map(quoted, (self.into, self.value, self.source, self.regex)))


def copy(into: str, source: str) -> Step:
    """``into`` takes over what ``source`` says, unless that says nothing."""
    return Step(into, "$1", source, "(.+)")


def quoted(text: str) -> str:
    """A string literal of PromQL."""
    return json.dumps(text, ensure_ascii=False)


def literal(value: str) -> str:
    """A regular expression (RE2) for this text and no other.

    >>> literal("a.b|c")
    'a\\\\.b\\\\|c'
    """
    return re.sub(r"[.*+?()|{}\[\]^$\\]", r"\\\g<0>", value)


def selector(term: Term, suffix: str = "", extra: Iterable[Matcher] = ()) -> str:
    """The term's series, without its factor.

    >>> selector(Term("a", (Matcher("b", "=", "c"),)), "_sum")
    'a_sum{b="c"}'
    """
    matchers = ", ".join(f"{m.label}{m.op}{quoted(m.value)}" for m in (*term.matchers, *extra))
    return f"{term.family}{suffix}" + (f"{{{matchers}}}" if matchers else "")


def replaced(inner: str, steps: Sequence[Step]) -> str:
    """The series with the steps taken one after the other.

    >>> replaced("a", [copy("model", "model_name")])
    'label_replace(a, "model", "$1", "model_name", "(.+)")'
    """
    if not steps:
        return inner
    opening = "label_replace(" * len(steps)
    flat = f"{opening}{inner}, {'), '.join(map(str, steps))})"
    if _fits(flat):
        return flat
    return f"{opening}\n{indent(inner, '  ')},\n  " + "),\n  ".join(map(str, steps)) + ")"


def aggregated(operation: str, inner: str, without: Iterable[str]) -> str:
    """``operation without (labels) (inner)``; ``inner`` itself where there are no labels."""
    labels = ", ".join(sorted(set(without)))
    return around(f"{operation} without ({labels}) ", inner) if labels else inner


def around(before: str, inner: str) -> str:
    """``before(inner)``."""
    flat = f"{before}({inner})"
    return flat if _fits(flat) else f"{before}(\n{indent(inner, '  ')}\n)"


def joined(operator: str, parts: Sequence[str]) -> str:
    """``a operator b operator c``, with parentheses where they are needed; one part stays as it is."""
    if len(parts) == 1:
        return parts[0]
    operands = [part if _alone(part) else around("", part) for part in parts]
    flat = f" {operator} ".join(operands)
    return flat if _fits(flat) else f"\n{operator} ".join(operands)


def _alone(text: str) -> bool:
    """Whether this is one selector, number, call or aggregation, or is in parentheses."""
    if re.fullmatch(r"[\w:.-]*(\{[^{}]*\})?", text):
        return True
    opening = re.match(r"(\w+(?: (?:by|without) \([^()]*\) )?)?\(", text)
    if opening is None:
        return False
    depth = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[()]', text[opening.end() - 1 :]):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return opening.end() - 1 + match.end() == len(text)
    return False


def _fits(text: str) -> bool:
    return len(text) <= WIDTH and "\n" not in text
