"""What a span must fulfil, as a condition on ``otel_traces``. Texts of callers become parameters of the statement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loms.core.errors import QueryError

Scope = Literal["span", "resource", "any"]
Field = Literal["name", "service", "kind", "status", "status_message", "duration", "trace_duration", "attribute"]
Op = Literal["=", "!=", "=~", "!~", ">", ">=", "<", "<=", "exists"]

COLUMNS: Mapping[Field, str] = {
    "name": "SpanName",
    "service": "ServiceName",
    "kind": "SpanKind",
    "status": "StatusCode",
    "status_message": "StatusMessage",
}
MAPS: Mapping[Scope, tuple[str, ...]] = {
    "span": ("SpanAttributes",),
    "resource": ("ResourceAttributes",),
    "any": ("SpanAttributes", "ResourceAttributes"),
}
FORMER: Mapping[Field, str] = {"kind": "SPAN_KIND_", "status": "STATUS_CODE_"}
"""Older exporters wrote ``SPAN_KIND_SERVER`` where newer ones write ``Server``."""
DURATION_NS = (
    "toInt64(least(toUInt64(greatest(Duration, 0)),"
    " toUInt64(9223372036854775807 - greatest(toUnixTimestamp64Nano(Timestamp), 0))))"
)
"""The column ``Duration`` (UInt64, formerly Int64), not negative, and cut so that the end of the span fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that a span must fulfil. Durations are nanoseconds; of an attribute, ``key`` and ``scope`` say which.

    ``!=`` and ``!~`` of an attribute also ask that it be there. Regular expressions match the whole value. ``>`` and
    its like compare durations, and attributes as numbers. ``trace_duration`` is that of the whole trace.
    """

    field: Field
    op: Op
    value: str | int | float = ""
    key: str = ""
    scope: Scope = "any"


@dataclass(slots=True)
class Statement:
    """Conditions with the parameters that they name."""

    parts: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def bind(self, value: Any, kind: str = "String") -> str:
        """A place for ``value`` in the statement."""
        name = f"p{len(self.parameters)}"
        self.parameters[name] = value
        return f"{{{name}:{kind}}}"

    def between(self, start_ms: int, end_ms: int) -> None:
        """Begun in these milliseconds, the whole of the last one included: times are kept in nanoseconds."""
        for op, ms in ((">=", start_ms), ("<", end_ms + 1)):
            self.parts.append(f"Timestamp {op} fromUnixTimestamp64Milli({self.bind(ms, 'Int64')})")

    def require(self, condition: Condition) -> None:
        if condition.field == "attribute":
            each = (self._attribute(column, condition) for column in MAPS[condition.scope])
            self.parts.append(f"({' OR '.join(each)})")
        elif condition.field == "duration":
            self.parts.append(f"Duration {ordering(condition)} {self.bind(int(condition.value), 'Int64')}")
        elif condition.field in FORMER and condition.op in ("=", "!="):
            value = str(condition.value)
            either = f"{self.bind(value)}, {self.bind(FORMER[condition.field] + value.upper())}"
            self.parts.append(f"{COLUMNS[condition.field]} {'NOT ' * (condition.op == '!=')}IN ({either})")
        elif condition.field != "trace_duration":
            self.parts.append(self._text(COLUMNS[condition.field], condition))

    def _attribute(self, column: str, condition: Condition) -> str:
        key = self.bind(condition.key)
        there = f"mapContains({column}, {key})"
        if condition.op == "exists":
            return there
        if condition.op in (">", ">=", "<", "<="):
            number = self.bind(float(condition.value), "Float64")
            return f"({there} AND toFloat64OrNull({column}[{key}]) {condition.op} {number})"
        return f"({there} AND {self._text(f'{column}[{key}]', condition)})"

    def _text(self, column: str, condition: Condition) -> str:
        value = str(condition.value)
        if condition.op in ("=", "!="):
            return f"{column} {condition.op} {self.bind(value)}"
        if condition.op in ("=~", "!~"):
            found = f"match({column}, {self.bind(f'^(?s:{value})$')})"
            return f"NOT {found}" if condition.op == "!~" else found
        raise QueryError(f"{condition.field} cannot be compared with {condition.op}")

    @property
    def where(self) -> str:
        return " AND ".join(self.parts) or "1"


def ordering(condition: Condition) -> str:
    """The operator of a condition on a duration. Raises `QueryError`."""
    if condition.op not in (">", ">=", "<", "<=", "=", "!="):
        raise QueryError(f"a duration cannot be compared with {condition.op}")
    return condition.op
