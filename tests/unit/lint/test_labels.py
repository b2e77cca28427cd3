from __future__ import annotations

from dataclasses import replace

import pytest
from unit.lint.conftest import Find
from unit.lint.world import CONTRACT, FAMILIES, OBSERVED, TARGET, exposed, written

from loms.engines.contracts.contract import Exposed
from loms.lint.check import problems_in

KNOWN = [
    'vllm:num_requests_running{model_name="a", engine="0", job="vllm", instance=~".+", namespace="x", pod!="y"} > 1',
    'vllm:num_requests_running{exported_model_name="a"} > 1',
    'sum by (le, model_name) (rate(vllm:e2e_request_latency_seconds_bucket{le="1"}[5m])) > 1',
    'vllm:reworked_seconds{quantile="0.9"} > 1',
    "sum by (finished_reason) (rate(vllm:request_success_total[5m])) > 1",
    'vllm:num_requests_running{status=""} > 1',
    'vllm:num_requests_running{status=~".*"} > 1',
    "sum without (anything) (vllm:num_requests_running) > ignoring (whatever) vllm:num_requests_waiting",
    "sum by (zone) (label_replace(vllm:num_requests_running, 'zone', '$1', 'instance', '(.*)')) > 1",
    "sum by (ab) (label_join(vllm:num_requests_running, 'ab', '-', 'engine', 'job')) > 1",
    "sum by (n) (count_values('n', vllm:num_requests_running)) > 1",
    "vllm:num_requests_running * on (instance) group_left (build) llm_build_info > 1",
    "sum by (anything) (vllm:num_requests_running * on (pod) group_left (anything) kube_pod_labels) > 1",
    "sum by (a) (node_load1) > 1",
    "sum by (engine, a) (absent(vllm:num_requests_running{engine='b'})) > 1",
    "topk(3, vllm:num_requests_running) > 1",
    "sum by (finished_reason) (vllm:num_requests_running or rate(vllm:request_success_total[5m])) > 1",
    "sum by (a, job) (vllm:num_requests_running * on (job) group_left (a) label_replace(x, 'a', 'b', 'c', 'd'))",
    "sum by (engine, a) (label_replace(vllm:num_requests_waiting, 'a', 'b', 'engine', 'd') * on (engine) "
    "group_right (a) vllm:num_requests_running)",
    "sum by (finished_reason) (scalar(vllm:num_requests_running) * rate(vllm:request_success_total[5m])) > 1",
    "sum by (engine) (vllm:num_requests_running / on (engine) vllm:num_requests_waiting) > 1",
]


@pytest.mark.parametrize("text", KNOWN)
def test_labels_that_are_there(text: str, find: Find) -> None:
    assert find(text) == []


UNKNOWN = {
    'vllm:num_requests_running{model="a"} > 1': (
        "error",
        'has no label model: model="a" never holds',
    ),
    'vllm:num_requests_running{model=~"a|b"} > 1': ("error", "never holds"),
    'vllm:num_requests_running{model!=""} > 1': ("error", "never holds"),
    'vllm:num_requests_running{model!="a"} > 1': ("warning", 'has no label model: model!="a" does nothing'),
    'vllm:num_requests_running{model=~"a|"} > 1': ("warning", "does nothing"),
    'vllm:num_requests_running{le="1"} > 1': ("error", "has no label le"),
    'rate(vllm:e2e_request_latency_seconds_sum{le="1"}[5m]) > 1': ("error", "has no label le"),
    "sum by (model) (vllm:num_requests_running) > 1": (
        "warning",
        "what it is applied to has no label model",
    ),
    "vllm:num_requests_running / on (rank) vllm:num_requests_waiting": ("warning", "on (rank): "),
    "up * on (instance) group_left (version) vllm:num_requests_running": ("warning", "group_left (version): "),
    "vllm:num_requests_running * on (instance) group_right (version) up": ("warning", "group_right (version): "),
    "sum by (engine) (sum by (model_name) (vllm:num_requests_running)) > 1": ("warning", "sum by (engine): "),
    "sum by (engine) (sum without (engine) (vllm:num_requests_running)) > 1": ("warning", "sum by (engine): "),
    'vllm:gpu_cache_usage_perc{model="a"}': ("error", "vllm:kv_cache_usage_perc has no label model"),
}


