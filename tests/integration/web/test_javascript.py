"""The page's pure parts: Node's own test runner, and its expressions against the catalogue and a PromQL parser."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest

from loms.core.semconv import CATALOGUE

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
LIST = """
import { CHARTS, COLUMNS, selectorOf } from "./web/signals.js";
const signals = [...COLUMNS, ...CHARTS].flatMap((panel) => panel.signals);
console.log(JSON.stringify(signals.map(({ needs, expr }) => ({
  needs, exprs: [expr("", "60s"), expr(selectorOf('a"\\\\b:1'), "90s")],
}))));
"""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if not found:
        pytest.skip("needs node (Debian: nodejs)")
    return found


def test_the_javascript_unit_tests_pass(node: str) -> None:
    files = sorted(map(str, (ROOT / "tests" / "web").glob("*.test.mjs")))
    done = subprocess.run([node, "--test", *files], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"^# pass (\d+)", done.stdout, re.M)
    assert int(passed) > 40


def test_every_expression_is_promql_over_canonical_names(node: str) -> None:
    done = subprocess.run(
        [node, "--input-type=module", "-e", LIST], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    families = {metric.prometheus for metric in CATALOGUE.values()}
    signals = json.loads(done.stdout)
    assert len(signals) > 20
    for signal in signals:
        assert signal["needs"] in families
        for expr in signal["exprs"]:
            promql_parser.parse(expr)
            for name in re.findall(r"\b(?:gen_ai|llm_engine)_\w+", expr):
                assert re.sub(r"_(bucket|sum|count)$", "", name) in families, expr


def test_vendored_files_are_as_published() -> None:
    vendor = ROOT / "web" / "vendor"
    told = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", (vendor / "README.md").read_text(), re.M))
    there = [file for file in vendor.glob("*/*") if file.suffix in (".js", ".css")]
    assert {hashlib.sha256(file.read_bytes()).hexdigest(): str(file.relative_to(vendor)) for file in there} == told
    assert all((file.parent / "LICENSE").is_file() for file in there)
