"""Presence over releases: hand-worked on a small contract, and on what the engines' change logs say."""

from __future__ import annotations

import pytest

from loms.engines.contracts.contract import Contract, contract_of
from loms.engines.contracts.read import read_contract

TEXT = """
title: Acme
own: ['acme:']
aside: ['acme:debug_']
show_hidden: --show={previous}
releases: [1.0.0, 1.2.0, 1.4.0, 2.0.0]
conditions:
  lora: {when: with adapters, flag: --lora}
  late: {when: with disaggregation, flag: --disaggregate, from: 1.4.0}
  early: {when: with the new core, flag: CORE=2, to: 1.2.0}
families:
  acme:always: {type: gauge}
  acme:newer_total: {type: counter, since: 1.4.0}
  acme:older: {type: histogram, until: 1.2.0, successors: ['acme:middle']}
  acme:middle: {type: histogram, since: 1.2.0, hidden: 1.4.0, successors: ['acme:newest']}
  acme:newest: {type: histogram, since: 2.0.0}
  acme:adapters: {type: gauge, needs: lora}
  acme:transfer: {type: histogram, types: {1.0.0: gauge, 1.4.0: histogram}, needs: late}
  acme:core: {type: gauge, needs: early}
  acme:seen_total: {type: counter, lazy: true}
  acme:brief: {type: summary, since: 2.0.0, after: 1.0.0}
  acme:dusk: {type: gauge, until: 1.0.0, gone: 2.0.0}
"""


@pytest.fixture
def acme() -> Contract:
    return read_contract("acme", TEXT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        #                    0.9      1.0.0    1.1.0    1.2.0    1.3.0    1.4.0    1.9.0    2.0.0    3.1.0   unknown
        ("acme:always", "maybe    yes      yes      yes      yes      yes      yes      yes      yes      maybe"),
        ("acme:newer_total", "no  no       no       no       maybe    yes      yes      yes      yes      maybe"),
        ("acme:older", "maybe     yes      yes      yes      maybe    no       no       no       no       maybe"),
        ("acme:middle", "no       no       maybe    yes      maybe    maybe    maybe    maybe    maybe    maybe"),
        ("acme:adapters", "maybe  maybe    maybe    maybe    maybe    maybe    maybe    maybe    maybe    maybe"),
        ("acme:transfer", "maybe  yes      yes      yes      maybe    maybe    maybe    maybe    maybe    maybe"),
        ("acme:core", "maybe      maybe    maybe    maybe    maybe    yes      yes      yes      yes      maybe"),
        ("acme:seen_total", "maybe maybe   maybe    maybe    maybe    maybe    maybe    maybe    maybe    maybe"),
        ("acme:brief", "no        no       maybe    maybe    maybe    maybe    maybe    yes      yes      maybe"),
        ("acme:dusk", "maybe      yes      maybe    maybe    maybe    maybe    maybe    no       no       maybe"),
        ("acme:never", "unknown   unknown  unknown  unknown  unknown  unknown  unknown  unknown  unknown  unknown"),
    ],
)
def test_presence(acme: Contract, name: str, expected: str) -> None:
    versions = ("0.9", "1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.9.0", "2.0.0", "3.1.0", "main")
    assert [acme.presence(name, version) for version in versions] == expected.split()


def test_expected_and_possible(acme: Contract) -> None:
    assert acme.expected("1.2.0") == {"acme:always", "acme:older", "acme:middle", "acme:transfer"}
    assert acme.expected("") == frozenset()
    assert acme.possible("1.0.0") == set(acme.families) - {
        "acme:newer_total",
        "acme:middle",
        "acme:newest",
        "acme:brief",
    }
    assert acme.possible("main") == frozenset(acme.families)


def test_a_family_is_found_by_what_it_may_be_called(acme: Contract) -> None:
    names = ("acme:older_bucket", "acme:older_sum", "acme:newer", "acme:newer_created", "acme:seen_total_total")
    assert [getattr(acme.get(name), "name", None) for name in names] == [
        "acme:older",
        "acme:older",
        "acme:newer_total",
        "acme:newer_total",
        "acme:seen_total",
    ]
    assert acme.get("acme:brief_count") is acme.get("acme:brief")
    assert acme.get("acme:brief_bucket") is None
    assert acme.get("acme:always_sum") is None


