"""Protobuf's wire format (protobuf.dev/programming-guides/encoding), read field by field without a schema.

Every violation is a `loms.core.errors.PayloadError`, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Iterator

from loms.core.errors import PayloadError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The wire types; 3 and 4 are the groups of old, which nobody sends."""
_WIDTH = {FIXED64: 8, FIXED32: 4}


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The unsigned number at ``at`` and where it ends; at most ten bytes, of which 64 bits count."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise PayloadError("the protobuf body is cut off" if at >= end else "a number in the protobuf body does not end")


def signed(value: int) -> int:
    """An int64 from its 64 bits.

    >>> signed(2**64 - 1), signed(7)
    (-1, 7)
    """
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and the place of each field between ``at`` and ``end``.

    The place is ``(start, stop)`` in ``data``; of a varint it is ``(value, stop)``.
    """
    while at < end:
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise PayloadError(f"the protobuf body has a field number {number}")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield number, kind, value, at
            continue
        if kind == BYTES:
            length, start = varint(data, at, end)
        elif kind in _WIDTH:
            length, start = _WIDTH[kind], at
        else:
            raise PayloadError(f"the protobuf body has a field of wire type {kind}")
        at = start + length
        if at > end:
            raise PayloadError("the protobuf body is cut off")
        yield number, kind, start, at
