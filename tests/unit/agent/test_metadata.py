"""What is told of metric families, and that it is told once."""

from __future__ import annotations

import numpy as np

from loms.agent.metadata import DescribedReader, DescribedSink
from loms.core.metadata import metadata_of
from loms.core.model import Metadata, SampleBatch, Series, Shape
from loms.ingest.exposition import ExpositionReader

PLAIN, OPEN = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"


def test_families_of_both_text_formats() -> None:
    text = b"# HELP a Of a.\n# TYPE a untyped\na 1\n# TYPE b counter\nb 1\nc 1\n"
    assert metadata_of(ExpositionReader().read(text, PLAIN).shape) == [
        Metadata("a", "unknown", "Of a."),
        Metadata("b", "counter"),
    ]
    text = b"# TYPE d_seconds gauge\n# UNIT d_seconds seconds\nd_seconds 1\n# HELP e Of e.\ne 1\n# EOF\n"
    assert metadata_of(ExpositionReader().read(text, OPEN).shape) == [
        Metadata("d_seconds", "gauge", "", "seconds"),
        Metadata("e", "unknown", "Of e."),
    ]


def test_a_shape_is_told_once() -> None:
    told: list[Metadata] = []
    reader = DescribedReader(ExpositionReader(), told.extend)
    for value in (1, 2):
        assert reader.read(b"# TYPE a gauge\na %d\n" % value, PLAIN).values.tolist() == [value]
    assert told == [Metadata("a", "gauge")]
    reader.read(b"# TYPE a gauge\n# TYPE b gauge\na 1\nb 1\n", PLAIN)
    assert told == [Metadata("a", "gauge"), Metadata("a", "gauge"), Metadata("b", "gauge")]


def test_canonical_series_bring_what_the_catalogue_says() -> None:
    told: list[Metadata] = []
    passed: list[SampleBatch] = []
    sink = DescribedSink(passed.append, told.extend)
    names = ("gen_ai_server_request_duration_seconds_bucket", "gen_ai_server_request_duration_seconds_sum", "up")
    rows = tuple(Series.of(name, ()) for name in names)
    batch = SampleBatch(np.array([s.id for s in rows], np.uint64), np.zeros(3, np.int64), np.ones(3), rows)
    sink(batch)
    assert [(one.family, one.type, one.unit) for one in told] == [
        ("gen_ai_server_request_duration_seconds", "histogram", "seconds")
    ]
    assert "OTel GenAI" in told[0].help
    assert passed == [batch]
    assert metadata_of(Shape((), (), {})) == []
