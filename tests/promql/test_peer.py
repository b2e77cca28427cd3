"""Prometheus's own test files: every case passes, or is listed with the reason why it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from promql.embedded import Embedded
from promql.peer import Case, Columns, cases, check, columns_of

from loms.core.errors import QueryError
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.source import Limits, Source

DATA = Path(__file__).parents[1] / "data" / "promqltest"
FILES = sorted(path.name for path in DATA.glob("*.test"))
LIMITS = Limits(delayed_names=True)
"""As Prometheus runs these files itself."""
REASONS: dict[str, Callable[[Case], bool]] = {
    "native histograms": lambda case: any(
        sign in text for text in (case.text, *case.loads) for sign in ("{{", "load_with_nhcb", "</", ">/", "histogram_")
    ),
    "start timestamps": lambda case: "start_timestamp" in case.text or any("@st" in load for load in case.loads),
}
"""Why a case may fail → whether that can be so."""


def listed() -> dict[str, str]:
    """``file:line`` → reason."""
    lines = (DATA / "unsupported.list").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def in_memory(columns: Columns) -> Source:
    source = MemorySource()
    for labels, (times, values) in columns.items():
        source.add(labels, times, values)
    return source


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("peer"))
    yield embedded
    embedded.close()


def failures(file: str, source: Callable[[Columns], Source]) -> dict[str, str]:
    """``file:line`` of the cases that fail → how; neighbours that load the same share what is loaded."""
    found: dict[str, str] = {}
    loaded: tuple[str, ...] | None = None
    engine = Engine(MemorySource())
    for case in cases((DATA / file).read_text()):
        if case.loads != loaded:
            engine, loaded = Engine(source(columns_of(case.loads)), LIMITS), case.loads
        try:
            check(case, engine)
        except (AssertionError, QueryError) as error:
            found[f"{file}:{case.line}"] = f"{case.header}: {error}"[:400]
    return found


def verify(file: str, source: Callable[[Columns], Source]) -> None:
    found, expected = failures(file, source), listed()
    surprises = [f"{place} {how}" for place, how in found.items() if place not in expected]
    passing = [place for place in expected if place.startswith(f"{file}:") and place not in found]
    assert not surprises, "not listed:\n" + "\n".join(surprises)
    assert not passing, f"listed, and pass: {passing}"


@pytest.mark.parametrize("file", FILES)
def test_in_memory(file: str) -> None:
    verify(file, in_memory)


@pytest.mark.parametrize("file", FILES)
def test_from_the_store(file: str, embedded: Embedded) -> None:
    def stored(columns: Columns) -> Source:
        embedded.clear()
        if columns:
            embedded.write_labelled((labels, *column) for labels, column in columns.items())
        return embedded.source

    verify(file, stored)


def test_reasons_hold() -> None:
    by_place = {f"{file}:{case.line}": case for file in FILES for case in cases((DATA / file).read_text())}
    assert len(by_place) == 2_214
    for place, reason in listed().items():
        assert REASONS[reason](by_place[place]), f"{place}: {reason} has nothing to do with it"
