"""PromQL text → syntax tree."""

from __future__ import annotations

import re
from functools import lru_cache

from loms.core.errors import QueryError
from loms.promql.cursor import MAX_DEPTH
from loms.promql.grammar import Parser
from loms.promql.lexer import fail
from loms.promql.syntax import Matchers, Node, Selector
from loms.promql.values import Grid

_NAMES_THE_QUERY = re.compile(r"\b(?:step|range)\s*\(", re.IGNORECASE)


def parse(text: str, query: Grid | None = None) -> Node:
    """The syntax tree of one expression.

    ``query`` is the query's own grid, which durations may name by ``step()`` and ``range()``; without it both are a
    minute. Raises `QueryError` (``bad_data``) with the line and column, where Prometheus would, and for nesting
    deeper than `loms.promql.cursor.MAX_DEPTH`.
    """
    if query is None or not _NAMES_THE_QUERY.search(text):
        return _parsed(text, 60.0, 60.0)
    return _parsed(text, query.step_seconds, query.span_seconds)


@lru_cache(maxsize=1024)
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
