"""What targets and the catalogue say of metric families, told once to whoever keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loms.collect.protocols import Reader
from loms.core.metadata import CANONICAL, metadata_of
from loms.core.model import Exposition, Metadata, SampleBatch, Shape, Sink

Note = Callable[[Iterable[Metadata]], None]


class DescribedReader:
    """Satisfies `loms.collect.protocols.Reader`: tells what each new shape says of its families. One per target."""

    def __init__(self, reader: Reader, note: Note) -> None:
        self._reader = reader
        self._note = note
        self._told: Shape | None = None

    def read(self, body: bytes, content_type: str, /) -> Exposition:
        exposition = self._reader.read(body, content_type)
        if exposition.shape is not self._told:
            self._told = exposition.shape
            self._note(metadata_of(exposition.shape))
        return exposition


class DescribedSink:
    """A `loms.core.model.Sink` that tells of canonical families when their first series come by."""

    def __init__(self, sink: Sink, note: Note) -> None:
        self._sink = sink
        self._note = note

    def __call__(self, batch: SampleBatch, /) -> None:
        if batch.series:
            self._note({CANONICAL[one.name] for one in batch.series if one.name in CANONICAL})
        self._sink(batch)
