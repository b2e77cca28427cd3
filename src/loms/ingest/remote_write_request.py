"""What a remote-write request holds, as it is read; and the quick way to read many samples at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loms.core.errors import PayloadError
from loms.core.families import owners
from loms.core.model import Bools, Floats, Ints, Metadata, SampleBatch, Series
from loms.ingest.protobuf import FIXED64, VARINT, fields, signed
from loms.ingest.remote_write_series import Refusal

MOST_FIELDS = 2_000_000
"""Of one request: what takes longest to read is many tiny fields."""
SAMPLE, ZERO = 18, 9
"""Bytes of a sample's field with a time between 1971 and 2109: with a value, and without one, which is then 0."""
Bytes = np.typing.NDArray[np.uint8]
_TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")


@dataclass(frozen=True, slots=True)
class Received:
    """What one request holds. ``batch.series`` are the series of its samples, each once."""

    batch: SampleBatch
    metadata: tuple[Metadata, ...]
    refused: Mapping[str, int]
    """Reason → samples that cannot ever be taken; native histograms are among them."""
    remark: str
    """The first refusal in words; empty when there is none."""
    exemplars: int
    """Exemplars, which are passed over."""


class Request:
    """What has been read of one request."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._bits: list[int] = []
        self._times: list[int] = []
        self._many: list[tuple[Sequence[Series], Floats, Ints]] = []
        self._metadata: dict[tuple[str, bytes], Metadata] = {}
        self._refused: Counter[str] = Counter()
        self._remark = ""
        self._fields = 0
        self._text = 0
        self.most_text = 128 * 2**20
        """Characters of labels that references may stand for."""
        self.exemplars = 0

    def count(self, fields_read: int) -> None:
        self._fields += fields_read
        if self._fields > MOST_FIELDS:
            raise too_many()

    def expand(self, characters: int) -> None:
        """References stand for so much more text."""
        self._text += characters
        if self._text > self.most_text:
            raise PayloadError(
                f"the labels of the request have more than {self.most_text} bytes once they are written out"
                " (receive.decompressed)",
                status=413,
                hint="send fewer samples at once",
            )

    def take(self, found: Series | Refusal, data: bytes, samples: Sequence[tuple[int, int]], histograms: int) -> None:
        """Samples at these places of a series, and how many native histograms there were."""
        if histograms:
            self._refuse(Refusal("native_histogram", "native histograms are not supported"), histograms)
        if isinstance(found, Refusal):
            self._refuse(found, len(samples))
            return
        for start, stop in samples:
            bits = time = 0
            for number, kind, begin, end in fields(data, start, stop):
                if number == 1 and kind == FIXED64:
                    bits = int.from_bytes(data[begin:end], "little")
                elif number == 2 and kind == VARINT:
                    time = signed(begin)
            self._series.append(found)
            self._bits.append(bits)
            self._times.append(time)

    def take_all(self, series: Sequence[Series], values: Floats, times: Ints) -> None:
        self._many.append((series, values, times))

    def note(self, family: str, form: int, text: str, unit: str) -> None:
        self._metadata[family, b""] = Metadata(family, _TYPES[form] if form < len(_TYPES) else "unknown", text, unit)

    def note_2(self, name: str, raw: bytes, symbols: Sequence[str | None]) -> None:
        """Version 2 says it with each series, under the series' own name."""
        if (name, raw) in self._metadata:
            return
        form = text = unit = 0
        for number, kind, value, _ in fields(raw, 0, len(raw)):
            if kind == VARINT:
                form, text, unit = (
                    value if number == 1 else form,
                    value if number == 3 else text,
                    value if number == 4 else unit,
                )
        if max(text, unit) >= len(symbols):
            raise PayloadError(f"metadata refers to a symbol beyond the {len(symbols)} that there are")
        kind_of = _TYPES[form] if form < len(_TYPES) else "unknown"
        family = next((family for family, _, kinds in owners(name) if kind_of in kinds), name)
        if form or text or unit:
            self._metadata[name, raw] = Metadata(family, kind_of, symbols[text] or "", symbols[unit] or "")

    def received(self) -> Received:
        parts = [*self._many]
        if self._series:
            bits = np.array(self._bits, dtype=np.uint64)
            parts.append((self._series, bits.view(np.float64), np.array(self._times, dtype=np.int64)))
        series = [one for some, _, _ in parts for one in some]
        batch = SampleBatch(
            np.array([one.id for one in series], dtype=np.uint64),
            np.concatenate([times for _, _, times in parts]) if parts else np.empty(0, dtype=np.int64),
            np.concatenate([values for _, values, _ in parts]) if parts else np.empty(0),
            tuple({one.id: one for one in series}.values()),
        )
        metadata = tuple({one.family: one for one in self._metadata.values()}.values())
        return Received(batch, metadata, self._refused, self._remark, self.exemplars)

    def _refuse(self, refusal: Refusal, samples: int) -> None:
        self._refused[refusal.reason] += samples
        self._remark = self._remark or refusal.text


def tails(data: bytes, starts: Sequence[int], size: int) -> tuple[Bools, Floats, Ints]:
    """What stands in ``size`` (18 or 9) bytes from each of these places: whether it is a sample's field; then its value
    and time.
    """
    cells: Bytes = np.frombuffer(data, dtype=np.uint8)[np.array(starts)[:, None] + np.arange(size)]
    right: Bools = (cells[:, 0] == 0x12) & (cells[:, 1] == size - 2) & (cells[:, -7] == 0x10)
    right &= (cells[:, -6:-1] >= 0x80).all(axis=1) & (cells[:, -1] < 0x80)
    values = np.zeros(len(starts))
    if size == SAMPLE:
        right &= cells[:, 2] == 0x09
        values = np.ascontiguousarray(cells[:, 3:11]).view("<f8")[:, 0].astype(np.float64, copy=False)
    times: Ints = ((cells[:, -6:] & 0x7F).astype(np.int64) << np.arange(0, 42, 7)).sum(axis=1)
    return right, values, times


def too_many() -> PayloadError:
    """The error for a request with too many fields."""
    return PayloadError(
        f"the request has more than {MOST_FIELDS} fields", status=413, hint="send fewer samples at once"
    )
