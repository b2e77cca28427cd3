from __future__ import annotations

import math

import numpy as np
import pytest

from loms.core.model import Shape, series_id
from loms.engines.engine import Identity

PROGRESS = "loms_engine_progress_total"
COUNT = "gen_ai_server_request_duration_seconds_count"
SUM = "gen_ai_server_request_duration_seconds_sum"
INPUT, OUTPUT = "llm_engine_tokens_input_total", "llm_engine_tokens_output_total"


def vllm(
    requests: int,
    prompt: int,
    output: int,
    *,
    seconds: float = 0.0,
    running: int = 0,
    started: float = 1e9,
    more: str = "",
) -> str:
    labels = '{engine="0",model_name="m"}'
    return (
        f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n"
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}\n"
        f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{labels} {prompt}\n"
        f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{labels} {output}\n"
        f"# TYPE vllm:request_success_total counter\n"
        f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {requests}\n'
        f"# TYPE vllm:e2e_request_latency_seconds histogram\n"
        f'vllm:e2e_request_latency_seconds_bucket{{engine="0",model_name="m",le="+Inf"}} {requests}\n'
        f"vllm:e2e_request_latency_seconds_count{labels} {requests}\n"
        f"vllm:e2e_request_latency_seconds_sum{labels} {seconds!r}\n{more}"
    )


HTTP = (
    "# TYPE http_request_duration_seconds histogram\n"
    'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 1\n'
)


def test_counters_of_an_engine_that_can_be_asked_have_samples_of_their_own_and_gauges_are_aliases(scraped) -> None:
    target = scraped()
    target.scrape(vllm(1, 5, 9))
    own = {series.name for series in target.plan.derived}
    assert {INPUT, OUTPUT, COUNT, "llm_engine_requests_finished_total"} <= own
    assert [series.name for series in target.plan.aliases] == ["llm_engine_requests_running"]


def test_progress_is_one_series_for_each_rank_from_which_nothing_is_held_back_or_subtracted(scraped) -> None:
    def ranks(first: int, second: int, rejected: int = 0) -> str:
        lines = ["# TYPE vllm:generation_tokens_total counter", "# TYPE vllm:request_success_total counter"]
        for rank, tokens in enumerate((first, second)):
            own = f'engine="{rank}",model_name="m"'
            lines.append(f"vllm:generation_tokens_total{{{own}}} {tokens}")
            lines.append(f'vllm:request_success_total{{{own},finished_reason="stop"}} 2')
        return "\n".join([*lines, f"vllm:http_requests_total {rejected}", ""])

    target = scraped()
    target.translator.hold(target.scrape(ranks(10, 20)))
    assert [target.value(PROGRESS, engine_index=rank) for rank in "01"] == [12, 22]
    after = target.scrape(ranks(10, 25, rejected=7))
    assert math.isnan(target.value(OUTPUT, engine_index="1"))
    assert [target.value(PROGRESS, engine_index=rank) for rank in "01"] == [12, 27]
    assert target.translator.settle(after, {"llm.engine.tokens.output": 5}, "", last=True) == "exact"
    target.scrape(ranks(10, 25))
    assert target.value(OUTPUT, engine_index="1") == 20
    assert target.value(PROGRESS, engine_index="1") == 27


def test_a_dropped_raw_series_is_not_kept_and_no_alias_points_at_it(scraped) -> None:
    target = scraped(drop=("vllm:num_.*", "vllm:prompt"))
    exposition = target.scrape(vllm(1, 5, 9, running=3))
    kept = [exposition.shape.names[i] for i in target.plan.keep]
    assert "vllm:num_requests_running" not in kept
    assert "vllm:prompt_tokens_total" in kept  # a pattern matches the whole name
    assert "llm_engine_requests_running" in {series.name for series in target.plan.derived}
    assert target.value("llm_engine_requests_running") == 3
    assert scraped(drop=("nothing_.*",)).read(vllm(1, 5, 9))[1].keep is None


def test_the_plan_is_the_same_object_until_something_is_news(scraped) -> None:
    target = scraped()
    exposition, plan = target.read(vllm(1, 5, 9))
    ids = target.raw_ids(exposition)
    first = target.translator.plan(exposition.shape, ids)
    assert target.translator.plan(exposition.shape, ids) is first
    target.translator.identified(Identity("0.32.0"))
    second = target.translator.plan(exposition.shape, ids)
    assert second is not first
    assert second.version == "0.32.0"
    target.translator.identified(Identity("0.32.0"))
    assert target.translator.plan(exposition.shape, ids) is second
    assert plan.engine == "vllm"


