"""Holds the PromQL engine against a running Prometheus.

`copy_samples` reads what Prometheus has stored, bit for bit and staleness markers included, so that the two engines
can be compared on the same samples although two scrapers never see the same ones. Prometheus 2 includes the left
edge of a window, Prometheus 3 and LOMS do not: `free_millisecond` finds times on whose edges no sample lies.
"""

from __future__ import annotations

import json
import math
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from support.processes import free_port, status, wait_until

from loms.core.errors import QueryError
from loms.core.model import Labels, SampleBatch, Series, labels_of
from loms.promql.engine import Engine
from loms.promql.parse import parse_selector
from loms.promql.values import MatrixResult, ScalarResult, VectorResult

Answer = dict[Labels, dict[int, float]]
"""Labels → milliseconds → value. An error is the answer `REFUSED`."""
REFUSED: Answer = {(("refused", "yes"),): {}}
Query = Callable[[str, int, int, int | None], Answer]
"""expression, start, end, step in milliseconds → answer; without a step an instant query at the end."""


def http_query(url: str) -> Query:
    """Asks a Prometheus-compatible HTTP API at ``url``."""

    def query(expr: str, start_ms: int, end_ms: int, step_ms: int | None) -> Answer:
        if step_ms is None:
            path, asked = "query", {"query": expr, "time": f"{end_ms / 1000:.3f}"}
        else:
            times = {"start": start_ms, "end": end_ms, "step": step_ms}
            path, asked = "query_range", {"query": expr, **{k: f"{v / 1000:.3f}" for k, v in times.items()}}
        try:
            data = _get(f"{url}/api/v1/{path}?{urllib.parse.urlencode(asked)}")["data"]
        except urllib.error.HTTPError as error:
            if error.code not in (400, 422):
                raise
            return REFUSED
        if data["resultType"] == "scalar":
            return {(): {_ms(data["result"][0]): float(data["result"][1])}}
        return {
            labels_of(one["metric"]): {_ms(t): float(v) for t, v in one.get("values") or [one["value"]]}
            for one in data["result"]
        }

    return query


def engine_query(engine: Engine) -> Query:
    """Asks an engine of this process."""

    def query(expr: str, start_ms: int, end_ms: int, step_ms: int | None) -> Answer:
        try:
            if step_ms is None:
                result = engine.query(expr, end_ms)
            else:
                result = engine.query_range(expr, start_ms, end_ms, step_ms)
        except QueryError:
            return REFUSED
        if isinstance(result, ScalarResult):
            return {(): {end_ms: result.value}}
        if isinstance(result, VectorResult):
            return {labels: {end_ms: float(v)} for labels, v in zip(result.labels, result.values, strict=True)}
        assert isinstance(result, MatrixResult)
        series = zip(result.labels, result.times_ms, result.values, strict=True)
        return {labels: dict(zip(t.tolist(), v.tolist(), strict=True)) for labels, t, v in series}

    return query


@dataclass
class Comparison:
    """How many points were compared, which expressions gave none, and what differs."""

    points: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    worst: float = 0.0
    """Greatest relative difference."""

    @property
    def empty(self) -> list[str]:
        return [expr for expr, points in self.points.items() if not points]


def compare(
    prometheus_url: str,
    loms_query: Query,
    expressions: Sequence[str],
    start_ms: int,
    end_ms: int,
    step_ms: int,
    tolerance: float = 1e-9,
) -> Comparison:
    """Asks both for every expression as a range, and as instants at the start, in the middle and at the end."""
    found, prometheus = Comparison(), http_query(prometheus_url)
    middle_ms = start_ms + (end_ms - start_ms) // step_ms // 2 * step_ms
    for expr in expressions:
        times = [(start_ms, end_ms, step_ms), *((at, at, None) for at in (start_ms, middle_ms, end_ms))]
        compare_one(found, prometheus, loms_query, expr, times, tolerance)
    return found


def compare_one(
    found: Comparison,
    theirs: Query,
    ours: Query,
    expr: str,
    times: Sequence[tuple[int, int, int | None]],
    tolerance: float = 1e-9,
) -> None:
    """Asks both for an expression at each of ``times`` (start, end, step) and notes what differs."""
    found.points[expr] = 0
    for asked in times:
        want, got = theirs(expr, *asked), ours(expr, *asked)
        found.points[expr] += sum(map(len, want.values())) + (want == REFUSED)
        _note(found, f"{expr} ~ {'range' if asked[2] else f'at {asked[1]}'}", want, got, tolerance)


