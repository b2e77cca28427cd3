"""The diff, applied by the real ``patch`` and ``git apply`` to copies of the files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from unit.lint.world import CONTRACT, DATA, OBSERVED

from loms.lint.check import check
from loms.lint.files import Sources
from loms.lint.patch import patch
from loms.lint.problem import Report

KINDS = {
    "rules": ["rules.yaml", "prometheusrule.yaml"],
    "grafana": ["dashboard.json", "dashboard-v2.json"],
    "keda": ["keda.yaml"],
    "hpa": ["hpa.yaml", "adapter.yaml"],
}
RENAMES = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm_gpu_cache_usage_perc": "vllm_kv_cache_usage_perc",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
}


def lint(folder: Path | str, kinds: dict[str, list[str]] = KINDS) -> Report:
    files = {kind: [f"{folder}/{name}" for name in names] for kind, names in kinds.items()}
    return check(Sources(**files), OBSERVED, CONTRACT)


def apply(diff: str, *command: str) -> None:
    """The files were named from the root, so the diff holds there."""
    if not shutil.which(command[0]):
        pytest.skip(f"needs {command[0]} (Debian: {command[0]})")
    done = subprocess.run(command, input=diff.encode(), cwd="/", capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"fuzz" not in done.stdout
    assert b"offset" not in done.stdout


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A folder with copies of all files."""
    for names in KINDS.values():
        for name in names:
            shutil.copy(DATA / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("command", [("patch", "-p1"), ("git", "apply")])
def test_after_the_patch_only_the_names_are_other_ones(command: tuple[str, ...], copies: Path) -> None:
    before = lint(copies)
    apply(patch(before.problems), *command)
    after = lint(copies)
    assert [one for one in after.problems if one.rewrite] == []
    gone = [(one.place, one.kind) for one in before.problems if one.edits]
    assert len(gone) == 16
    kept = [(one.place, one.kind, one.text) for one in before.problems if not one.edits]
    left = [(one.place, one.kind, one.text) for one in after.problems]
    assert kept == left
    for names in KINDS.values():
        for name in names:
            old, new = (DATA / name).read_text().split("\n"), (copies / name).read_text().split("\n")
            assert len(old) == len(new)
            for line, (was, now) in enumerate(zip(old, new, strict=True), 1):
                for dead, successor in RENAMES.items():
                    if was != now:
                        was = was.replace(dead, successor)
                assert was == now, f"{name}:{line}"


def test_lines_that_stay_as_they_are(copies: Path) -> None:
    apply(patch(lint(copies).problems), "patch", "-p1")
    rules, board = (copies / "rules.yaml").read_text(), (copies / "dashboard.json").read_text()
    assert "# Rules as they were written for vLLM 0.8. vllm:gpu_cache_usage_perc in a comment stays.\n" in rules
    assert "vllm:kv_cache_usage_perc > 0.95\n          or\n          vllm:gpu_cache_usage_perc > 0.95\n" in rules
    assert '"uses vllm:gpu_cache_usage_perc, which a text may go on naming"' in board
    assert '"expr": "vllm:kv_cache_usage_perc{model_name=\\"$model\\"} \\u003e 0.9 and' in board
    assert board.count('label_values(vllm:kv_cache_usage_perc{job=\\"vllm\\"}, model_name)') == 2
    assert "metricName: vllm:gpu_cache_usage_perc" in (copies / "keda.yaml").read_text()


ODD_FILES = {
    "no newline at the end": b"groups:\n- rules:\n  - alert: A\n    expr: vllm:gpu_cache_usage_perc > 1",
    "CRLF": b"groups:\r\n- rules:\r\n  - alert: A\r\n    expr: |\r\n      vllm:gpu_cache_usage_perc\r\n      > 1\r\n",
    "a byte order mark, form feeds and other breaks": (
        "\ufeffgroups:\n- rules:\n  - alert: 'é\u2028😀'\n    expr: vllm:gpu_cache_usage_perc > 1 # \x85\n".encode()
    ),
    "one line": b'{"groups":[{"rules":[{"alert":"A","expr":"vllm:gpu_cache_usage_perc/vllm:gpu_cache_usage_perc"}]}]}',
    "neighbours": b"groups:\n- rules:\n"
    + b"".join(
        b"  - {alert: A%d, expr: vllm:%s_cache_usage_perc > 1}\n" % (i, b"gpu" if i in (0, 6, 7, 15, 23) else b"kv")
        for i in range(26)
    ),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_files_of_all_sorts(name: str, tmp_path: Path) -> None:
    file = "some rules.json" if name == "one line" else "some rules.yaml"
    (tmp_path / file).write_bytes(ODD_FILES[name])
    problems = lint(tmp_path, {"rules": [file]}).problems
    apply(patch(problems), "patch", "-p1", "--binary")
    assert (tmp_path / file).read_bytes() == ODD_FILES[name].replace(b"gpu_cache", b"kv_cache")


def test_the_text_of_a_diff(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    expr = "vllm:gpu_cache_usage_perc > 1"
    path.write_text(f"groups:\n- rules:\n  - alert: A\n    expr: {expr}\n  - {{alert: B, expr: up}}")
    problems = lint(f"{tmp_path}/../{tmp_path.name}", {"rules": ["r.yaml"]}).problems
    name = str(path).lstrip("/")
    assert patch(problems) == (
        f"--- a/{name}\n+++ b/{name}\n@@ -1,5 +1,5 @@\n groups:\n - rules:\n   - alert: A\n"
        "-    expr: vllm:gpu_cache_usage_perc > 1\n+    expr: vllm:kv_cache_usage_perc > 1\n"
        "   - {alert: B, expr: up}\n\\ No newline at end of file\n"
    )
    assert patch([one for one in problems if not one.edits]) == ""


def test_a_name_written_with_escapes_is_left_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text('groups:\n- rules:\n  - alert: A\n    expr: "\\x76llm:gpu_cache_usage_perc"\n')
    (one,) = lint(tmp_path, {"rules": ["r.yaml"]}).problems
    assert one.rewrite == "vllm:kv_cache_usage_perc"
    assert one.text.endswith("; the file writes it with escapes, so change it by hand")
    assert (one.edits, patch([one])) == ((), "")


def test_a_file_that_is_named_twice_is_patched_once(copies: Path) -> None:
    manifest = (copies / "hpa.yaml").read_text() + "---\n" + (copies / "keda.yaml").read_text()
    (copies / "all.yaml").write_text(manifest)
    twice = {"hpa": ["all.yaml"], "keda": ["all.yaml"]}
    diff = patch(lint(copies, twice).problems)
    assert diff.count("--- a/") == 1
    apply(diff, "patch", "-p1")
    assert [one for one in lint(copies, twice).problems if one.rewrite] == []
