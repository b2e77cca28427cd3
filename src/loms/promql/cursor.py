"""A place among the tokens of one expression, and how to go on from it."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NoReturn

from loms.promql.lexer import Token, fail, quoted, seconds_of, tokens, unquoted, wrong
from loms.promql.syntax import Node

MAX_DEPTH = 150
"""Nesting beyond this is refused: reading and evaluation recurse."""


class Cursor:
    """Reads tokens one by one; everything wrong is told by `QueryError` with its place."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _ended(self) -> bool:
        return self._token.kind == "end"

    def _advance(self) -> Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _is(self, *texts: str) -> bool:
        token = self._token
        return (token.text if token.kind == "operator" else token.keyword) in texts

    def _take(self, text: str) -> bool:
        found = self._is(text)
        self._next += found
        return found

    def _expect(self, text: str, context: str) -> Token:
        if not self._is(text):
            self._unexpected(context, quoted(text))
        return self._advance()

    def _follows(self, *texts: str) -> bool:
        after = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return (after.text if after.kind == "operator" else after.keyword) in texts

    def _fail(self, message: str, token: Token | None = None) -> NoReturn:
        fail(self._text, (token or self._token).at, message)

    def _wrong(self, node: Node, message: str) -> NoReturn:
        wrong(self._text, node.place, message)

    def _unexpected(self, context: str, wanted: str = "") -> NoReturn:
        inside, expected = f" in {context}" if context else "", f", expected {wanted}" if wanted else ""
        self._fail(f"unexpected {self._token.named}{inside}{expected}")

    def _too_deep(self) -> NoReturn:
        self._fail(f"the expression is nested more than {MAX_DEPTH} levels deep")

    def _place(self, token: Token) -> str:
        """As `loms.promql.lexer.place`, of which there is one for each node."""
        line = bisect_right(self._lines, token.at)
        return f"{line}:{token.at - self._lines[line - 1] + 1}"

    def _number(self, context: str) -> float:
        token = self._advance()
        if token.kind in ("number", "duration"):
            return seconds_of(self._text, token)
        if token.keyword not in ("inf", "nan"):
            self._next -= token.kind != "end"
            self._unexpected(context, "number or duration")
        return float(token.keyword)

    def _string(self, token: Token) -> str:
        text = unquoted(self._text, token)
        if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
            self._fail(f"{quoted(text)} is no valid UTF-8", token)
        return text
