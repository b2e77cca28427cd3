"""Remote write 2.0: series refer to a table of symbols, another one in each request.

The references of all series are decoded at once, and the texts they stand for lead to the `Series` object, which is the
same from request to request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loms.core.errors import PayloadError
from loms.core.model import Series
from loms.ingest.protobuf import BYTES, VARINT, fields, varint
from loms.ingest.remote_write_request import MOST_FIELDS, SAMPLE, ZERO, Request, tails, too_many
from loms.ingest.remote_write_series import Lately, Policy, Refusal, Texts, series_of

_MOST_REFERENCES = 4_000_000
"""Of one request: each takes some ten times its byte in memory while it is read."""
Symbols = Sequence[str | None]
_Names = tuple[str | None, ...]


class SymbolDecoder:
    """Reads ``io.prometheus.write.v2.Request``. Not for several threads at once."""

    def __init__(self, policy: Policy, texts: Texts) -> None:
        self._policy = policy
        self._texts = texts
        self._known: Lately[_Names] = Lately()

    def decode(self, request: Request, data: bytes) -> None:
        """Raises `PayloadError` when ``data`` is no such message."""
        symbols: list[str | None] = []
        spans: list[tuple[int, int]] = []
        for number, kind, start, stop in fields(data, 0, len(data)):
            if number == 5 and kind == BYTES:
                spans.append((start, stop))
            elif number == 4 and kind == BYTES:
                symbols.append(self._texts.get(data[start:stop]))
            elif number < 4:  # kept free in version 2.0, so that the two can be told apart
                raise PayloadError("the message is of remote write 1.0; its content type says 2.0")
            request.count(1)
        request.most_text = self._policy.expanded
        odd = self._take_plain(request, data, spans, symbols)
        for start, stop in odd:
            self._read_series(request, data, start, stop, symbols)

    def _take_plain(
        self, request: Request, data: bytes, spans: Sequence[tuple[int, int]], symbols: Symbols
    ) -> list[tuple[int, int]]:
        """Take the series that have one sample and at most metadata behind it; the others are given back."""
        plain: list[tuple[int, int, int]] = []
        odd: list[tuple[int, int]] = []
        for start, stop in spans:
            if (
                stop - start > ZERO + 2
                and data[start] == 0x0A
                and data[start + 1] <= min(0x7F, stop - start - ZERO - 2)
            ):
                plain.append((start, start + 2 + data[start + 1], stop))
            else:
                odd.append((start, stop))
        if not plain:
            return odd
        names = _texts_of([data[start + 2 : at] for start, at, _ in plain], symbols, request)
        series: dict[int, list[Series]] = {SAMPLE: [], ZERO: []}
        places: dict[int, list[tuple[int, int, int]]] = {SAMPLE: [], ZERO: []}
        for texts, (start, at, stop) in zip(names, plain, strict=True):
            size = data[at + 1] + 2
            end = at + size
            more = stop - end
            if data[at] != 0x12 or size not in places or more < 0:
                odd.append((start, stop))
                continue
            found = self._known.young.get(texts) or self._series(texts)
            described = more > 2 and data[end] == 0x2A and data[end + 1] == more - 2
            if isinstance(found, Refusal) or (more and not described):
                odd.append((start, stop))
                continue
            series[size].append(found)
            places[size].append((at, start, stop))
            if described:
                request.note_2(found.name, data[end + 2 : stop], symbols)
        for size, some in places.items():
            if some:
                right, values, times = tails(data, [at for at, _, _ in some], size)
                request.take_all(
                    [one for one, fits in zip(series[size], right, strict=True) if fits], values[right], times[right]
                )
                odd += [some[i][1:] for i in np.flatnonzero(~right).tolist()]
        return odd

    def _read_series(self, request: Request, data: bytes, start: int, stop: int, symbols: Symbols) -> None:
        """One ``io.prometheus.write.v2.TimeSeries``."""
        refs: list[int] = []
        parts: dict[int, list[tuple[int, int]]] = {2: [], 3: [], 4: [], 5: []}
        """Places of samples, native histograms, exemplars and metadata."""
        count = 0
        for number, kind, begin, end in fields(data, start, stop):
            count += 1
            if number == 1:
                refs += _numbers(data, begin, end) if kind == BYTES else [begin] if kind == VARINT else []
            elif kind == BYTES and number in parts:
                parts[number].append((begin, end))
            if count > MOST_FIELDS:
                raise too_many()
        request.count(count + len(refs))
        request.exemplars += len(parts[4])
        try:
            names = tuple([symbols[ref] for ref in refs])
        except IndexError:
            raise PayloadError(f"a label refers to a symbol beyond the {len(symbols)} that there are") from None
        request.expand(sum(len(text or "") for text in names))
        found: Series | Refusal | None = self._known.young.get(names)
        if found is None:
            found = self._series(names)
        request.take(found, data, parts[2], len(parts[3]))
        if parts[5] and isinstance(found, Series):
            begin, end = parts[5][-1]
            request.note_2(found.name, data[begin:end], symbols)

    def _series(self, names: _Names) -> Series | Refusal:
        if len(names) % 2:
            return Refusal("invalid_labels", f"a series refers to {len(names)} symbols, an odd number")
        size = sum(len(text or "") for text in names)
        if (known := self._known.get(names, size)) is not None:
            return known
        found = series_of(list(zip(names[::2], names[1::2], strict=True)), self._policy)
        if isinstance(found, Series):
            self._known.put(names, found, size)
        return found


def _texts_of(packed: Sequence[bytes], symbols: Symbols, request: Request) -> list[_Names]:
    """The texts that each of these packed lists of references stands for."""
    if sum(map(len, packed)) > _MOST_REFERENCES:
        raise too_many()
    cells = np.frombuffer(b"".join(packed), dtype=np.uint8)
    last = cells < 0x80
    bounds = np.cumsum([len(one) for one in packed])
    if len(cells) and not last[bounds[bounds > 0] - 1].all():
        raise PayloadError("a list of references in the protobuf body is cut off")
    ends = np.flatnonzero(last)
    starts = np.r_[0, ends[:-1] + 1] if len(ends) else ends
    refs = cells[starts].astype(np.int64) & 0x7F
    widths = ends - starts
    if len(widths) and int(widths.max()) > 4:
        raise PayloadError(f"a label refers to a symbol beyond the {len(symbols)} that there are")
    for k in range(1, int(widths.max(initial=0)) + 1):
        wide = widths >= k
        refs[wide] |= (cells[starts[wide] + k].astype(np.int64) & 0x7F) << (7 * k)
    if len(refs) and int(refs.max()) >= len(symbols):
        raise PayloadError(f"a label refers to a symbol beyond the {len(symbols)} that there are")
    lengths = np.array([*(len(text or "") for text in symbols), 0], dtype=np.int64)
    request.expand(int(lengths[refs].sum()))
    table: Any = np.array([*symbols, None], dtype=object)
    texts = table[refs].tolist()
    places = np.searchsorted(ends, bounds - 1, side="right").tolist()
    return [tuple(texts[start:stop]) for start, stop in zip([0, *places[:-1]], places, strict=True)]


def _numbers(data: bytes, at: int, end: int) -> list[int]:
    """Packed varints."""
    packed = data[at:end]
    if packed.isascii():
        return list(packed)
    found = []
    while at < end:
        number, at = varint(data, at, end)
        found.append(number)
    return found
