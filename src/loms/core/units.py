"""Durations and sizes as people write them in configuration files and rule files."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}
_UNIT_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_duration(value: object) -> float:
    """Seconds from ``15s``, ``1m30s``, ``500ms``, ``7d`` (Prometheus's units) or a plain number.

    >>> parse_duration("1m30s"), parse_duration("500ms"), parse_duration(2)
    (90.0, 0.5, 2.0)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    text = str(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 15s, 1m30s or 500ms")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """The shortest spelling that `parse_duration` reads back.

    >>> format_duration(90), format_duration(0.5), format_duration(1_296_000)
    ('1m30s', '500ms', '15d')
    """
    ms = round(seconds * 1000)
    out = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, ms = divmod(ms, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"


def parse_bytes(value: object) -> int:
    """Bytes from ``50MiB``, ``1GB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|[KMG]i?B)?", str(value))
    if not match:
        raise ValueError(f"{value!r} is not a size; write for example 50MiB")
    return int(float(match[1]) * _UNIT_BYTES[match[2] or ""])


Duration = Annotated[
    float, BeforeValidator(parse_duration), Field(ge=0), PlainSerializer(format_duration, when_used="json")
]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
