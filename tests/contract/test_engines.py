"""What every registered engine must keep to. A new engine is covered by having been registered."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from loms.core.families import HISTOGRAM
from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.engines.draft import OF_DEVICES
from loms.engines.engine import DEVICE_NAMES, ENGINE_NAMES, PROGRESS, Engine, engines, known_paths, recognise
from loms.engines.read import spoken_for
from loms.engines.source import families_of, parse_source
from loms.engines.watch import PROGRESS_TOTAL

DATA = Path(__file__).parents[1] / "data"
ALL = engines.load().items()
GOLDENS = sorted(DATA.glob("*/*.canonical.json"))

each_engine = pytest.mark.parametrize(("name", "engine"), ALL, ids=[name for name, _ in ALL])


def used_by(engine: type[Engine]) -> set[str]:
    """Raw families of the table."""
    return {family for row in engine.table for source in row.sources for family in families_of(source)}


def test_the_engines_are_registered() -> None:
    assert {
        *("vllm", "llama.cpp", "sglang", "tgi", "tensorrt-llm", "triton", "dynamo", "ollama", "dcgm"),
    } <= set(engines)


@each_engine
def test_every_canonical_name_exists(name: str, engine: type[Engine]) -> None:
    for row in engine.table:
        assert row.canonical in CATALOGUE, row
    assert set(engine.never) | engine.computed <= set(CATALOGUE)


@each_engine
def test_every_source_can_be_read(name: str, engine: type[Engine]) -> None:
    for source in (*(source for row in engine.table for source in row.sources), *engine.progress):
        assert parse_source(source), source


@each_engine
def test_every_canonical_metric_that_it_could_have_has_a_source_or_a_reason(name: str, engine: type[Engine]) -> None:
    wanted = DEVICE_NAMES if engine.device else ENGINE_NAMES
    assert not set(wanted) - spoken_for(engine) - {"llm.engine.info"}


@each_engine
def test_a_device_tells_of_devices_only(name: str, engine: type[Engine]) -> None:
    """It is no engine that could stall or be asked for a token."""
    if engine.device:
        assert all(row.canonical.startswith(OF_DEVICES) for row in engine.table)
        assert not engine.openai
        assert not engine.progress
        assert not engine.carries


@each_engine
def test_nothing_is_both_translated_and_said_never_to_be_had(name: str, engine: type[Engine]) -> None:
    assert not ({row.canonical for row in engine.table} | engine.computed) & set(engine.never)


@each_engine
def test_no_raw_family_is_both_used_and_left_aside(name: str, engine: type[Engine]) -> None:
    assert not [(f, pattern) for f in used_by(engine) for pattern in engine.aside if fnmatchcase(f, pattern)]
    assert all(reason.strip() for reason in (*engine.never.values(), *engine.aside.values()))


@each_engine
def test_one_part_of_a_histogram_is_only_asked_for_where_there_is_a_histogram(name: str, engine: type[Engine]) -> None:
    for row in engine.table:
        assert not row.part or (row.part in HISTOGRAM and CATALOGUE[row.canonical].instrument == "histogram"), row


@each_engine
def test_some_counter_shows_that_it_works(name: str, engine: type[Engine]) -> None:
    if not engine.device:
        assert {row.canonical for row in engine.table} & set(PROGRESS) or engine.progress


@each_engine
def test_spelling_is_stable(name: str, engine: type[Engine]) -> None:
    for family in used_by(engine):
        assert engine.spell(family) == family
        if family.startswith(engine.prefix):
            assert engine.spell(family.replace(":", "_")) == family


@each_engine
def test_it_recognises_itself_and_no_other(name: str, engine: type[Engine]) -> None:
    family = next(f for row in engine.table for f in families_of(row.sources[0]) if f.startswith(engine.prefix))
    assert [other for other, candidate in ALL if candidate.matches(frozenset({family}))] == [name]
    assert not engine.matches(frozenset({"python_info", "go_goroutines", "up"}))


@each_engine
def test_what_it_carries_is_its_own(name: str, engine: type[Engine]) -> None:
    """An exposition that also has the families of an engine inside belongs to the one that passes them on."""
    own = next(f for row in engine.table for f in families_of(row.sources[0]) if f.startswith(engine.prefix))
    for other in engine.carries:
        inside = next(f for row in engines[other].table for f in families_of(row.sources[0]))
        assert recognise(frozenset({own, inside})) == name


@each_engine
def test_its_paths_are_tried(name: str, engine: type[Engine]) -> None:
    assert engine.paths
    assert set(engine.paths) <= set(known_paths())
    assert all(path.startswith("/") for path in engine.paths)


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
    assert shown["unmapped"] == []
