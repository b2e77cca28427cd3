"""Samples → remote-write messages, versions 1.0 and 2.0.

Each sample becomes a ``TimeSeries`` of its own, as Prometheus sends them. All but the value and the time of it is the
same from message to message, so of a series the bytes before them are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loms.core.model import Floats, Ints, Series

EARLIEST_MS, LATEST_MS = 1 << 35, (1 << 42) - 1
"""Times whose number takes six bytes: 1971 to 2109."""
_TAIL = 15
"""Bytes of a sample from its value on: eight, the tag of the time, six."""


class Wire:
    """A series as it is written: the 1.0 bytes up to the value, and the texts of its labels."""

    __slots__ = ("head", "texts")

    def __init__(self, series: Series) -> None:
        labels = sorted((("__name__", series.name), *series.labels))
        pairs = b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in labels)
        self.head = _prefix(1, len(pairs) + 18) + pairs + b"\x12\x10\x09"
        self.texts = tuple(text.encode() for label in labels for text in label)


def encode(wires: Sequence[Wire], values: Floats, times_ms: Ints) -> bytes:
    """A ``prometheus.WriteRequest``; all three of one length, times within `EARLIEST_MS` and `LATEST_MS`."""
    tails = _tails(values, times_ms)
    parts = []
    for i, wire in enumerate(wires):
        parts.append(wire.head)
        parts.append(tails[_TAIL * i : _TAIL * i + _TAIL])
    return b"".join(parts)


def encode_2(wires: Sequence[Wire], values: Floats, times_ms: Ints) -> bytes:
    """An ``io.prometheus.write.v2.Request``: each text stands once in the table of symbols, the first is empty."""
    symbols: dict[bytes, int] = {b"": 0}
    tails = _tails(values, times_ms)
    parts = []
    for i, wire in enumerate(wires):
        refs = b"".join([_number(symbols.setdefault(text, len(symbols))) for text in wire.texts])
        head = _field(1, refs) + b"\x12\x10\x09"
        parts.append(_prefix(5, len(head) + _TAIL) + head + tails[_TAIL * i : _TAIL * i + _TAIL])
    return b"".join([*(_field(4, symbol) for symbol in symbols), *parts])


def _tails(values: Floats, times_ms: Ints) -> bytes:
    tails = np.empty((len(values), _TAIL), dtype=np.uint8)
    tails[:, :8] = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(-1, 8)
    tails[:, 8] = 0x10
    sevens = (times_ms[:, None] >> np.arange(0, 42, 7)) & 0x7F
    sevens[:, :5] |= 0x80
    tails[:, 9:] = sevens
    return tails.tobytes()


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _prefix(number: int, length: int) -> bytes:
    return _number(number << 3 | 2) + _number(length)


def _field(number: int, data: bytes) -> bytes:
    return _prefix(number, len(data)) + data
