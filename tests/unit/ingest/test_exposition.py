"""The reader as a whole: formats, caching, refusals. Line details are in test_exposition_lines.py."""

from __future__ import annotations

import gc
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loms.core.errors import ExpositionError
from loms.core.model import Exposition, Labels
from loms.ingest.exposition import ExpositionReader, Limits, TooManySamplesError

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
VLLM = Path(__file__).parents[2] / "data/vllm-0.32.0/loaded.txt"


def read(text: str, content_type: str = TEXT) -> Exposition:
    return ExpositionReader().read(text.encode(), content_type)


def samples(exposition: Exposition) -> dict[tuple[str, Labels], float]:
    shape = exposition.shape
    return dict(zip(zip(shape.names, shape.labels, strict=True), exposition.values.tolist(), strict=True))


def test_series_values_types_and_help() -> None:
    exposition = read(
        "# HELP requests Requests so far.\n"
        "# TYPE requests counter\n"
        'requests{code="200",method="get"} 1027\n'
        'requests{method="get",code="400"} 3\n'
        "# a comment\n"
        "\n"
        "temperature -4.5e-1\n"
    )
    assert samples(exposition) == {
        ("requests", (("code", "200"), ("method", "get"))): 1027.0,
        ("requests", (("code", "400"), ("method", "get"))): 3.0,
        ("temperature", ()): -0.45,
    }
    assert exposition.shape.types == {"requests": "counter"}
    assert exposition.shape.help == {"requests": "Requests so far."}
    assert exposition.timestamps_ms is None
    assert exposition.duplicates == 0


def test_an_engines_text_reads_as_prometheus_client_reads_it() -> None:
    text = VLLM.read_text()
    expected = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert len(expected) == 532
    assert samples(read(text)) == expected


@pytest.mark.parametrize(
    ("token", "value"),
    [("+Inf", math.inf), ("-Inf", -math.inf), ("Inf", math.inf), ("1e-300", 1e-300), ("0012", 12.0), (".5", 0.5)],
)
def test_values(token: str, value: float) -> None:
    assert read(f"a {token}\n").values.tolist() == [value]


def test_nan_is_an_ordinary_nan() -> None:
    bits = read("a NaN\n").values.view(np.uint64)[0]
    assert bits == 0x7FF8000000000000, "not the stale marker"


@pytest.mark.parametrize("token", ["1_0", "٣", "0x1p3", "1,5", "five", "--1", "1f"])
def test_what_only_python_or_go_calls_a_number_is_refused(token: str) -> None:
    reader = ExpositionReader()
    reader.read(b"a 1\n", TEXT)
    for fresh_or_not in (ExpositionReader(), reader):
        with pytest.raises(ExpositionError, match=r"line 1: .* is not a number"):
            fresh_or_not.read(f"a {token}\n".encode(), TEXT)


def test_timestamps_of_the_text_format_are_milliseconds() -> None:
    exposition = read("a 1 1700000000123\nb 2\nc 3 -5\n")
    assert exposition.timestamps_ms is not None
    assert exposition.timestamps_ms.tolist() == [1700000000123, 0, -5]


