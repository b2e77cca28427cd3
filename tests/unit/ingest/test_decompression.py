from __future__ import annotations

import gzip
import tracemalloc

import pyarrow as pa
import pytest

from loms.core.errors import PayloadError
from loms.ingest.decompression import decompress

TEXT = b"the same words, and the same words again " * 200


def packed(encoding: str, data: bytes) -> bytes:
    if encoding == "gzip":
        return gzip.compress(data)
    compressed: bytes = pa.compress(data, codec=encoding, asbytes=True)
    return compressed


@pytest.mark.parametrize("encoding", ["snappy", "gzip", "zstd"])
class TestEachEncoding:
    def test_is_decoded(self, encoding: str) -> None:
        assert decompress(packed(encoding, TEXT), encoding, len(TEXT)) == TEXT

    def test_of_nothing_is_nothing(self, encoding: str) -> None:
        assert decompress(packed(encoding, b""), encoding, 10) == b""

    def test_is_refused_beyond_the_limit(self, encoding: str) -> None:
        with pytest.raises(PayloadError) as refused:
            decompress(packed(encoding, TEXT), encoding, len(TEXT) - 1)
        assert refused.value.status == 413

    def test_a_bomb_takes_no_memory(self, encoding: str) -> None:
        bomb = packed(encoding, bytes(64 * 2**20))
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        with pytest.raises(PayloadError) as refused:
            decompress(bomb, encoding, 2**20)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert refused.value.status == 413
        assert peak < 8 * 2**20
        assert pa.total_allocated_bytes() - before < 8 * 2**20

    @pytest.mark.parametrize("cut", [1, 5, 20])
    def test_that_is_cut_off_is_refused(self, encoding: str, cut: int) -> None:
        with pytest.raises(PayloadError) as refused:
            decompress(packed(encoding, TEXT)[:-cut], encoding, 2**20)
        assert refused.value.status == 400

    def test_that_is_something_else_is_refused(self, encoding: str) -> None:
        with pytest.raises(PayloadError) as refused:
            decompress(b"\x7fELF\x02\x01\x01 is no compressed body", encoding, 2**20)
        assert refused.value.status == 400


def test_a_snappy_block_that_lies_about_its_length_is_refused() -> None:
    block = packed("snappy", TEXT)
    for length in (b"\x01", b"\xff\xff\x03"):
        with pytest.raises(PayloadError):
            decompress(length + block[2:], "snappy", 2**20)


def test_a_snappy_block_that_says_it_is_endless_is_refused_before_any_memory_is_taken() -> None:
    with pytest.raises(PayloadError) as refused:
        decompress(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x", "snappy", 2**20)
    assert refused.value.status == 413


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(PayloadError, match="'br'") as refused:
        decompress(b"", "br", 10)
    assert refused.value.status == 415


def test_what_is_not_compressed_is_bounded_too() -> None:
    assert decompress(b"abc", "", 3) == b"abc"
    with pytest.raises(PayloadError):
        decompress(b"abcd", "identity", 3)
