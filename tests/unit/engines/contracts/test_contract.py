"""What is held against a contract; the right answers are read off the engines' change logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loms.core.model import Finding
from loms.engines.contracts.contract import (
    Absence,
    Contract,
    Exposed,
    Observed,
    compare,
    contract_of,
    observe,
    why_absent,
)
from loms.engines.contracts.read import read_contract
from loms.ingest.exposition import ExpositionReader

DATA = Path(__file__).parents[3] / "data"


def contract(engine: str) -> Contract:
    found = contract_of(engine)
    assert found is not None
    return found


def seen(engine: str, file: str, version: str) -> Observed:
    shape = ExpositionReader().read((DATA / file).read_bytes(), "text/plain").shape
    return observe(shape, engine, version, lambda name: name)


def found(findings: list[Finding]) -> dict[str, list[str]]:
    """Families by kind."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(dict(finding.labels)["family"])
    return kinds


@pytest.mark.parametrize(
    ("shown", "judged_as", "missing", "unknown"),
    [
        ("0.12.0", "0.13.0", ["request_prefill_kv_computed_tokens"], []),
        (
            "0.15.0",
            "0.17.0",
            ["prompt_tokens_by_source_total", "prompt_tokens_cached_total", "prompt_tokens_recomputed_total"],
            [],
        ),
        ("0.17.0", "0.20.0", ["num_requests_waiting_by_reason"], ["prompt_tokens_recomputed_total"]),
        ("0.20.0", "0.30.0", ["request_num_preemptions"], []),
        ("0.30.0", "0.20.0", [], ["request_num_preemptions"]),
        # Old names that the newer release has dropped; the new ones are not sure as long as there is the core V0.
        ("0.9.0", "0.10.2", [], []),
        # Between two known releases nothing is missing.
        ("0.15.0", "0.15.1", [], []),
        ("0.15.0", "0.16.0rc1", [], []),
        ("0.17.0", "0.19.1", [], []),
        # A version that says nothing.
        ("0.9.0", "", [], []),
        ("0.9.0", "0.1.dev14+g5d2c", [], []),
    ],
)
def test_vllm_judged_as_another_release(shown: str, judged_as: str, missing: list[str], unknown: list[str]) -> None:
    kinds = found(compare(contract("vllm"), seen("vllm", f"written/vllm-{shown}.txt", judged_as)))
    assert kinds.get("contract_missing", []) == [f"vllm:{name}" for name in missing]
    assert kinds.get("contract_unknown", []) == [f"vllm:{name}" for name in unknown]
    assert "contract_changed_type" not in kinds


def test_sglang_judged_as_a_later_release() -> None:
    kinds = found(compare(contract("sglang"), seen("sglang", "written/sglang-0.5.3.txt", "0.5.6")))
    expected = (
        "is_cuda_graph mamba_usage max_total_num_tokens new_token_ratio pending_prealloc_token_usage spec_accept_rate"
    )
    assert kinds == {"contract_missing": [f"sglang:{name}" for name in expected.split()]}


def test_findings_say_who_and_what() -> None:
    families = dict(seen("vllm", "written/vllm-0.15.0.txt", "0.15.0").families)
    del families["vllm:num_requests_running"]
    families["vllm:brand_new"] = Exposed("gauge")
    families["vllm:gpu_cache_usage_perc"] = Exposed("gauge")
    families["vllm:num_requests_waiting"] = Exposed("counter")
    families["nobody_knows"] = Exposed("gauge")
    findings = compare(contract("vllm"), Observed("vllm", "0.15.0", families))
    assert [(f.detector, f.kind, f.severity, f.labels, f.summary) for f in findings] == [
        (
            "contract",
            "contract_missing",
            "warning",
            (("engine", "vllm"), ("family", "vllm:num_requests_running")),
            "vLLM 0.15.0 should expose vllm:num_requests_running, and this target does not",
        ),
        (
            "contract",
            "contract_unknown",
            "info",
            (("engine", "vllm"), ("family", "vllm:brand_new")),
            "no known release of vLLM has vllm:brand_new",
        ),
        (
            "contract",
            "contract_unknown",
            "info",
            (("engine", "vllm"), ("family", "vllm:gpu_cache_usage_perc")),
            "vLLM 0.15.0 exposes vllm:gpu_cache_usage_perc, which by its contract it has only up to 0.11.2",
        ),
        (
            "contract",
            "contract_changed_type",
            "warning",
            (("engine", "vllm"), ("family", "vllm:num_requests_waiting")),
            "vllm:num_requests_waiting is a counter here, and by the contract of vLLM a gauge",
        ),
    ]


