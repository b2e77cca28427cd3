"""Prometheus remote write, versions 1.0 and 2.0: a protobuf message → samples, metadata, and what cannot be taken.

A request names the same few thousand series as the one before it, so the work is done once per series: the bytes of
its labels (1.0), or the tuple of its symbols (2.0), lead to the `Series` object. In 1.0 what follows the labels is
nearly always one sample of 18 bytes, or of 9 where the value is 0; these are recognised by position, decoded for all
series at once, and whatever looks different is read field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from loms.core.errors import PayloadError
from loms.core.model import Series
from loms.ingest.protobuf import BYTES, VARINT, fields, varint
from loms.ingest.remote_write_request import MOST_FIELDS, SAMPLE, ZERO, Received, Request, tails, too_many
from loms.ingest.remote_write_series import Lately, Policy, Refusal, Texts, series_of
from loms.ingest.remote_write_symbols import SymbolDecoder


class Decoder:
    """Reads requests, and remembers the series of earlier ones. Not for several threads at once."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._texts = Texts()
        self._by_labels: Lately[bytes] = Lately()
        self._symbols = SymbolDecoder(self._policy, self._texts)

    def decode(self, data: bytes) -> Received:
        """A ``prometheus.WriteRequest``. Raises `PayloadError` when it is none, or has too many parts (413)."""
        request = Request()
        series: list[Series] = []
        places: list[tuple[int, int]] = []
        zeros: list[Series] = []
        zero_places: list[tuple[int, int]] = []
        at, end = 0, len(data)
        known = self._by_labels.young.get
        for _ in repeat(None, MOST_FIELDS):
            if at >= end:
                break
            if data[at] != 0x0A:
                at = self._other_field(request, data, at)
                continue
            length, start = varint(data, at + 1, end)
            at = start + length
            if at > end:
                raise PayloadError("the protobuf body is cut off")
            if length > SAMPLE:
                if (found := known(data[start : at - SAMPLE])) is not None:
                    series.append(found)
                    places.append((start, at))
                    continue
                if (found := known(data[start : at - ZERO])) is not None:
                    zeros.append(found)
                    zero_places.append((start, at))
                    continue
            self._read_series(request, data, start, at)
        else:
            raise too_many()
        for found_series, found_places, size in ((series, places, SAMPLE), (zeros, zero_places, ZERO)):
            if found_series:
                self._take_known(request, data, found_series, found_places, size)
        return request.received()

    def decode_2(self, data: bytes) -> Received:
        """An ``io.prometheus.write.v2.Request``. Raises `PayloadError` like `decode`."""
        request = Request()
        self._symbols.decode(request, data)
        return request.received()

    def _take_known(
        self,
        request: Request,
        data: bytes,
        series: Sequence[Series],
        places: Sequence[tuple[int, int]],
        size: int,
    ) -> None:
        """What stands behind known labels, if it is one sample of this size; else the series is read as any other."""
        right, values, times = tails(data, [stop - size for _, stop in places], size)
        if right.all():
            request.take_all(series, values, times)
            return
        request.take_all([one for one, fits in zip(series, right, strict=True) if fits], values[right], times[right])
        for i in np.flatnonzero(~right).tolist():
            self._read_series(request, data, *places[i])

    def _read_series(self, request: Request, data: bytes, start: int, stop: int) -> None:
        """One ``prometheus.TimeSeries``, field by field."""
        spans: list[tuple[int, int]] = []
        samples: list[tuple[int, int]] = []
        histograms = count = 0
        before = start
        for number, kind, begin, end in fields(data, start, stop):
            count += 1
            if kind == BYTES:
                if number == 1:
                    spans.append((before, end))
                elif number == 2:
                    samples.append((begin, end))
                elif number == 3:
                    request.exemplars += 1
                elif number == 4:
                    histograms += 1
            before = end
            if count > MOST_FIELDS:
                raise too_many()
        request.count(count)
        if not samples and not histograms:
            return
        key = b"".join([data[begin:end] for begin, end in spans])
        found: Series | Refusal | None = self._by_labels.get(key, len(key))
        if found is None:
            found = self._label_set(key, len(spans))
            if isinstance(found, Series):
                self._by_labels.put(key, found, len(key))
        request.take(found, data, samples, histograms)

    def _label_set(self, key: bytes, count: int) -> Series | Refusal:
        if count > self._policy.labels + 1:
            return series_of([("", "")] * count, self._policy)
        pairs: list[tuple[str | None, str | None]] = []
        for _, _, start, stop in fields(key, 0, len(key)):
            name, value = b"", b""
            for number, kind, begin, end in fields(key, start, stop):
                if kind == BYTES and number == 1:
                    name = key[begin:end]
                elif kind == BYTES and number == 2:
                    value = key[begin:end]
            pairs.append((self._texts.get(name), self._texts.get(value)))
        return series_of(pairs, self._policy)

    def _other_field(self, request: Request, data: bytes, at: int) -> int:
        """A field that is no series: metadata, or something unknown. Returns where it ends."""
        number, kind, start, stop = next(fields(data, at, len(data)))
        if number == 3 and kind == BYTES:
            texts = {2: "", 4: "", 5: ""}
            form = 0
            for part, of, begin, end in fields(data, start, stop):
                if part == 1 and of == VARINT:
                    form = begin
                elif part in texts and of == BYTES:
                    texts[part] = data[begin:end].decode("utf-8", "replace")
            if texts[2]:
                request.note(texts[2], form, texts[4], texts[5])
        elif number in (4, 5):  # what version 2.0 has
            raise PayloadError("the message is of remote write 2.0; its content type says 1.0")
        request.count(1)
        return stop
