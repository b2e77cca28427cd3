from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from loms.rules.template import compile_template, go_float, humanize, humanize_duration, humanize_percentage

VALUES = (
    0,
    0.5,
    1,
    17,
    59.9,
    60,
    250,
    3600,
    86399,
    100000,
    1234567,
    0.00123,
    0.0000456,
    1e15,
    1e6,
    123456,
    1e-7,
    12345,
    0.85,
    -90.5,
)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
def test_every_pipe_writes_what_prometheus_writes(tmp_path: Path) -> None:
    """promtool evaluates the same annotations for the same values and compares them with ours."""
    pipes = ("", " | humanize", " | humanizeDuration", " | humanizePercentage")
    annotations = {
        f"a{i}": f"{{{{ $labels.job }}}}: {{{{ $value{pipe} }}}} {{{{ $labels.none }}}}."
        for i, pipe in enumerate(pipes)
    }
    rule = {"alert": "A", "expr": "m", "labels": {"twice": "{{ $value }}"}, "annotations": annotations}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    tests = []
    for value in VALUES:
        ours = {k: compile_template(text).render({"job": "llm"}, value) for k, text in annotations.items()}
        alert = {"exp_labels": {"job": "llm", "twice": go_float(value)}, "exp_annotations": ours}
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": 'm{job="llm"}', "values": repr(float(value))}],
                "alert_rule_test": [{"eval_time": "0m", "alertname": "A", "exp_alerts": [alert]}],
            }
        )
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)
def test_numbers_that_are_none(value: float, expected: str) -> None:
    assert {go_float(value), humanize(value), humanize_duration(value)} == {expected}
    assert humanize_percentage(value) == f"{expected}%"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ $labels.instance", "unbalanced '{{'"),
        ("instance }}", "unbalanced '}}'"),
        ("{{ $lables.instance }}", "{{ $lables.instance }} is not understood"),
        ("{{ .Value }}", "not understood"),
        ("{{ $value | humanise }}", "there is no pipe named 'humanise'; did you mean 'humanize'?"),
        ("{{ $value | humanize | humanize }}", "more than one pipe"),
        ("{{ $labels.instance | humanize }}", "pipes work on $value"),
        ("{{ if $value }}x{{ end }}", "not understood"),
        ("{{}}", "not understood"),
    ],
)
def test_what_is_not_understood_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        compile_template(text)


def test_plain_text_and_missing_labels() -> None:
    assert compile_template("no { braces } here").render({}, 1) == "no { braces } here"
    assert compile_template("[{{$labels.a}}]").render({"b": "x"}, 1) == "[]"
    assert compile_template("a") == compile_template("a")
