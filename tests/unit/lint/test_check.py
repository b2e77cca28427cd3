"""The whole of it on files as people have them, against a small world and against real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.lint.world import CONTRACT, DATA, OBSERVED, written

from loms.core.errors import ConfigError
from loms.engines.contracts.contract import Exposed, contract_of, observe
from loms.engines.engine import engines
from loms.ingest.exposition import ExpositionReader
from loms.lint.check import check, problems_in, target_of
from loms.lint.files import Sources

COUNTER = Exposed("counter", frozenset({"model"}))
RECORDED = DATA.parent / "vllm-0.32.0" / "loaded.txt"


def brief(sources: Sources) -> list[tuple[int, str, str, str]]:
    report = check(sources, OBSERVED, CONTRACT)
    return [
        (one.place.line, one.severity, one.kind, one.place.where.rpartition(" / ")[2])
        for one in report.problems
        if one.kind != "changed_meaning"
    ]


def test_a_rule_file() -> None:
    assert brief(Sources(rules=[str(DATA / "rules.yaml")])) == [
        (12, "error", "quantile_without_le", "record zone:vllm_ttft_seconds:p99"),
        (12, "warning", "unknown_label", "record zone:vllm_ttft_seconds:p99"),
        (20, "info", "average_of_quantiles", "alert TTFTHigh"),
        (27, "warning", "average_of_quantiles", "alert TTFTMean"),
        (32, "error", "dead_metric", "alert TPOTHigh"),
        (35, "error", "missing_rate", "alert SlowSinceEver"),
        (39, "error", "dead_metric", "alert CacheFull"),
        (44, "info", "dead_metric", "alert CacheFullEverywhere"),
        (46, "error", "dead_metric", "alert HitsBoth"),
        (46, "error", "mixed_old_and_new", "alert HitsBoth"),
        (48, "error", "dead_metric", "alert ByRegex"),
        (50, "error", "dead_metric", "alert ByName"),
        (52, "error", "counter_as_gauge", "alert Preempting"),
        (54, "warning", "rate_of_gauge", "alert QueueRate"),
        (56, "error", "unknown_label", "alert WrongLabel"),
        (56, "warning", "unknown_label", "alert WrongLabel"),
        (58, "error", "dead_metric", "alert Typo"),
        (60, "error", "parse_error", "alert Broken"),
    ]


def test_scalers_and_an_adapter() -> None:
    sources = Sources(keda=[str(DATA / "keda.yaml")], hpa=[str(DATA / "hpa.yaml"), str(DATA / "adapter.yaml")])
    assert brief(sources) == [
        (8, "error", "dead_metric", "prometheus-adapter rule 0 seriesQuery"),
        (18, "error", "counter_as_gauge", "prometheus-adapter rule 2 metricsQuery"),
        (15, "error", "dead_metric", "HPA llm metric 1"),
        (15, "warning", "unknown_label", "HPA llm metric 1"),
        (15, "error", "dead_metric", "ScaledObject llm-scaler trigger 1"),
        (20, "error", "counter_as_gauge", "ScaledObject llm-scaler trigger 2"),
    ]


def test_a_report_as_plain_values() -> None:
    report = check(Sources(keda=[str(DATA / "keda.yaml")]), OBSERVED, CONTRACT)
    told = json.loads(json.dumps(report.as_json()))
    assert (told["expressions"], told["files"]) == (3, [str(DATA / "keda.yaml")])
    assert (told["errors"], told["warnings"]) == (2, 0)
    first = told["problems"][0]
    assert first == {
        "kind": "dead_metric",
        "severity": "error",
        "file": str(DATA / "keda.yaml"),
        "line": 15,
        "where": "ScaledObject llm-scaler trigger 1",
        "expression": 'avg(vllm:gpu_cache_usage_perc{namespace="llm"})',
        "text": "vLLM 0.32.0 does not expose vllm:gpu_cache_usage_perc (last seen in 0.11.2, gone in 0.12.0); "
        "vllm:kv_cache_usage_perc took its place",
        "rewrite": 'avg(vllm:kv_cache_usage_perc{namespace="llm"})',
    }
    assert [one["rewrite"] for one in told["problems"][1:]] == [None, None]


def test_a_dashboard_for_vllm_0_8_against_a_recording_of_0_32() -> None:
    """Which names are dead, and what took their place, was read by eye from the recording and the release notes."""
    shape = ExpositionReader().read(RECORDED.read_bytes(), "text/plain; version=0.0.4").shape
    observed = observe(shape, "vllm", "0.32.0", engines.load()["vllm"].spell)
    report = check(Sources(grafana=[str(DATA / "dashboard.json")]), observed, contract_of("vllm"))
    dead = {
        (one.place.where.removeprefix("dashboard 'vLLM' "), one.severity, bool(one.rewrite))
        for one in report.problems
        if one.kind == "dead_metric"
    }
    assert dead == {
        ("panel 'Time per output token' query A", "error", True),
        ("panel 'Time per output token' query B", "error", True),
        ("panel 'Cache \"usage\" – GPU and CPU' query A", "error", True),
        ("panel 'Cache \"usage\" – GPU and CPU' query B", "error", False),
        ("panel 'Prefix cache' query A", "error", True),
        ("panel 'Other spelling' query A", "error", True),
        ("variable $model", "error", True),
        ("variable $busy", "error", True),
        ("annotation 'Swapping'", "error", False),
    }
    (prefix,) = {one.rewrite for one in report.problems if "Prefix" in one.place.where and one.rewrite}
    hits, queries = (f"sum(increase(vllm:prefix_cache_{name}_total[$__range]))" for name in ("hits", "queries"))
    assert prefix == f"{hits} / {queries}"
    others = {(one.kind, one.severity) for one in report.problems if one.kind != "dead_metric"}
    assert others == {("changed_meaning", "info"), ("unknown_label", "warning")}


@pytest.mark.parametrize("engine", ["", "home-made"])
def test_an_engine_that_nobody_knows(engine: str) -> None:
    """What it exposes can be judged, and every other name may be anybody's."""
    families = {"my_up": Exposed("gauge", frozenset({"a"})), "my_total": COUNTER, "my_seconds": Exposed("histogram")}
    target = target_of(type(OBSERVED)(engine, "", families), None)
    kinds = {
        text: [one.kind for one in problems_in([written(text)], target)]
        for text in (
            "vllm:prompt_tokens_total > 1 and my_up > 1",
            "my_total > 1",
            "my_seconds_bucket > 1",
            'my_up{b="c"} > 1',
            "my_tota > 1",
        )
    }
    assert list(kinds.values()) == [[], ["counter_as_gauge"], ["counter_as_gauge"], ["unknown_label"], []]


