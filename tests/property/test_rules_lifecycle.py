"""An alert's life is Prometheus's: promtool evaluates the same rules over the same random streams."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from loms.core.model import labels_of
from loms.rules.lifecycle import Lifecycle, Match, Observed
from loms.rules.rule import Rule

MINUTE = 60_000
LABELS = labels_of({"instance": "a:1"})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
@pytest.mark.parametrize("seed", range(4))
def test_alerts_fire_exactly_when_they_do_in_prometheus(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rules, tests = [], []
    for number in range(12):
        name, hold, keep = f"R{number}", rng.choice((0, 1, 2, 3, 5)), rng.choice((0, 0, 1, 2, 4))
        share = rng.choice((0.2, 0.5, 0.8, 0.95))
        stream = [rng.random() < share for _ in range(30)]
        lifecycle = Lifecycle(Rule(name, expr="x", for_ms=hold * MINUTE, keep_firing_for_ms=keep * MINUTE))
        checks = []
        for minute, present in enumerate(stream):
            lifecycle.step(Observed([Match(LABELS, (), 1.0)] if present else []), minute * MINUTE)
            firing = any(alert.state == "firing" for alert in lifecycle.alerts)
            exp = [{"exp_labels": dict(LABELS)}] if firing else []
            checks.append({"eval_time": f"{minute}m", "alertname": name, "exp_alerts": exp})
        rule = {"alert": name, "expr": f"m{number} > 0", "for": f"{hold}m", "keep_firing_for": f"{keep}m"}
        rules.append(rule)
        values = " ".join("1" if present else "_" for present in stream)
        series = {"series": f'm{number}{{instance="a:1"}}', "values": values.replace("_", "stale")}
        tests.append({"interval": "1m", "input_series": [series], "alert_rule_test": checks})
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "interval": "1m", "rules": rules}]}))
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
