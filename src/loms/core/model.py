"""The values that the parts of LOMS hand to one another.

Frozen, slotted dataclasses without behaviour beyond what follows from their own fields. Times are UTC
milliseconds (``…_ms``) unless a name says otherwise; labels are sorted tuples of pairs, so that they hash
and compare by content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Labels = tuple[tuple[str, str], ...]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ids = NDArray[np.uint64]
Bools = NDArray[np.bool_]

STALE_NAN_BITS = 0x7FF0000000000002
"""Bit pattern of Prometheus's staleness marker (prometheus/model/value)."""
STALE_NAN = float(np.array([STALE_NAN_BITS], dtype=np.uint64).view(np.float64)[0])

Severity = Literal["none", "info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("none", "info", "warning", "critical")


def labels_of(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """Sorted label pairs; an empty value is the same as no label (Prometheus data model)."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tuple(sorted((k, v) for k, v in items if v != ""))


def is_stale(values: Floats) -> Bools:
    """True where a value is the staleness marker (and not merely any NaN). Same shape as ``values``."""
    marked: Bools = values.view(np.uint64) == np.uint64(STALE_NAN_BITS)
    return marked


def series_id(name: str, labels: Labels) -> int:
    """64-bit id: 16 bits of the metric's name, then 48 bits of its labels.

    Series of one metric are therefore neighbours in the samples table, and one metric is one range read.
    With 100,000 series in a metric the chance of any collision is about 2e-5.
    """
    prefix = hashlib.blake2b(name.encode(), digest_size=2).digest()
    flat = name + "\xff" + "\xff".join(f"{k}\xfe{v}" for k, v in labels)
    return int.from_bytes(prefix + hashlib.blake2b(flat.encode(), digest_size=6).digest(), "big")


@dataclass(frozen=True, slots=True)
class Series:
    """One time series. Two names may share an ``id``: then they share their samples (an alias)."""

    id: int
    name: str
    labels: Labels

    @classmethod
    def of(cls, name: str, labels: Labels) -> Series:
        return cls(series_id(name, labels), name, labels)


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Samples as parallel columns of one length, with the series seen for the first time."""

    series_ids: Ids
    timestamps_ms: Ints
    values: Floats
    series: tuple[Series, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


class Refuses(Protocol):
    """Takes a batch if there is room for it: False leaves it to the caller, who can ask its sender to come again."""

    def offer(self, batch: SampleBatch, /) -> bool: ...


class Sink(Protocol):
    """Takes a batch without blocking; what does not fit is dropped and counted by the sink."""

    def __call__(self, batch: SampleBatch, /) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What stays the same in an exposition from scrape to scrape: its series and their types.

    ``names[i]`` and ``labels[i]`` belong to ``values[i]`` of every `Exposition` with this very object, so work
    that depends on the shape alone is done once and kept by identity.
    """

    names: tuple[str, ...]
    labels: tuple[Labels, ...]
    types: Mapping[str, str]
    """Family name as written on its ``# TYPE`` line → counter, gauge, histogram, summary, untyped, …"""
    help: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exposition:
    """One parsed answer of a ``/metrics`` endpoint."""

    shape: Shape
    values: Floats
    timestamps_ms: Ints | None = None
    """Per sample where the text carried timestamps (0 = none on that line), else None."""
    duplicates: int = 0
    """Samples left out because the same series stood in the text before."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A PromQL result on a regular grid.

    ``values`` has shape [series, time] and is NaN where a series has no sample; ``labels`` (with ``__name__``
    where it survived) and ``values`` are in the same order.
    """

    labels: tuple[Mapping[str, str], ...]
    times_ms: Ints
    values: Floats

    @property
    def last(self) -> Floats:
        """The newest column, shape [series]."""
        return self.values[:, -1]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What the collecting side knows of one engine from its own exposition."""

    instance: str
    job: str
    engine: str
    model: str
    version: str
    zone: str
    simulated: bool
    up: bool
    """The newest scrape was good."""
    unavailable: Mapping[str, str]
    """Canonical Prometheus family → why it is not to be had."""
    unmapped: Sequence[str]
    """The engine's own families that have no canonical name."""
    contract: Sequence[Finding] = ()
    """What is odd about its exposition, by the contract of its release."""


class Querier(Protocol):
    """Evaluates PromQL; the store, a remote Prometheus and the tests' fake all look like this."""

    def range(self, expr: str, start_ms: int, end_ms: int, step_ms: int) -> Frame: ...

    def instant(self, expr: str, at_ms: int) -> Frame: ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a finding, in words, with the query that draws it."""

    text: str
    expr: str = ""
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a metric family beside its samples (Prometheus's ``# TYPE``, ``# HELP``, ``# UNIT``)."""

    family: str
    type: str
    """counter, gauge, histogram, gaugehistogram, summary, info, stateset or unknown."""
    help: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    time_ns: int
    name: str
    attributes: Labels = ()


@dataclass(frozen=True, slots=True)
class SpanLink:
    trace_id: str
    span_id: str
    trace_state: str = ""
    attributes: Labels = ()


@dataclass(frozen=True, slots=True)
class Span:
    """One span as OpenTelemetry's Collector stores it: ids are lower-case hex, attribute values are text.

    Of an attribute that is no text, the value is JSON (``true``, ``3``, ``["a"]``).
    """

    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_span_id: str
    """Empty for a root."""
    name: str
    kind: str
    """Unspecified, Internal, Server, Client, Producer or Consumer."""
    service: str
    start_ns: int
    duration_ns: int
    status_code: str = "Unset"
    """Unset, Ok or Error."""
    status_message: str = ""
    trace_state: str = ""
    resource: Labels = ()
    scope_name: str = ""
    scope_version: str = ""
    attributes: Labels = ()
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector saw about one subject at one moment. Severity ``none`` records a healthy state."""

    detector: str
    kind: str
    severity: Severity
    labels: Labels
    summary: str
    value: float
    evidence: tuple[Evidence, ...] = ()


AlertState = Literal["pending", "firing", "resolved"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule × one label set, from its first true evaluation to its end."""

    rule: str
    labels: Labels
    """Includes ``alertname`` and ``severity``."""
    annotations: Labels
    state: AlertState
    value: float
    active_at_ms: int
    fired_at_ms: int | None = None
    resolved_at_ms: int | None = None
    evidence: tuple[Evidence, ...] = ()
    expr: str = ""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that name this alert's label set."""
        return f"{series_id(self.rule, self.labels):016x}"


@dataclass(frozen=True, slots=True)
class Incident:
    """Alerts that belong together, as one thing to look at."""

    id: str
    group: Labels
    """The labels that brought the alerts together."""
    title: str
    severity: Severity
    opened_at_ms: int
    updated_at_ms: int
    resolved_at_ms: int | None
    alerts: Sequence[Alert]

    @property
    def state(self) -> Literal["open", "resolved"]:
        return "open" if self.resolved_at_ms is None else "resolved"
