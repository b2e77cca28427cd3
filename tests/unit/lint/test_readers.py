"""What is read from files, and what is said of files that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.lint.world import DATA

from loms.core.errors import ConfigError
from loms.lint.files import Sources, read

TOKENS = "vllm_generation_tokens_per_second"


def summary(sources: Sources) -> list[tuple[int, str, str, str]]:
    return [(e.place.line, e.place.where, e.purpose, e.text) for e in read(sources).expressions]


def test_rules_in_groups() -> None:
    found = read(Sources(rules=[str(DATA / "rules.yaml")])).expressions
    assert len(found) == 20
    first, third, high = found[0], found[2], found[5]
    assert (first.purpose, first.defines) == ("record", "job:vllm_ttft_seconds_bucket:rate5m")
    assert str(first.place).endswith("rules.yaml:7: recordings / record job:vllm_ttft_seconds_bucket:rate5m")
    assert found[1].adds == ("quantile",)
    assert third.text == "histogram_quantile(0.99, sum by (zone) (job:vllm_ttft_seconds_bucket:rate5m))"
    assert (high.place.line, high.place.where, high.purpose) == (20, "latency / alert TTFTHigh", "alert")
    assert high.text == "# the worst of the jobs\nmax(job:vllm_ttft_seconds:p99) > 5\n"


def test_manifests_of_rules_and_what_is_none_beside_them() -> None:
    assert summary(Sources(rules=[str(DATA / "prometheusrule.yaml")])) == [
        (17, "llm / alert Swapped", "alert", "vllm:num_requests_swapped > 0"),
        (29, "inner / alert CacheFull", "alert", "vllm:gpu_cache_usage_perc\n  > 0.9\n"),
    ]


def test_a_dashboard_to_its_last_row() -> None:
    found = read(Sources(grafana=[str(DATA / "dashboard.json")])).expressions
    assert [e.place.where.removeprefix("dashboard 'vLLM' ") for e in found] == [
        "panel 'TTFT' query A",
        "panel 'TTFT' query B",
        "panel 'Time per output token' query A",
        "panel 'Time per output token' query B",
        "panel 'Cache \"usage\" – GPU and CPU' query A",
        "panel 'Cache \"usage\" – GPU and CPU' query B",
        "panel 'Prefix cache' query A",
        "panel 'Prefix cache' query B",
        "panel 'Requests' query A",
        "panel 'Requests' query B",
        "panel 'Requests' query C",
        "panel 'Other spelling' query A",
        "variable $model",
        "variable $rank",
        "variable $busy",
        "variable $names",
        "annotation 'Swapping'",
    ]
    assert (
        found[4].text
        == 'vllm:gpu_cache_usage_perc{model_name="$model"} > 0.9 and on (instance) (vllm:num_requests_waiting>0)'
    )
    assert [e.purpose for e in found] == ["panel"] * 12 + ["variable"] * 4 + ["panel"]
    assert [e.place.line for e in found[:2]] == [17, 18]


def test_the_newer_schema_and_what_wraps_a_dashboard(tmp_path: Path) -> None:
    newer = summary(Sources(grafana=[str(DATA / "dashboard-v2.json")]))
    assert newer == [
        (
            20,
            "dashboard 'KV cache' panel 'Usage' query A",
            "panel",
            'max(vllm:gpu_cache_usage_perc{instance=~"$instance"})',
        ),
        (
            30,
            "dashboard 'KV cache' variable $instance",
            "variable",
            "label_values(vllm:num_requests_running, instance)",
        ),
    ]
    panel = '{"title": "P", "targets": [{"expr": "up", "refId": "B"}]}'
    dashboard = f'{{"title": "D", "panels": [{panel}]}}'
    for name, text in {
        "api.json": f'{{"meta": {{}}, "dashboard": {dashboard}}}',
        "v1.json": f'{{"kind": "Dashboard", "spec": {dashboard}}}',
        "map.yaml": f"kind: ConfigMap\ndata:\n  d.json: |\n    {dashboard}\n  other.txt: no JSON\n",
        "operator.yaml": f"kind: GrafanaDashboard\nspec:\n  json: >\n    {dashboard}\n",
        "list.yaml": f"kind: List\nitems:\n- kind: ConfigMap\n  data: {{d.json: '{dashboard}'}}\n",
    }.items():
        (tmp_path / name).write_text(text)
        ((_, where, _, expr),) = summary(Sources(grafana=[str(tmp_path / name)]))
        assert (where, expr) == ("dashboard 'D' panel 'P' query B", "up")


LIBRARY = {"uid": "u", "name": "L", "kind": 1, "model": {"type": "stat", "targets": [{"expr": "up", "refId": "B"}]}}


@pytest.mark.parametrize("answer", [{"result": LIBRARY}, LIBRARY, {"result": {"elements": [LIBRARY], "page": 1}}])
def test_a_library_panel_in_a_file_of_its_own(answer: object, tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(json.dumps(answer))
    assert summary(Sources(grafana=[str(tmp_path / "l.json")])) == [(1, "library panel 'L' query B", "panel", "up")]


def test_library_panels_below_a_dashboard(tmp_path: Path) -> None:
    """Exported for sharing externally it has them; as Grafana keeps it, it has their names only."""
    panels = [
        {"libraryPanel": {"uid": "u", "name": "L"}},
        {"type": "row", "panels": [{"libraryPanel": {"uid": "v", "name": "M"}, "title": "not M"}]},
        {"libraryPanel": {"uid": "w", "name": "N"}, "targets": [{"expr": "down", "refId": "A"}]},
    ]
    shared = {"title": "D", "panels": panels, "__elements": {"u": LIBRARY}}
    (tmp_path / "d.json").write_text(json.dumps(shared))
    found = read(Sources(grafana=[str(tmp_path)]))
    assert [(e.place.where, e.text) for e in found.expressions] == [
        ("dashboard 'D' panel '' query A", "down"),
        ("dashboard 'D' library panel 'L' query B", "up"),
    ]
    (one,) = found.problems
    assert (one.kind, one.severity) == ("not_checked", "info")
    assert one.text.startswith("the queries of 'M' are in Grafana's library and not in this file: ")
    (tmp_path / "d.json").write_text(json.dumps({"title": "D", "panels": panels}))
    (one,) = read(Sources(grafana=[str(tmp_path / "d.json")])).problems
    assert "the queries of 'L', 'M' are" in one.text
    newer = {"kind": "LibraryPanel", "spec": {"title": "T", "libraryPanel": {"name": "L"}}}
    (tmp_path / "d.json").write_text(json.dumps({"elements": {"panel-1": newer}}))
    (one,) = read(Sources(grafana=[str(tmp_path / "d.json")])).problems
    assert "the queries of 'L' are" in one.text


@pytest.mark.parametrize(
    ("panel", "target", "read"),
    [
        ('"prometheus"', "", True),
        ('"Team metrics"', "", True),
        ('"${DS}"', "", True),
        ('"Loki (prod)"', "", False),
        ('{"uid": "x"}', "", True),
        ('{"type": "grafana-amazonprometheus-datasource", "uid": "x"}', "", True),
        ('{"type": "victoriametrics-metrics-datasource", "uid": "x"}', "", True),
        ('{"type": "loki", "uid": "x"}', "", False),
        ('{"type": "datasource", "uid": "-- Mixed --"}', '{"type": "prometheus", "uid": "x"}', True),
        ('{"type": "datasource", "uid": "-- Mixed --"}', '{"type": "loki", "uid": "x"}', False),
        ('{"type": "loki", "uid": "x"}', '{"type": "prometheus", "uid": "x"}', True),
        ("null", "null", True),
    ],
)
def test_data_sources(panel: str, target: str, read: bool, tmp_path: Path) -> None:
    own = f', "datasource": {target}' if target else ""
    panels = f'[{{"datasource": {panel}, "targets": [{{"expr": "up"{own}}}, {{"refId": "no query"}}]}}]'
    (tmp_path / "d.json").write_text(f'{{"panels": {panels}}}')
    assert [text for *_, text in summary(Sources(grafana=[str(tmp_path)]))] == ["up"] * read


def test_variables_that_ask_for_nothing(tmp_path: Path) -> None:
    variables = '[{"type": "query"}, {"type": "query", "query": ""}, {"type": "query", "query": {"query": " "}}]'
    (tmp_path / "d.json").write_text(f'{{"panels": [], "templating": {{"list": {variables}}}}}')
    custom = '[{"kind": "CustomVariable", "spec": {"query": "a"}}]'
    (tmp_path / "e.json").write_text(f'{{"elements": {{}}, "variables": {custom}}}')
    assert summary(Sources(grafana=[str(tmp_path)])) == []


def test_scalers() -> None:
    assert summary(Sources(keda=[str(DATA / "keda.yaml")])) == [
        (15, "ScaledObject llm-scaler trigger 1", "scaler", 'avg(vllm:gpu_cache_usage_perc{namespace="llm"})'),
        (20, "ScaledObject llm-scaler trigger 2", "scaler", "sum(vllm:generation_tokens_total)"),
        (31, "ScaledJob batch trigger 0", "scaler", "sum(\n  vllm:num_requests_waiting\n)\n"),
    ]
    hpa = read(Sources(hpa=[str(DATA / "hpa.yaml")])).expressions
    assert [(e.place.where, e.text, e.labels) for e in hpa] == [
        ("HPA llm metric 1", "vllm_gpu_cache_usage_perc", ("model_name", "shard")),
        ("HPA llm metric 2", "vllm_generation_tokens_per_second", ()),
        ("HPA llm metric 3", "vllm:prompt_tokens", ()),
    ]


def test_the_older_form_of_an_autoscaler(tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text(
        "kind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec:\n  metrics:\n"
        "  - pods: {metricName: vllm_num_requests_waiting}\n"
        "  - external: {metricName: queue-depth, metricSelector: {matchLabels: {model: a}}}\n"
    )
    found = read(Sources(hpa=[str(tmp_path)])).expressions
    assert [(e.text, e.labels) for e in found] == [("vllm_num_requests_waiting", ()), ("queue-depth", ("model",))]


def test_an_adapter_says_what_it_serves(tmp_path: Path) -> None:
    found = read(Sources(hpa=[str(DATA / "adapter.yaml")])).expressions
    assert [(e.place.line, e.place.where, e.purpose, e.series, e.defines) for e in found] == [
        (8, "prometheus-adapter rule 0 seriesQuery", "variable", "", ""),
        (11, "prometheus-adapter rule 0 metricsQuery", "scaler", "vllm:gpu_cache_usage_perc", "cache_usage"),
        (13, "prometheus-adapter rule 1 seriesQuery", "variable", "", ""),
        (15, "prometheus-adapter rule 1 metricsQuery", "scaler", "vllm:generation_tokens_total", TOKENS),
        (16, "prometheus-adapter rule 2 seriesQuery", "variable", "", ""),
        (18, "prometheus-adapter rule 2 metricsQuery", "scaler", "vllm:prompt_tokens_total", "prompt_tokens"),
    ]
    (tmp_path / "values.yaml").write_text(
        "rules:\n  default: false\n  custom:\n  - seriesQuery: a_total\n    name: {matches: '^(.*)_total$'}\n"
        "    metricsQuery: sum(<<.Series>>)\n  external:\n  - {seriesQuery: '{__name__=~\"b.*\"}', metricsQuery: x}\n"
    )
    chart = read(Sources(hpa=[str(tmp_path / "values.yaml")])).expressions
    assert [(e.text, e.series, e.defines) for e in chart] == [
        ("a_total", "", ""),
        ("sum(<<.Series>>)", "a_total", "a"),
        ('{__name__=~"b.*"}', "", ""),
        ("x", "", ""),
    ]


def test_directories_and_globs(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "r.yml").write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0}]}]")
    (tmp_path / "deployment.yaml").write_text("kind: Deployment\n")
    (tmp_path / "notes.txt").write_text(": no YAML :")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yaml").write_text(": no YAML :")
    (tmp_path / "settings.json").write_text("// no JSON")
    deep = str(tmp_path / "deep" / "r.yml")
    for pattern in (str(tmp_path), f"{tmp_path}/**/*.y*ml", deep):
        written = read(Sources(rules=[pattern, deep]))
        assert ([e.text for e in written.expressions], written.files) == (["up == 0"], (deep,))


def test_grafanas_own_alert_rules(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "apiVersion: 1\ngroups:\n- name: g\n  folder: f\n  rules:\n  - title: Full\n    data:\n"
        "    - {refId: A, datasourceUid: prom, model: {expr: 'rate(a[$__rate_interval])'}}\n"
        "    - {refId: B, datasourceUid: __expr__, model: {type: threshold, expression: A}}\n"
    )
    (found,) = read(Sources(rules=[str(tmp_path)])).expressions
    assert (found.place.where, found.text, found.dialect) == (
        "g / alert Full query A",
        "rate(a[$__rate_interval])",
        "grafana",
    )


def test_an_own_rule_with_a_detector_has_no_expression(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("groups: [{name: g, rules: [{alert: A, detector: stall}, {alert: B, expr: up}]}]")
    assert [e.text for e in read(Sources(rules=[str(tmp_path)])).expressions] == ["up"]


def test_merge_keys_and_anchors(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "x: &d {expr: up, for: 5m}\ny: &e {expr: down}\ngroups:\n- name: g\n  rules:\n"
        "  - {alert: A, <<: *d}\n  - {<<: [*d, *e], alert: B, expr: own}\n  - {<<: [*e, *d], alert: C}\n"
    )
    assert [e.text for e in read(Sources(rules=[str(tmp_path)])).expressions] == ["up", "own", "down"]


MISTAKES = {
    "r.yaml": {
        "groups: [": r"r.yaml:1: not valid YAML: ",
        "groups:\n- name: g\n  rules:\n  - alert: A\n": r"r.yaml:4: groups\[0\].rules\[0\]: key 'expr' is required",
        "groups:\n- name: g\n  rules:\n  - expr: up\n": r"r.yaml:4: .*: a rule needs either 'alert' or 'record'$",
        "groups:\n- rules:\n  - {alert: a, record: b, expr: up}": r"r.yaml:3: .* or 'record', not both",
        "groups:\n- rules:\n  - alert: A\n    expr: [up]": r"r.yaml:4: .*.expr: must be a text, not a list",
        "groups: {a: 1}": r"r.yaml:1: groups: must be a list, not a mapping",
        "groups:\n- rules: [1]": r"r.yaml:2: groups\[0\].rules\[0\]: must be a mapping, not a text",
        "groups:\n- rules:\n  - alert: A\n    expr: a > {{ .Values.limit }}": r"r.yaml:4: is a Helm template",
        "{{- if .Values.rules }}\ngroups: []": r"r.yaml:1: is a Helm template",
        "kind: Service": r"r.yaml: holds no rule groups",
        "a: &x [*x]": r"r.yaml:1: an anchor stands for something that contains itself",
        "a: " + "[" * 900 + "]" * 900: r"r.yaml: nested too deeply",
    },
    "d.json": {
        '{\n"panels": [,]}': r"d.json:2: not valid JSON: expecting value",
        '{"title": "x"}': r"d.json: holds no dashboard",
        '{"panels": {"a": 1}}': r"d.json:1: panels: must be a list, not a mapping",
        "[" * 100_000: r"d.json: nested too deeply",
    },
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MISTAKES.items() for text in texts])
def test_a_mistake_is_one_sentence(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    path = [str(tmp_path / name)]
    with pytest.raises(ConfigError, match=MISTAKES[name][text]):
        read(Sources(grafana=path) if name == "d.json" else Sources(rules=path))


def test_a_mistake_in_a_file_in_a_file_has_the_outer_line(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text('kind: ConfigMap\ndata:\n  d.json: |\n    {\n      "panels": [\n      oops]}\n')
    with pytest.raises(ConfigError, match=r"m.yaml:6: not valid JSON"):
        read(Sources(grafana=[str(tmp_path / "m.yaml")]))


def test_mistakes_of_other_kinds(tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text(
        "kind: ScaledObject\nspec:\n  triggers:\n  - type: prometheus\n    metadata: {a: b}\n"
    )
    with pytest.raises(ConfigError, match=r"k.yaml:5: spec.triggers\[0\].metadata: key 'query' is required"):
        read(Sources(keda=[str(tmp_path / "k.yaml")]))
    (tmp_path / "h.yaml").write_text("kind: HorizontalPodAutoscaler\nspec:\n  metrics:\n  - pods:\n      metric: {}\n")
    with pytest.raises(ConfigError, match=r"h.yaml:5: .*: key 'name' is required"):
        read(Sources(hpa=[str(tmp_path / "h.yaml")]))
    (tmp_path / "a.yaml").write_text("rules:\n- seriesQuery: a\n  name: {matches: '('}\n  metricsQuery: b\n")
    with pytest.raises(ConfigError, match=r"a.yaml:2: .*name.matches is not a regular expression"):
        read(Sources(hpa=[str(tmp_path / "a.yaml")]))
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"b.yaml: cannot be read"):
        read(Sources(rules=[str(tmp_path / "b.yaml")]))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.yaml: does not exist"):
        read(Sources(rules=[str(tmp_path / "gone.yaml")]))
    with pytest.raises(ConfigError, match=r"\*.yaml: matches no file"):
        read(Sources(rules=[str(tmp_path / "*.yaml")]))
    with pytest.raises(ConfigError, match=r"holds no file that ends in .yaml or .yml$"):
        read(Sources(rules=[str(tmp_path)]))