def test_a_target_that_is_no_engine_has_an_empty_plan(scraped) -> None:
    target = scraped()
    target.scrape("# TYPE go_goroutines gauge\ngo_goroutines 7\n")
    assert (target.plan.engine, target.plan.aliases, target.plan.derived) == ("", (), ())
    assert not target.translator.openai
    assert not target.translator.unidentified.is_set()


def test_a_sum_needs_all_of_its_terms(scraped) -> None:
    target = scraped(Identity("b1", "m"))
    target.scrape(
        'llamacpp:prompt_tokens_total{slot="0"} 3\nllamacpp:prompt_tokens_total{slot="1"} 4\n'
        'llamacpp:prompt_tokens_cached_total{slot="1"} 10\n'
    )
    assert target.value(INPUT) == 14
    assert target.value(INPUT, slot="1") == 14


# Probes


USED = {"llm.engine.requests.finished": 1, "llm.engine.tokens.input": 2, "llm.engine.tokens.output": 1}


def users(target) -> dict[object, float]:
    return {key: value for key, value in target.values.items() if key[0] != PROGRESS}


def probe(target, before: str, after: str, *, last: bool = True) -> str:
    """Hold, scrape again and settle as the probe does."""
    assert target.translator.hold(target.scrape(before))
    verdict: str = target.translator.settle(target.scrape(after), USED, "length", last=last)
    return verdict


def test_a_probe_alone_leaves_no_trace(scraped) -> None:
    target = scraped()
    target.scrape(vllm(4, 100, 50, seconds=2.5))
    before = users(target)
    assert probe(target, vllm(4, 100, 50, seconds=2.5), vllm(5, 102, 51, seconds=2.75)) == "exact"
    target.scrape(vllm(5, 102, 51, seconds=2.75))
    assert users(target) == before
    target.scrape(vllm(6, 110, 60, seconds=3.25))
    assert target.value(INPUT) == 108
    assert target.value(OUTPUT) == 59
    assert target.value(COUNT) == 5
    assert target.value(SUM) == 3.0


def test_while_a_probe_runs_what_moves_is_held_back_and_the_rest_is_not(scraped) -> None:
    target = scraped()
    target.translator.hold(target.scrape(vllm(4, 100, 50)))
    target.scrape(vllm(4, 100, 51, running=1))
    assert math.isnan(target.value(OUTPUT))
    assert target.value(INPUT) == 100
    assert target.value("llm_engine_requests_running") == 1
    target.translator.release()
    target.scrape(vllm(4, 100, 51))
    assert target.value(OUTPUT) == 51


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (vllm(4, 100, 50), "pending"),  # the engine has not counted it yet
        (vllm(4, 102, 51), "pending"),  # its tokens are there, its end is not
        (vllm(5, 102, 51, running=1), "pending"),  # somebody's request has begun, or the gauge is late
        (vllm(6, 102, 51), "mixed"),  # two requests ended
        (vllm(5, 103, 51), "mixed"),  # more prompt tokens than the probe's
        (vllm(5, 102, 52), "mixed"),
        (vllm(5, 102, 51), "exact"),
    ],
)
def test_the_verdict_is_exact_only_for_one_request_of_that_size(scraped, after: str, verdict: str) -> None:
    target = scraped()
    assert probe(target, vllm(4, 100, 50), after, last=False) == verdict


def test_where_users_came_in_between_only_what_is_known_is_subtracted(scraped) -> None:
    target = scraped()
    assert probe(target, vllm(4, 100, 50), vllm(6, 120, 70)) == "mixed"
    target.scrape(vllm(6, 120, 70))
    assert (target.value(INPUT), target.value(OUTPUT)) == (118, 69)
    assert target.value("llm_engine_requests_finished_total", finish_reason="length") == 5
    assert target.value(COUNT) == 6