def _note(found: Comparison, what: str, want: Answer, got: Answer, tolerance: float) -> None:
    for labels in want.keys() ^ got.keys():
        found.differences.append(f"{what}: only {'Prometheus' if labels in want else 'LOMS'} has {dict(labels)}")
    for labels in want.keys() & got.keys():
        if times := want[labels].keys() ^ got[labels].keys():
            found.differences.append(f"{what}: {dict(labels)} has points in one only, at {sorted(times)[:5]}")
        for at in want[labels].keys() & got[labels].keys():
            a, b = want[labels][at], got[labels][at]
            if a == b or (math.isnan(a) and math.isnan(b)):
                continue
            relative = abs(a - b) / max(abs(a), abs(b), 1e-3)
            found.worst = max(found.worst, relative)
            if not relative <= tolerance:
                found.differences.append(f"{what}: {dict(labels)} at {at}: Prometheus {a!r}, LOMS {b!r}")


def expressions_of(path: Path) -> list[str]:
    """The lines of an expression file, without comments."""
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def free_millisecond(batches: Sequence[SampleBatch]) -> int:
    """A millisecond within the second in which no sample lies, far from those in which one does.

    Ranges that start there, with steps and windows of whole seconds, have no sample on a window's edge. Whole seconds
    count as taken: the samples of subqueries lie there.
    """
    taken = np.unique(np.concatenate([[0], *(batch.timestamps_ms % 1000 for batch in batches)]))
    gaps = np.diff(np.append(taken, taken[0] + 1000))
    assert gaps.max() > 1, "samples lie in every millisecond"
    widest = int(gaps.argmax())
    return int(taken[widest] + gaps[widest] // 2) % 1000


def copy_samples(prometheus_url: str, selectors: Sequence[str], start_ms: int, end_ms: int) -> list[SampleBatch]:
    """Everything Prometheus stored for the selectors, by its remote-read API; one batch a selector.

    Raw as stored: staleness markers keep their bits, which the query API leaves out.
    """
    return [_remote_read(prometheus_url, selector, start_ms, end_ms) for selector in selectors]


def _remote_read(url: str, selector: str, start_ms: int, end_ms: int) -> SampleBatch:
    kinds = {"=": 0, "!=": 1, "=~": 2, "!~": 3}
    matchers = b"".join(
        _field(3, _number(1, kinds[one.op]) + _field(2, one.name.encode()) + _field(3, one.value.encode()))
        for one in parse_selector(selector)
    )
    body = _field(1, _number(1, start_ms) + _number(2, end_ms) + matchers)
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(f"{url}/api/v1/read", pa.compress(body, "snappy", asbytes=True), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        packed = response.read()
    size, _ = _varint(packed, 0)  # snappy's block format begins with the size
    answer = memoryview(pa.decompress(packed, size, "snappy", asbytes=True)) if size else memoryview(b"")
    series: list[Series] = []
    counts: list[int] = []
    times: list[int] = []
    bits: list[int] = []
    for _, result in _fields(answer):
        for _, one in _fields(result):
            labels, samples = {}, []
            for number, content in _fields(one):
                parts = dict(_fields(content))
                if number == 1:
                    labels[bytes(parts[1]).decode()] = bytes(parts.get(2, b"")).decode()
                else:
                    samples.append((parts.get(2, 0), parts.get(1, 0)))
            name = labels.pop("__name__", "")
            series.append(Series.of(name, labels_of(labels)))
            counts.append(len(samples))
            times += [time for time, _ in samples]
            bits += [value for _, value in samples]
    ids = np.repeat(np.array([one.id for one in series], np.uint64), counts)
    return SampleBatch(ids, np.array(times, np.int64), np.array(bits, np.uint64).view(np.float64), tuple(series))


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers as they are, 64-bit values as their bits, the rest as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 1:
            yield key >> 3, int.from_bytes(data[at : at + 8], "little")
            at += 8
        else:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size


def _number(field_number: int, value: int) -> bytes:
    out = bytearray([field_number << 3])
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(field_number: int, content: bytes) -> bytes:
    length = _number(field_number, len(content))[1:]
    return bytes([field_number << 3 | 2]) + length + content


@contextmanager
def prometheus(directory: Path, config: str) -> Iterator[str]:
    """Debian's Prometheus over ``directory``/data with a configuration; yields its URL when it is ready."""
    address = f"127.0.0.1:{free_port()}"
    (directory / "prometheus.yml").write_text(config)
    arguments = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--storage.tsdb.retention.time=1y",
        f"--web.listen-address={address}",
    ]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        wait_until(
            lambda: status(f"http://{address}/-/ready") == 200, 60, f"Prometheus's start ({directory}/prometheus.log)"
        )
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def _get(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as response:
        answer: Mapping[str, Any] = json.load(response)
        return answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
