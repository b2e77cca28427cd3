"""Whatever is exposed, under whatever version: contracts answer, and their answers agree with one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loms.engines.contracts.contract import (
    Contract,
    Exposed,
    Observed,
    changes,
    compare,
    contract_names,
    contract_of,
    why_absent,
)

CONTRACTS = [contract for contract in map(contract_of, contract_names()) if contract is not None]
NAMES = sorted({name for contract in CONTRACTS for name in contract.families})

contracts = st.sampled_from(CONTRACTS)
suffixes = st.sampled_from(["", "", "_total", "_bucket", "_sum", "_created"])
names = st.one_of(st.builds(lambda name, suffix: name + suffix, st.sampled_from(NAMES), suffixes), st.text(max_size=12))
versions = st.one_of(
    st.sampled_from(sorted({release for contract in CONTRACTS for release in contract.releases})),
    st.builds(
        lambda start, numbers, end: start + ".".join(map(str, numbers)) + end,
        st.sampled_from(["", "v", "b"]),
        st.lists(st.integers(0, 40), min_size=1, max_size=4),
        st.sampled_from(["", "+cpu", "rc1", ".dev3+gab", ".post2", "-abc"]),
    ),
    st.text(max_size=8),
)
bounds = st.lists(st.sampled_from([0.1, 0.25, 1.0, 5.0, float("inf")]), unique=True).map(lambda b: tuple(sorted(b)))
exposed = st.builds(
    Exposed,
    st.sampled_from(["counter", "gauge", "histogram", "gaugehistogram", "summary", "untyped"]),
    st.frozensets(st.sampled_from(["engine", "model_name"])),
    bounds,
)


@st.composite
def observations(draw: st.DrawFn) -> Observed:
    families = draw(st.dictionaries(names, exposed, max_size=25))
    return Observed(draw(st.sampled_from(["vllm", "sglang", ""])), draw(versions), families)


@given(contracts, observations())
def test_findings_agree_with_the_contract(contract: Contract, seen: Observed) -> None:
    for finding in compare(contract, seen):
        name = dict(finding.labels)["family"]
        presence = contract.presence(name, seen.version)
        if finding.kind == "contract_missing":
            assert presence == "yes"
            assert name not in seen.families
        elif finding.kind == "contract_unknown":
            assert presence in ("no", "unknown")
            assert contract.owns(name)
        elif finding.kind == "contract_changed_type":
            assert seen.families[name].type not in contract.types(name, seen.version)
        else:
            assert seen.families[name].buckets != contract.families[name].buckets
        assert finding.summary


@given(st.one_of(st.none(), contracts), observations(), observations())
def test_changes_speak_of_what_was_there(contract: Contract | None, before: Observed, now: Observed) -> None:
    for change in changes(contract, before, now):
        assert change.family in before.families
        assert (change.kind in ("lost", "renamed")) == (change.family not in now.families)
        assert (change.kind == "renamed") == bool(change.successor)
        assert not change.successor or change.successor in now.families
        assert change.text.count(change.family) >= 1


@given(observations())
def test_nothing_changes_from_a_thing_to_itself(seen: Observed) -> None:
    assert changes(None, seen, seen) == []
    assert all(changes(contract, seen, seen) == [] for contract in CONTRACTS)


@given(contracts, names, versions)
def test_presence_agrees_with_what_is_expected_and_possible(contract: Contract, name: str, version: str) -> None:
    presence = contract.presence(name, version)
    family = contract.get(name)
    assert (presence == "unknown") == (family is None)
    if family is not None:
        assert presence == contract.presence(family.name, version)
        assert (presence == "yes") == (family.name in contract.expected(version))
        assert (presence == "no") == (family.name not in contract.possible(version))
    assert all(
        contract.presence(successor, version) in ("yes", "maybe") for successor in contract.successors(name, version)
    )


@given(contracts, st.lists(names, max_size=4), versions)
def test_every_absence_has_a_reason(contract: Contract, alternatives: list[str], version: str) -> None:
    absence = why_absent(contract, alternatives, version)
    assert absence.text
    assert (absence.kind == "flag") == bool(absence.flag)


@given(contracts, st.data())
def test_an_exposition_as_a_release_has_it_is_known_again(contract: Contract, data: st.DataObject) -> None:
    """All that is expected, and any part of what is possible."""
    release = data.draw(st.sampled_from(contract.releases))
    possible = sorted(contract.possible(release))
    shown = contract.expected(release) | data.draw(st.frozensets(st.sampled_from(possible)))
    if not shown:
        return
    found = contract.fingerprint(frozenset(shown))
    assert found is not None
    oldest, newest = (contract.releases.index(end) for end in found)
    assert oldest <= contract.releases.index(release) <= newest
    families = {name: Exposed(contract.families[name].type) for name in shown}
    kinds = {finding.kind for finding in compare(contract, Observed(contract.engine, release, families))}
    assert not kinds & {"contract_missing", "contract_unknown"}
