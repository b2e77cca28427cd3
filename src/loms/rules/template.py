"""Texts with ``{{ $labels.instance }}`` and ``{{ $value | humanize }}``: the common part of Prometheus's templates.

Compiled once when a rule is loaded, so that a mistake is an error of the rule file, not of the first alert at night.
The pipes have Prometheus's meanings (prometheus.io/docs/prometheus/latest/configuration/template_reference).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from loms.core.nearest import did_you_mean

_PIECE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_LABEL = re.compile(r"\$labels\.([a-zA-Z_][a-zA-Z0-9_]*)")
_LARGE, _SMALL = "kMGTPEZY", "munpfazy"

Render = Callable[[Mapping[str, str], float], str]


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled text. Two templates are equal when their texts are."""

    text: str
    parts: tuple[str | Render, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def render(self, labels: Mapping[str, str], value: float) -> str:
        """The text for one alert; a label that is absent is an empty string."""
        return "".join(part if isinstance(part, str) else part(labels, value) for part in self.parts)


def compile_template(text: str) -> Template:
    """Raises `ValueError` with one sentence about what in ``text`` is not understood.

    >>> template = compile_template("{{ $labels.instance }} is {{ $value | humanizePercentage }} full")
    >>> template.render({"instance": "a:8000"}, 0.5)
    'a:8000 is 50% full'
    """
    parts: list[str | Render] = []
    position = 0
    for match in _PIECE.finditer(text):
        parts += [_plain(text[position : match.start()]), _expression(match[1].strip())]
        position = match.end()
    parts.append(_plain(text[position:]))
    return Template(text, tuple(part for part in parts if part != ""))


def _plain(text: str) -> str:
    for bracket in ("{{", "}}"):
        if bracket in text:
            raise ValueError(f"unbalanced {bracket!r} in {text.strip()[:60]!r}")
    return text


def _expression(text: str) -> Render:
    subject, *pipes = (piece.strip() for piece in text.split("|"))
    label = _LABEL.fullmatch(subject)
    if label and not pipes:
        name = label[1]
        return lambda labels, value: labels.get(name, "")
    if subject != "$value":
        what = f"pipes work on $value, not on {subject}" if label else f"{{{{ {text} }}}} is not understood"
        raise ValueError(f"{what}; write {{{{ $labels.name }}}}, {{{{ $value }}}} or {{{{ $value | humanize }}}}")
    if len(pipes) > 1:
        raise ValueError(f"{{{{ {text} }}}} has more than one pipe")
    if not pipes:
        return lambda labels, value: go_float(value)
    function = PIPES.get(pipes[0])
    if function is None:
        raise ValueError(f"there is no pipe named {pipes[0]!r}; {did_you_mean(pipes[0], PIPES)}")
    return lambda labels, value: function(value)


def go_float(value: float) -> str:
    """A number as Go's ``%v`` prints it, which is how Prometheus writes ``{{ $value }}``.

    >>> go_float(5.0), go_float(0.1), go_float(1234567), go_float(float("inf"))
    ('5', '0.1', '1.234567e+06', '+Inf')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    number = Decimal(repr(float(value))).normalize()
    sign, digits, exponent = number.as_tuple()
    power = len(digits) - 1 + int(exponent)
    if -4 <= power < 6:
        return f"{number:f}"
    first, *rest = map(str, digits)
    fraction = "." + "".join(rest) if rest else ""
    return f"{'-' if sign else ''}{first}{fraction}e{'+' if power >= 0 else '-'}{abs(power):02d}"


def humanize(value: float) -> str:
    """Four digits and an SI prefix.

    >>> humanize(1234567), humanize(0.00123)
    ('1.235M', '1.23m')
    """
    if value == 0 or not math.isfinite(value):
        return _digits(value)
    prefix = ""
    if abs(value) >= 1:
        for prefix_ in _LARGE:
            if abs(value) < 1000:
                break
            prefix, value = prefix_, value / 1000
    else:
        for prefix_ in _SMALL:
            if abs(value) >= 1:
                break
            prefix, value = prefix_, value * 1000
    return _digits(value) + prefix


def humanize_duration(value: float) -> str:
    """Seconds in words.

    >>> humanize_duration(17), humanize_duration(250), humanize_duration(0.25)
    ('17s', '4m 10s', '250ms')
    """
    if not math.isfinite(value):
        return _digits(value)
    if abs(value) < 1:
        return f"{humanize(value)}s"
    sign, whole = "-" if value < 0 else "", int(abs(value))
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    if minutes:
        return f"{sign}{minutes}m {seconds}s"
    return f"{sign}{_digits(abs(value))}s"


def humanize_percentage(value: float) -> str:
    """A ratio in percent.

    >>> humanize_percentage(0.8765)
    '87.65%'
    """
    return f"{_digits(value * 100)}%"


def _digits(value: float) -> str:
    """Go's ``%.4g``."""
    return go_float(value) if not math.isfinite(value) else f"{value:.4g}"


PIPES: Mapping[str, Callable[[float], str]] = {
    "humanize": humanize,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
}
