"""Points → series, by OpenTelemetry's rules for Prometheus; the right samples are worked by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from unit.ingest.otlp.building import (
    NOW_S,
    SERVICE,
    S,
    attributes,
    counter,
    counts,
    distribution,
    gauge,
    histogram_point,
    number,
    request,
)

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN_BITS, Metadata
from loms.ingest.otlp.limits import Limits
from loms.ingest.otlp.metrics import MetricTranslator, Samples

JOB = 'instance="a:1",job="app"'
Read = dict[str, dict[float, float]]


def translator(stored: Mapping[int, tuple[int, float]] | None = None) -> MetricTranslator:
    clock = ManualClock(now_ms=NOW_S * 1000)
    return MetricTranslator(clock, None if stored is None else lambda ids: {i: stored[i] for i in ids if i in stored})


def read(samples: Samples) -> Read:
    """Series → seconds after the tests' now → value. ``target_info`` is left out."""
    batch = samples.batch()
    names = {one.id: one for one in batch.series}
    found: Read = {}
    for series_id, ms, value in zip(batch.series_ids, batch.timestamps_ms, batch.values, strict=True):
        one = names[int(series_id)]
        labels = ",".join(f'{key}="{text}"' for key, text in one.labels)
        if one.name != "target_info":
            found.setdefault(f"{one.name}{{{labels}}}", {})[int(ms) / 1000 - NOW_S] = float(value)
    return found


def translated(*metrics: dict[str, Any], limits: Limits | None = None, **more: Any) -> Samples:
    return translator().translate(request(*metrics, **more), limits or Limits())


def test_a_gauge_keeps_its_attributes_as_labels() -> None:
    samples = translated(gauge("gpu.temp", number(1, 61.5, **{"gpu.id": "0"}), number(1, 7, gpu="1"), unit="Cel"))
    assert read(samples) == {
        f'gpu_temp_celsius{{gpu_id="0",{JOB}}}': {1: 61.5},
        f'gpu_temp_celsius{{gpu="1",{JOB}}}': {1: 7},
    }
    assert Metadata("gpu_temp_celsius", "gauge", "", "celsius") in samples.metadata


def test_whole_numbers_zeros_and_what_has_no_value() -> None:
    whole = {"time_unix_nano": NOW_S * S, "as_int": 7}
    zero = {"time_unix_nano": (NOW_S + 1) * S, "as_int": 0}
    none = {"time_unix_nano": (NOW_S + 2) * S}
    samples = translated(gauge("g", whole, zero, none))
    assert read(samples) == {f"g{{{JOB}}}": {0: 7, 1: 0}}
    assert str(samples.refusals) == "1 points have no value"


def test_attributes_that_become_one_label_are_joined_and_job_and_instance_win() -> None:
    samples = translated(gauge("g", number(0, 1, **{"a.b": "2", "a-b": "1", "job": "mine", "le.": ""})))
    assert list(read(samples)) == [f'g{{a_b="1;2",{JOB}}}']


@pytest.mark.parametrize(
    ("resource", "labels"),
    [
        ({"service.name": "s", "service.namespace": "n", "service.instance.id": "i"}, 'instance="i",job="n/s"'),
        ({"service.name": "s"}, 'job="s"'),
        ({"service.instance.id": "i", "service.namespace": "n"}, 'instance="i"'),
        ({}, ""),
    ],
)
def test_job_and_instance(resource: dict[str, str], labels: str) -> None:
    assert list(read(translated(gauge("g", number(0, 1)), resource=resource))) == [f"g{{{labels}}}"]


def test_the_scope_stands_in_labels() -> None:
    scope = {"name": "lib", "version": "2", "attributes": [{"key": "build.os", "value": {"string_value": "linux"}}]}
    samples = translated(gauge("g", number(0, 1)), resource={}, **scope)
    assert list(read(samples)) == ['g{otel_scope_build_os="linux",otel_scope_name="lib",otel_scope_version="2"}']