def test_at_the_last_look_a_movement_that_does_not_hold_the_probe_is_left_alone(scraped) -> None:
    target = scraped()
    assert probe(target, vllm(4, 100, 50), vllm(4, 102, 51)) == "mixed"
    target.scrape(vllm(4, 102, 51))
    assert (target.value(INPUT), target.value(OUTPUT)) == (102, 51)


def test_among_several_ranks_only_the_one_that_can_have_served_it_is_charged(scraped) -> None:
    def ranks(first: int, second: int) -> str:
        return "# TYPE vllm:generation_tokens_total counter\n" + "".join(
            f'vllm:generation_tokens_total{{engine="{rank}",model_name="m"}} {tokens}\n'
            for rank, tokens in enumerate((first, second))
        )

    target = scraped()
    used = {"llm.engine.tokens.output": 1}
    target.translator.hold(target.scrape(ranks(10, 20)))
    assert target.translator.settle(target.scrape(ranks(10, 25)), used, "", last=True) == "mixed"
    target.translator.hold(target.scrape(ranks(10, 25)))
    assert target.translator.settle(target.scrape(ranks(12, 26)), used, "", last=True) == "mixed"
    target.scrape(ranks(12, 26))
    assert target.value(OUTPUT, engine_index="0") == 12
    assert target.value(OUTPUT, engine_index="1") == 25


def test_a_series_that_the_probe_brought_into_being_starts_at_nothing(scraped) -> None:
    target = scraped()
    assert probe(target, vllm(4, 100, 50), vllm(5, 102, 51, more=HTTP)) == "exact"
    target.scrape(vllm(5, 102, 51, more=HTTP))
    assert target.value("http_server_request_duration_seconds_count") == 0
    target.scrape(vllm(5, 102, 51, more=HTTP.replace("} 1", "} 4")))
    assert target.value("http_server_request_duration_seconds_count") == 3


def test_many_probes_never_make_a_sum_fall(scraped) -> None:
    """A fall by one rounding error would be a restart to ``rate()``, and count everything again."""
    rng = np.random.default_rng(7)
    target, seconds, last = scraped(), 0.1, 0.0
    for n in range(300):
        before = vllm(n, 2 * n, n, seconds=seconds)
        seconds += float(rng.random())
        assert probe(target, before, vllm(n + 1, 2 * n + 2, n + 1, seconds=seconds)) == "exact"
        target.scrape(vllm(n + 1, 2 * n + 2, n + 1, seconds=seconds))
        assert target.value(SUM) >= last
        last = target.value(SUM)
    assert last == pytest.approx(0.1)


def test_llamacpp_has_no_count_of_requests_and_its_tokens_must_do(scraped) -> None:
    def text(prompt: int, cached: int, output: int) -> str:
        return (
            f"llamacpp:prompt_tokens_total {prompt}\nllamacpp:prompt_tokens_cached_total {cached}\n"
            f"llamacpp:tokens_predicted_total {output}\nllamacpp:requests_processing 0\n"
        )

    target = scraped(Identity("b1", "m"))
    assert probe(target, text(10, 5, 7), text(11, 6, 8)) == "exact"
    target.scrape(text(11, 6, 8))
    assert (target.value(INPUT), target.value(OUTPUT)) == (15, 7)


# Restarts


def test_an_engine_that_restarts_has_nothing_to_subtract_and_is_asked_again_who_it_is(scraped) -> None:
    target = scraped(Identity("0.31.0"))
    probe(target, vllm(4, 100, 50), vllm(5, 102, 51))
    assert not target.translator.unidentified.is_set()
    target.scrape(vllm(1, 8, 9))
    assert (target.value(INPUT), target.value(OUTPUT)) == (8, 9)
    assert target.translator.unidentified.is_set()


def test_a_restart_shows_in_the_start_time_even_where_the_counters_are_higher(scraped) -> None:
    target = scraped()
    probe(target, vllm(0, 0, 0), vllm(1, 2, 1))
    target.scrape(vllm(7, 70, 70, started=1e9 + 60))
    assert target.value(INPUT) == 70


def test_a_restart_is_seen_across_a_change_of_shape(scraped) -> None:
    target = scraped()
    probe(target, vllm(4, 100, 50, more=HTTP), vllm(5, 102, 51, more=HTTP))
    target.scrape(vllm(1, 3, 2))
    assert target.value(INPUT) == 3