def test_names_that_are_somebody_elses() -> None:
    """A router in front of vLLM has metrics that look like vLLM's; some of them vLLM once had itself."""
    texts = (
        "vllm:num_requests_swapped",
        "vllm_current_qps > 1",
        '{__name__=~"vllm:router_.*"}',
        "rate(vllm:num_request_waiting[5m])",
    )
    ignore = ["vllm:(num_requests_swapped|current_qps|num_request_waiting)", "vllm:router_.*"]
    for ignored, kinds in (([], ["dead_metric"] * 4), (ignore, []), (["vllm:"], ["dead_metric"] * 4)):
        target = target_of(OBSERVED, CONTRACT, ignore=ignored)
        assert [one.kind for one in problems_in(map(written, texts), target)] == kinds
    with pytest.raises(ConfigError, match=r"^--ignore vllm:\(: "):
        target_of(OBSERVED, CONTRACT, ignore=["vllm:("])


def test_folders_are_read_around_what_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "chart.yaml").write_text("groups:\n- rules:\n  - {alert: A, expr: 'a > {{ .Values.limit }}'}\n")
    (tmp_path / "broken.yaml").write_text("groups:\n- [\n")
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    (tmp_path / "good.yaml").write_text("groups: [{rules: [{alert: A, expr: 'vllm:num_requests_running > 1'}]}]")
    for pattern in (str(tmp_path), f"{tmp_path}/*.yaml"):
        report = check(Sources(rules=[pattern]), OBSERVED, CONTRACT)
        assert (report.expressions, report.files) == (1, (str(tmp_path / "good.yaml"),))
        assert (report.count("error"), report.count("warning")) == (0, 3)
        told = [(Path(one.place.file).name, one.place.line, one.kind, one.text) for one in report.problems]
        assert told[1] == (
            "chart.yaml",
            3,
            "unreadable_file",
            "not looked at: is a Helm template, which is no YAML yet; render it first: helm template CHART",
        )
        assert told[0][:3] == ("broken.yaml", 3, "unreadable_file")
        assert told[0][3].startswith("not looked at: not valid YAML: ")
        assert told[2][:3] == ("latin.yaml", 1, "unreadable_file")
        assert told[2][3].startswith("not looked at: cannot be read: ")


def test_contracts_of_devices_do_not_judge() -> None:
    contracts = [found for name in ("vllm", "sglang", "dcgm") if (found := contract_of(name)) is not None]
    assert [one.engine for one in target_of(OBSERVED, CONTRACT, others=contracts).others] == ["sglang"]


def test_families_that_another_engine_passes_on() -> None:
    """Dynamo passes its workers' families on; which release of vLLM they come from, it does not say."""
    vllm, dynamo = contract_of("vllm"), contract_of("dynamo")
    assert vllm is not None
    observed = type(OBSERVED)("dynamo", "1.0.2", {**OBSERVED.families, "dynamo_frontend_requests_total": COUNTER})
    target = target_of(observed, dynamo, others=[vllm])
    assert (target.carried, target.others) == ((vllm,), ())
    (cache, swapped, alive) = (
        [(one.severity, one.rewrite) for one in problems_in([written(text)], target) if one.kind == "dead_metric"]
        for text in (
            "vllm_gpu_cache_usage_perc > 1",
            "vllm:num_requests_swapped > 1",
            "vllm:kv_cache_usage_perc + rate(dynamo_frontend_requests_total[5m])",
        )
    )
    assert cache == [("error", "vllm_kv_cache_usage_perc > 1")]
    assert swapped == [("warning", "")]
    assert alive == []