def test_the_resource_becomes_target_info_at_its_newest_point() -> None:
    resource = {**SERVICE, "host.name": "h", "service.version": "3"}
    samples = translated(gauge("g", number(1, 1), number(5, 1)), resource=resource)
    (info,) = (one for one in samples.series if one.name == "target_info")
    assert dict(info.labels) == {"job": "app", "instance": "a:1", "host_name": "h", "service_version": "3"}
    place = samples.ids.index(info.id)
    assert (samples.times[place], samples.values[place]) == ((NOW_S + 5) * 1000, 1.0)


@pytest.mark.parametrize("resource", [{"service.name": "s"}, {"host.name": "h"}])
def test_no_target_info_without_identity_or_without_anything_else(resource: dict[str, str]) -> None:
    assert {one.name for one in translated(gauge("g", number(0, 1)), resource=resource).series} == {"g"}


def test_a_histogram() -> None:
    point = histogram_point(2, [0.5, 1, 2.5], [3, 0, 4, 1], sum=12.5)
    assert read(translated(distribution("histogram", "ttft", point, unit="s"))) == {
        f'ttft_seconds_bucket{{{JOB},le="0.5"}}': {2: 3},
        f'ttft_seconds_bucket{{{JOB},le="1"}}': {2: 3},
        f'ttft_seconds_bucket{{{JOB},le="2.5"}}': {2: 7},
        f'ttft_seconds_bucket{{{JOB},le="+Inf"}}': {2: 8},
        f"ttft_seconds_count{{{JOB}}}": {2: 8},
        f"ttft_seconds_sum{{{JOB}}}": {2: 12.5},
    }


def test_a_histogram_without_buckets_without_sum_and_with_an_infinite_bound() -> None:
    bare = histogram_point(0, [], [])
    bare["count"] = 5
    infinite = histogram_point(0, [1.0, math.inf], [2, 3, 0], sum=9.0)
    samples = read(translated(distribution("histogram", "a", bare), distribution("histogram", "b", infinite)))
    assert samples == {
        f'a_bucket{{{JOB},le="+Inf"}}': {0: 5},
        f"a_count{{{JOB}}}": {0: 5},
        f'b_bucket{{{JOB},le="1"}}': {0: 2},
        f'b_bucket{{{JOB},le="+Inf"}}': {0: 5},
        f"b_count{{{JOB}}}": {0: 5},
        f"b_sum{{{JOB}}}": {0: 9},
    }


def test_a_summary() -> None:
    point = {
        "time_unix_nano": NOW_S * S, "count": 10, "sum": 4.5,
        "quantile_values": [{"quantile": 0.5, "value": 0.25}, {"quantile": 0.99, "value": 2.0}],
    }  # fmt: skip
    assert read(translated({"name": "rpc.time", "unit": "s", "summary": {"data_points": [point]}})) == {
        f"rpc_time_seconds_count{{{JOB}}}": {0: 10},
        f"rpc_time_seconds_sum{{{JOB}}}": {0: 4.5},
        f'rpc_time_seconds{{{JOB},quantile="0.5"}}': {0: 0.25},
        f'rpc_time_seconds{{{JOB},quantile="0.99"}}': {0: 2.0},
    }


def test_a_series_that_has_ended_gets_the_staleness_marker() -> None:
    ended = histogram_point(0, [1.0], [0, 0])
    ended["flags"] = 1
    samples = translated(gauge("g", number(0, 5, flags=1)), distribution("histogram", "h", ended)).batch()
    assert len(samples) == 1 + 4
    assert set(samples.values.view("u8").tolist()) == {STALE_NAN_BITS}


def test_a_counter_that_began_a_moment_ago_begins_with_a_zero() -> None:
    samples = translated(counter("req", number(20, 3, start=10), number(30, 5, start=10)))
    assert read(samples) == {f"req_total{{{JOB}}}": {10: 0, 20: 3, 30: 5}}


def test_a_counter_that_ran_for_hours_or_has_no_start_does_not() -> None:
    samples = translated(counter("a", number(20, 3, start=-7200)), counter("b", number(20, 3)))
    assert read(samples) == {f"a_total{{{JOB}}}": {20: 3}, f"b_total{{{JOB}}}": {20: 3}}