def test_a_release_newer_than_all_is_judged_by_the_newest() -> None:
    families = dict(seen("vllm", "vllm-0.32.0/loaded.txt", "0.99.0").families)
    del families["vllm:kv_cache_usage_perc"]
    findings = compare(contract("vllm"), Observed("vllm", "0.99.0", families))
    assert [finding.summary for finding in findings] == [
        "vLLM 0.99.0 should expose vllm:kv_cache_usage_perc, and this target does not"
        " (judged by 0.32.0, the newest release that is known)"
    ]


def test_bounds_other_than_the_default_ones() -> None:
    families = dict(seen("vllm", "vllm-0.32.0/loaded.txt", "0.32.0").families)
    name = "vllm:e2e_request_latency_seconds"
    families[name] = replace(families[name], buckets=(0.1, 1.0, float("inf")))
    findings = compare(contract("vllm"), Observed("vllm", "0.32.0+cpu", families))
    assert [(finding.kind, finding.severity, finding.summary) for finding in findings] == [
        (
            "contract_changed_buckets",
            "info",
            f"{name} has 2 bounds (0.1, 1); by default it is 21 bounds (0.3, 0.5, 0.8, …, 1920, 7680)",
        )
    ]
    # What an older release had by default is not known.
    assert "contract_changed_buckets" not in found(compare(contract("vllm"), Observed("vllm", "0.30.0", families)))


@pytest.mark.parametrize(
    ("version", "type_", "wrong"),
    [
        ("0.5.8", "gauge", False),
        ("0.5.8", "histogram", True),
        ("0.5.9", "gauge", False),
        ("0.5.9", "histogram", False),
        ("0.5.23", "gauge", True),
        ("0.5.23", "histogram", False),
        ("0.5.23", "untyped", False),
        ("", "gauge", False),
        ("", "counter", True),
    ],
)
def test_a_type_that_changed_over_the_releases(version: str, type_: str, wrong: bool) -> None:
    observed = Observed("sglang", version, {"sglang:kv_transfer_latency_ms": Exposed(type_)})
    assert ("contract_changed_type" in found(compare(contract("sglang"), observed))) == wrong


def test_a_gauge_histogram_may_be_written_as_a_gauge() -> None:
    observed = Observed("sglang", "", {"sglang:routing_key_all_req_count": Exposed("gaugehistogram")})
    assert compare(contract("sglang"), observed) == []


def test_names_that_come_and_go_are_not_judged() -> None:
    observed = Observed(
        "dynamo", "1.6.1", {"dynamo_tokio_blocking_threads": Exposed("gauge"), "dynamo_new": Exposed("gauge")}
    )
    assert found(compare(contract("dynamo"), observed)) == {"contract_unknown": ["dynamo_new"]}


KV_CONNECTOR = '--kv-transfer-config=\'{"kv_connector":"NixlConnector","kv_role":"kv_both"}\''


