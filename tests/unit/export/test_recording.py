"""Rules for every registered engine; what they compute is held against LOMS in tests/integration/test_export.py."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.core.errors import ConfigError
from loms.core.families import suffixes
from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.engines.custom import read_engine
from loms.engines.engine import Engine, Row, engines
from loms.export.recording import Recipe, _moved, exportable, group_of, rules_for
from loms.export.table import Table
from loms.promql.parse import parse

NAMES = [name for name, engine in engines.load().items() if engine.expose is Engine.expose]


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_table_is_recorded_or_left_out_with_a_reason(name: str) -> None:
    group = group_of(name)
    recorded = {rule.record for rule in group.rules}
    for owner in (name, *engines[name].carries):
        for row in engines[owner].table:
            for _, suffix in suffixes(row.canonical, row.part):
                record = CATALOGUE[row.canonical].prometheus + suffix
                assert record in recorded or group.left_out[record]
    for metric in engines[name].computed:
        assert group.left_out[CATALOGUE[metric].prometheus]


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_promql_and_give_canonical_names(name: str) -> None:
    group, seen = group_of(name), set()
    for rule in group.rules:
        parse(rule.expr)
        assert rule.labels["engine"] == name
        family = re.sub(r"_(bucket|sum|count)$", "", rule.record)
        assert rule.record.startswith("loms:target:") or {rule.record, family} & BY_PROMETHEUS.keys()
        key = rule.record, tuple(sorted(rule.labels.items()))
        assert key not in seen, "two rules for the same series"
        seen.add(key)


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_looks_at_what_it_or_a_later_one_records(name: str) -> None:
    """Prometheus evaluates a group from top to bottom; a rule that silences itself would come and go."""
    rules = group_of(name).rules
    for number, rule in enumerate(rules):
        for record, matchers in re.findall(r"\b((?:loms:|llm_|gen_ai_|hw_|http_server_)[\w:]+)\{([^}]*)\}", rule.expr):
            wanted = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
            meant = [i for i, r in enumerate(rules) if r.record == record and wanted.items() <= r.labels.items()]
            assert meant
            assert max(meant) < number, (rule.record, record)


def test_former_names_are_only_taken_where_the_new_one_is_missing() -> None:
    rule = next(rule for rule in group_of("vllm").rules if rule.record == "llm_engine_kv_cache_utilization_ratio")
    assert "vllm:gpu_cache_usage_perc unless on (job, instance) vllm:kv_cache_usage_perc" in rule.expr


def test_a_table_without_labels_needs_no_guard() -> None:
    rules = {rule.record: rule for rule in group_of("llama.cpp").rules}
    assert rules["llm_engine_requests_running"].expr == "llamacpp:requests_processing"
    assert rules["llm_engine_tokens_input_total"].expr == (
        "llamacpp:prompt_tokens_total + llamacpp:prompt_tokens_cached_total"
    )


def test_a_declared_engine_is_known_by_all_the_families_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "acme.yaml").write_text(
        "name: acme\nmatch: [shop_queue, shop_tokens]\nmetrics: {llm.engine.requests.waiting: shop_queue}\n"
    )
    group = rules_for(*read_engine(tmp_path / "acme.yaml"))
    targets, waiting = group.rules[0], group.rules[-1]
    assert targets.expr.splitlines()[-2:] == [
        'and on (job, instance) {__name__=~"shop_queue(?:_total|_count)?", le=""}',
        'and on (job, instance) {__name__=~"shop_tokens(?:_total|_count)?", le=""}',
    ]
    assert 'group_left (agreed_model) loms:target:agreed{engine="acme"}' in waiting.expr


def test_bounds_that_no_move_of_the_point_makes_canonical_are_left_out() -> None:
    def expressible(source: str, suffix: str) -> bool:
        row = Row("gen_ai.server.time_to_first_token", (source,))
        return Recipe(Table("a", "a", Engine, {}, frozenset(), shared=False), row, suffix, []).expressible

    assert expressible("a_ms * 0.001", "_bucket")
    assert expressible("a_ns * 1e-9", "_bucket")
    assert not expressible("a_minutes * 60", "_bucket")
    assert expressible("a_minutes * 60", "_sum")


@given(st.decimals(min_value="0.0001", max_value="999999", places=4), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_moving_the_point_multiplies(bound: object, factor: float) -> None:
    """Every spelling of a bound without an exponent; `label_replace` written in Python. The result is spelt as LOMS
    spells it, but for bounds that no clock of the engine's has."""
    for spelt in {f"{float(bound):f}", f"{bound}".rstrip("0"), str(int(float(bound)))}:  # type: ignore[arg-type]
        le = spelt
        for step in _moved(factor):
            if match := re.fullmatch(step.regex, le):
                le = match.expand(re.sub(r"\$(\d)", r"\\g<\1>", step.value))
        assert math.isclose(float(le), float(spelt) * factor, rel_tol=1e-9), (spelt, le)
        assert le == "0" or not re.search(r"^0\d|\.$|\.\d*0$", le), le
        assert float(spelt) < 0.001 or le == f"{float(spelt) * factor:.12g}"


@pytest.mark.parametrize(
    ("spelt", "factor", "le"),
    [
        ("0.01", 1e-3, "1e-05"),
        ("0.025", 1e-3, "2.5e-05"),
        ("0.1", 1e-3, "0.0001"),
        ("50", 1e-6, "5e-05"),
        ("1", 1e-6, "1e-06"),
    ],
)
def test_small_bounds_are_spelt_as_prometheus_spells_them(spelt: str, factor: float, le: str) -> None:
    for step in _moved(factor):
        if match := re.fullmatch(step.regex, spelt):
            spelt = match.expand(re.sub(r"\$(\d)", r"\\g<\1>", step.value))
    assert spelt == le


def test_infinity_stays() -> None:
    assert not any(re.fullmatch(step.regex, "+Inf") for step in _moved(0.001))


def test_an_unknown_engine_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        exportable(["vlm"], [])
    assert "vllm" in error.value.hint


def test_an_engine_that_answers_in_json_is_refused_and_not_among_all() -> None:
    with pytest.raises(ConfigError, match="ollama answers in JSON"):
        exportable(["ollama"], [])
    assert exportable([], []) == NAMES
    assert exportable(["vllm", "tgi", "vllm"], []) == ["vllm", "tgi"]
