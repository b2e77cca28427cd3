"""Points of OTLP metrics → samples of Prometheus series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from math import inf, isfinite, isnan
from typing import Any

import numpy as np

from loms.core.clock import Clock
from loms.core.model import STALE_NAN, Metadata, SampleBatch, Series
from loms.ingest.otlp.deltas import Recall, added, begin
from loms.ingest.otlp.exponential import SCALES, cumulative_counts, grid_of
from loms.ingest.otlp.limits import Limits, Refusals
from loms.ingest.otlp.names import Kind
from loms.ingest.otlp.recent import Recent
from loms.ingest.otlp.streams import (
    Part,
    Point,
    RefusedError,
    Stream,
    Total,
    base_of,
    decimal,
    histogram_parts,
    identity_of,
    info_of,
    point_of,
    stream_of,
)
from loms.ingest.otlp.values import Pairs, pairs_of

_NO_VALUE = 1
"""``DataPointFlags``: no value was recorded, the series has ended."""
_DELTA, _CUMULATIVE = 1, 2
_FRESH_NS = 300 * 10**9
"""A series that started so short a time before its first point begins with a zero at its start."""
_ONE = (("", "", ""),)
_SUM = ("_sum", "", "")
_MOST_PARTS = 1000
_MOST_EXPONENTIAL = 16_384


@dataclass(slots=True)
class Samples:
    """What one request gives, as columns."""

    ids: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    deltas: list[tuple[Point, int, int, Sequence[float], Stream]] = field(default_factory=list)
    """Point, start, time (ns), values, and whose it is: added up when all are known."""
    series: list[Series] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    points: int = 0
    made: int = 0
    """Samples of points that have more than one each."""
    spent: int = 0
    """Bytes of series that were not known."""
    newest_ns: int = 0
    """Time of the newest point of a resource."""
    exemplars: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    undo: dict[Point, tuple[int, int, Total | None]] = field(default_factory=dict)

    def add(self, point: Point, time_ns: int, values: Sequence[float]) -> None:
        """``values`` may be shorter than the point's series: the last ones then have no sample."""
        count = len(values)
        self.ids += point.ids if count == len(point.ids) else point.ids[:count]
        self.times += [time_ns // 1_000_000] * count
        self.values += values
        self.series += point.series

    def refuse_all(self, metrics: Iterable[Any], reason: str) -> None:
        count = sum(len(getattr(one, what).data_points) for one in metrics if (what := one.WhichOneof("data")))
        self.points += count
        self.refusals.add(reason, count)

    def make(self, samples: int, limits: Limits) -> None:
        """A point has so many. Raises `RefusedError` when they are too many for one request."""
        if self.made + samples > limits.samples:
            raise RefusedError(f"points make more than {limits.samples} samples; send fewer at once")
        self.made += samples

    def spend(self, limits: Limits, size: int) -> None:
        """Series of so many bytes are made. Raises `RefusedError` when they are too many for one request."""
        if self.spent + size > limits.expanded:
            raise RefusedError(f"points make new series of more than {limits.expanded} bytes; send fewer at once")
        self.spent += size

    def batch(self) -> SampleBatch:
        return SampleBatch(
            np.array(self.ids, np.uint64),
            np.array(self.times, np.int64),
            np.array(self.values, np.float64),
            tuple(self.series),
        )


class MetricTranslator:
    """Turns requests into samples; remembers series, and the totals of those that come as deltas.

    Not for several threads at a time. Whoever cannot store what `translate` gave calls `undo` before the next one, so
    that the sender can come again with it.
    """

    def __init__(self, clock: Clock, recall: Recall | None = None, *, most_points: int = 200_000) -> None:
        self._clock = clock
        self._recall = recall
        self._streams: Recent[object, Stream] = Recent(most_points // 4, 1800.0)
        self._points: Recent[object, Point] = Recent(most_points, 1800.0)
        self._same: Recent[object, Point] = Recent(most_points, 1800.0)
        """By ids: attributes may come in another order."""

    def translate(self, request: Any, limits: Limits) -> Samples:
        """The samples of an ``ExportMetricsServiceRequest``. Points that cannot be are counted in its ``refusals``."""
        for recent in (self._streams, self._points, self._same):
            recent.tick(self._clock.monotonic())
        into = Samples()
        for group in request.resource_metrics:
            resource = pairs_of(group.resource.attributes)
            identity = identity_of(resource)
            into.newest_ns = 0
            for scoped in group.scope_metrics:
                try:
                    base = base_of(identity, scoped.scope, scoped.schema_url, limits)
                except RefusedError as why:
                    into.refuse_all(scoped.metrics, str(why))
                    continue
                for metric in scoped.metrics:
                    self._metric(metric, base, limits, into)
            self._info(resource, into.newest_ns // 1_000_000, limits, into)
        self._add_up(into)
        return into

    def undo(self, samples: Samples) -> None:
        """Forget that ``samples`` were ever asked for."""
        for point, (start_ns, last_ns, total) in samples.undo.items():
            point.start_ns, point.last_ns, point.total = start_ns, last_ns, total

    def _metric(self, metric: Any, base: tuple[tuple[str, str], ...], limits: Limits, into: Samples) -> None:
        what = metric.WhichOneof("data")
        if what is None:
            return
        data = getattr(metric, what)
        points = data.data_points
        into.points += len(points)
        kind, temporality = _kind(what, data), getattr(data, "aggregation_temporality", _CUMULATIVE)
        if temporality not in (_DELTA, _CUMULATIVE):
            into.refusals.add("points are neither deltas nor cumulative", len(points))
            return
        stream = self._stream(metric, kind, base, into)
        if not stream.family:
            into.refusals.add("points belong to a metric whose name has no letter or digit", len(points))
            return
        read, delta = _READERS[what], temporality == _DELTA
        for point in points:
            time_ns = point.time_unix_nano
            if not limits.oldest_ns <= time_ns <= limits.newest_ns:
                into.refusals.add("points are older than what is kept, or of the future")
                continue
            if time_ns > into.newest_ns:
                into.newest_ns = time_ns
            into.exemplars += len(point.exemplars) if what != "summary" else 0
            try:
                read(self, stream, metric, point, limits, delta, into)
            except RefusedError as why:
                into.refusals.add(str(why))

    def _stream(self, metric: Any, kind: Kind, base: tuple[tuple[str, str], ...], into: Samples) -> Stream:
        key = (metric.name, metric.unit, kind, base)
        stream = self._streams.get(key)
        if stream is None:
            stream = stream_of(metric, kind, base)
            self._streams.put(key, stream)
            into.metadata.append(stream.metadata)
        return stream

    def _point(
        self, key: object, stream: Stream, attributes: Pairs, parts: Sequence[Part], limits: Limits, into: Samples
    ) -> Point:
        found = self._points.get(key)
        if found is None:
            made = point_of(stream, attributes, parts, limits, partial(into.spend, limits))
            same = tuple(made.ids)
            found = self._same.get(same) or made
            self._same.put(same, found)
            self._points.put(key, found)
        return found

    def _number(self, stream: Stream, _: Any, number: Any, limits: Limits, delta: bool, into: Samples) -> None:
        # The way of most points: a look-up, and an append to each column.
        attributes = pairs_of(number.attributes)
        key = (stream, *attributes)
        point = self._points.get(key) or self._point(key, stream, attributes, _ONE, limits, into)
        value, time_ns = number.as_double or number.as_int, number.time_unix_nano
        if not value and not number.flags & _NO_VALUE:
            value = _zero(number)
        if number.flags & _NO_VALUE:
            value = STALE_NAN
        elif delta:
            if value < 0 and stream.kind == "counter":
                raise RefusedError("deltas of a sum that only grows are negative")
            _delta(point, stream, number, (value,), into)
            return
        elif stream.kind == "counter":
            if number.start_time_unix_nano != point.start_ns:
                _restart(point, number, 1, into)
            if time_ns > point.last_ns:
                point.last_ns = time_ns
        into.ids.append(point.ids[0])
        into.times.append(time_ns // 1_000_000)
        into.values.append(value)
        into.series.append(point.series[0])

    def _histogram(self, stream: Stream, _: Any, one: Any, limits: Limits, delta: bool, into: Samples) -> None:
        bounds, counts = tuple(one.explicit_bounds), one.bucket_counts
        attributes = pairs_of(one.attributes)
        key = (stream, bounds, *attributes)
        point = self._points.get(key)
        if point is None:
            if any(not low < high for low, high in pairwise(bounds)) or any(map(isnan, bounds)):
                raise RefusedError("histogram points have bounds that do not increase")
            _few(bounds)
            point = self._point(key, stream, attributes, histogram_parts(_finite(bounds)), limits, into)
        if len(counts) != len(bounds) + 1 and (counts or bounds):
            raise RefusedError("histogram points have other than one bucket more than bounds")
        into.make(len(point.ids), limits)
        self._distribution(point, stream, one, [*accumulate(counts)][: len(point.ids) - 3], delta, into)

    def _exponential(self, stream: Stream, metric: Any, one: Any, limits: Limits, delta: bool, into: Samples) -> None:
        if one.scale not in SCALES:
            raise RefusedError(f"exponential histogram points have a scale beyond {SCALES[0]} to {SCALES[-1]}")
        if max(len(one.positive.bucket_counts), len(one.negative.bucket_counts)) > _MOST_EXPONENTIAL:
            raise RefusedError(f"exponential histogram points have more than {_MOST_EXPONENTIAL} buckets")
        grid = grid_of(metric.unit)
        attributes = pairs_of(one.attributes)
        key = (stream, grid, *attributes)
        point = self._points.get(key)
        if point is None:
            point = self._point(key, stream, attributes, histogram_parts(grid.bounds), limits, into)
        into.make(len(point.ids), limits)
        self._distribution(point, stream, one, cumulative_counts(one, grid).tolist(), delta, into)

    def _distribution(
        self, point: Point, stream: Stream, one: Any, cumulative: list[float], delta: bool, into: Samples
    ) -> None:
        values = [*cumulative, one.count, one.count]
        if one.HasField("sum"):
            values.append(one.sum)
        if one.flags & _NO_VALUE:
            into.add(point, one.time_unix_nano, [STALE_NAN] * len(point.ids))
        elif delta:
            _delta(point, stream, one, values, into)
        else:
            if one.start_time_unix_nano != point.start_ns:
                _restart(point, one, len(values), into)
            point.last_ns = max(point.last_ns, one.time_unix_nano)
            into.add(point, one.time_unix_nano, values)

    def _summary(self, stream: Stream, _: Any, one: Any, limits: Limits, __: bool, into: Samples) -> None:
        quantiles = {entry.quantile: entry.value for entry in one.quantile_values}
        attributes = pairs_of(one.attributes)
        key = (stream, *quantiles, *attributes)
        point = self._points.get(key)
        if point is None:
            if any(not 0 <= quantile <= 1 for quantile in quantiles):
                raise RefusedError("summary points have a quantile beyond 0 to 1")
            _few(quantiles)
            parts = [("", "quantile", decimal(quantile)) for quantile in quantiles]
            point = self._point(key, stream, attributes, [("_count", "", ""), _SUM, *parts], limits, into)
        into.make(len(point.ids), limits)
        values = (float(one.count), one.sum, *quantiles.values())
        into.add(point, one.time_unix_nano, [STALE_NAN] * len(values) if one.flags & _NO_VALUE else values)

    def _add_up(self, into: Samples) -> None:
        """Deltas in the order of their times, each point's after those before it."""
        begin((point for point, *_ in into.deltas), self._recall)
        newest: dict[tuple[Point, int], tuple[int, Sequence[float]]] = {}
        """A series has one sample in a millisecond: the total after the last delta in it."""
        for point, start_ns, time_ns, values, stream in sorted(into.deltas, key=lambda delta: delta[2]):
            before = point.total
            total = added(before, time_ns, values)
            if total is None:
                into.refusals.add("deltas come too late to be told from repeated ones")
            elif total is not before:
                into.undo.setdefault(point, (point.start_ns, point.last_ns, before))
                if before is None and stream.kind != "updowncounter":
                    _start(point, start_ns, time_ns, len(values), into)
                point.total = total
                key = point, time_ns // 1_000_000
                if before is None or key[1] > before.last_ns // 1_000_000 or key in newest:
                    newest[key] = time_ns, total.values
        for (point, _), (time_ns, totals) in newest.items():
            into.add(point, time_ns, totals)

    def _info(self, resource: Pairs, time_ms: int, limits: Limits, into: Samples) -> None:
        if not time_ms:
            return
        key = ("target_info", *resource)
        point = self._points.get(key)
        if point is None:
            series = info_of(resource, limits)
            if series is None:
                return
            point = Point((series,))
            self._points.put(key, point)
            into.metadata.append(Metadata("target_info", "gauge", "Attributes of the resource that a job is"))
        if time_ms > point.last_ns // 1_000_000:  # several requests may tell of one moment
            into.undo.setdefault(point, (point.start_ns, point.last_ns, point.total))
            point.last_ns = time_ms * 1_000_000
            into.add(point, point.last_ns, (1.0,))


def _delta(point: Point, stream: Stream, one: Any, values: Sequence[float], into: Samples) -> None:
    """A delta waits until all of the request are known."""
    if not all(map(isfinite, values)):
        raise RefusedError("deltas are not finite")
    into.deltas.append((point, one.start_time_unix_nano, one.time_unix_nano, values, stream))


def _restart(point: Point, one: Any, count: int, into: Samples) -> None:
    """What is counted has another start than before."""
    into.undo.setdefault(point, (point.start_ns, point.last_ns, point.total))
    point.start_ns = one.start_time_unix_nano
    _start(point, point.start_ns, one.time_unix_nano, count, into)


def _start(point: Point, start_ns: int, time_ns: int, count: int, into: Samples) -> None:
    """A zero where the counting began anew, so that what was counted until the first point is an increase.

    Only where nothing of the series lies after it, and not long before the point: what runs for hours when LOMS first
    hears of it has no increase of hours at once.
    """
    if max(point.last_ns, time_ns - _FRESH_NS) < start_ns and start_ns // 1_000_000 < time_ns // 1_000_000:
        into.add(point, start_ns, [0.0] * count)


def _zero(number: Any) -> float:
    """The value of a point that is 0, or -0, or not there."""
    kind = number.WhichOneof("value")
    if kind is None:
        raise RefusedError("points have no value")
    return float(getattr(number, kind))


def _few(parts: Sized) -> None:
    if len(parts) > _MOST_PARTS:
        raise RefusedError(f"points have more than {_MOST_PARTS} buckets or quantiles")


def _finite(bounds: Iterable[float]) -> tuple[float, ...]:
    """Bounds without +Inf, for which there is a bucket anyway."""
    return tuple(bound for bound in bounds if bound != inf)


def _kind(what: str, data: Any) -> Kind:
    if what == "sum":
        return "counter" if data.is_monotonic else "updowncounter"
    return "gauge" if what == "gauge" else "summary" if what == "summary" else "histogram"


_Reader = Callable[[MetricTranslator, Stream, Any, Any, Limits, bool, Samples], None]
_READERS: dict[str, _Reader] = {
    "gauge": MetricTranslator._number,
    "sum": MetricTranslator._number,
    "histogram": MetricTranslator._histogram,
    "exponential_histogram": MetricTranslator._exponential,
    "summary": MetricTranslator._summary,
}
