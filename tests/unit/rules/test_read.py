from __future__ import annotations

from pathlib import Path

import pytest

from loms.core.errors import ConfigError
from loms.detect.latency_baseline import LatencyBaseline
from loms.detect.stall import Stall
from loms.rules.read import load_groups, read_groups

GOOD = """
groups:
- name: mine
  interval: 30s
  rules:
  - alert: Slow
    expr: vector(1) > 0
    for: 1m30s
    keep_firing_for: 500ms
    labels: {severity: warning, team: "{{ $labels.job }}"}
    annotations:
      summary: "{{ $value | humanize }}"
  - alert: Frozen
    detector: stall
    kinds: [stalled]
    config:
      stall_after_seconds: 20s
  - {alert: Late, detector: latency_baseline}
"""


def test_a_good_file() -> None:
    (group,) = read_groups(GOOD, "f.yaml", interval_seconds=7)
    assert (group.name, group.file, group.interval_ms) == ("mine", "f.yaml", 30_000)
    slow, frozen, late = group.rules
    assert (slow.name, slow.expr, slow.for_ms, slow.keep_firing_for_ms) == ("Slow", "vector(1) > 0", 90_000, 500)
    assert [(k, t.text) for k, t in slow.labels] == [("severity", "warning"), ("team", "{{ $labels.job }}")]
    assert (frozen.detector, frozen.config, frozen.kinds) == (
        "stall",
        Stall.Config(stall_after_seconds=20),
        {"stalled"},
    )
    assert late.config == LatencyBaseline.Config()
    assert (slow.line, frozen.line, late.line) == (6, 13, 18)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("for: 1m30s", "fro: 1m", "f.yaml:8: groups[0].rules[0]: unknown key 'fro'; did you mean 'for'?"),
        ("for: 1m30s", "for: soon", "f.yaml:8: groups[0].rules[0].for: 'soon' is not a duration"),
        ("expr: vector(1) > 0", "expr: vector(1", "f.yaml:7: groups[0].rules[0].expr: 1:9: parse error"),
        ("expr: vector(1) > 0", "expr: null", "f.yaml:7: groups[0].rules[0].expr: must be a text, not a null"),
        (
            "    expr: vector(1) > 0\n",
            "",
            "f.yaml:6: groups[0].rules[0]: alert 'Slow' needs either 'expr' or 'detector'",
        ),
        ("kinds: [stalled]", "expr: up", "alert 'Frozen' needs either 'expr' or 'detector', not both"),
        ("for: 1m30s", "kinds: [x]", "groups[0].rules[0].kinds: belongs to a rule with 'detector'"),
        (
            "kinds: [stalled]",
            "kinds: [stale]",
            "f.yaml:15: groups[0].rules[1].kinds[0]: detector 'stall' reports no 'stale'",
        ),
        ("kinds: [stalled]", "kinds: stalled", "groups[0].rules[1].kinds: must be a list, not a plain value"),
        (
            "detector: stall\n",
            "detector: stal\n",
            "f.yaml:14: groups[0].rules[1].detector: there is no detector named 'stal'",
        ),
        (
            "stall_after_seconds: 20s",
            "stall_after: 20",
            "f.yaml:17: groups[0].rules[1].config: unknown key 'stall_after'; did",
        ),
        (
            "stall_after_seconds: 20s",
            "stall_after_seconds: -1",
            "f.yaml:17: groups[0].rules[1].config: stall_after_seconds: ",
        ),
        ("stall_after_seconds: 20s", "- 1", "groups[0].rules[1].config: must be a mapping, not a list"),
        (
            "{{ $value | humanize }}",
            "{{ value }}",
            "f.yaml:12: groups[0].rules[0].annotations.summary: {{ value }} is not",
        ),
        (
            "severity: warning",
            "alertname: x",
            "f.yaml:10: groups[0].rules[0].labels: 'alertname' cannot be a name here",
        ),
        ("severity: warning", "sev-erity: x", "'sev-erity' cannot be a name here"),
        ("interval: 30s", "interval: 0s", "f.yaml:4: groups[0].interval: must be longer than 0"),
        ("- alert: Slow", "- record: Slow", "f.yaml:6: groups[0].rules[0]: unknown key 'record'; only alerting rules"),
        ("- alert: Slow", "- alert: ''", "f.yaml:6: groups[0].rules[0].alert: must not be empty"),
        ("for: 1m30s", "alert: twice", "f.yaml:8: key 'alert' stands there twice"),
        ("- name: mine", "- nam: mine", "f.yaml:3: groups[0]: unknown key 'nam'; did you mean 'name'?"),
        ("groups:", "group:", "f.yaml:2: unknown key 'group'; did you mean 'groups'?"),
        ("for: 1m30s", "for: [", "f.yaml:"),
    ],
)
def test_mistakes_are_named_with_file_line_and_key(before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError) as caught:
        read_groups(GOOD.replace(before, after, 1), "f.yaml")
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "f.yaml:1: must be a mapping, not a list"),
        ("groups: 3", "f.yaml:1: groups: must be a list, not a plain value"),
        ("groups: [{name: a}]", "f.yaml:1: groups[0]: key 'rules' is required"),
        ("groups: [{name: a, rules: []}, {name: a, rules: []}]", "f.yaml: two groups are named 'a'"),
        ("{[a]: b}", "f.yaml:1: a key must be a plain word"),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_groups(text, "f.yaml")
    assert message in caught.value.message


def test_an_empty_file_has_no_groups() -> None:
    assert read_groups("# nothing\n", "f.yaml") == ()


def test_files_by_glob(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.yaml").write_text(f"groups: [{{name: {name}, rules: []}}]")
    groups = load_groups([str(tmp_path / "*.yaml")], builtin=False, interval_seconds=9)
    assert [(g.name, g.interval_ms) for g in groups] == [("a", 9000), ("b", 9000)]
    assert load_groups([str(tmp_path / "*.yml")], builtin=False) == ()
    with pytest.raises(ConfigError, match="does not exist"):
        load_groups([str(tmp_path / "c.yaml")], builtin=False)
    (tmp_path / "d.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"d\.yaml: not UTF-8 at byte 0"):
        load_groups([str(tmp_path / "d.yaml")], builtin=False)
