"""Every recording and written exposition says the same in OpenMetrics, which names counters and prefixes otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from loms.engines.engine import Identity, engines, recognise
from loms.engines.plan import Sums
from loms.engines.read import read
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[2] / "data"
TEXTS = sorted(
    path
    for path in DATA.glob("*/*.txt")
    if re.search(r"^# TYPE (vllm|sglang|llamacpp|tgi|nv|trtllm|dynamo|DCGM)\w*", path.read_text(), re.MULTILINE)
)


def openmetrics(text: str) -> str:
    """The same as the client library has it there: ``vllm_`` for ``vllm:``, and no ``_total`` in a counter's own name.

    A counter whose samples have no ``_total`` has no place in OpenMetrics, and stays as it is.
    """
    lines = []
    for line in text.splitlines():
        if re.match(r"# TYPE \S+_created gauge$|# HELP \S+_created |#(?! TYPE | HELP )|$", line):
            continue
        line = re.sub(r"^(# \w+ )?(vllm|sglang|llamacpp):", r"\1\2_", line)
        lines.append(line)
    counters = {match[1] for line in lines if (match := re.match(r"# TYPE (\S+)_total counter$", line))}
    named = (
        re.sub(r"^(# \w+ )(\S+)_total ", lambda m: f"{m[1]}{m[2]} " if m[2] in counters else m[0], x) for x in lines
    )
    return "\n".join([*named, "# EOF", ""])


def said(text: str, content_type: str) -> tuple[tuple[str, ...], dict[object, float]]:
    """Families that nobody knows, and the canonical series."""
    exposition = ExpositionReader().read(text.encode(), content_type)
    name = recognise(frozenset(exposition.shape.types) | frozenset(exposition.shape.names))
    assert name is not None
    meaning = read(name, engines[name], exposition.shape, {"job": "j"}, Identity("", "m"))
    values = Sums(meaning.combinations)(exposition.values)
    assert isinstance(values, np.ndarray)
    return meaning.unmapped, {(c.name, c.labels): v for c, v in zip(meaning.combinations, values.tolist(), strict=True)}


@pytest.mark.parametrize("path", TEXTS, ids=[f"{path.parent.name}/{path.stem}" for path in TEXTS])
def test_the_same_is_said_in_openmetrics(path: Path) -> None:
    text = path.read_text()
    spelt = openmetrics(text)
    assert spelt != text
    unmapped, series = said(spelt, "application/openmetrics-text; version=1.0.0")
    assert unmapped == ()
    assert series
    _, expected = said(text, "text/plain; version=0.0.4")
    assert series.keys() == expected.keys()
    np.testing.assert_array_equal(list(series.values()), [expected[key] for key in series])


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_what_is_left_aside_is_so_in_openmetrics(name: str) -> None:
    """Of some families there is no recording."""
    aside = [pattern.replace("*", "x") for pattern in engines.load()[name].aside if pattern.endswith("_total")]
    assert aside
    text = "".join(f"# TYPE {family} counter\n{family} 1\n" for family in aside)
    unmapped, _ = said(openmetrics(text), "application/openmetrics-text; version=1.0.0")
    assert unmapped == ()