def test_a_reset_that_the_values_do_not_show_is_a_zero_at_the_new_start() -> None:
    one = translator()
    one.translate(request(counter("req", number(0, 4, start=-7200))), Limits())
    after = one.translate(request(counter("req", number(30, 9, start=20), number(40, 10, start=20))), Limits())
    assert read(after) == {f"req_total{{{JOB}}}": {20: 0, 30: 9, 40: 10}}


def test_a_start_before_what_is_known_is_no_reset() -> None:
    one = translator()
    one.translate(request(counter("req", number(30, 4, start=-7200))), Limits())
    assert read(one.translate(request(counter("req", number(40, 9, start=20))), Limits())) == {
        f"req_total{{{JOB}}}": {40: 9}
    }


def test_sums_that_go_up_and_down_are_gauges() -> None:
    samples = translated(counter("queue.size", number(20, -3, start=10), monotonic=False))
    assert read(samples) == {f"queue_size{{{JOB}}}": {20: -3}}
    assert [one.type for one in samples.metadata] == ["gauge"]


def test_deltas_add_up_and_begin_with_a_zero() -> None:
    one = translator()
    first = one.translate(
        request(counter("req", number(10, 3, start=5), number(20, 2, start=10), delta=True)), Limits()
    )
    assert read(first) == {f"req_total{{{JOB}}}": {5: 0, 10: 3, 20: 5}}
    second = one.translate(request(counter("req", number(30, 4, start=20), delta=True)), Limits())
    assert read(second) == {f"req_total{{{JOB}}}": {30: 9}}


def test_deltas_and_cumulative_points_of_the_same_events_give_the_same_series() -> None:
    steps = [3.0, 0.0, 4.0, 1.5]
    delta, cumulative = translator(), translator()
    for i, step in enumerate(steps):
        more = delta.translate(
            request(counter("r", number(10 * i + 10, step, start=10 * i or 0.001), delta=True)), Limits()
        )
        whole = cumulative.translate(
            request(counter("r", number(10 * i + 10, sum(steps[: i + 1]), start=0.001))), Limits()
        )
        assert read(more) == read(whole)


def test_a_late_delta_shows_with_the_next_sample_and_a_repeated_one_counts_once() -> None:
    one = translator()

    def send(at: float, value: float) -> Read:
        return read(one.translate(request(counter("req", number(at, value, start=at - 10), delta=True)), Limits()))

    name = f"req_total{{{JOB}}}"
    assert send(10, 1)[name][10] == 1
    assert send(30, 4) == {name: {30: 5}}
    assert send(20, 2) == {}
    assert send(30, 4) == {}
    assert send(20, 2) == {}
    assert send(40, 1) == {name: {40: 8}}


def test_a_delta_older_than_all_that_are_remembered_is_refused() -> None:
    one = translator()
    one.translate(request(counter("r", *(number(i, 1) for i in range(100, 170)), delta=True)), Limits())
    samples = one.translate(request(counter("r", number(5, 1), delta=True)), Limits())
    assert read(samples) == {}
    assert str(samples.refusals) == "1 deltas come too late to be told from repeated ones"


def test_totals_go_on_from_the_store_after_a_start() -> None:
    before = translator().translate(request(counter("req", number(0, 1), delta=True)), Limits())
    (series,) = (one for one in before.series if one.name == "req_total")
    stored = {series.id: ((NOW_S + 20) * 1000, 40.0)}
    one = translator(stored)
    sent = request(counter("req", number(20, 2, start=10), number(30, 5, start=20), delta=True))
    assert read(one.translate(sent, Limits())) == {f"req_total{{{JOB}}}": {30: 45}}


def test_a_delta_histogram_adds_up_in_every_part() -> None:
    one = translator()
    first = histogram_point(10, [1.0], [2, 1], sum=3.5, start=5)
    second = histogram_point(20, [1.0], [1, 1], sum=2.0, start=10)
    got = read(one.translate(request(distribution("histogram", "h", second, first, delta=True)), Limits()))
    assert got == {
        f'h_bucket{{{JOB},le="1"}}': {5: 0, 10: 2, 20: 3},
        f'h_bucket{{{JOB},le="+Inf"}}': {5: 0, 10: 3, 20: 5},
        f"h_count{{{JOB}}}": {5: 0, 10: 3, 20: 5},
        f"h_sum{{{JOB}}}": {5: 0, 10: 3.5, 20: 5.5},
    }


