"""PromQL text → tokens, each with its place in the text (https://prometheus.io/docs/prometheus/latest/querying/basics/)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from loms.core.errors import QueryError

Kind = Literal["number", "duration", "string", "word", "operator", "end"]
UNITS_MS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
MAX_TOKENS = 50_000
MAX_CHARACTERS = 2**20
"""Of one expression."""
_MAX_MS = 2**63 // 1_000_000
"""Durations must fit into 64 bits of nanoseconds, as in Prometheus."""

_SKIPPED = re.compile(r"(?:\s|#[^\n]*)+")
_DURATION = re.compile(r"(?:[0-9]+(?:ms|[smhdwy]))+(?![\w.])", re.ASCII)
_ORDERED = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in UNITS_MS))
_OCTAL = re.compile(r"0_?[0-7]+(?:_[0-7]+)*", re.ASCII)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WORD = re.compile(r"[A-Za-z_:][\w:]*", re.ASCII)
_LABEL = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPERATOR = re.compile(r"=~|!~|==|!=|>=|<=|</|>/|[-+*/%^<>=(){}\[\],:@]")
_QUOTED = re.compile(r"""`[^`]*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv\\'\"]))|(\\)", re.DOTALL
)
_SIMPLE = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))
_UNCLOSED = {"(": "parenthesis", "[": "bracket", "{": "brace"}
_CLOSES = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    at: int
    """Place of the first character, from 0."""

    @property
    def keyword(self) -> str:
        """The word in lower case; keywords may be written in any."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def named(self) -> str:
        """As messages name it."""
        if self.kind == "end":
            return "end of input"
        return f"{ {'word': 'identifier'}.get(self.kind, self.kind) } {quoted(self.text)}".replace("operator ", "")


def place(text: str, at: int) -> str:
    """``line:column`` of a character, both from 1."""
    before = text[:at]
    return f"{before.count(chr(10)) + 1}:{at - (before.rfind(chr(10)) + 1) + 1}"


def wrong(text: str, where: str, message: str) -> NoReturn:
    """Raises the `QueryError` of wrong syntax at a `place`, in Prometheus's form."""
    raise QueryError(f"{where}: parse error: {message}", hint=f"the expression is: {text[:200]}")


def fail(text: str, at: int, message: str) -> NoReturn:
    wrong(text, place(text, at), message)


def tokens(text: str) -> list[Token]:
    """The tokens of an expression, ended by one of kind ``end``. Raises `QueryError` for what is none."""
    if len(text) > MAX_CHARACTERS:
        fail(text[:1], 0, f"an expression of more than {MAX_CHARACTERS} characters")
    found: list[Token] = []
    opened: list[Token] = []
    at = 0
    while True:
        if skipped := _SKIPPED.match(text, at):
            at = skipped.end()
        if at >= len(text):
            if opened:
                left = f"unclosed left {_UNCLOSED[opened[-1].text]}"
                fail(text, len(text), "unexpected end of input inside braces" if opened[-1].text == "{" else left)
            return [*found, Token("end", "", len(text))]
        token = _next(text, at, inside=opened[-1].text if opened else "")
        if token.text in _UNCLOSED and token.kind == "operator":
            opened.append(token)
        elif token.text in _CLOSES and token.kind == "operator":
            opening = opened.pop().text if opened else ""
            if opening != _CLOSES[token.text]:
                fail(text, at, f"unexpected right {_UNCLOSED[_CLOSES[token.text]]} {quoted(token.text)}")
        found.append(token)
        if len(found) > MAX_TOKENS:
            fail(text, at, f"an expression of more than {MAX_TOKENS} words and signs")
        at += len(token.text)


