"""How Prometheus's HTTP API spells times, durations and values (prometheus.io/docs/prometheus/latest/querying/api)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal

from loms.core.errors import QueryError
from loms.core.units import parse_duration

FURTHEST_SECONDS = 9_223_372_036
"""What the store's times can hold (nanoseconds in 64 bits); NaN is beyond it too."""


_EARLIEST, _LATEST = "-292273086-05-16T16:47:06Z", "292277025-08-18T07:12:54.999999999Z"
"""How Prometheus writes its first and last moment."""


def parse_time(name: str, text: str, *, clamped: bool = False) -> int:
    """Milliseconds from Unix seconds (fractions allowed) or RFC 3339.

    ``clamped`` moves what lies outside 1970 and what the store can hold to the nearer end, instead of refusing it.
    """
    try:
        seconds = float({_EARLIEST: "-inf", _LATEST: "inf"}.get(text, text))
    except ValueError:
        seconds = _rfc3339(text)
    if clamped and not math.isnan(seconds):
        seconds = min(max(seconds, 0.0), float(FURTHEST_SECONDS))
    if abs(seconds) <= FURTHEST_SECONDS:
        return round(seconds * 1000)
    raise QueryError(f'invalid parameter "{name}": cannot parse "{text}" to a valid timestamp')


def _rfc3339(text: str) -> float:
    """Unix seconds; NaN for what is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_seconds(text: str) -> float:
    """Seconds from a number of them or a duration. Raises `QueryError`: the end of a sentence."""
    try:
        seconds = float(text) if re.fullmatch(r"[0-9.eE+-]+", text) else parse_duration(text)
    except ValueError:
        seconds = math.inf
    if abs(seconds) <= FURTHEST_SECONDS:
        return seconds
    further = ". It overflows int64" if math.isfinite(seconds) else ""
    raise QueryError(f'cannot parse "{text}" to a valid duration{further}')


def parse_step(name: str, text: str) -> int:
    """Milliseconds, at least one, from seconds or a duration."""
    try:
        seconds = parse_seconds(text)
    except QueryError as error:
        raise QueryError(f'invalid parameter "{name}": {error.message}') from None
    if not 0.001 <= seconds < 1e11:
        raise QueryError(
            f'invalid parameter "{name}": zero or negative query resolution step widths are not accepted. '
            "Try a positive integer"
        )
    return round(seconds * 1000)


def format_value(value: float) -> str:
    """A float as Go's ``strconv.FormatFloat(v, 'f', -1, 64)`` writes it: shortest digits, no exponent.

    >>> format_value(0.1), format_value(1e21), format_value(2.0), format_value(float("-inf")), format_value(1.5e-7)
    ('0.1', '1000000000000000000000', '2', '-Inf', '0.00000015')
    """
    text = repr(float(value))
    if text.endswith(".0"):
        return text[:-2]
    if "e" in text:
        return _positional(text)
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)


def format_exponent(value: float) -> str:
    """A float as Go's ``strconv.FormatFloat(v, 'e', -1, 64)`` writes it, which is how alerts carry theirs.

    >>> format_exponent(1.0), format_exponent(-0.00125), format_exponent(123.0), format_exponent(float("nan"))
    ('1e+00', '-1.25e-03', '1.23e+02', 'NaN')
    """
    if not math.isfinite(value):
        return format_value(value)
    sign, digits, exponent = Decimal(repr(float(value))).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    power = int(exponent) + len(text) - 1 if text else 0
    head, rest = text[:1] or "0", text[1:].rstrip("0")
    return f"{'-' if sign else ''}{head}{'.' if rest else ''}{rest}e{power:+03d}"


def _positional(text: str) -> str:
    mantissa, exponent = text.split("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, point = whole + fraction, len(whole) + int(exponent)
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    digits = digits.ljust(point, "0")
    return f"{sign}{digits[:point]}.{digits[point:]}".rstrip(".")


def format_time(ms: int) -> float | int:
    """Unix seconds for JSON, whole where they are whole."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000
