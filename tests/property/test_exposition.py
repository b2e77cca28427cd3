"""The parser against random texts: it never fails but with `ExpositionError`, agrees with prometheus_client on valid
texts, and answers from its caches as it would without."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from loms.core.errors import ExpositionError
from loms.core.model import Exposition
from loms.ingest.exposition import ExpositionReader, Limits

TEXT, OPENMETRICS = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,6}", fullmatch=True)
label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.floats().map(lambda x: {math.inf: "+Inf", -math.inf: "-Inf"}.get(x, "NaN" if x != x else repr(x)))
scraps = st.sampled_from(
    ["a", 'b{x="1"}', "#", " ", "\n", "{", "}", '"', "\\", ",", "=", "1", "NaN", "# TYPE a gauge", "# EOF", "# {", "\t"]
)


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=3))
    block = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    timestamp = draw(st.one_of(st.just(""), st.integers(0, 2**40).map(lambda t: f" {t}")))
    return (
        f"{draw(names)}{{{block}}} {draw(numbers)}{timestamp}" if block else f"{draw(names)} {draw(numbers)}{timestamp}"
    )


texts = st.lists(st.one_of(sample_lines(), st.just(""), st.just("# a comment")), max_size=8).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)
Content = tuple[tuple[str, ...], tuple[object, ...], list[str], list[int] | None, int, dict[str, str], dict[str, str]]


def content(exposition: Exposition) -> Content:
    """Everything that an exposition says; NaN compared by its text."""
    shape, times = exposition.shape, exposition.timestamps_ms
    return (
        shape.names,
        shape.labels,
        [repr(v) for v in exposition.values.tolist()],
        None if times is None else times.tolist(),
        exposition.duplicates,
        dict(shape.types),
        dict(shape.help),
    )


def outcome(reader: ExpositionReader, body: bytes, content_type: str) -> Content | str:
    try:
        return content(reader.read(body, content_type))
    except ExpositionError as error:
        return f"refused: {error}"


@given(st.binary(max_size=200), st.sampled_from([TEXT, OPENMETRICS]))
def test_any_bytes_give_an_exposition_or_an_exposition_error(body: bytes, content_type: str) -> None:
    outcome(ExpositionReader(), body, content_type)


@given(st.lists(scraps, max_size=30).map("".join), st.sampled_from([TEXT, OPENMETRICS]))
def test_scraps_of_the_format_give_an_exposition_or_an_exposition_error(text: str, content_type: str) -> None:
    outcome(ExpositionReader(Limits(labels=2, label_value_length=5)), text.encode(), content_type)


@given(texts)
def test_valid_text_reads_as_prometheus_client_reads_it(text: str) -> None:
    expected: dict[object, str] = {}
    for family in parse_text(text):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if v))
            stamp = round(float(sample.timestamp) * 1000) if sample.timestamp else 0
            expected.setdefault((sample.name, labels), f"{sample.value!r} {stamp}")
    exposition = ExpositionReader().read(text.encode(), TEXT)
    names, labels, values, times, *_ = content(exposition)
    stamps = times or [0] * len(values)
    found = {(n, lab): f"{v} {t}" for n, lab, v, t in zip(names, labels, values, stamps, strict=True)}
    assert found == expected


@given(st.dictionaries(label_values, numbers.filter(lambda n: n != "NaN"), min_size=1, max_size=5))
def test_openmetrics_reads_as_prometheus_client_reads_it(gauges: dict[str, str]) -> None:
    lines = [f'a{{x="{escape(x)}"}} {value}' for x, value in gauges.items()]
    text = "# TYPE a gauge\n" + "".join(f"{line}\n" for line in lines) + "# EOF\n"
    expected = {s.labels["x"]: s.value for family in parse_openmetrics(text) for s in family.samples}
    exposition = ExpositionReader().read(text.encode(), OPENMETRICS)
    found = [dict(labels).get("x", "") for labels in exposition.shape.labels]
    assert dict(zip(found, exposition.values.tolist(), strict=True)) == expected


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """A text and what becomes of it: lines changed, cut, doubled, moved; bytes flipped."""
    lines = draw(texts).split("\n")
    bodies = ["\n".join(lines).encode()]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["value", "line", "scrap", "drop", "double", "swap", "same", "byte"])):
            case "value":
                lines[at] = f"{lines[at].rpartition(' ')[0]} {draw(numbers)}"
            case "line":
                lines[at] = draw(sample_lines())
            case "scrap":
                lines[at] += draw(scraps)
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "swap":
                lines[at], lines[-1] = lines[-1], lines[at]
            case "byte":
                body = bytearray("\n".join(lines).encode())
                if body:
                    body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
                bodies.append(bytes(body))
                continue
        bodies.append("\n".join(lines).encode())
    return bodies


@settings(max_examples=300)
@given(histories(), st.sampled_from([TEXT, OPENMETRICS]))
def test_a_reader_with_a_history_answers_like_a_fresh_one(bodies: list[bytes], content_type: str) -> None:
    if content_type == OPENMETRICS:
        bodies = [body + b"\n# EOF\n" for body in bodies]
    reader = ExpositionReader(Limits(samples=12))
    for body in [*bodies, *reversed(bodies)]:
        assert outcome(reader, body, content_type) == outcome(ExpositionReader(Limits(samples=12)), body, content_type)


@given(histories())
def test_the_shape_is_kept_exactly_when_its_content_is_kept(bodies: list[bytes]) -> None:
    reader = ExpositionReader()
    read = []
    for body in bodies:
        try:
            read.append(reader.read(body, TEXT))
        except ExpositionError:
            continue
    for before, after in pairwise(read):
        if before.shape is after.shape:
            assert content(before)[:2] == content(after)[:2]
