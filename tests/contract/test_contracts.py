"""Every contract against itself, the recordings and the written expositions; new ones are covered by being there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loms.engines.contracts.contract import Contract, Observed, changes, compare, contract_names, contract_of, observe
from loms.engines.contracts.release import parse_release
from loms.engines.engine import engines
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[1] / "data"
WRITTEN = sorted((DATA / "written").glob("*.txt"))
RECORDED = sorted(path for path in DATA.glob("*-[0-9]*/**/*.txt") if "\n# TYPE " in path.read_text())
BUILDS = {"llamacpp-11434.0.0": "b11434", "xllamacpp-2026.10.11549": "b11549"}
"""Folders that are named after a package, and the build of llama.cpp in it."""

each_contract = pytest.mark.parametrize("engine", contract_names())
each_written = pytest.mark.parametrize("path", WRITTEN, ids=[path.stem for path in WRITTEN])
each_recorded = pytest.mark.parametrize("path", RECORDED, ids=[p.relative_to(DATA).as_posix() for p in RECORDED])


def contract(engine: str) -> Contract:
    found = contract_of(engine)
    assert found is not None
    return found


def identity(path: Path) -> tuple[str, str]:
    """Engine and version of a file, from its own or its folder's name."""
    name = path.name if path.parent.name == "written" else path.relative_to(DATA).parts[0]
    if name in BUILDS:
        return "llama.cpp", BUILDS[name]
    match = re.match(r"(.+?)-(\d+\.\d+\.\d+)", name)
    assert match, name
    return match[1], match[2]


def read(path: Path) -> Observed:
    engine, version = identity(path)
    return observe(ExpositionReader().read(path.read_bytes(), "text/plain").shape, engine, version, lambda name: name)


def test_the_known_engines_have_a_contract() -> None:
    known = {"vllm", "sglang", "tgi", "triton", "tensorrt-llm", "dynamo", "llama.cpp", "dcgm"}
    assert known <= set(contract_names()) <= set(engines.load())
    assert contract_of("an engine of one's own") is None
    assert contract_of("../rules/default") is None


@each_contract
def test_its_releases_are_in_order(engine: str) -> None:
    releases = [parse_release(release) for release in contract(engine).releases]
    assert None not in releases
    assert releases == sorted(set(releases), key=releases.index) == sorted(releases, key=lambda r: r or ((), 0, 0))


@each_contract
def test_the_releases_of_a_family_are_in_order(engine: str) -> None:
    for family in contract(engine).families.values():
        told = [parse_release(r) for r in (family.after, family.since, family.hidden, family.until, family.gone) if r]
        assert told == sorted(told), family
        for dated in (family.types, family.changes):
            dates = [parse_release(since) for since, _ in dated]
            assert None not in dates
            assert dates == sorted(dates), family
        assert not family.types or family.types[-1][1] == family.type, family
        assert bool(family.after) == bool(family.since), family
        assert bool(family.gone) == bool(family.until), family


@each_contract
def test_what_a_family_names_is_there(engine: str) -> None:
    its = contract(engine)
    for family in its.families.values():
        assert family.type in ("counter", "gauge", "histogram", "summary"), family
        assert family.name not in its.successors(family.name, ""), family
        for successor in family.successors:
            assert its.families[successor].type == family.type, family
        assert not family.meaning or family.successors, family
        for mentioned in re.findall(r"[a-zA-Z_]\w*:\w+", f"{family.instead} {family.meaning}"):
            assert its.get(mentioned) is not None, family
        assert list(family.buckets) == sorted(set(family.buckets)), family
        assert not family.buckets or (family.type == "histogram" and family.buckets[-1] == float("inf")), family
        assert not family.flag or family.when or family.hidden, family
        assert "{previous}" not in family.flag, family


@each_contract
def test_no_family_is_on_both_lists(engine: str) -> None:
    its = contract(engine)
    assert not [name for name in its.families if name.startswith(its.own) and not its.owns(name)]
    assert any(its.owns(name) for name in its.families)


@each_contract
def test_a_counter_says_so_where_the_client_library_does(engine: str) -> None:
    """prometheus_client ends every counter in ``_total``; the exporters of Triton, TGI, Dynamo and DCGM do not."""
    if engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        counters = [f.name for f in contract(engine).families.values() if f.type == "counter"]
        assert {name for name in counters if not name.endswith("_total")} <= {"llamacpp:n_tokens_max"}


@each_recorded
def test_a_recording_keeps_its_contract(path: Path) -> None:
    seen = read(path)
    assert [finding.summary for finding in compare(contract(seen.engine), seen)] == []


@each_recorded
def test_a_recording_is_known_by_its_families(path: Path) -> None:
    seen = read(path)
    its = contract(seen.engine)
    assert_within(its, its.fingerprint(frozenset(seen.families)), seen.version)


@each_written
def test_a_written_exposition_keeps_its_contract(path: Path) -> None:
    seen = read(path)
    found = compare(contract(seen.engine), seen)
    # They have a few of the bounds only.
    assert [f.summary for f in found if f.kind != "contract_changed_buckets"] == []


@each_written
def test_a_written_exposition_is_known_by_its_families(path: Path) -> None:
    seen = read(path)
    its = contract(seen.engine)
    assert_within(its, its.fingerprint(frozenset(seen.families)), seen.version)


def assert_within(its: Contract, range_: tuple[str, str] | None, version: str) -> None:
    assert range_ is not None
    oldest, release, newest = (parse_release(v) for v in (range_[0], version, range_[1]))
    assert oldest is not None
    assert release is not None
    assert newest is not None
    assert oldest <= release
    assert release <= newest or range_[1] == its.releases[-1]


@each_written
def test_nothing_is_lost_between_two_looks_at_the_same(path: Path) -> None:
    seen = read(path)
    assert changes(contract(seen.engine), seen, seen) == []
