"""The little language in which a table says where a canonical metric comes from.

    vllm:kv_cache_usage_perc
    sglang:cached_tokens_total{cache_source!="total"}
    acme_queue_ms * 0.001
    trtllm_kv_cache_reused_blocks_total + trtllm_kv_cache_missed_blocks_total

A family as the text format 0.0.4 spells it, PromQL's label matchers, a factor that brings its unit to the canonical
one; several joined by ``+`` are added where their labels are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Op = Literal["=", "!=", "=~", "!~"]

_TERM = re.compile(
    r"""\s*(?P<family>[a-zA-Z_:][\w:]*)\s*
    (?:\{(?P<matchers>(?:[^"{}]|"(?:\\.|[^"\\])*")*)\}\s*)?
    (?:\*\s*(?P<factor>[\d.]+(?:[eE][+-]?\d+)?)\s*)?""",
    re.VERBOSE,
)
_MATCHER = re.compile(r'\s*(?P<label>[a-zA-Z_]\w*)\s*(?P<op>=~|!~|!=|=)\s*"(?P<value>(?:\\.|[^"\\])*)"\s*(?:,|$)')


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
        return bool(re.fullmatch(self.value, value)) == (self.op == "=~")


@dataclass(frozen=True, slots=True)
class Term:
    """One family, which of its series, and by what they are multiplied."""

    family: str
    matchers: tuple[Matcher, ...] = ()
    factor: float = 1.0

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(matcher.matches(labels) for matcher in self.matchers)


@lru_cache(maxsize=4096)
def parse_source(text: str) -> tuple[Term, ...]:
    """The terms of a source.

    Raises `ValueError` that says where it is wrong.

    >>> parse_source('a_ms{kind="x"} * 0.001')
    (Term(family='a_ms', matchers=(Matcher(label='kind', op='=', value='x'),), factor=0.001),)
    """
    terms, at = [], 0
    while True:
        match = _TERM.match(text, at)
        if match is None:
            raise ValueError(f"{text!r}: a metric's name is expected at {text[at:]!r}")
        terms.append(_term(match))
        at = match.end()
        if at == len(text):
            return tuple(terms)
        if text[at] != "+":
            raise ValueError(f'{text!r}: cannot read {text[at:]!r}; write name{{label="value"}} * factor + …')
        at += 1


def families_of(text: str) -> tuple[str, ...]:
    """The families of a source."""
    return tuple(term.family for term in parse_source(text))


def _term(match: re.Match[str]) -> Term:
    matchers, text, at = [], match["matchers"] or "", 0
    while text[at:].strip():
        found = _MATCHER.match(text, at)
        if found is None:
            raise ValueError(f'{match[0]!r}: cannot read {text[at:]!r}; write label="value"')
        op: Op = found["op"]  # type: ignore[assignment]  # one of the four by the expression
        value = re.sub(r"\\(.)", r"\1", found["value"]) if op in ("=", "!=") else found["value"].replace("\\\\", "\\")
        if op in ("=~", "!~"):
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{match[0]!r}: {value!r} is not a regular expression: {error}") from None
        matchers.append(Matcher(found["label"], op, value))
        at = found.end()
    factor = float(match["factor"] or 1.0)
    return Term(match["family"], tuple(matchers), factor)