def test_fingerprint(acme: Contract) -> None:
    base = {"acme:always", "acme:transfer"}
    assert acme.fingerprint(frozenset({*base, "acme:older", "acme:dusk", "other:thing", "acme:unheard"})) == (
        "1.0.0",
        "1.0.0",
    )
    assert acme.fingerprint(frozenset({*base, "acme:older", "acme:middle"})) == ("1.2.0", "1.2.0")
    assert acme.fingerprint(frozenset({"acme:always", "acme:core", "acme:newer_total"})) == ("1.4.0", "1.4.0")
    assert acme.fingerprint(frozenset({"acme:older", "acme:newest"})) is None
    assert acme.fingerprint(frozenset({"other:thing"})) is None


def test_successors_over_several_steps(acme: Contract) -> None:
    assert acme.successors("acme:older", "1.2.0") == ("acme:middle",)
    assert acme.successors("acme:older_bucket", "2.0.0") == ("acme:middle", "acme:newest")
    assert acme.successors("acme:older", "1.0.0") == ()
    assert acme.successors("acme:always", "2.0.0") == acme.successors("acme:never", "2.0.0") == ()


def test_types_over_releases(acme: Contract) -> None:
    types = {version: set(acme.types("acme:transfer", version)) for version in ("1.0.0", "1.3.0", "2.0.0", "9", "")}
    both = {"gauge", "histogram"}
    assert types == {"1.0.0": {"gauge"}, "1.3.0": both, "2.0.0": {"histogram"}, "9": {"histogram"}, "": both}
    assert acme.types("acme:never", "2.0.0") == frozenset()


def test_names_of_its_own(acme: Contract) -> None:
    assert acme.owns("acme:anything")
    assert not acme.owns("acme:debug_anything")
    assert not acme.owns("http_requests_total")


KNOWN = """
vllm      vllm:request_prefill_kv_computed_tokens   0.12.0=no 0.12.1=maybe 0.13.0.dev4+gab=maybe 0.13.0=yes 0.40.0=yes
vllm      vllm:time_per_output_token_seconds        0.11.2=yes 0.12.0=maybe 0.14.0=maybe 0.15.0=no
vllm      vllm:gpu_cache_usage_perc                 0.8.5=yes 0.10.2=yes 0.10.3=maybe 0.11.2=maybe 0.12.0=no
vllm      vllm:num_requests_running                 v0.8.5=yes 0.32.0+cpu=yes 0.5.0=maybe
vllm      vllm:spec_decode_num_drafts_total         0.32.0=maybe
vllm      vllm:avg_prompt_throughput_toks_per_s     0.6.0=maybe 0.8.5=no
sglang    sglang:num_prefill_infight_queue_reqs     0.4.5=no 0.4.6=maybe 0.4.9.post1=yes 0.5.1=yes 0.5.2=no
sglang    sglang:kv_transfer_latency_ms             0.5.1=no 0.5.8=maybe 0.5.23=maybe
llama.cpp llamacpp:kv_cache_usage_ratio             b5200=yes b5434-abc=maybe b6000=no b11549=no b0-unknown=maybe
triton    nv_inference_pending_request_count        2.36.0=no 2.37.0=maybe 2.51.0=yes
tgi       tgi_batch_max_total_tokens                2.2.0=no 3.3.7=yes
"""
"""From the engines' sources and change logs."""


@pytest.mark.parametrize("line", KNOWN.strip().splitlines())
def test_what_is_known_of_the_engines(line: str) -> None:
    engine, name, *told = line.split()
    contract = contract_of(engine)
    assert contract is not None
    expected = dict(pair.split("=") for pair in told)
    assert {version: contract.presence(name, version) for version in expected} == expected


def test_a_release_is_known_by_its_families_even_if_one_is_missing() -> None:
    """A proxy hides a gauge of vLLM 0.32; of a handful of families nothing can be said."""
    contract = contract_of("vllm")
    assert contract is not None
    whole = contract.expected("0.32.0")
    assert contract.fingerprint(whole - {"vllm:kv_cache_usage_perc"}) == contract.fingerprint(whole)
    assert contract.fingerprint(frozenset(sorted(whole)[:5])) is None
    assert contract.fingerprint(frozenset({"python_info"})) is None
