from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loms.cli.app import app
from loms.core.errors import ConfigError, ExpositionError, TargetError

DATA = Path(__file__).parents[2] / "data"
VLLM, LLAMA = DATA / "vllm-0.32.0" / "loaded.txt", DATA / "llamacpp-11434.0.0" / "loaded.txt"
OLD_DASHBOARD = {
    "title": "vLLM",
    "panels": [
        {
            "id": number,
            "type": "timeseries",
            "title": f"panel {number}",
            "targets": [{"refId": "A", "expr": expr}],
        }
        for number, expr in enumerate(
            [
                'histogram_quantile(0.9, sum by (le) (rate(vllm:time_per_output_token_seconds_bucket{job="x"}[5m])))',
                "vllm:gpu_cache_usage_perc",
                "rate(vllm:gpu_prefix_cache_hits_total[5m]) / rate(vllm:gpu_prefix_cache_queries_total[5m])",
                "vllm:num_requests_running",
            ],
            start=1,
        )
    ],
}
SUCCESSORS = {
    "vllm:time_per_output_token_seconds_bucket": "vllm:inter_token_latency_seconds_bucket",
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
}
"""Names that a dashboard of vLLM 0.8 has, and those of 0.32."""


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("vllm.json")
    path.write_text(json.dumps(OLD_DASHBOARD, indent=1))
    return path


def doctor(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "200"})


def as_json(*arguments: object) -> dict[str, Any]:
    return json.loads(doctor(*arguments, "--json").stdout)


def test_a_saved_exposition_says_what_it_gives() -> None:
    result = doctor(VLLM)
    assert result.exit_code == 0
    assert "vLLM 0.32.0 (by its metrics)" in result.stdout
    assert "model smollm2-135m" in result.stdout
    assert "It exposes what vLLM 0.32.0" in result.stdout


def test_json_for_scripts() -> None:
    found = as_json(LLAMA, "--version", "b11434")
    assert (found["engine"], found["version"], found["lint"]) == ("llama.cpp", "b11434", None)
    signals = {signal["prometheus"]: signal for signal in found["signals"]}
    assert signals["llm_engine_requests_running"]["status"] == "available"
    ttft = signals["gen_ai_server_time_to_first_token_seconds"]
    assert (ttft["status"], ttft["kind"]) == ("absent", "never")
    assert ttft["instead"]


def test_dead_names_of_an_old_dashboard_with_their_successors(dashboard: Path) -> None:
    result = doctor(VLLM, "--grafana", dashboard)
    assert result.exit_code == 1
    found = as_json(VLLM, "--grafana", dashboard)["lint"]
    dead = {p["expression"]: p for p in found["problems"] if p["kind"] == "dead_metric"}
    for old, new in SUCCESSORS.items():
        assert any(old in expression and new in p["rewrite"] for expression, p in dead.items()), old
    assert "vllm:num_requests_running" not in dead


def test_a_report_tells_each_problem_of_a_file_once(dashboard: Path) -> None:
    Path("rules.yaml").write_text(
        "groups:\n- name: g\n  rules: [{alert: Full, expr: 'vllm:gpu_cache_usage_perc > 0.9'}]\n"
    )
    board = json.loads(dashboard.read_text())
    dashboard.write_text(json.dumps({**board, "panels": board["panels"] * 20}, indent=1))
    told = doctor(VLLM, "--grafana", dashboard, "--rules", "rules.yaml").stdout
    assert "81 expressions in 2 files: 81 errors, 0 warnings" in told
    report, _, patch = told.partition("Patch (--patch FILE writes it")
    first, _, second = report.partition("\nvllm.json\n")
    gone = "error dead_metric  vLLM 0.32.0 does not expose vllm:gpu_cache_usage_perc (last"
    assert (first.count(gone), second.count(gone)) == (1, 1)
    assert first.endswith("    line 3: g / alert Full\n")
    assert second.count("panel 'panel 2' query A\n") == 20
    assert patch.count('+     "expr": "vllm:kv_cache_usage_perc"') == 20


def test_a_patch_without_rewrites_is_said_to_be_empty(dashboard: Path) -> None:
    dashboard.write_text(json.dumps({**OLD_DASHBOARD, "panels": OLD_DASHBOARD["panels"][3:]}))
    told = doctor(VLLM, "--grafana", dashboard, "--patch", "fix.patch").stdout
    assert "There is nothing to rewrite, and fix.patch is empty." in told
    assert Path("fix.patch").read_text() == ""


@pytest.mark.skipif(not shutil.which("patch"), reason="patch (Debian: patch) is not installed")
def test_the_patch_applies_and_leaves_nothing_dead(dashboard: Path) -> None:
    patched = doctor(VLLM, "--grafana", dashboard, "--patch", "fix.patch")
    assert "fix.patch" in patched.stdout
    subprocess.run(["patch", "-p1", "-i", "fix.patch"], check=True, capture_output=True)
    text = dashboard.read_text()
    for old, new in SUCCESSORS.items():
        assert old not in text
        assert new in text
    assert not [p for p in as_json(VLLM, "--grafana", dashboard)["lint"]["problems"] if p["kind"] == "dead_metric"]


def test_a_promised_metric_that_is_missing_makes_the_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    lines = (line for line in VLLM.read_text().splitlines() if "num_preemptions" not in line)
    path.write_text("\n".join(lines) + "\n")
    result = doctor(path, "--version", "0.32.0")
    assert result.exit_code == 1
    assert "vllm:num_preemptions_total" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("no-such-file.txt",), ConfigError, "neither a file nor host:port nor a URL"),
        (("127.0.0.1:1",), TargetError, "nothing listens"),
        ((DATA / "tls" / "ca.pem",), ExpositionError, "ca.pem"),
        ((VLLM, "--grafana", "no-such-dashboard.json"), ConfigError, "no-such-dashboard.json"),
        ((VLLM, "--engine", "no-such-engine.yaml"), ConfigError, "no-such-engine.yaml"),
        ((VLLM, "--patch", "/no/such/folder/x.patch"), ConfigError, "/no/such/folder/x.patch"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(arguments: tuple[object, ...], error: type, words: str) -> None:
    result = doctor(*arguments)
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:1", "http://me:s3cret@127.0.0.1:1/metrics"])
def test_credentials_are_never_told(url: str) -> None:
    result = doctor(url)
    assert "127.0.0.1:1" in str(result.exception)
    assert "s3cret" not in str(result.exception) + result.output


def test_an_exposition_of_nobody_known(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text("# TYPE go_goroutines gauge\ngo_goroutines 5\n")
    result = doctor(path)
    assert isinstance(result.exception, ExpositionError)
    assert "no known engine" in str(result.exception)
