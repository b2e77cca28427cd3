"""The queries in the templates of an alert's annotations and labels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from unit.lint.world import CONTRACT, OBSERVED

from loms.lint.check import check
from loms.lint.files import Sources, read
from loms.lint.patch import patch

RULES = """\
groups:
- name: g
  rules:
  - alert: Full
    expr: vllm:num_requests_waiting > 1
    labels: {worst: '{{ with query "topk(1, vllm:gpu_cache_usage_perc)" }}{{ . | first | label "pod" }}{{ end }}'}
    annotations:
      plain: vllm:gpu_cache_usage_perc is no query here, and {{ "vllm:gpu_cache_usage_perc" | title }} neither
      summary: >-
        Cache at {{ query "vllm:gpu_cache_usage_perc{job=\\"x\\"}" | first | value | humanizePercentage }},
        on {{ $labels.instance }} at {{ query `max(vllm:gpu_cache_usage_perc)` | first | value }}
      double: "{{ with printf \\"vllm:gpu_cache_usage_perc{instance='%s'}\\" $labels.instance | query }}{{ end }}"
      brackets: '{{ range query (printf "vllm:gpu_cache_usage_perc{instance=%q} > %.2f" .Labels.i 0.5) }}{{ end }}'
      piped: '{{ "vllm:gpu_cache_usage_perc" | query | len }}'
      built: '{{ printf "vllm:gpu_%s_usage_perc" "cache" | query }}'
      given: '{{ query $labels.query }} {{ query "\\x41" }}'
  - {record: 'a:b', expr: 'vllm:num_requests_waiting', labels: {a: '{{ query "no template here" }}'}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "r.yaml").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_they_are_read_as_they_are_asked(folder: Path) -> None:
    found = [e for e in read(Sources(rules=["r.yaml"])).expressions if e.purpose == "panel"]
    assert [(e.place.line, e.place.where.removeprefix("g / alert Full "), e.text) for e in found] == [
        (10, "annotation summary", 'vllm:gpu_cache_usage_perc{job="x"}'),
        (11, "annotation summary", "max(vllm:gpu_cache_usage_perc)"),
        (12, "annotation double", "vllm:gpu_cache_usage_perc{instance='%s'}"),
        (13, "annotation brackets", "vllm:gpu_cache_usage_perc{instance=%q} > %.2f"),
        (14, "annotation piped", "vllm:gpu_cache_usage_perc"),
        (15, "annotation built", "vllm:gpu_%s_usage_perc"),
        (6, "label worst", "topk(1, vllm:gpu_cache_usage_perc)"),
    ]


def test_dead_names_in_them_are_found_and_rewritten(folder: Path) -> None:
    report = check(Sources(rules=["r.yaml"]), OBSERVED, CONTRACT)
    dead = [one for one in report.problems if one.kind != "changed_meaning"]
    assert {(one.kind, one.severity, one.place.line) for one in dead} == {
        ("dead_metric", "error", line) for line in (6, 10, 11, 12, 13, 14)
    }
    assert "vllm:kv_cache_usage_perc{instance=%q} > %.2f" in [one.rewrite for one in dead]
    subprocess.run(["patch", "-p1", "-s"], input=patch(report.problems).encode(), check=True)
    head, tail = RULES.split("      summary")
    plain = head.index("      plain")
    old, new = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"
    expected = head[:plain].replace(old, new) + head[plain:] + "      summary" + tail.replace(old, new)
    assert (folder / "r.yaml").read_text() == expected