def test_what_is_undone_can_come_again() -> None:
    one = translator()
    one.translate(request(counter("d", number(0, 1), delta=True), counter("c", number(0, 1, start=-7200))), Limits())
    again = request(counter("d", number(30, 2), delta=True), counter("c", number(30, 1, start=20)))
    refused = one.translate(again, Limits())
    expected = {f"d_total{{{JOB}}}": {30: 3}, f"c_total{{{JOB}}}": {20: 0, 30: 1}}
    assert read(refused) == expected
    one.undo(refused)
    assert read(one.translate(again, Limits())) == expected


def test_the_order_of_attributes_does_not_matter_to_totals() -> None:
    one = translator()
    one.translate(request(counter("d", number(0, 1, a="1", b="2"), delta=True)), Limits())
    samples = one.translate(request(counter("d", number(10, 1, b="2", a="1"), delta=True)), Limits())
    assert read(samples) == {f'd_total{{a="1",b="2",{JOB}}}': {10: 2}}


def many(count: int) -> list[float]:
    return [float(i) for i in range(count)]


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (gauge("…", number(0, 1)), "points belong to a metric whose name has no letter or digit"),
        (gauge("g", number(0, 1, ü="x")), "points have an attribute whose name has no letter or digit"),
        (gauge("g", number(0, 1, **{f"l{i}": "x" for i in range(9)})), "points have more than 8 labels"),
        (gauge("g", number(0, 1, a="x" * 101)), "points have a label longer than 100 characters"),
        (gauge("g", number(-NOW_S, 1)), "points are older than what is kept, or of the future"),
        (gauge("g", number(10**9, 1)), "points are older than what is kept, or of the future"),
        (counter("c", number(0, math.nan), delta=True), "deltas are not finite"),
        ({"name": "c", "sum": {"data_points": [number(0, 1)]}}, "points are neither deltas nor cumulative"),
        (
            distribution("histogram", "h", histogram_point(0, [2, 1], [0, 0, 0])),
            "histogram points have bounds that do not increase",
        ),
        (
            distribution("histogram", "h", histogram_point(0, [math.nan], [0, 0])),
            "histogram points have bounds that do not increase",
        ),
        (
            distribution("histogram", "h", histogram_point(0, [1, 2], [1])),
            "histogram points have other than one bucket more than bounds",
        ),
        (
            distribution("histogram", "h", histogram_point(0, many(1001), [0] * 1002)),
            "points have more than 1000 buckets or quantiles",
        ),
        (
            {
                "name": "s",
                "summary": {"data_points": [{"time_unix_nano": NOW_S * S, "quantile_values": [{"quantile": 2}]}]},
            },
            "summary points have a quantile beyond 0 to 1",
        ),
    ],
)
def test_points_that_cannot_be_are_refused_in_words(metric: dict[str, Any], says: str) -> None:
    bounds = Limits(attributes=8, label_length=100, newest_ns=(NOW_S + 600) * S, oldest_ns=(NOW_S - 86_400) * S)
    samples = translated(metric, gauge("good", number(0, 1)), limits=bounds)
    assert str(samples.refusals) == f"1 {says}"
    assert list(read(samples)) == [f"good{{{JOB}}}"]


def test_exemplars_are_counted() -> None:
    point: dict[str, Any] = {**number(0, 1), "exemplars": [{"as_double": 1.0}, {"as_double": 2.0}]}
    assert translated(counter("c", point)).exemplars == 2


def exponential(at: float, scale: int, offset: int, buckets: Sequence[int], **fields: Any) -> dict[str, Any]:
    positive = {"offset": offset, "bucket_counts": list(buckets)}
    point = counts(at, scale=scale, positive=positive, count=sum(buckets) + fields.get("zero_count", 0), **fields)
    del point["as_double"]
    return point