def test_a_restart_while_a_probe_runs_ends_the_holding_back(scraped) -> None:
    target = scraped()
    target.translator.hold(target.scrape(vllm(4, 100, 50)))
    exposition = target.scrape(vllm(1, 2, 1))
    assert target.value(INPUT) == 2
    assert target.translator.settle(exposition, USED, "length", last=True) == "mixed"


def test_a_restart_is_seen_when_the_counters_come_back_with_the_first_request(scraped) -> None:
    """SGLang's counters show themselves with the first request only."""

    def text(requests: int, tokens: int) -> str:
        lines = [f"sglang:num_requests_total {requests}", f"sglang:generation_tokens_total {tokens}"]
        return "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n" + "".join(f"{x}\n" for x in lines if requests)

    target = scraped(Identity("0.5.6", "m"))
    used = {"llm.engine.requests.finished": 1.0, "llm.engine.tokens.output": 1.0}
    target.translator.hold(target.scrape(text(100, 5000)))
    assert target.translator.settle(target.scrape(text(101, 5001)), used, "length", last=True) == "exact"
    target.scrape(text(0, 0))
    target.scrape(text(1, 20))
    assert target.value(OUTPUT) == 20
    target.scrape(text(2, 35))
    assert target.value(OUTPUT) == 35


def test_a_counter_that_nothing_watches_begins_anew_by_itself(scraped) -> None:
    """The DCGM exporter has no counter of work; a fall of the raw one must not be hidden by an offset."""
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"

    def text(**joules: float) -> str:
        lines = (f'{name}{{gpu="{n}",UUID="GPU-1",pod="{n}"}} {mj}\n' for n, mj in joules.items())
        return f"# TYPE {name} counter\n" + "".join(lines)

    target = scraped(Identity(""))
    target.scrape(text(a=1_000_000))
    target.scrape(text(a=1_500_000))
    target.scrape(text(a=3_000))
    assert target.value("hw_energy_joules_total") == 3


def test_another_engine_on_the_same_address_starts_anew(scraped) -> None:
    target = scraped(Identity("0.32.0"))
    probe(target, vllm(4, 100, 50), vllm(5, 102, 51))
    target.scrape("llamacpp:tokens_predicted_total 3\n")
    assert (target.plan.engine, target.plan.derived) == ("llama.cpp", ())
    assert target.translator.unidentified.is_set()


# After a restart of LOMS


def test_the_subtraction_is_taken_up_from_what_the_store_remembers(scraped) -> None:
    first = scraped()
    probe(first, vllm(4, 100, 50, seconds=2.5), vllm(5, 102, 51, seconds=2.75))
    first.scrape(vllm(5, 102, 51, seconds=2.75))
    remembered = {series: (1000, value) for series, value in first.stored.items()}

    second = scraped(restoring=True)
    second.scrape(vllm(6, 112, 61, seconds=3.0))
    assert math.isnan(second.value(INPUT))  # not before it is known what to subtract
    wanted = second.translator.to_recall
    assert set(wanted) <= set(remembered)
    second.translator.restore({series: remembered[series] for series in wanted})
    assert second.translator.to_recall == ()
    second.scrape(vllm(6, 112, 61, seconds=3.0))
    assert (second.value(INPUT), second.value(OUTPUT), second.value(COUNT)) == (110, 60, 5)
    assert second.value(SUM) == 2.75


@pytest.mark.parametrize(
    "now", [vllm(1, 50, 20), vllm(9, 900, 900, started=1e9 + 5)], ids=["counters fell", "another start time"]
)
def test_nothing_is_taken_up_after_a_restart_of_the_engine_in_the_meantime(scraped, now: str) -> None:
    first = scraped()
    probe(first, vllm(4, 100, 50), vllm(5, 102, 51))
    first.scrape(vllm(5, 102, 51))
    second = scraped(restoring=True)
    second.scrape(now)
    second.translator.restore({series: (1000, value) for series, value in first.stored.items()})
    exposition = second.scrape(now)
    raw = dict(zip(exposition.shape.names, exposition.values.tolist(), strict=True))
    assert second.value(INPUT) == raw["vllm:prompt_tokens_total"]


