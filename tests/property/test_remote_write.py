"""Remote write: what protobuf encodes is decoded, what is encoded here protobuf decodes, and no bytes do harm."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.remote_write_messages import ONE, TWO, Row, request, request_2, snappy, zstd

from loms.core.errors import PayloadError
from loms.core.model import Series, labels_of
from loms.forward.remote_write_encode import EARLIEST_MS, LATEST_MS, Wire, encode, encode_2
from loms.ingest.decompression import decompress
from loms.ingest.remote_write import Decoder, Received

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
bits = st.integers(0, 2**64 - 1)
usual = st.sampled_from([0.0, 1.0, 17.25, float("nan"), float("inf"), 1e308])
values = usual | bits.map(lambda one: struct.unpack("d", struct.pack("Q", one))[0])
times = st.integers(1_700_000_000_000, 1_800_000_000_000) | st.integers(-(2**63), 2**63 - 1)
label_sets = st.dictionaries(texts, texts, max_size=6).map(lambda some: some | {"__name__": "m"})
requests = st.lists(
    st.tuples(label_sets, st.lists(st.tuples(times, values), min_size=1, max_size=3)), min_size=1, max_size=6
)
Sample = tuple[tuple[tuple[str, str], ...], int, bytes]


def of_rows(rows: list[Row]) -> Counter[Sample]:
    return Counter((labels_of(labels), t, struct.pack("d", v)) for labels, samples in rows for t, v in samples)


def of_received(received: Received) -> Counter[Sample]:
    batch = received.batch
    labels = {one.id: labels_of((("__name__", one.name), *one.labels)) for one in batch.series}
    return Counter(
        (labels[i], t, batch.values[n : n + 1].tobytes())
        for n, (i, t) in enumerate(zip(batch.series_ids.tolist(), batch.timestamps_ms.tolist(), strict=True))
    )


@settings(deadline=None)
@given(st.lists(requests, min_size=1, max_size=3))
def test_what_protobuf_encodes_is_decoded_whatever_was_decoded_before(some: list[list[Row]]) -> None:
    decoder = Decoder()
    for rows in some + some:
        wanted = of_rows(rows)
        for received in (decoder.decode(request(*rows)), decoder.decode_2(request_2(*rows))):
            assert of_received(received) == wanted
            assert not received.refused


sent = st.lists(st.tuples(label_sets, st.integers(EARLIEST_MS, LATEST_MS), values), min_size=1, max_size=8)


@settings(deadline=None)
@given(sent)
def test_what_is_encoded_here_protobuf_decodes(rows: list[tuple[dict[str, str], int, float]]) -> None:
    series = [Series.of("m", labels_of({k: v for k, v in labels.items() if k != "__name__"})) for labels, _, _ in rows]
    wires = [Wire(one) for one in series]
    numbers, at = np.array([v for _, _, v in rows]), np.array([t for _, t, _ in rows], dtype=np.int64)
    wanted = [(sorted(labels.items()), t, struct.pack("d", v)) for labels, t, v in rows]
    message = ONE["WriteRequest"].FromString(encode(wires, numbers, at))
    assert [
        ([(one.name, one.value) for one in some.labels], some.samples[0].timestamp, _bits(some))
        for some in message.timeseries
    ] == wanted
    second = TWO["Request"].FromString(encode_2(wires, numbers, at))
    assert second.symbols[0] == ""
    assert len(set(second.symbols)) == len(second.symbols)
    texts_of = [[second.symbols[ref] for ref in some.labels_refs] for some in second.timeseries]
    assert [
        (list(zip(text[::2], text[1::2], strict=True)), some.samples[0].timestamp, _bits(some))
        for text, some in zip(texts_of, second.timeseries, strict=True)
    ] == wanted


def _bits(series: object) -> bytes:
    return struct.pack("d", series.samples[0].value)  # type: ignore[attr-defined]


T = TypeVar("T")


def attempt(call: Callable[[], T]) -> T | None:
    """What ``call`` gives, or None when it raises the one error, with a status that it may have."""
    status = 400
    try:
        return call()
    except PayloadError as error:
        status = error.status
    assert status in (400, 413)
    return None


def harmless(data: bytes, decoder: Decoder) -> None:
    """Decoding succeeds or raises the one error; what it gives is consistent."""
    for decode in (decoder.decode, decoder.decode_2):
        received = attempt(lambda decode=decode: decode(data))  # type: ignore[misc]
        if received is None:
            continue
        batch = received.batch
        assert len(batch.series_ids) == len(batch.timestamps_ms) == len(batch.values)
        assert {one.id for one in batch.series} == set(batch.series_ids.tolist())
        assert all(one.name and one == Series.of(one.name, one.labels) for one in batch.series)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_do_no_harm(data: bytes) -> None:
    harmless(data, Decoder())


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["snappy", "zstd", "gzip", "identity"]))
def test_random_bytes_are_no_compressed_body(data: bytes, encoding: str) -> None:
    assert len(attempt(lambda: decompress(data, encoding, 10_000)) or b"") <= 10_000


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_mutations_of_good_requests_do_no_harm(rng: random.Random) -> None:
    """Bits turned, parts cut out, doubled and put elsewhere; after each the decoder still decodes what is good."""
    decoder = Decoder()
    rows: list[Row] = [
        ({"__name__": "requests_total", "path": f"/{i}", "job": "j"}, [(1_764_456_000_000 + i, float(i))])
        for i in range(4)
    ]
    good = (request(*rows), request_2(*rows))
    for _ in range(30):
        for message in good:
            data = bytearray(message)
            for _ in range(rng.randint(1, 4)):
                at, length = rng.randrange(len(data) + 1), rng.randint(1, 20)
                kind = rng.randrange(4)
                if kind == 0 and at < len(data):
                    data[at] ^= 1 << rng.randrange(8)
                elif kind == 1:
                    del data[at : at + length]
                elif kind == 2:
                    data[at:at] = data[at : at + length]
                else:
                    data[at:at] = rng.randbytes(length)
            harmless(bytes(data), decoder)
        assert of_received(decoder.decode(good[0])) == of_received(decoder.decode_2(good[1])) == of_rows(rows)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_mutations_of_compressed_bodies_do_no_harm(rng: random.Random) -> None:
    message = request(({"__name__": "m", "a": "b" * 50}, [(1_764_456_000_000, 1.0)]))
    for encoding, packed in (("snappy", snappy(message)), ("zstd", zstd(message))):
        data = bytearray(packed)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        body = bytes(data[: rng.randint(1, len(data))])
        harmless(attempt(lambda body=body, encoding=encoding: decompress(body, encoding, 10_000)) or b"", Decoder())  # type: ignore[misc]