@pytest.mark.parametrize("text", [text for text, found in UNKNOWN.items() if found])
def test_labels_that_are_not_there(text: str, find: Find) -> None:
    found = UNKNOWN[text]
    assert found is not None
    (one,) = [one for one in find(text) if one.kind == "unknown_label"]
    assert one.severity == found[0]
    assert found[1] in one.text


def test_labels_through_a_recording_rule(find: Find) -> None:
    rule = written("sum by (job) (vllm:num_requests_running)", "record", defines="job:running", adds=("team",))
    assert find(rule, "sum by (team, job) (job:running) > 1") == []
    (one,) = find(rule, "sum by (engine) (job:running) > 1")
    assert (one.kind, one.severity) == ("unknown_label", "warning")


def test_a_variable_may_mean_all(find: Find) -> None:
    (one,) = find('vllm:num_requests_running{model=~"$model"}', purpose="panel", dialect="grafana")
    assert (one.severity, one.text.endswith('model=~"$model" shows nothing but for All')) == ("warning", True)
    assert find("sum by ($by) (vllm:num_requests_running{$filter})", purpose="panel", dialect="grafana") == []
    (one,) = find("label_values(vllm:num_requests_running, model)", purpose="variable", dialect="variable")
    assert (one.severity, one.text) == ("warning", "vllm:num_requests_running has no label model")


def test_labels_that_scraping_adds() -> None:
    text = 'vllm:num_requests_running{zone="a"} > 1'
    assert [one.kind for one in problems_in([written(text)], TARGET)] == ["unknown_label"]
    assert list(problems_in([written(text)], replace(TARGET, extra_labels=frozenset({"zone"})))) == []


def test_a_family_without_series_shows_no_labels() -> None:
    families = {**FAMILIES, "vllm:num_requests_running": Exposed("gauge", frozenset())}
    empty = replace(TARGET, observed=replace(OBSERVED, families=families))
    fits, not_known = 'vllm:num_requests_running{engine="0"} > 1', 'vllm:num_requests_running{model="a"} > 1'
    assert list(problems_in([written(fits)], empty)) == []
    assert [one.kind for one in problems_in([written(not_known)], empty)] == ["unknown_label"]
    assert list(problems_in([written(not_known)], replace(empty, known=None))) == []


def test_a_label_that_only_the_contract_has() -> None:
    families = {**FAMILIES, "vllm:request_success_total": exposed("counter")}
    target = replace(TARGET, observed=replace(OBSERVED, families=families))
    (one,) = problems_in([written('rate(vllm:request_success_total{finished_reason="stop"}[5m])')], target)
    assert (one.kind, one.severity) == ("unknown_label", "warning")
    assert "finished_reason" in CONTRACT.families["vllm:request_success_total"].labels


def test_values_that_never_match() -> None:
    values = {("vllm:request_success_total", "finished_reason"): frozenset({"stop", "length", "abort"})}
    target = replace(TARGET, values=values)

    def found(matcher: str) -> list[str]:
        text = f"rate(vllm:request_success_total{{{matcher}}}[5m])"
        return [one.text for one in problems_in([written(text, dialect="grafana")], target)]

    assert found('finished_reason="stop"') == found('finished_reason=~"st.*|x"') == found('finished_reason!="x"') == []
    assert found('finished_reason=~"$reason"') == found('model_name="nobody"') == []
    assert found('finished_reason="error"') == [
        'finished_reason="error" never holds: finished_reason of vllm:request_success_total has the values '
        "abort, length, stop"
    ]
    assert found('finished_reason!~"stop|length|abort"') != []
