"""The wire reader against messages that protobuf itself wrote, and against what it must refuse."""

from __future__ import annotations

import pytest
from google.protobuf import wrappers_pb2

from loms.core.errors import PayloadError
from loms.ingest.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, signed, varint


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63 - 1, 2**64 - 1])
def test_a_number_is_read_as_protobuf_wrote_it(number: int) -> None:
    raw = wrappers_pb2.UInt64Value(value=number).SerializeToString()
    assert [value for _, _, value, _ in fields(raw, 0, len(raw))] == ([number] if number else [])


@pytest.mark.parametrize("number", [-1, -(2**63), 5])
def test_a_negative_number_takes_ten_bytes(number: int) -> None:
    raw = wrappers_pb2.Int64Value(value=number).SerializeToString()
    assert [signed(value) for _, _, value, _ in fields(raw, 0, len(raw))] == [number]


def test_every_wire_type_is_passed_by() -> None:
    raw = b"\x08\x96\x01\x11" + bytes(8) + b"\x1a\x03abc\x25" + bytes(4) + b"\x2a\x00"
    found = list(fields(raw, 0, len(raw)))
    assert [(number, kind) for number, kind, _, _ in found] == [
        (1, VARINT),
        (2, FIXED64),
        (3, BYTES),
        (4, FIXED32),
        (5, BYTES),
    ]
    assert found[0][2] == 150
    assert raw[found[2][2] : found[2][3]] == b"abc"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"\x08", "cut off"),
        (b"\x08\x80", "cut off"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "does not end"),
        (b"\x0a\x05abc", "cut off"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "cut off"),
        (b"\x09\x00", "cut off"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x00\x00", "field number 0"),
    ],
)
def test_what_is_no_protobuf_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(PayloadError, match=says) as refused:
        list(fields(raw, 0, len(raw)))
    assert refused.value.status == 400


def test_a_part_is_not_read_beyond_its_end() -> None:
    with pytest.raises(PayloadError, match="cut off"):
        varint(b"\x80\x01", 0, 1)