def test_an_exponential_histogram_has_the_same_buckets_at_every_point() -> None:
    one = translator()
    first = read(
        one.translate(
            request(distribution("exponential_histogram", "h", exponential(0, 3, 5, [1, 2]), unit="s")), Limits()
        )
    )
    second = read(
        one.translate(
            request(distribution("exponential_histogram", "h", exponential(9, 0, -4, [7]), unit="s")), Limits()
        )
    )
    assert set(first) == set(second)
    assert first[f'h_seconds_bucket{{{JOB},le="1"}}'] == {0: 0}
    assert second[f'h_seconds_bucket{{{JOB},le="1"}}'] == {9: 7}
    assert first[f"h_seconds_count{{{JOB}}}"] == {0: 3}


def test_scales_that_cannot_be_are_refused() -> None:
    samples = translated(distribution("exponential_histogram", "h", exponential(0, 21, 0, [1])))
    assert str(samples.refusals) == "1 exponential histogram points have a scale beyond -10 to 20"


def test_labels_too_long_together_are_refused() -> None:
    long = {f"l{i}": "x" * 16_000 for i in range(5)}
    samples = translated(gauge("g", number(0, 1, **long), number(0, 2)))
    assert list(read(samples)) == [f"g{{{JOB}}}"]
    assert str(samples.refusals) == "1 points have labels of more than 65536 bytes (receive.labels_length)"
    scoped = translated(gauge("g", number(0, 1), number(1, 2)), attributes=attributes(long))
    assert (scoped.points, read(scoped)) == (2, {})
    assert str(scoped.refusals) == "2 points have labels of more than 65536 bytes (receive.labels_length)"
    known = translated(gauge("g", number(0, 1)), resource={**SERVICE, **long})
    assert [one.name for one in known.series] == ["g"], "target_info would be too long"


def test_a_point_of_many_buckets_may_not_become_a_large_request() -> None:
    """A thousand buckets of 32 kB each."""
    bounds = [float(i) for i in range(1000)]
    points = [
        {**histogram_point(at, bounds, [1] * 1001), "attributes": attributes({"a": "x" * 16_000, "b": "y" * 16_000})}
        for at in (0, 1)
    ]
    point = distribution("histogram", "h", *points)
    samples = translator().translate(request(point, gauge("g", number(0, 1))), Limits(expanded=30_000_000))
    assert list(read(samples)) == [f"g{{{JOB}}}"]
    assert str(samples.refusals) == "2 points make new series of more than 30000000 bytes; send fewer at once"
    one = translator()
    enough = Limits(expanded=34_000_000)
    assert not one.translate(request(point), enough).refusals.count
    assert not one.translate(request(point), Limits(expanded=0)).refusals.count, "what is known takes no room"
    few = one.translate(request(point), Limits(samples=1003))
    assert str(few.refusals) == "1 points make more than 1003 samples; send fewer at once"


def test_a_negative_delta_of_what_only_grows_is_refused() -> None:
    one = translator()
    first = one.translate(request(counter("r", number(10, 5, start=5), number(20, -3, start=10), delta=True)), Limits())
    assert str(first.refusals) == "1 deltas of a sum that only grows are negative"
    assert read(first) == {f"r_total{{{JOB}}}": {5: 0, 10: 5}}
    both = one.translate(request(counter("d", number(10, -5, start=5), delta=True, monotonic=False)), Limits())
    assert read(both) == {f"d{{{JOB}}}": {10: -5}}


def test_of_deltas_in_one_millisecond_the_last_total_shows_and_each_counts() -> None:
    one = translator()
    points = (number(1.0001, 1, start=0.5), number(1.0002, 2, start=0.5), number(1.0003, 4, start=0.5))
    assert read(one.translate(request(counter("r", *points, delta=True)), Limits())) == {
        f"r_total{{{JOB}}}": {0.5: 0, 1: 7}
    }
    same = one.translate(request(counter("r", number(1.0004, 8, start=0.5), delta=True)), Limits())
    assert (read(same), same.refusals.count) == ({}, 0)
    after = one.translate(request(counter("r", number(2, 16, start=1), delta=True)), Limits())
    assert read(after) == {f"r_total{{{JOB}}}": {2: 31}}
