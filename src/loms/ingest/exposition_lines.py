"""The grammar of one line: Prometheus text format 0.0.4 / 1.0.0 and OpenMetrics 1.0.

Source: prometheus.io/docs/instrumenting/exposition_formats, the OpenMetrics specification, and what Prometheus
itself accepts where the two leave room (blanks between tokens, a trailing comma, `{"quoted.name", label="x"}`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from loms.core.model import Labels, labels_of

TYPES = frozenset(
    ("counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram")
)

_INT64 = 2**63
_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*", re.ASCII)
_LABEL = re.compile(
    r'[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|"((?:[^"\\]|\\.)*)")[ \t]*(?:(=)[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*)?([,}])'
)
_CLOSE = re.compile(r"[ \t]*\}")
_TAIL = re.compile(r"[ \t]*([^ \t{}#]+)(?:[ \t]+(-?[0-9]+))?[ \t]*", re.ASCII)
_TAIL_OPENMETRICS = re.compile(r"[ \t]*([^ \t{}#]+)(?:[ \t]+([^ \t{}#]+))?[ \t]*(#[ \t]*\{)?", re.ASCII)
_COMMENT = re.compile(r'[ \t]*#[ \t]+(HELP|TYPE|UNIT)[ \t]+([^ \t"]+|"(?:[^"\\]|\\.)*")(?:[ \t]+(.*))?')
_ESCAPE = re.compile(r'\\([\\n"])')


class MalformedLineError(ValueError):
    """What is wrong with a line, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one exposition; beyond them it is refused as a whole."""

    samples: int = 200_000
    labels: int = 128
    """Per sample."""
    label_value_length: int = 16_384
    """Characters; names are held to it as well."""


class Head(NamedTuple):
    """The series that a line belongs to."""

    name: str
    labels: Labels


class Tail(NamedTuple):
    """What follows the series on its line. ``timestamp_ms`` is 0 where there is none; exemplars are left out."""

    value: float
    timestamp_ms: int


class Comment(NamedTuple):
    kind: str
    """HELP, TYPE or UNIT."""
    name: str
    text: str


def number(token: str) -> float:
    """A value as Go writes and reads it; Python's own additions (``1_0``, other alphabets' digits) are refused."""
    if plain(token):
        try:
            return float(token)
        except ValueError:
            pass
    raise MalformedLineError(f"the value {clip(token, 40)} is not a number")


def plain(tokens: str) -> bool:
    """False where ``float`` would accept what the format does not."""
    return "_" not in tokens and tokens.isascii() and tokens.isprintable()


def clip(text: str, length: int = 120) -> str:
    """Quoted, and short enough for a message."""
    return repr(text if len(text) <= length else f"{text[: length - 1]}…")


def parse_head(line: str, limits: Limits) -> tuple[Head, int]:
    """The series at the start of ``line``, and the position after it (after ``}`` or the bare name)."""
    match = _NAME.match(line)
    assert match is not None  # every part of the pattern is optional
    name, end = match[1] or "", match.end(1)
    pairs: dict[str, str] = {}
    if line[match.end() : match.end() + 1] == "{":
        quoted, pairs, end = _labels(line, match.end() + 1, limits)
        if name and quoted:
            raise MalformedLineError(f"there are two metric names, {clip(name)} and {clip(quoted)}")
        name = name or quoted
    if not name:
        raise MalformedLineError("it does not start with a metric name")
    if len(name) > limits.label_value_length:
        raise MalformedLineError(f"the metric name is longer than {limits.label_value_length} characters")
    return Head(name, labels_of(pairs)), end


def parse_tail(line: str, start: int, openmetrics: bool, limits: Limits) -> Tail:
    """Value and timestamp after the series that ends at ``start``; an OpenMetrics exemplar is checked and dropped."""
    match = (_TAIL_OPENMETRICS if openmetrics else _TAIL).match(line, start)
    if line[start - 1] != "}" and line[start : start + 1] not in ("", " ", "\t"):
        raise MalformedLineError(f"unexpected {clip(line[start])} in the metric name")
    if match is None:
        raise MalformedLineError("the value is missing")
    value, end = number(match[1]), match.end()
    if openmetrics and match[3]:
        end = _exemplar(line, end, limits)
    if end < len(line):
        raise MalformedLineError(f"unexpected text after the value, {clip(line[end:].strip(), 40)}")
    return Tail(value, (_seconds if openmetrics else _milliseconds)(match[2]))


def parse_comment(line: str, openmetrics: bool) -> Comment | None:
    """HELP, TYPE or UNIT; None for any other comment."""
    match = _COMMENT.fullmatch(line)
    if match is None:
        return None
    kind, name, text = match[1], match[2], match[3] or ""
    if name[0] == '"':
        name = unescape(name[1:-1])
    if kind == "TYPE":
        text = text.rstrip(" \t")
        if text not in TYPES:
            raise MalformedLineError(f"there is no metric type {clip(text, 40)}")
    if kind == "HELP":
        text = unescape(text if openmetrics else text.replace('\\"', '\\\\"'))
    return Comment(kind, name, text)


def unescape(text: str) -> str:
    r"""``\\``, ``\n`` and ``\"`` resolved; any other backslash stays (as in Prometheus).

    >>> unescape(r'a\\b\n\d')
    'a\\b\n\\d'
    """
    return _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], text) if "\\" in text else text


def _labels(line: str, at: int, limits: Limits) -> tuple[str, dict[str, str], int]:
    """A label block from after its brace: quoted metric name (or empty), pairs, position after ``}``."""
    metric = ""
    pairs: dict[str, str] = {}
    while (close := _CLOSE.match(line, at)) is None:
        match = _LABEL.match(line, at)
        if match is None:
            raise MalformedLineError(f"the labels cannot be read from {clip(line[at:], 40)} on")
        at = match.end()
        if match[3]:
            _add(pairs, match[1] or unescape(match[2]), unescape(match[4]), limits)
        elif match[2] and not metric:
            metric = unescape(match[2])
        else:
            raise MalformedLineError(f"the label {clip(match[1] or match[2], 40)} has no value")
        if match[5] == "}":
            return metric, pairs, at
    return metric, pairs, close.end()


def _add(pairs: dict[str, str], label: str, value: str, limits: Limits) -> None:
    if label in pairs:
        raise MalformedLineError(f"the label {clip(label, 40)} stands there twice")
    if label in ("", "__name__"):
        raise MalformedLineError(f"a label cannot be named {clip(label)}")
    if max(len(label), len(value)) > limits.label_value_length:
        raise MalformedLineError(f"the label {clip(label, 40)} is longer than {limits.label_value_length} characters")
    if len(pairs) >= limits.labels:
        raise MalformedLineError(f"there are more than {limits.labels} labels")
    pairs[label] = value


def _exemplar(line: str, at: int, limits: Limits) -> int:
    """Position after the exemplar whose label block begins at ``at``."""
    _, _, at = _labels(line, at, limits)
    match = _TAIL_OPENMETRICS.match(line, at)
    if match is None or match[3]:
        raise MalformedLineError("the exemplar has no value")
    number(match[1])
    _seconds(match[2])
    return match.end()


def _seconds(token: str | None) -> int:
    """OpenMetrics timestamp → milliseconds; 0 for none."""
    seconds = number(token) if token else 0.0
    if not abs(seconds) < _INT64 / 1000:
        raise MalformedLineError(f"the timestamp {clip(token or '', 40)} is not a time")
    return round(seconds * 1000)


def _milliseconds(token: str | None) -> int:
    """Timestamp of the text format → milliseconds; 0 for none."""
    timestamp_ms = int(token) if token and len(token) < 21 else 0
    if (token and len(token) >= 21) or not -_INT64 <= timestamp_ms < _INT64:
        raise MalformedLineError("the timestamp does not fit 64 bits")
    return timestamp_ms
