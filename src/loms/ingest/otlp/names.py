"""Names of metrics and labels in Prometheus's spelling, by OpenTelemetry's rules for that translation.

Source: opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics, with Prometheus's own choices where
that leaves one (what its OTLP receiver does by default: escaped underscores, suffixes for units and types).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["gauge", "counter", "updowncounter", "histogram", "summary"]

_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes", "m": "meters",
    "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz", "1": "",
    "%": "percent",
}  # fmt: skip
_PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}

_NO_METRIC_CHARACTER = re.compile(r"[^a-zA-Z0-9:]+")
_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


@lru_cache(maxsize=8192)
def metric_name(name: str, unit: str, kind: Kind) -> str:
    """The family's name; '' where nothing of ``name`` can stay.

    >>> metric_name("http.server.request.duration", "s", "histogram"), metric_name("net.io", "By/s", "counter")
    ('http_server_request_duration_seconds', 'net_io_bytes_per_second_total')
    >>> metric_name("cache.hit_ratio", "1", "gauge"), metric_name("1st.total.things", "{thing}", "counter")
    ('cache_hit_ratio', '_1st_things_total')
    """
    words = [word for word in _NO_METRIC_CHARACTER.split(name) if word]
    if not words:
        return ""
    main, per = _unit_words(unit)
    words += [word for word in (main, per) if word and word not in words]
    for last, wanted in (("total", kind == "counter"), ("ratio", unit == "1" and kind == "gauge")):
        if wanted:
            words = [*(word for word in words if word != last), last]
    joined = "_".join(words)
    return f"_{joined}" if joined[0].isdigit() else joined


@lru_cache(maxsize=1024)
def unit_name(unit: str) -> str:
    """The unit as it stands in a name: ``By/s`` is ``bytes_per_second``; '' for none."""
    return "_".join(word for word in _unit_words(unit) if word)


def _unit_words(unit: str) -> tuple[str, str]:
    main, _, per = unit.partition("/")
    main, per = (part.strip() if not {"{", "}"} & set(part) else "" for part in (main, per))
    main, per = _clean(_UNITS.get(main, main)), _clean(_PER.get(per, per)).rstrip("_")
    return main.rstrip("_") if per else main, f"per_{per}" if per else ""


def _clean(unit: str) -> str:
    return _NO_METRIC_CHARACTER.sub("_", unit).removeprefix("_")


@lru_cache(maxsize=8192)
def label_name(name: str) -> str:
    """The label that an attribute becomes; '' where no letter or digit would be left.

    >>> label_name("gen_ai.request.model"), label_name("9lives"), label_name("_own"), label_name("__reserved__")
    ('gen_ai_request_model', 'key_9lives', 'key_own', '__reserved__')
    """
    label = _NO_LABEL_CHARACTER.sub("_", name)
    if not label.strip("_"):
        return ""
    if label[0].isdigit():
        return f"key_{label}"
    return f"key{label}" if label[0] == "_" and not label.startswith("__") else label