def test_openmetrics() -> None:
    exposition = read(
        "# TYPE latency histogram\n"
        "# UNIT latency seconds\n"
        '# HELP latency A \\"quoted\\" text\\nin two lines\n'
        'latency_bucket{le="0.1"} 8 # {trace_id="a b"} 0.054 1700000000.5\n'
        'latency_bucket{le="+Inf"} 17 1700000000.25 # {} 9.8\n'
        "latency_count 17\n"
        "# EOF\n",
        OPENMETRICS,
    )
    assert samples(exposition) == {
        ("latency_bucket", (("le", "0.1"),)): 8.0,
        ("latency_bucket", (("le", "+Inf"),)): 17.0,
        ("latency_count", ()): 17.0,
    }
    assert exposition.timestamps_ms is not None
    assert exposition.timestamps_ms.tolist() == [0, 1700000000250, 0]
    assert exposition.shape.help == {"latency": 'A "quoted" text\nin two lines'}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a 1\n", "does not end with '# EOF'"),
        ("", "does not end with '# EOF'"),
        ("a 1\n# EOF\nb 2\n", "line 3: there is text after '# EOF'"),
        ("a 1\n# EOF\n\n\n", "line 3: there is text after '# EOF'"),
        ("a 1 # {x=1} 3\n# EOF\n", "line 1: the labels cannot be read"),
        ('a 1 # {x="1"}\n# EOF\n', "line 1: the exemplar has no value"),
        ("a 1 NaN\n# EOF\n", "line 1: the timestamp 'NaN' is not a time"),
    ],
)
def test_broken_openmetrics(text: str, complaint: str) -> None:
    with pytest.raises(ExpositionError, match=complaint):
        read(text, OPENMETRICS)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>\n", "line 1: it does not start with a metric name: '<html>'"),
        (b"a 1\nb\n", "line 2: the value is missing: 'b'"),
        (b"a 1\nfoo-bar 2\n", "line 2: unexpected '-' in the metric name"),
        (b'a{x="1" 2\n', "line 1: the labels cannot be read from"),
        (b'a{x="1} 2\n', "line 1: the labels cannot be read from"),
        (b'a{x="1",x="2"} 2\n', "line 1: the label 'x' stands there twice"),
        (b'a{__name__="b"} 2\n', "line 1: a label cannot be named '__name__'"),
        (b"a 1 2 3\n", "line 1: unexpected text after the value, '3'"),
        (b"a 1 99999999999999999999999\n", "line 1: the timestamp does not fit 64 bits"),
        (b"a 1\r\n", r"line 1: the value '1\\r' is not a number"),
        (b"# TYPE a thing\n", "line 1: there is no metric type 'thing'"),
        (b'a 1\nb{x="\xff"} 1\n', "line 2: the text is not UTF-8 .byte 0xff at position 9"),
    ],
)
def test_malformed_text_names_the_line_and_what_is_wrong(body: bytes, complaint: str) -> None:
    with pytest.raises(ExpositionError, match=complaint):
        ExpositionReader().read(body, TEXT)


def test_a_long_line_is_clipped_in_the_message() -> None:
    with pytest.raises(ExpositionError) as caught:
        read("a" * 10_000 + "\n")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "application/json", "image/png"])
def test_another_content_type_is_refused_with_a_hint(content_type: str) -> None:
    with pytest.raises(ExpositionError, match="which is not a metrics text") as caught:
        read("a 1\n", content_type)
    assert "is this the metrics path?" in caught.value.hint


@pytest.mark.parametrize("content_type", ["", "TEXT/PLAIN", "text/plain; version=1.0.0; escaping=allow-utf-8"])
def test_spellings_of_the_text_format(content_type: str) -> None:
    assert read("a 1\n", content_type).values.tolist() == [1.0]


def test_of_a_repeated_series_the_first_counts() -> None:
    text = 'a{x="1",y="2"} 1\nb 5\na{y="2",x="1"} 2\nb 6\n'
    reader = ExpositionReader()
    for exposition in (reader.read(text.encode(), TEXT), reader.read(text.encode(), TEXT)):
        assert samples(exposition) == {("a", (("x", "1"), ("y", "2"))): 1.0, ("b", ()): 5.0}
        assert exposition.duplicates == 2


def test_a_fault_in_a_repeated_series_is_still_a_fault() -> None:
    reader = ExpositionReader()
    reader.read(b"a 1\na 2\n", TEXT)
    with pytest.raises(ExpositionError, match="line 2"):
        reader.read(b"a 1\na x\n", TEXT)


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (Limits(labels=1), "more than 1 labels"),
        (Limits(label_value_length=4), "the label 'x' is longer than 4 characters"),
    ],
)
def test_limits(limits: Limits, complaint: str) -> None:
    with pytest.raises(ExpositionError, match=complaint):
        ExpositionReader(limits).read(b'a{x="12345",y="1"} 1\n', TEXT)


