"""The part of TraceQL that one selection of spans needs: ``{ span.foo="x" && duration>1s && status=error }``.

Source: "TraceQL" in Tempo's documentation. Conditions on one span joined by ``&&`` are read; whatever else the language
has (``||``, several spansets, pipelines, arithmetic, structure) is refused with one sentence, not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from loms.core.errors import QueryError
from loms.promql.regexes import check
from loms.store.trace_conditions import Condition, Field, Op, Scope

_UNITS_NS = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86_400e9}
_TOO_LONG_NS = 2.0**63
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h|d)")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|`[^`]*`)
    | (?P<op>=~|!~|!=|>=|<=|&&|\|\||=|>|<|[{}()|])
    | (?P<duration>(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d))+)(?![\w.])
    | (?P<number>-?\d+(?:\.\d+)?)(?![\w.])
    | (?P<word>[\w./:@-]+(?:"(?:[^"\\]|\\.)*")?)
    )""",
    re.VERBOSE,
)
_INTRINSICS: Mapping[str, Field] = {
    "name": "name",
    "span:name": "name",
    "kind": "kind",
    "span:kind": "kind",
    "status": "status",
    "span:status": "status",
    "statusMessage": "status_message",
    "span:statusMessage": "status_message",
    "duration": "duration",
    "span:duration": "duration",
    "traceDuration": "trace_duration",
    "trace:duration": "trace_duration",
}
INTRINSICS = ("duration", "kind", "name", "status", "statusMessage", "traceDuration")
STATUSES = {"error": "Error", "ok": "Ok", "unset": "Unset"}
KINDS = {k.lower(): k for k in ("Internal", "Server", "Client", "Producer", "Consumer")} | {
    "unspecified": "Unspecified"
}
_WORDS: Mapping[Field, Mapping[str, str]] = {"status": STATUSES, "kind": KINDS}
_COMPARISONS = ("=", "!=", "=~", "!~", ">", ">=", "<", "<=")
_READ = (
    "{ condition && condition … } with =, !=, =~, !~, >, >=, <, <= on name, status, kind, duration, span.x, resource.x"
)


def parse_traceql(text: str) -> list[Condition]:
    """The conditions of one spanset. Raises `QueryError`."""
    tokens = _tokens(text)
    if not tokens:
        return []
    if tokens[0] != ("op", "{") or tokens[-1] != ("op", "}"):
        _refuse(text, "it is not one selection in braces")
    inner = tokens[1:-1]
    for _, token in inner:
        if token in ("||", "(", ")", "{", "}", "|"):
            _refuse(text, f"{token!r} is not understood")
    conditions, at = [], 0
    while at < len(inner):
        part = inner[at : at + 3]
        if len(part) < 3 or part[0][0] != "word" or part[1][1] not in _COMPARISONS:
            _refuse(text, "a condition is a field, a comparison and a value")
        conditions.append(_condition(text, part[0][1], part[1][1], *part[2]))
        at += 3
        if at < len(inner) and (inner[at] != ("op", "&&") or at + 1 == len(inner)):
            _refuse(text, "conditions are joined by &&")
        at += 1
    return conditions


def field_of(name: str) -> Condition:
    """What a name means: an intrinsic, or an attribute with its scope (``span.x``, ``resource.x``, ``.x``).

    >>> field_of("resource.service.name").field, field_of("span.http.status").key
    ('service', 'http.status')
    """
    if name in _INTRINSICS:
        return Condition(_INTRINSICS[name], "exists")
    scopes: dict[str, Scope] = {"span.": "span", "resource.": "resource", ".": "any"}
    for prefix, scope in scopes.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            key = name[len(prefix) :]
            key = _unquoted(key) if key.startswith('"') else key
            if key == "service.name" and scope != "span":
                return Condition("service", "exists")
            return Condition("attribute", "exists", key=key, scope=scope)
    raise QueryError(f"TraceQL: {name!r} is no field that LOMS knows", hint=_READ)


def duration_ns(text: str) -> int:
    """Nanoseconds from a duration as Go writes it: ``1.5s``, ``300us``, ``1m30s``. Raises `QueryError`.

    >>> duration_ns("1m1.5s"), duration_ns("250us")
    (61500000000, 250000)
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise QueryError(f"{text[:80]!r} is not a duration; write for example 1.5s, 100ms or 250us")
    whole = sum(float(number) * _UNITS_NS[unit] for number, unit in parts)
    if whole >= _TOO_LONG_NS:
        raise QueryError(f"{text[:80]!r} is longer than 292 years")
    return round(whole)


def expression(pattern: str) -> str:
    """A regular expression that RE2 reads. Raises `QueryError`."""
    check(pattern)
    return pattern


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse(text, f"{text[at:].strip()[:20]!r} is not understood")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _condition(text: str, name: str, op: str, kind: str, word: str) -> Condition:
    known = field_of(name)
    comparison = next(each for each in _ops() if each == op)
    if known.field in ("duration", "trace_duration"):
        if kind != "duration" or comparison in ("=~", "!~"):
            _refuse(text, f"{name} is compared with a duration such as 100ms")
        return Condition(known.field, comparison, _nanoseconds(text, word))
    if word == "nil" and known.field == "attribute" and comparison == "!=":
        return known
    if kind == "op" or word == "nil":
        _refuse(text, f"{word!r} is no value for {name}")
    words = _WORDS.get(known.field)
    if words is not None:
        if word not in words or comparison not in ("=", "!="):
            _refuse(text, f"{name} is = or != one of {', '.join(words)}")
        return Condition(known.field, comparison, words[word])
    value = _unquoted(word) if kind == "text" else word
    if comparison in (">", ">=", "<", "<="):
        if kind not in ("number", "duration") or known.field != "attribute":
            _refuse(text, f"{name} {op} is compared with a number")
        number = _nanoseconds(text, word) if kind == "duration" else float(word)
        return Condition(known.field, comparison, number, known.key, known.scope)
    if comparison in ("=~", "!~"):
        value = expression(value)
    return Condition(known.field, comparison, value, known.key, known.scope)


def _nanoseconds(text: str, word: str) -> int:
    try:
        return duration_ns(word)
    except QueryError as error:
        _refuse(text, error.message)


def _ops() -> tuple[Op, ...]:
    return ("=", "!=", "=~", "!~", ">", ">=", "<", "<=")


def _unquoted(token: str) -> str:
    if token.startswith("`"):
        return token[1:-1]
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), token[1:-1])


def _refuse(text: str, why: str) -> NoReturn:
    raise QueryError(f"TraceQL {text[:200]!r}: {why}; LOMS reads {_READ}")
