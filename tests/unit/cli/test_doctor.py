from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from support.http_host import TEXT, Host
from typer.testing import CliRunner

from loms.agent.examine import MOST_BYTES
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


def test_one_of_a_kind_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("groups:\n- name: g\n  rules: [{alert: Full, expr: 'vllm:gpu_cache_usage_perc > 0.9'}]\n")
    assert "\n1 expression in 1 file: 1 error, 0 warnings\n" in doctor(VLLM, "--rules", path).stdout


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
        ((VLLM, "--engine", "no-such-engine.yaml"), ConfigError, "--engine: no-such-engine.yaml does not exist"),
        (("ftp://127.0.0.1/metrics",), ConfigError, "over http or https, not ftp"),
        (("127.0.0.1:99999",), ConfigError, "there is no port 99999"),
        (("http://127.0.0.1:0/metrics",), ConfigError, "there is no port 0"),
        ((VLLM, "--version", "banana"), ConfigError, "--version 'banana' is no release of vLLM"),
        ((LLAMA, "--version", "b"), ConfigError, "--version 'b' is no release of llama.cpp"),
        ((VLLM, "--version", ""), ConfigError, "--version '' is no version"),
        ((VLLM, "--grafana", VLLM.parents[1] / "lint", "--ignore", "("), ConfigError, "--ignore ("),
        ((VLLM, "--patch", "/no/such/folder/x.patch"), ConfigError, "/no/such/folder/x.patch"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(arguments: tuple[object, ...], error: type, words: str) -> None:
    result = doctor(*arguments)
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (401, "the answer is HTTP 401", "give its token with --token or LOMS_TARGET_TOKEN"),
        (403, "the answer is HTTP 403", "give its token with --token or LOMS_TARGET_TOKEN"),
        (404, "the answer is HTTP 404", "--metrics"),
        (500, "the answer is HTTP 500", "its log says why"),
        (302, "more than 10 redirects", "give the URL that it leads to"),
    ],
)
def test_an_answer_that_is_none_is_told_once_with_what_to_do(status: int, said: str, advice: str) -> None:
    with Host(lambda _: status) as host:
        for where in (host.instance, f"http://{host.instance}/metrics"):
            error = doctor(where).exception
            assert isinstance(error, TargetError)
            assert error.message.count(said) == 1
            assert f"http://{host.instance}/metrics" in error.message
            assert advice in error.hint


def test_one_path_that_wants_a_token_decides_what_to_do() -> None:
    with Host(lambda path: 401 if path == "/metrics" else None) as host:
        error = doctor(host.instance).exception
    assert isinstance(error, TargetError)
    assert error.message == f"http://{host.instance}/metrics: the answer is HTTP 401"
    assert "--token" in error.hint


def test_a_target_of_nobody_known_is_told_how_to_declare_it() -> None:
    with Host(lambda path: (TEXT, b"shop_orders 1\n") if path == "/metrics" else None) as host:
        error = doctor(host.instance).exception
    assert isinstance(error, TargetError)
    assert error.message == f"http://{host.instance}/metrics: no known engine exposes this"
    assert "--engine FILE" in error.hint


def loms(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "loms", "doctor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False, **options)


def test_a_pipe_gets_a_line_for_each_row() -> None:
    lines = loms(VLLM).stdout.splitlines()
    (row,) = (line for line in lines if "gen_ai.server.time_per_output_token" in line)
    assert row.endswith("available  vllm:request_time_per_output_token_seconds")
    (row,) = (line for line in lines if "llm.engine.kv_transfer.io" in line)
    assert row.endswith("""set --kv-transfer-config='{"kv_connector":"NixlConnector","kv_role":"kv_both"}'""")
    assert len([line for line in lines if line[:1] in "●◐○" and line]) == 36
    assert not any(line.startswith("  ") and line.strip() != "signal" and "from, or" not in line for line in lines)


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_terminal_gets_lines_of_its_width_and_whole_words(columns: int) -> None:
    piped = loms(VLLM).stdout
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "loms", "doctor", str(VLLM)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while part := os.read(ours, 65536):
                shown += part
        os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.decode())
    assert text.split() == piped.split()
    heads = [line for line in text.splitlines() if re.match(r"[●◐○] \S+ +\w+$", line)]
    for line in text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1 or line in heads


@pytest.mark.parametrize("how", ["gzip", "crlf", "mark", "openmetrics", "standard input"])
def test_a_saved_answer_may_be_packed_and_come_from_elsewhere(how: str, tmp_path: Path) -> None:
    body = VLLM.read_bytes()
    path = tmp_path / "metrics.txt"
    if how == "gzip":
        path.write_bytes(gzip.compress(body))
    elif how == "crlf":
        path.write_bytes(body.replace(b"\n", b"\r\n"))
    elif how == "mark":
        path.write_bytes(b"\xef\xbb\xbf" + body)
    elif how == "openmetrics":
        text = body.replace(b"_total counter\n", b" counter\n") + b"# EOF\n"
        first = re.search(rb"^vllm:prompt_tokens_total\{.*$", text, re.MULTILINE)
        assert first is not None
        path.write_bytes(text.replace(first[0], first[0] + b' # {trace_id="a"} 1.0'))
    if how == "standard input":
        with VLLM.open() as file:
            found = json.loads(loms("-", "--json", stdin=file).stdout)
        assert found["target"] == "standard input"
    else:
        found = as_json(path)
    assert found["signals"] == as_json(VLLM)["signals"]


def test_a_packed_answer_is_bounded_and_must_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt.gz"
    path.write_bytes(gzip.compress(b"\n" * (MOST_BYTES + 1), 1))
    assert "unpacked, it is larger than 256 MiB" in str(doctor(path).exception)
    whole = gzip.compress(VLLM.read_bytes())
    for broken in (whole[:-200], whole[:20], whole[:2] + b"x" + whole[3:]):
        path.write_bytes(broken)
        result = doctor(path)
        assert isinstance(result.exception, ExpositionError)
        assert "cannot be unpacked" in str(result.exception)


def test_more_samples_than_a_scrape_may_have_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM.read_text() + "".join(f'more{{n="{i}"}} 1\n' for i in range(200_001)))
    assert as_json(path)["engine"] == "vllm"


def test_what_another_job_has_can_be_ignored(dashboard: Path) -> None:
    found = as_json(VLLM, "--grafana", dashboard, "--ignore", "vllm:gpu_.*")["lint"]
    names = {p["where"] for p in found["problems"] if p["kind"] == "dead_metric"}
    assert names == {"dashboard 'vLLM' panel 'panel 1' query A"}


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


def test_a_sum_over_ranks_that_say_the_same_is_told_where_there_are_several(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    expr = "sum(sglang:num_running_reqs) > 5"
    rules.write_text(f"groups: [{{name: g, rules: [{{alert: Busy, expr: '{expr}'}}]}}]\n")

    def kinds(release: str) -> set[str]:
        found = as_json(DATA / "written" / f"sglang-{release}.txt", "--rules", rules)
        return {problem["kind"] for problem in found["lint"]["problems"]}

    assert "replicas_added" in kinds("0.5.8")  # two tensor-parallel ranks
    assert "replicas_added" not in kinds("0.5.6")  # one
