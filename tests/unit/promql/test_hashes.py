"""Known answers: xxHash's published test vectors, and the order in which Prometheus samples label sets."""

from __future__ import annotations

import pytest

from loms.promql.hashes import labels_hash, xxhash64


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_vectors(data: bytes, known: int) -> None:
    assert xxhash64(data) == known


def test_labels_are_hashed_with_their_lengths() -> None:
    assert labels_hash((("a", "bc"),)) == xxhash64(b"\x01a\x02bc")
    assert labels_hash((("a", "x" * 300),)) == xxhash64(b"\x01a\xff\x2c\x01\x00" + b"x" * 300)
    assert labels_hash((("a", "b"), ("c", "d"))) != labels_hash((("a", "bc"), ("c", "d")))
