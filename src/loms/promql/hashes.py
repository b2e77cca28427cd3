"""The hash that Prometheus gives a label set, so that ``limit_ratio`` takes the series that it would take."""

from __future__ import annotations

from loms.core.model import Labels

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK = (1 << 64) - 1


def labels_hash(labels: Labels) -> int:
    """xxHash of names and values, each after its length in one byte, or in three after a byte 255."""
    return xxhash64(b"".join(_sized(text.encode(errors="surrogateescape")) for pair in labels for text in pair))


def _sized(text: bytes) -> bytes:
    size = len(text)
    return (bytes([size]) if size < 255 else b"\xff" + size.to_bytes(3, "little")) + text


def xxhash64(data: bytes) -> int:
    """XXH64 with seed 0 (Y. Collet, https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at + 32 <= size:
            lanes = [_round(lane, _word(data, at + 8 * i)) for i, lane in enumerate(lanes)]
            at += 32
        mixed = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            mixed = ((mixed ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        mixed = _P5
    mixed = (mixed + size) & _MASK
    while at + 8 <= size:
        mixed = (_rotated(mixed ^ _round(0, _word(data, at)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        mixed = (_rotated(mixed ^ int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        mixed = _rotated(mixed ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    mixed = (mixed ^ mixed >> 33) * _P2 & _MASK
    mixed = (mixed ^ mixed >> 29) * _P3 & _MASK
    return mixed ^ mixed >> 32


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK
