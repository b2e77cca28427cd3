"""Durations as expressions: ``[1m + 2 * (30s - 5)]``, ``offset -step()``, and the times of ``@``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from loms.promql.cursor import MAX_DEPTH, Cursor
from loms.promql.lexer import Token
from loms.promql.syntax import At

_BINDING: Mapping[str, int] = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 3}
_CALCULATIONS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
    "^": math.pow,
}
_MAX_SECONDS = 9.2e9
"""Durations must fit into 64 bits of nanoseconds, as in Prometheus."""
_FURTHEST_MS = 2**61
"""What ``@`` names beyond this is as empty, and windows before it must fit into 64 bits."""


class Durations(Cursor):
    """``step_seconds`` and ``span_seconds`` are the query's step and range, which durations may name."""

    def __init__(self, text: str, step_seconds: float, span_seconds: float) -> None:
        super().__init__(text)
        self._named = {"step": step_seconds, "range": span_seconds}

    def _at(self) -> At:
        if self._is("start", "end"):
            keyword = self._advance().keyword
            self._expect("(", "@ modifier")
            self._expect(")", "@ modifier")
            return "start" if keyword == "start" else "end"
        token, sign = self._token, -1.0 if self._is("-") else 1.0
        self._next += self._is("-", "+")
        seconds = sign * self._number("@ modifier")
        if not abs(seconds) < 2**63:
            self._fail(f"timestamp out of bounds for @ modifier: {_go_float(seconds)}", token)
        return round(min(max(seconds * 1000, -_FURTHEST_MS), _FURTHEST_MS))

    def _offset(self) -> int:
        token, sign = self._token, -1.0 if self._is("-") else 1.0
        self._next += self._is("-", "+")
        return self._ms(sign * self._duration_operand(), token)

    def _ms(self, seconds: float, token: Token) -> int:
        if not abs(seconds) < _MAX_SECONDS:
            self._fail("duration out of range", token)
        return round(seconds * 1000)

    def _positive_ms(self, seconds: float, token: Token) -> int:
        if (ms := self._ms(seconds, token)) <= 0:
            self._fail("duration must be greater than 0", token)
        return ms

    def _duration(self, weakest: int) -> float:
        """An expression of durations and numbers, in seconds."""
        sign = -1.0 if self._is("-") else 1.0
        signed = self._is("-", "+")
        self._next += signed
        left = sign * self._duration(_BINDING["^"]) if signed else self._duration_operand()
        while self._token.kind == "operator" and self._token.text in "+-*/%^":
            binding = _BINDING[self._token.text]
            if binding < weakest:
                break
            token = self._advance()
            right = self._duration(binding if token.text == "^" else binding + 1)
            if token.text in "/%" and right == 0:
                self._fail("division by zero in a duration", token)
            left = _calculated(token.text, left, right)
        return left

    def _duration_operand(self) -> float:
        token = self._token
        if self._take("("):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                self._too_deep()
            value = self._duration(0)
            self._depth -= 1
            self._expect(")", "duration expression")
            return value
        if token.keyword in ("step", "range", "min_of", "max_of") and self._follows("("):
            self._next += 2
            if token.keyword in self._named:
                value = self._named[token.keyword]
            else:
                value = self._duration(0)
                self._expect(",", "duration expression")
                value = (min if token.keyword == "min_of" else max)(value, self._duration(0))
            self._expect(")", "duration expression")
            return value
        return self._number("duration")


def _go_float(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else {"nan": "NaN", "inf": "+Inf"}.get(str(value), "-Inf")


def _calculated(op: str, left: float, right: float) -> float:
    try:
        return _CALCULATIONS[op](left, right)
    except (OverflowError, ValueError):
        return math.nan