@pytest.mark.parametrize(
    ("engine", "families", "version", "absence"),
    [
        (
            "vllm",
            "vllm:inter_token_latency_seconds",
            "0.9.2",
            Absence("version", "vLLM has vllm:inter_token_latency_seconds from 0.10.2 on; this is 0.9.2"),
        ),
        (
            "vllm",
            "vllm:gpu_cache_usage_perc",
            "0.13.0",
            Absence(
                "version",
                "vLLM has vllm:gpu_cache_usage_perc up to 0.11.2; this is 0.13.0;"
                " vllm:kv_cache_usage_perc takes its place",
            ),
        ),
        (
            "vllm",
            "vllm:gpu_prefix_cache_hit_rate",
            "0.13.0",
            Absence(
                "version",
                "vLLM has vllm:gpu_prefix_cache_hit_rate up to 0.9.0; this is 0.13.0; instead there is"
                " rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])",
            ),
        ),
        (
            "vllm",
            "vllm:time_per_output_token_seconds",
            "0.13.0",
            Absence(
                "flag",
                "vLLM hides vllm:time_per_output_token_seconds from 0.12.0 on;"
                " --show-hidden-metrics-for-version=0.12 brings it back",
                "--show-hidden-metrics-for-version=0.12",
            ),
        ),
        (
            "vllm",
            "vllm:estimated_flops_per_gpu_total",
            "0.32.0",
            Absence(
                "flag",
                "vllm:estimated_flops_per_gpu_total needs --enable-mfu-metrics:"
                " it is there only with the estimation of floating-point work",
                "--enable-mfu-metrics",
            ),
        ),
        (
            "vllm",
            "vllm:nixl_xfer_time_seconds",
            "0.32.0",
            Absence(
                "flag",
                f"vllm:nixl_xfer_time_seconds needs {KV_CONNECTOR}: it is there only with the NIXL connector",
                KV_CONNECTOR,
            ),
        ),
        (
            "vllm",
            "vllm:diffusion_num_committed_tokens_total",
            "0.32.0",
            Absence(
                "conditional", "vllm:diffusion_num_committed_tokens_total is there only with a diffusion language model"
            ),
        ),
        (
            "sglang",
            "sglang:time_to_first_token_seconds",
            "0.5.23",
            Absence("lazy", "sglang:time_to_first_token_seconds appears with the first request"),
        ),
        (
            "vllm",
            "vllm:num_requests_running",
            "0.13.0",
            Absence("unknown", "vLLM 0.13.0 should expose vllm:num_requests_running, and this target does not"),
        ),
        (
            "vllm",
            "vllm:request_num_preemptions",
            "0.29.0",
            Absence("version", "vLLM has vllm:request_num_preemptions in 0.30.0 and not in 0.28.0; this is 0.29.0"),
        ),
        (
            "vllm",
            "vllm:prompt_tokens_recomputed_total",
            "0.19.1",
            Absence(
                "version",
                "vLLM has vllm:prompt_tokens_recomputed_total in 0.19.0 and no more in 0.20.0; this is 0.19.1",
            ),
        ),
        (
            "vllm",
            "vllm:prefix_cache_hits_total",
            "",
            Absence(
                "version",
                "not all releases of vLLM have vllm:prefix_cache_hits_total, and which one this is, is not known",
            ),
        ),
        (
            "vllm",
            "vllm:num_requests_running",
            "0.5.0",
            Absence(
                "version",
                "vLLM 0.5.0 is older than the releases that are known,"
                " and whether it has vllm:num_requests_running is not known",
            ),
        ),
        ("vllm", "vllm:foo", "0.13.0", Absence("unknown", "no known release of vLLM has vllm:foo")),
        ("vllm", "", "0.13.0", Absence("unknown", "vLLM has no family for it")),
        # Of alternatives, what can be switched on comes before what is over, and that before what nobody has.
        (
            "vllm",
            "vllm:foo vllm:gpu_prefix_cache_hit_rate vllm:kv_block_lifetime_seconds",
            "0.32.0",
            Absence(
                "flag",
                "vllm:kv_block_lifetime_seconds needs --kv-cache-metrics:"
                " it is there only with the sampling of KV blocks",
                "--kv-cache-metrics",
            ),
        ),
        (
            "triton",
            "vllm:prompt_tokens_total",
            "2.40.0",
            Absence("version", "Triton has vllm:prompt_tokens_total from 2.49.0 on; this is 2.40.0"),
        ),
    ],
)
def test_why_a_family_is_absent(engine: str, families: str, version: str, absence: Absence) -> None:
    assert why_absent(contract(engine), families.split(), version) == absence


def test_releases_that_differ_in_a_condition() -> None:
    acme = read_contract(
        "acme",
        """
title: Acme
own: ['acme:']
releases: [1.0.0, 2.0.0]
conditions: {late: {when: with a permit, from: 2.0.0}}
families:
  acme:thing: {type: gauge, hidden: 2.0.0}
  acme:other: {type: gauge, needs: late}
""",
    )
    assert (
        why_absent(acme, ["acme:thing"], "1.5").text == "the releases of Acme before and after 1.5 differ in acme:thing"
    )
    assert why_absent(acme, ["acme:other"], "1.5").kind == "conditional"
    assert (
        why_absent(acme, ["acme:other"], "1.0.0").text
        == "Acme 1.0.0 should expose acme:other, and this target does not"
    )