def test_a_label_value_that_came_while_loms_was_away_counts_as_a_whole(scraped) -> None:
    def text(**counts: int) -> str:
        lines = (f'sglang:generation_tokens_total{{is_streaming="{k}"}} {v}\n' for k, v in counts.items())
        return "# TYPE sglang:generation_tokens_total counter\n" + "".join(lines)

    first = scraped(Identity("0.5.23", "m"))
    first.scrape(text(true=100))
    second = scraped(Identity("0.5.23", "m"), restoring=True)
    second.scrape(text(true=120, false=7))
    remembered = first.stored | {s.id: 90.0 for s in first.plan.counted}  # ten tokens of a probe were subtracted
    second.translator.restore({series: (1000, value) for series, value in remembered.items()})
    second.scrape(text(true=120, false=7))
    assert second.value(OUTPUT) == 117


def test_only_samples_of_the_same_scrape_are_compared(scraped) -> None:
    """LOMS was killed while a probe was under way: what users did since the last canonical sample is not a probe's."""
    first = scraped()
    probe(first, vllm(4, 100, 50), vllm(5, 102, 51))
    first.scrape(vllm(5, 102, 51))
    own = {series.id for series in first.plan.derived}
    then = {s: (1_000, value) for s, value in first.stored.items() if s not in own}
    first.scrape(vllm(8, 300, 300))
    held = {s: (1_000, value) if s in own else (9_000, value) for s, value in first.stored.items()}
    held |= {s.id: (1_000, first.values[s.name, s.labels] - 198) for s in first.plan.derived if s.name == INPUT}

    without = scraped(restoring=True)
    without.scrape(vllm(8, 310, 310))
    wanted = without.translator.behind(held)
    assert set(wanted) == {1_000}
    without.translator.restore(held)
    without.scrape(vllm(8, 310, 310))
    assert without.value(INPUT) == 310  # probes made before the start stay counted, but no user is taken away

    second = scraped(restoring=True)
    second.scrape(vllm(8, 310, 310))
    second.translator.restore(held, {1_000: {s: then[s] for s in wanted[1_000] if s in then}})
    second.scrape(vllm(8, 310, 310))
    assert second.value(INPUT) == 308

    third = scraped(restoring=True)
    third.scrape(vllm(8, 310, 310))
    third.translator.restore(held, {1_000: {s: (400, v) for s, (_, v) in then.items()}})
    third.scrape(vllm(8, 310, 310))
    assert third.value(INPUT) == 310


def test_an_engine_restarted_while_a_probe_was_under_way_has_nothing_to_subtract(scraped) -> None:
    first = scraped()
    probe(first, vllm(40, 1000, 500), vllm(41, 1002, 501))
    first.scrape(vllm(41, 1002, 501))
    own = {series.id for series in first.plan.derived}
    then = {s: (1_000, value) for s, value in first.stored.items() if s not in own}
    held = {s: (1_000, value) for s, value in first.stored.items() if s in own}
    first.scrape(vllm(1, 20, 30))
    held |= {s: (9_000, value) for s, value in first.stored.items() if s not in own}
    second = scraped(restoring=True)
    second.scrape(vllm(2, 40, 60))
    assert set(second.translator.behind(held)) == {1_000}
    second.translator.restore(held, {1_000: then})
    second.scrape(vllm(2, 40, 60))
    assert second.value(INPUT) == 40


def test_without_memories_everything_counts(scraped) -> None:
    target = scraped(restoring=True)
    target.scrape(vllm(5, 102, 51))
    target.translator.restore({})
    target.scrape(vllm(5, 102, 51))
    assert target.value(INPUT) == 102


def test_an_exposition_of_another_shape_is_not_judged(scraped) -> None:
    target = scraped()
    exposition = target.scrape(vllm(4, 100, 50))
    target.scrape(vllm(4, 100, 50, more=HTTP))
    assert not target.translator.hold(exposition)
    assert target.translator.progress(exposition) == {}


def test_derive_does_not_touch_its_argument_and_keeps_order(scraped) -> None:
    target = scraped(Identity("0.32.0"))
    exposition, plan = target.read(vllm(4, 100, 50, seconds=1.5))
    before = exposition.values.copy()
    derived = plan.derive(exposition.values)
    assert np.array_equal(exposition.values, before)
    assert derived.shape == (len(plan.derived),)
    assert isinstance(exposition.shape, Shape)
    assert all(series.id == series_id(series.name, series.labels) for series in plan.derived)
