"""Remote read: another Prometheus reads raw samples (its protocol's response type SAMPLES).

Source: prometheus.io/docs/prometheus/latest/querying/remote_read_api.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from numpy.typing import NDArray

from loms.core.errors import LomsError, PayloadError, QueryError
from loms.core.model import Floats, Ints, Labels
from loms.ingest.decompression import decompress
from loms.ingest.protobuf import BYTES, VARINT, fields, signed
from loms.promql.engine import Engine
from loms.promql.regexes import check
from loms.promql.source import Cancel
from loms.promql.syntax import Matcher, Matchers, MatchOp
from loms.server.prometheus.answer import Answering, read_body

MOST_REQUEST_BYTES = 2**20
MOST_SAMPLES = 5_000_000
"""Of one answer, which is put together in memory."""
_OPS: tuple[MatchOp, ...] = ("=", "!=", "=~", "!~")
_SAMPLES = 0
"""The response type; 1 is streamed chunks in Prometheus's own storage format."""
_SIX_BYTES_MS = (1 << 35, 1 << 42)
"""Times whose varint has six bytes: 1971 to 2109."""


@dataclass(frozen=True, slots=True)
class ReadQuery:
    start_ms: int
    end_ms: int
    matchers: Matchers


def router(engine: Engine, answering: Answering) -> APIRouter:
    """``/api/v1/read``."""
    api = APIRouter(prefix="/api/v1", tags=["prometheus"])

    @api.post("/read")
    async def read(request: Request) -> Response:
        """Raw samples of series, snappy-compressed protobuf both ways."""
        try:
            body = await read_body(request, MOST_REQUEST_BYTES)
            if body is None:
                return PlainTextResponse(f"the request is larger than {MOST_REQUEST_BYTES} bytes\n", 413)
            queries = decode(decompress(body, "snappy", MOST_REQUEST_BYTES))
        except (PayloadError, QueryError) as error:
            return PlainTextResponse(f"{error.message}\n", 400)

        def work(cancel: Cancel) -> Response:
            raw = encode(engine, queries, cancel)
            headers = {"Content-Encoding": "snappy"}
            compressed: bytes = pa.compress(raw, codec="snappy", asbytes=True)
            return Response(compressed, headers=headers, media_type="application/x-protobuf")

        try:
            return await answering.run(request, work)
        except LomsError as error:
            return PlainTextResponse(f"{error.message}\n", 400 if isinstance(error, QueryError) else 500)

    return api


def decode(data: bytes) -> list[ReadQuery]:
    """A ``ReadRequest``. Raises `PayloadError` for what is none, `QueryError` for a bad matcher or response type."""
    queries, accepted = [], []
    for number, kind, start, stop in fields(data, 0, len(data)):
        if (number, kind) == (1, BYTES):
            queries.append(_query(data, start, stop))
        elif (number, kind) == (2, VARINT):
            accepted.append(start)
        elif (number, kind) == (2, BYTES):
            accepted.extend(data[start:stop])  # packed, each of one byte
    if accepted and _SAMPLES not in accepted:
        raise QueryError(f"server does not support any of the requested response types: {accepted}; supported: [0]")
    return queries


def _query(data: bytes, start: int, stop: int) -> ReadQuery:
    times, matchers = {1: 0, 2: 0}, []
    for number, kind, low, high in fields(data, start, stop):
        if number in times and kind == VARINT:
            times[number] = signed(low)
        elif (number, kind) == (3, BYTES):
            matchers.append(_matcher(data, low, high))
    return ReadQuery(times[1], times[2], tuple(matchers))


def _matcher(data: bytes, start: int, stop: int) -> Matcher:
    kind_of, texts = 0, {2: "", 3: ""}
    for number, kind, low, high in fields(data, start, stop):
        if (number, kind) == (1, VARINT):
            kind_of = low
        elif number in texts and kind == BYTES:
            try:
                texts[number] = data[low:high].decode()
            except UnicodeDecodeError:
                raise QueryError("a matcher is not UTF-8") from None
    if kind_of >= len(_OPS):
        raise QueryError("invalid matcher type")
    if kind_of >= 2:
        check(texts[3])
    return Matcher(texts[2], _OPS[kind_of], texts[3])


def encode(
    engine: Engine, queries: list[ReadQuery], cancel: Cancel | None = None, most_samples: int = MOST_SAMPLES
) -> bytes:
    """A ``ReadResponse``: a result for each query, its series sorted by labels. Raises `QueryError` and its kinds."""
    out, left = [], most_samples
    for query in queries:
        found = engine.stored(query.matchers, query.start_ms, query.end_ms, cancel)
        left -= len(found.values)
        if left < 0:
            raise QueryError(f"exceeded sample limit ({most_samples})")
        some = np.flatnonzero(np.diff(found.offsets)).tolist()
        series = []
        for row in sorted(some, key=lambda row: found.labels[row]):
            own = slice(found.offsets[row], found.offsets[row + 1])
            series.append(_field(1, _labels(found.labels[row]) + _samples(found.times_ms[own], found.values[own])))
        out.append(_field(1, b"".join(series)))
    return b"".join(out)


def _labels(labels: Labels) -> bytes:
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)


def _samples(times_ms: Ints, values: Floats) -> bytes:
    """Repeated ``Sample``: all of one length for times of our days, so that they are written as one array."""
    low, high = _SIX_BYTES_MS
    if ((times_ms < low) | (times_ms >= high)).any():
        pairs = zip(times_ms.tolist(), values.tolist(), strict=True)
        return b"".join(
            _field(2, b"\x09" + np.float64(value).tobytes() + b"\x10" + _varint(time & (2**64 - 1)))
            for time, value in pairs
        )
    rows: NDArray[np.uint8] = np.empty((len(values), 18), np.uint8)
    rows[:, :3] = 0x12, 16, 0x09
    rows[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    rows[:, 11] = 0x10
    for place in range(6):
        rows[:, 12 + place] = (times_ms >> (7 * place)) & 0x7F | (0x80 if place < 5 else 0)
    return rows.tobytes()


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | BYTES,)) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
