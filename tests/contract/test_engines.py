"""What every registered engine must keep to. A new engine is covered by having been registered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.engines.draft import HISTOGRAM
from loms.engines.engine import ENGINE_NAMES, PROGRESS, Engine, engines
from loms.engines.read import spoken_for
from loms.engines.watch import PROGRESS_TOTAL

DATA = Path(__file__).parents[1] / "data"
ALL = engines.load().items()
GOLDENS = sorted(DATA.glob("*/*.canonical.json"))

each_engine = pytest.mark.parametrize(("name", "engine"), ALL, ids=[name for name, _ in ALL])


def test_the_engines_are_registered() -> None:
    assert {"vllm", "llama.cpp"} <= set(engines)


@each_engine
def test_every_canonical_name_exists(name: str, engine: type[Engine]) -> None:
    for row in engine.table:
        assert row.canonical in CATALOGUE, row
    assert set(engine.never) <= set(CATALOGUE)


@each_engine
def test_every_canonical_engine_metric_has_a_source_or_a_reason(name: str, engine: type[Engine]) -> None:
    missing = set(ENGINE_NAMES) - spoken_for(engine) - {"llm.engine.info"}
    assert not missing


@each_engine
def test_nothing_is_both_translated_and_said_never_to_be_had(name: str, engine: type[Engine]) -> None:
    assert not ({row.canonical for row in engine.table} | engine.computed) & set(engine.never)


@each_engine
def test_no_raw_family_is_both_used_and_left_aside(name: str, engine: type[Engine]) -> None:
    used = {family for row in engine.table for source in row.sources for family in source.split(" + ")}
    assert not used & set(engine.aside)
    assert all(reason.strip() for reason in (*engine.never.values(), *engine.aside.values()))


@each_engine
def test_one_part_of_a_histogram_is_only_asked_for_where_there_is_a_histogram(name: str, engine: type[Engine]) -> None:
    for row in engine.table:
        assert not row.part or (row.part in HISTOGRAM and CATALOGUE[row.canonical].instrument == "histogram"), row


@each_engine
def test_some_counter_shows_that_it_works(name: str, engine: type[Engine]) -> None:
    assert {row.canonical for row in engine.table} & set(PROGRESS)


@each_engine
def test_spelling_is_stable(name: str, engine: type[Engine]) -> None:
    for row in engine.table:
        for source in row.sources:
            for family in source.split(" + "):
                assert engine.spell(family) == family
                assert engine.spell(family.replace(":", "_")) == family


@each_engine
def test_it_recognises_itself_and_no_other(name: str, engine: type[Engine]) -> None:
    family = next(f for row in engine.table for f in row.sources if f.startswith(engine.prefix)).split(" + ")[0]
    assert [other for other, candidate in ALL if candidate.matches(frozenset({family}))] == [name]
    assert not engine.matches(frozenset({"python_info", "go_goroutines", "up"}))


@each_engine
def test_it_has_a_golden(name: str, engine: type[Engine]) -> None:
    assert any(json.loads(golden.read_text())["engine"] == name for golden in GOLDENS)


@pytest.mark.parametrize("golden", GOLDENS, ids=[f"{g.parent.name}/{g.stem}" for g in GOLDENS])
def test_goldens_hold_catalogue_names_and_the_engines_progress_only(golden: Path) -> None:
    shown = json.loads(golden.read_text())
    for series in shown["series"]:
        name = series.partition("{")[0]
        base = next((name.removesuffix(s) for s in HISTOGRAM if name.removesuffix(s) in BY_PROMETHEUS), name)
        assert base in BY_PROMETHEUS or base == PROGRESS_TOTAL, series
    assert set(shown["unavailable"]) <= set(BY_PROMETHEUS)
