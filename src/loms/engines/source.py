"""The little language in which a table says where a canonical metric comes from.

    vllm:kv_cache_usage_perc
    sglang:cached_tokens_total{cache_source!="total"}
    acme_queue_ms * 0.001
    acme_computed_total + acme_cached_total
    trtllm_kv_cache_max_blocks * trtllm_kv_cache_tokens_per_block

A family as the text format 0.0.4 spells it, PromQL's label matchers, a factor that brings its unit to the canonical
one; several joined by ``+`` are added where their labels are equal. One of the factors may be another family: a series
is then multiplied (or, with ``/``, divided) by the sample of that family whose labels do not differ from its own.

Of regular expressions there are plain characters, ``.``, ``.*``, ``.+`` and ``|``: what PromQL reads in the same way
and can be matched in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from typing import Literal

Op = Literal["=", "!=", "=~", "!~"]

_FAMILY = re.compile(
    r"""\s*(?P<family>[a-zA-Z_:][\w:]*)\s*
    (?:\{(?P<matchers>(?:[^"{}]|"(?:\\.|[^"\\])*")*)\}\s*)?""",
    re.VERBOSE,
)
_BY = re.compile(r"(?P<op>[*/])\s*(?P<factor>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)?\s*")
_MATCHER = re.compile(r'\s*(?P<label>[a-zA-Z_]\w*)\s*(?P<op>=~|!~|!=|=)\s*"(?P<value>(?:\\.|[^"\\])*)"\s*(?:,|$)')
_PIECE = re.compile(
    r"(?P<any>\.[*+]?)|(?P<or>\|)|\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<plain>[^\\.*+?()\[\]{}|^$])", re.DOTALL
)
_GLOBS = {".": "?", ".*": "*", ".+": "?*"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher; a label that is missing counts as empty, and expressions are anchored, as in PromQL."""

    label: str
    op: Op
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label, "")
        if self.op in ("=", "!="):
            return (value == self.value) == (self.op == "=")
        return any(fnmatchcase(value, glob) for glob in _globs(self.value)) == (self.op == "=~")


@dataclass(frozen=True, slots=True)
class Term:
    """One family, which of its series, and by what they are multiplied."""

    family: str
    matchers: tuple[Matcher, ...] = ()
    factor: float = 1.0
    scale: Term | None = None
    """Another family by whose sample each series is multiplied."""
    inverse: bool = False
    """It is divided by that sample."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(matcher.matches(labels) for matcher in self.matchers)


@lru_cache(maxsize=4096)
def parse_source(text: str) -> tuple[Term, ...]:
    """The terms of a source.

    Raises `ValueError` that says where it is wrong.

    >>> [term] = parse_source('a_ms{kind="x"} * 0.001')
    >>> term.family, term.matchers, term.factor
    ('a_ms', (Matcher(label='kind', op='=', value='x'),), 0.001)
    """
    terms, at = [], 0
    while True:
        term, at = _term(text, at)
        terms.append(term)
        if (term.scale, term.inverse) != (terms[0].scale, terms[0].inverse):
            raise ValueError(f"{text!r}: what is added must be multiplied by one and the same family")
        if at == len(text):
            return tuple(terms)
        if text[at] != "+":
            raise ValueError(f'{text!r}: cannot read {text[at:]!r}; write name{{label="value"}} * factor + …')
        at += 1


def families_of(text: str) -> tuple[str, ...]:
    """The families of a source."""
    found = (family for term in parse_source(text) for family in (term, term.scale) if family is not None)
    return tuple(dict.fromkeys(term.family for term in found))


def _term(text: str, at: int) -> tuple[Term, int]:
    """The term that begins here, and where it ends."""
    family, matchers, at = _family(text, at)
    factor, scale, inverse = 1.0, None, False
    while by := _BY.match(text, at):
        at = by.end()
        if by["factor"]:
            number = float(by["factor"])
            if not number:
                raise ValueError(f"{text!r}: a factor must not be 0")
            factor = factor / number if by["op"] == "/" else factor * number
        elif scale is None:
            name, which, at = _family(text, at)
            scale, inverse = Term(name, which), by["op"] == "/"
        else:
            raise ValueError(f"{text!r}: one family only can multiply another")
    return Term(family, matchers, factor, scale, inverse), at


def _family(text: str, at: int) -> tuple[str, tuple[Matcher, ...], int]:
    match = _FAMILY.match(text, at)
    if match is None:
        raise ValueError(f"{text!r}: a metric's name is expected at {text[at:]!r}")
    return match["family"], _matchers(match), match.end()


def _matchers(match: re.Match[str]) -> tuple[Matcher, ...]:
    matchers, text, at = [], match["matchers"] or "", 0
    while text[at:].strip():
        found = _MATCHER.match(text, at)
        if found is None:
            raise ValueError(f'{match[0]!r}: cannot read {text[at:]!r}; write label="value"')
        op: Op = found["op"]  # type: ignore[assignment]  # one of the four by the expression
        value = re.sub(r"\\(.)", r"\1", found["value"]) if op in ("=", "!=") else found["value"].replace("\\\\", "\\")
        if op in ("=~", "!~"):
            _globs(value)
        matchers.append(Matcher(found["label"], op, value))
        at = found.end()
    return tuple(matchers)


@lru_cache(maxsize=4096)
def _globs(expression: str) -> tuple[str, ...]:
    r"""The alternatives of a regular expression as globs. Raises `ValueError` where it has anything that is none.

    >>> _globs(r"2..|.+_hit\.x|\*")
    ('2??', '?*_hit.x', '[*]')
    """
    globs, at = [""], 0
    while at < len(expression):
        piece = _PIECE.match(expression, at)
        if piece is None:
            allowed = (
                r"an expression may have . .* .+ and | only, as in 2..|.*_hit, and \ before a sign that means itself"
            )
            raise ValueError(f"{expression!r}: cannot read {expression[at:]!r}; {allowed}")
        if piece["or"]:
            globs.append("")
        else:
            globs[-1] += _GLOBS[piece["any"]] if piece["any"] else escape(piece["escaped"] or piece["plain"])
        at = piece.end()
    return tuple(globs)