def _next(text: str, at: int, inside: str) -> Token:
    first = text[at]
    if first.isascii() and (first.isdigit() or (first == "." and text[at + 1 : at + 2].isdigit())):
        kind: Kind
        for kind, pattern in (("duration", _DURATION), ("number", _NUMBER)):
            if match := pattern.match(text, at):
                after = text[match.end() : match.end() + 1]
                if after.isalnum() or after in ("_", "."):
                    fail(text, at, f"bad number or duration syntax: {quoted(text[at : match.end() + 1])}")
                return Token(kind, match[0], at)
    if first in "\"'`":
        match = _QUOTED.match(text, at)
        if not match:
            fail(text, at, "unterminated raw string" if first == "`" else "unterminated quoted string")
        return Token("string", match[0], at)
    if inside == "[" and (first == ":" or first.isalpha()):
        match = _LABEL.match(text, at) or _OPERATOR.match(text, at)
    else:
        match = (_LABEL if inside == "{" else _WORD).match(text, at) or _OPERATOR.match(text, at)
    if not match:
        fail(text, at, f"unexpected character: {quoted(first, mark=chr(39))}")
    return Token("operator" if match.re is _OPERATOR else "word", match[0], at)


def seconds_of(text: str, token: Token) -> float:
    """The value of a number, or of a duration in seconds. Raises `QueryError` for what Go's parsers do not take."""
    if token.kind == "number":
        return _number(text, token)
    match = _ORDERED.fullmatch(token.text)
    if not match:
        fail(text, token.at, f"not a valid duration string: {quoted(token.text)}")
    counts = (part or "0" for part in match.groups())
    # More digits than these cannot fit, and Python refuses to read thousands of them.
    ms = sum(int(part[-4000:]) * unit for part, unit in zip(counts, UNITS_MS.values(), strict=True))
    if ms >= _MAX_MS or len(token.text) > 4000:
        fail(text, token.at, "duration out of range")
    return ms / 1000


def _number(text: str, token: Token) -> float:
    """As ``strconv.ParseInt`` and, for what it does not take, ``strconv.ParseFloat`` read it."""
    base = 16 if token.text[:2] in ("0x", "0X") else 8 if _OCTAL.fullmatch(token.text) else 0
    if base and len(token.text) <= 40 and (whole := int(token.text, base)) < 2**63:
        return float(whole)
    value = math.inf if base == 16 else float(token.text)
    if math.isinf(value):
        reason = "invalid syntax" if base == 16 else "value out of range"
        fail(text, token.at, f"error parsing number: strconv.ParseFloat: parsing {quoted(token.text)}: {reason}")
    return value


def unquoted(text: str, token: Token) -> str:
    """What a string token says; bytes that are no UTF-8 come as lone surrogates (``surrogateescape``)."""
    body = token.text[1:-1]
    if token.text[0] == "`" or "\\" not in body:
        return body

    def value(match: re.Match[str]) -> bytes:
        if match[6] or (match[5] in ("'", '"') and match[5] != token.text[0]):
            fail(text, token.at, f"error unquoting string {token.text}: invalid syntax")
        if match[5]:
            return _SIMPLE[match[5]].encode()
        if match[1] or match[2]:
            number = int(match[1], 16) if match[1] else int(match[2], 8)
            return bytes([number]) if number < 256 else b"?"
        number = int(match[3] or match[4], 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            fail(text, token.at, f"error unquoting string {token.text}: invalid syntax")
        return chr(number).encode()

    parts, at = [], 0
    for match in _ESCAPE.finditer(body):
        parts += [body[at : match.start()].encode(errors="surrogatepass"), value(match)]
        at = match.end()
    return b"".join([*parts, body[at:].encode(errors="surrogatepass")]).decode(errors="surrogateescape")


def quoted(text: str, mark: str = '"') -> str:
    """Text in quotes as messages show it, bytes that are no UTF-8 as ``\\xc5``."""
    shown = text.replace("\\", "\\\\").replace(mark, "\\" + mark).replace("\n", "\\n")
    return mark + re.sub("[\ud800-\udfff]", lambda match: f"\\x{ord(match[0]) & 0xFF:02x}", shown) + mark
