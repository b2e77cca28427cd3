"""The two files for Prometheus, as YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from loms.engines.contracts.contract import contract_names, contract_of, observe
from loms.engines.engine import Engine, engines
from loms.export.recording import group_of
from loms.export.rule_file import rule_file
from loms.export.scrape_file import scrape_file
from loms.ingest.exposition import ExpositionReader
from loms.lint.check import check
from loms.lint.files import Sources

DATA = Path(__file__).parents[2] / "data"

NAMES = [name for name, engine in engines.load().items() if engine.expose is Engine.expose]


def test_a_rule_file_says_what_the_groups_say() -> None:
    groups = [group_of(name) for name in NAMES]
    written = yaml.safe_load(rule_file(groups, 90.0))["groups"]
    assert [group["name"] for group in written] == [f"loms-{name}" for name in NAMES]
    assert {group["interval"] for group in written} == {"1m30s"}
    for group, found in zip(groups, written, strict=True):
        assert [(r["record"], r["expr"], r["labels"]) for r in found["rules"]] == [
            (rule.record, rule.expr, dict(rule.labels)) for rule in group.rules
        ]


def test_a_rule_file_names_what_it_leaves_out() -> None:
    text = re.sub(r"\n\s+#\s+", " ", rule_file([group_of("vllm")], 15.0))
    assert "llm_engine_kv_cache_capacity: LOMS works it out from labels' values" in text
    assert "llm_engine_info: the engine's version comes from its API" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_scrape_job_for_each_engine(name: str) -> None:
    [job] = yaml.safe_load(scrape_file([name], "eu-west: 1"))["scrape_configs"]
    assert job["job_name"] == name
    assert job["metrics_path"] == engines[name].paths[0]
    assert job["relabel_configs"] == [{"target_label": "deployment_zone", "replacement": "eu-west: 1"}]


@pytest.mark.parametrize(
    ("name", "spelt", "wanted"),
    [
        ("vllm", "vllm_num_requests_running", "vllm:num_requests_running"),
        ("vllm", "ray_vllm_num_requests_running", "vllm:num_requests_running"),
        ("vllm", "ray_vllm:num_requests_running", "vllm:num_requests_running"),
        ("vllm", "vllm:num_requests_running", "vllm:num_requests_running"),
        ("vllm", "my_vllm_requests", "my_vllm_requests"),
        ("vllm", "http_request_duration_seconds_sum", "http_request_duration_seconds_sum"),
        ("sglang", "sglang_num_running_reqs", "sglang:num_running_reqs"),
        ("llama.cpp", "llamacpp_requests_processing", "llamacpp:requests_processing"),
        ("dynamo", "vllm_num_requests_running", "vllm:num_requests_running"),
        ("dynamo", "dynamo_frontend_requests_total", "dynamo_frontend_requests_total"),
    ],
)
def test_other_spellings_are_put_right(name: str, spelt: str, wanted: str) -> None:
    [job] = yaml.safe_load(scrape_file([name], "lab"))["scrape_configs"]
    for rule in job["metric_relabel_configs"]:
        assert (rule["source_labels"], rule["target_label"]) == (["__name__"], "__name__")
        if match := re.fullmatch(rule["regex"], spelt):
            spelt = rule["replacement"].replace("$1", match[1])
    assert spelt == wanted


@pytest.mark.parametrize("name", ["tgi", "tensorrt-llm", "dcgm"])
def test_an_engine_with_one_spelling_needs_nothing_put_right(name: str) -> None:
    [job] = yaml.safe_load(scrape_file([name], "lab"))["scrape_configs"]
    assert "metric_relabel_configs" not in job


def test_where_no_metric_names_the_model_the_file_says_how_to() -> None:
    wanted = "#   replacement: my-model"
    assert wanted in scrape_file(["llama.cpp"], "lab")
    assert wanted in scrape_file(["tgi"], "lab")
    assert wanted not in scrape_file(["vllm"], "lab")
    assert wanted not in scrape_file(["dcgm"], "lab")


@pytest.mark.parametrize(
    ("name", "recording"),
    [
        ("vllm", "vllm-0.32.0/loaded"),
        ("vllm", "written/vllm-0.9.0"),
        ("sglang", "sglang-0.5.23/loaded"),
        ("llama.cpp", "llamacpp-11434.0.0/loaded"),
        ("triton", "triton-2.51.0/loaded"),
        ("tgi", "written/tgi-3.3.7"),
    ],
)
def test_the_linter_finds_nothing_wrong_in_the_rules(name: str, recording: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rule_file([group_of(one) for one in NAMES], 15))
    shape = ExpositionReader().read((DATA / f"{recording}.txt").read_bytes(), "text/plain").shape
    engine, contract = engines.load()[name], contract_of(name)
    assert contract is not None
    version = contract.span("", frozenset(map(engine.spell, shape.types)))[1]
    others = [other for one in contract_names() if (other := contract_of(one)) is not None]
    report = check(Sources(rules=[str(tmp_path)]), observe(shape, name, version, engine.spell), contract, others=others)
    assert [(p.severity, p.place.where, p.text) for p in report.problems if p.severity != "info"] == []
