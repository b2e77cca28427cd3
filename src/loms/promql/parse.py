"""PromQL text → syntax tree."""

from __future__ import annotations

import re
from functools import lru_cache

from loms.core.errors import QueryError
from loms.promql.cursor import MAX_DEPTH
from loms.promql.grammar import Parser
from loms.promql.lexer import MAX_CHARACTERS, fail
from loms.promql.syntax import Matchers, Node, Selector
from loms.promql.values import Grid

_NAMES_THE_QUERY = re.compile(r"\b(?:step|range)\s*\(", re.IGNORECASE)
_KEPT_CHARACTERS = 10_000
"""The trees of longer expressions are not remembered: a thousand of them would be a gigabyte."""


def parse(text: str, query: Grid | None = None) -> Node:
    """The syntax tree of one expression.

    ``query`` is the query's own grid, which durations may name by ``step()`` and ``range()``; without it both are a
    minute. Raises `QueryError` (``bad_data``) with the line and column, where Prometheus would, and for nesting
    deeper than `loms.promql.cursor.MAX_DEPTH`.
    """
    step_seconds = span_seconds = 60.0
    if query is not None and len(text) <= MAX_CHARACTERS and _NAMES_THE_QUERY.search(text):
        step_seconds, span_seconds = query.step_seconds, query.span_seconds
    return (_kept if len(text) <= _KEPT_CHARACTERS else _parsed)(text, step_seconds, span_seconds)


@lru_cache(maxsize=1024)
def _kept(text: str, step_seconds: float, span_seconds: float) -> Node:
    return _parsed(text, step_seconds, span_seconds)


def _parsed(text: str, step_seconds: float, span_seconds: float) -> Node:
    try:
        return Parser(text, step_seconds, span_seconds).parse()
    except RecursionError:
        fail(text, 0, f"the expression is nested more than {MAX_DEPTH} levels deep")


def parse_selector(text: str) -> Matchers:
    """The matchers of a plain series selector, as ``match[]`` of the Prometheus API takes it."""
    node = parse(text)
    if not isinstance(node, Selector) or node.offset_ms or node.at is not None:
        raise QueryError(f"parse error: {text[:200]!r} is not a series selector", hint='write name{label="value"}')
    return node.matchers