def test_too_many_samples_have_an_error_of_their_own() -> None:
    reader = ExpositionReader(Limits(samples=2))
    reader.read(b"a 1\nb 1\n", TEXT)
    with pytest.raises(TooManySamplesError, match="more than 2 samples") as caught:
        reader.read(b"a 1\nb 1\nc 1\n", TEXT)
    assert caught.value.reason == "too_many_samples"


class TestShape:
    """An unchanged shape is the same object; a changed one is another; a cache never changes the answer."""

    def test_new_values_keep_the_shape(self) -> None:
        reader = ExpositionReader()
        first = reader.read(b"# TYPE a gauge\na 1\nb 2\n", TEXT)
        second = reader.read(b"# TYPE a gauge\na 3\nb NaN\n", TEXT)
        assert second.shape is first.shape
        assert second.values[0] == 3.0
        assert math.isnan(second.values[1])
        assert first.values.tolist() == [1.0, 2.0], "an earlier exposition stays as it was"

    def test_timestamps_and_exemplars_keep_the_shape(self) -> None:
        reader = ExpositionReader()
        first = reader.read(b'a 1 5\nb{x="1"} 2 # {t="u"} 1\n# EOF\n', OPENMETRICS)
        second = reader.read(b'a 2 6\nb{x="1"} 3 # {t="v w"} 2 7.5\n# EOF\n', OPENMETRICS)
        assert second.shape is first.shape
        assert second.timestamps_ms is not None
        assert second.timestamps_ms.tolist() == [6000, 0]

    @pytest.mark.parametrize(
        "changed",
        ["# TYPE a counter\na 1\n", "# TYPE a gauge\na 1\nb 1\n", "# TYPE a gauge\nb 1\n", "# TYPE a gauge\n", ""],
    )
    def test_other_series_or_types_are_another_shape(self, changed: str) -> None:
        reader = ExpositionReader()
        first = reader.read(b"# TYPE a gauge\na 1\n", TEXT)
        second = reader.read(changed.encode(), TEXT)
        assert second.shape is not first.shape
        assert samples(second) == samples(read(changed))
        assert second.shape.types == read(changed).shape.types

    def test_two_readers_of_one_text_share_a_shape_as_long_as_one_needs_it(self) -> None:
        one, other = ExpositionReader(), ExpositionReader()
        assert one.read(b"shared 1\n", TEXT).shape is other.read(b"shared 2\n", TEXT).shape

    def test_the_same_text_in_the_other_format_is_read_anew(self) -> None:
        reader = ExpositionReader()
        reader.read(b"a 1 1000\n# EOF\n", TEXT)
        exposition = reader.read(b"a 1 1000\n# EOF\n", OPENMETRICS)
        assert exposition.timestamps_ms is not None
        assert exposition.timestamps_ms.tolist() == [1_000_000]

    @pytest.mark.parametrize("blank", ["a  1\n", " a 1\n", "a\t1\n", "a 1 \n", 'a {x="1"} 1\n', 'a{ x = "1" , }1\n'])
    def test_blanks_where_prometheus_allows_them(self, blank: str) -> None:
        reader = ExpositionReader()
        reader.read(b"a 1\n", TEXT)
        assert samples(reader.read(blank.encode(), TEXT)) == samples(read(blank))
        assert list(samples(read(blank)).values()) == [1.0]

    def test_memory_stays_bounded_when_every_text_is_new(self) -> None:
        reader = ExpositionReader()

        def read_new(first: int, last: int) -> None:
            for run in range(first, last):
                reader.read("\n".join(f'a{{id="{run}-{i}"}} 1' for i in range(50)).encode(), TEXT)

        read_new(0, 20)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.take_snapshot()
            read_new(20, 220)
            gc.collect()
            grown = sum(s.size_diff for s in tracemalloc.take_snapshot().compare_to(before, "filename"))
        finally:
            tracemalloc.stop()
        assert grown < 100_000, "200 texts of 50 series would be several megabytes"
