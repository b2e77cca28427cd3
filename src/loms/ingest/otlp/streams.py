"""Which series the points of a metric belong to, and what is remembered of them from request to request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from loms.core.model import Labels, Metadata, Series
from loms.ingest.otlp.limits import Limits
from loms.ingest.otlp.names import Kind, label_name, metric_name, unit_name
from loms.ingest.otlp.values import Pairs, pairs_of

SERIES_BYTES = 512
"""What a series takes beside the text of its labels, roughly."""
_IDENTIFYING = ("service.name", "service.namespace", "service.instance.id")
_SCOPE = "otel_scope_"
_TYPES = {
    "gauge": "gauge",
    "counter": "counter",
    "updowncounter": "gauge",
    "histogram": "histogram",
    "summary": "summary",
}

Part = tuple[str, str, str]
"""What a series of a point adds to the metric's name, and a label of its own with its value, or '' twice."""


class RefusedError(Exception):
    """Why, in words, a point cannot be taken: never leaves this package."""


@dataclass(frozen=True, slots=True)
class Total:
    """What the deltas of a point have added up to. Replaced, never changed: so that a refused request can be undone."""

    values: tuple[float, ...]
    last_ns: int
    """Time of the newest delta."""
    floor_ns: int
    """Deltas up to then are counted or lost for good."""
    counted: tuple[int, ...] = ()
    """Times of the deltas counted last, in the order in which they came."""


class Point:
    """One set of attributes of a metric: its series, in the order in which a point gives their values."""

    __slots__ = ("ids", "last_ns", "series", "start_ns", "total")

    def __init__(self, series: tuple[Series, ...]) -> None:
        self.series = series
        self.ids = [one.id for one in series]
        self.start_ns = 0
        self.last_ns = 0
        self.total: Total | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A metric of one scope of one resource. Compared by identity."""

    family: str
    kind: Kind
    base: Labels
    """Labels that every series has: job, instance and the scope's."""
    metadata: Metadata


def stream_of(metric: Any, kind: Kind, base: Labels) -> Stream:
    """``family`` is empty when the metric's name has no letter or digit."""
    family = metric_name(metric.name, metric.unit, kind)
    return Stream(family, kind, base, Metadata(family, _TYPES[kind], metric.description, unit_name(metric.unit)))


def identity_of(resource: Pairs) -> dict[str, str]:
    """``job`` from ``service.namespace`` and ``service.name``, ``instance`` from ``service.instance.id``."""
    named = dict(resource)
    labels = {}
    if service := named.get("service.name", ""):
        namespace = named.get("service.namespace", "")
        labels["job"] = f"{namespace}/{service}" if namespace else service
    if instance := named.get("service.instance.id", ""):
        labels["instance"] = instance
    return labels


def info_of(resource: Pairs, limits: Limits) -> Series | None:
    """``target_info``: a resource's other attributes. None where there are none or too many, or nothing says whose."""
    identity = identity_of(resource)
    others = [(key, value) for key, value in resource if key not in _IDENTIFYING]
    if not identity or not others or len(others) > limits.attributes:
        return None
    labels = {**_merged(others), **identity}
    fits = len(labels) <= limits.attributes and _length(labels) <= limits.labels_length
    return Series.of("target_info", _labels(labels)) if fits else None


def base_of(identity: Mapping[str, str], scope: Any, schema_url: str, limits: Limits) -> Labels:
    """Labels that every series of a scope has. Raises `RefusedError` when there is no room for more beside them."""
    if len(scope.attributes) > limits.attributes:
        raise RefusedError(f"points have more than {limits.attributes} labels")
    labels = {**identity, **scope_of(scope, schema_url)}
    _bounded(labels, limits)
    return tuple(labels.items())


def scope_of(scope: Any, schema_url: str) -> dict[str, str]:
    own = {
        f"{_SCOPE}name": scope.name,
        f"{_SCOPE}version": scope.version,
        f"{_SCOPE}schema_url": schema_url,
    }
    attributes = {f"{_SCOPE}{key}": value for key, value in _merged(pairs_of(scope.attributes)).items()}
    return {**attributes, **{key: value for key, value in own.items() if value}}


def point_of(
    stream: Stream, attributes: Pairs, parts: Sequence[Part], limits: Limits, spend: Callable[[int], None]
) -> Point:
    """A point's series, one for each part; ``spend`` is told their bytes before they are made.

    Raises `RefusedError` where there can be none.
    """
    if len(attributes) > limits.attributes:
        raise RefusedError(f"points have more than {limits.attributes} labels")
    labels = {**_merged(attributes), **dict(stream.base)}
    if "" in labels:
        raise RefusedError("points have an attribute whose name has no letter or digit")
    length = _bounded(labels, limits)
    spend(len(parts) * (length + len(stream.family) + SERIES_BYTES))
    labels.pop("__name__", None)
    return Point(
        tuple(
            Series.of(stream.family + suffix, _labels({**labels, label: value} if label else labels))
            for suffix, label, value in parts
        )
    )


@lru_cache(maxsize=256)
def histogram_parts(bounds: tuple[float, ...]) -> tuple[Part, ...]:
    return (
        *(("_bucket", "le", decimal(bound)) for bound in bounds),
        ("_bucket", "le", "+Inf"),
        ("_count", "", ""),
        ("_sum", "", ""),
    )


def decimal(value: float) -> str:
    """A bound or quantile as a label: the shortest digits, without exponent.

    >>> decimal(1.0), decimal(0.005), decimal(1e21), decimal(2.5e-07)
    ('1', '0.005', '1000000000000000000000', '0.00000025')
    """
    return np.format_float_positional(value, trim="-")


def _merged(attributes: Pairs) -> dict[str, str]:
    """By label; values of attributes that become one label are joined with ``;``, in the order of their keys."""
    texts: dict[str, list[str]] = {}
    for key, value in sorted(dict(attributes).items()):
        texts.setdefault(label_name(key), []).append(value)
    return {label: ";".join(values) for label, values in texts.items()}


def _bounded(labels: Mapping[str, str], limits: Limits) -> int:
    """Bytes of all labels. Raises `RefusedError` for too many, too long ones, or too long ones together."""
    if len(labels) > limits.attributes:
        raise RefusedError(f"points have more than {limits.attributes} labels")
    if any(len(text) > limits.label_length for pair in labels.items() for text in pair):
        raise RefusedError(f"points have a label longer than {limits.label_length} characters")
    length = _length(labels)
    if length > limits.labels_length:
        raise RefusedError(f"points have labels of more than {limits.labels_length} bytes (receive.labels_length)")
    return length


def _length(labels: Mapping[str, str]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for pair in labels.items() for text in pair)


def _labels(labels: dict[str, str]) -> Labels:
    return tuple(sorted((key, value) for key, value in labels.items() if value))
