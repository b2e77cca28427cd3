"""What becomes of governed labels, worked out by hand. Random histories are in tests/property/test_governance.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loms.core import selfmetrics
from loms.core.clock import ManualClock
from loms.core.model import Exposition, Shape
from loms.core.settings import Fold, Labels
from loms.ingest.admission import WINDOW_SECONDS
from loms.ingest.exposition import ExpositionReader
from loms.ingest.governance import Governed

VLLM = Path(__file__).parents[2] / "data/vllm-0.32.0/loaded.txt"


class Target:
    """A governed target whose text is given line by line. ``policy`` are keys of the section ``labels``."""

    def __init__(self, memory: str = "", clock: ManualClock | None = None, **policy: Any) -> None:
        self.clock = clock or ManualClock()
        self.stage = Governed(ExpositionReader(), Labels(**policy), self.clock, memory=memory)
        self.shape: Shape | None = None

    def read(self, *lines: str) -> Exposition:
        exposition = self.stage.read("".join(f"{line}\n" for line in lines).encode(), "text/plain")
        self.shape = exposition.shape
        return exposition

    def shows(self, *lines: str) -> dict[str, float]:
        """Series as text → value."""
        exposition = self.read(*lines)
        names = zip(exposition.shape.names, exposition.shape.labels, strict=True)
        texts = [name + "".join(f" {k}={v}" for k, v in labels) for name, labels in names]
        assert len(set(texts)) == len(texts)
        return dict(zip(texts, exposition.values.tolist(), strict=True))

    def orders(self, **counts: float) -> dict[str, float]:
        """The same for one counter with a label ``tenant``, by its value."""
        shown = self.shows(
            "# TYPE orders_total counter", *(f'orders_total{{tenant="{k}"}} {v}' for k, v in counts.items())
        )
        return {text.removeprefix("orders_total tenant="): value for text, value in shown.items()}


def tenants(top: int, **fold: Any) -> dict[str, Any]:
    return {"tenant": Fold(top=top, **fold)}


def dropped(reason: str) -> float:
    return selfmetrics.registry.get_sample_value("loms_dropped_samples_total", {"reason": reason}) or 0.0


# What goes through


def test_without_a_governed_label_the_very_same_exposition_comes_back() -> None:
    class Once:
        def __init__(self, exposition: Exposition) -> None:
            self.exposition = exposition

        def read(self, body: bytes, content_type: str, /) -> Exposition:
            return self.exposition

    exposition = ExpositionReader().read(VLLM.read_bytes(), "text/plain")
    stage = Governed(Once(exposition), Labels(fold=tenants(2)), ManualClock())
    assert stage.read(b"", "") is exposition
    assert stage.read(b"", "") is exposition
    assert (stage.remark(), stage.changes) == ("", 0)


def test_an_unchanged_shape_is_the_same_object_also_when_only_others_come_and_go() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=5, b=1)
    shape = target.shape
    assert target.orders(a=6, b=1) == {"a": 6, "other": 1}
    assert target.shape is shape
    assert target.orders(c=1, b=1, a=6) == {"a": 6, "other": 2}
    assert target.shape is shape
    target.shows("# TYPE orders_total counter", 'orders_total{tenant="a"} 6', "more 1")
    assert target.shape is not shape


def test_labels_of_series_without_a_governed_one_are_left_alone() -> None:
    target = Target(refuse=("user_id",))
    assert target.shows("up 1", 'a{user_id="x",b="c"} 2', 'a{b="d"} 3') == {"up": 1, "a b=c": 2, "a b=d": 3}


# How series are put together


def test_a_refused_label_is_taken_off_and_series_are_put_together_by_their_type() -> None:
    target = Target(refuse=("user_id",))
    shown = target.shows(
        "# TYPE n_total counter",
        'n_total{user_id="1"} 3',
        'n_total{user_id="2"} 4',
        "n_total 5",  # becomes equal to the others
        "# TYPE size histogram",
        *(
            f'size_bucket{{user_id="{u}",le="{le}"}} {v}'
            for u, le, v in ((1, 1, 1), (1, "+Inf", 2), (2, 1, 3), (2, "+Inf", 5))
        ),
        *(
            f'size_{part}{{user_id="{u}"}} {v}'
            for part, u, v in (("sum", 1, 1.5), ("sum", 2, 2.5), ("count", 1, 2), ("count", 2, 5))
        ),
        "# TYPE running gauge",
        'running{user_id="1"} 3',
        'running{user_id="2"} 4',
        "# TYPE used_ratio gauge",
        'used_ratio{user_id="1"} 0.3',
        'used_ratio{user_id="2"} 0.4',
        "# TYPE build_info gauge",
        'build_info{user_id="1",version="7"} 1',
        'build_info{user_id="2",version="7"} 1',
        "# TYPE n_created gauge",
        'n_created{user_id="1"} 100',
        'n_created{user_id="2"} 90',
        "untyped_count 1",
        'untyped_count{user_id="1"} 1',
    )
    assert shown == {
        "n_total": 12,
        "size_bucket le=1": 4,
        "size_bucket le=+Inf": 7,
        "size_sum": 4,
        "size_count": 7,
        "running": 7,
        "used_ratio": 0.4,
        "build_info version=7": 1,
        "n_created": 90,
        "untyped_count": 2,
    }


def test_gauges_can_be_put_together_by_their_largest() -> None:
    lines = ("# TYPE running gauge", 'running{user_id="1"} 3', 'running{user_id="2"} NaN', 'running{user_id="3"} 1')
    assert Target(refuse=("user_id",)).shows(*lines) == {"running": 4}
    assert Target(refuse=("user_id",), gauges="max").shows(*lines) == {"running": 3}


@pytest.mark.parametrize("gauges", ["sum", "max"])
@pytest.mark.parametrize("pair", [("NaN", "NaN"), ("+Inf", "-Inf")])
def test_what_is_no_number_makes_none(gauges: str, pair: tuple[str, str]) -> None:
    lines = (f'x{{user_id="{i}"}} {value}' for i, value in enumerate(pair))
    (value,) = Target(refuse=("user_id",), gauges=gauges).shows("# TYPE x gauge", *lines).values()
    assert value == math.inf if (gauges, pair[0]) == ("max", "+Inf") else math.isnan(value)


def test_quantiles_that_would_be_one_are_left_out_and_counted() -> None:
    before = dropped("merged_quantile")
    target = Target(refuse=("user_id",), fold=tenants(1))
    shown = target.shows(
        "# TYPE wait summary",
        'wait{quantile="0.5",user_id="1"} 0.1',
        'wait{quantile="0.5",user_id="2"} 0.2',
        'wait{quantile="0.9",user_id="2"} 0.3',
        'wait_sum{user_id="1"} 1',
        'wait_sum{user_id="2"} 2',
        'wait_count{user_id="1"} 10',
        'wait_count{user_id="2"} 20',
        "# TYPE idle summary",
        'idle{quantile="0.5",tenant="a"} 7',
        'idle{quantile="0.5",tenant="b"} 8',
        'idle_count{tenant="a"} 2',
        'idle_count{tenant="b"} 1',
    )
    assert shown == {
        "wait quantile=0.9": 0.3,
        "wait_sum": 3,
        "wait_count": 30,
        "idle quantile=0.5 tenant=a": 7,
        "idle_count tenant=a": 2,
        "idle_count tenant=other": 1,
    }
    assert dropped("merged_quantile") - before == 3


def test_openmetrics_families_are_known_by_their_parts() -> None:
    text = b'# TYPE n counter\nn_total{user_id="1"} 3\nn_created{user_id="1"} 9\nn_total{user_id="2"} 4\n# EOF\n'
    stage = Governed(ExpositionReader(), Labels(), ManualClock())
    exposition = stage.read(text, "application/openmetrics-text")
    assert dict(zip(exposition.shape.names, exposition.values.tolist(), strict=True)) == {"n_total": 7, "n_created": 9}


def test_timestamps_are_the_newest_unless_one_has_none() -> None:
    exposition = Target().read(
        'a{user_id="1"} 1 1000', 'a{user_id="2"} 1 2000', 'b{user_id="1"} 1', 'b{user_id="2"} 1 2', "c 1 5"
    )
    assert exposition.timestamps_ms is not None
    assert dict(zip(exposition.shape.names, exposition.timestamps_ms.tolist(), strict=True)) == {
        "a": 2000,
        "b": 0,
        "c": 5,
    }


# Totals over time


def test_what_a_series_has_counted_stays_when_it_goes_and_goes_on_when_it_returns() -> None:
    target = Target(fold=tenants(1))
    assert target.orders(a=100, b=5, c=7) == {"a": 100, "other": 12}
    assert target.orders(a=100, b=6) == {"a": 100, "other": 13}
    assert target.orders(a=100, b=6, c=9) == {"a": 100, "other": 15}
    assert target.orders(a=100, b=6) == {"a": 100, "other": 15}
    assert target.orders(a=100, b=6, c=1) == {"a": 100, "other": 16}  # begun anew


def test_a_series_that_falls_alone_has_begun_anew() -> None:
    target = Target(fold=tenants(1))
    lines = ("# TYPE all_total counter", "all_total 1", "# TYPE n_total counter")
    target.shows(*lines, 'n_total{tenant="a"} 100', 'n_total{tenant="b"} 5', 'n_total{tenant="c"} 7')
    shown = target.shows(*lines, 'n_total{tenant="a"} 100', 'n_total{tenant="b"} 2', 'n_total{tenant="c"} 8')
    assert shown == {"all_total": 1, "n_total tenant=a": 100, "n_total tenant=other": 15}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("process_start_time_seconds 1000", "process_start_time_seconds 2000"),
        ("# TYPE all_total counter\nall_total 500", "# TYPE all_total counter\nall_total 20"),
        ("", ""),  # the tenants' counters have all fallen, and there is nothing else to go by
    ],
)
def test_a_target_that_has_begun_anew_begins_anew(before: str, after: str) -> None:
    target = Target(fold=tenants(1))
    target.shows(
        before, "# TYPE n_total counter", 'n_total{tenant="a"} 100', 'n_total{tenant="b"} 5', 'n_total{tenant="c"} 7'
    )
    target.shows(before, "# TYPE n_total counter", 'n_total{tenant="a"} 100', 'n_total{tenant="b"} 5')
    shown = target.shows(after, "# TYPE n_total counter", 'n_total{tenant="a"} 1', 'n_total{tenant="b"} 2')
    assert (shown["n_total tenant=a"], shown["n_total tenant=other"]) == (1, 2)


def test_a_counter_that_is_no_number_is_as_it_was() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=100, b=5, c=7)
    assert target.orders(a=math.nan, b=6, c=math.inf) == {"a": 100, "other": 13}
    assert target.orders(a=101, b=6, c=8) == {"a": 101, "other": 14}


def test_rounding_never_takes_a_total_back() -> None:
    target = Target(refuse=("user_id",))
    values = (0.1, 0.2, 0.3, 0.4, 0.7)
    lines = [f'n_total{{user_id="{i}"}} {v!r}' for i, v in enumerate(values)]
    all_of = target.shows("# TYPE n_total counter", *lines)["n_total"]
    for gone in range(len(lines)):
        rest = [line for i, line in enumerate(lines) if i != gone]
        assert target.shows("# TYPE n_total counter", *rest)["n_total"] >= all_of


# Who has series of its own


def test_the_largest_are_taken_in_first_then_whoever_comes_while_there_is_room() -> None:
    target = Target(fold=tenants(2))
    assert target.orders(a=1, b=3, c=2) == {"b": 3, "c": 2, "other": 1}
    room = Target(fold=tenants(3))
    assert room.orders(a=1, b=3) == {"a": 1, "b": 3}
    assert room.orders(a=1, b=3, d=1, c=2) == {"a": 1, "b": 3, "c": 2, "other": 1}


def test_no_metric_outweighs_another() -> None:
    target = Target(fold=tenants(1))
    lines = ("# TYPE bytes_total counter", "# TYPE orders_total counter", "# TYPE calls_total counter")
    shown = target.shows(
        *lines,
        'bytes_total{tenant="a"} 9e12',
        'bytes_total{tenant="b"} 1e12',
        *(f'{name}_total{{tenant="{t}"}} {v}' for name in ("orders", "calls") for t, v in (("a", 1), ("b", 9))),
    )
    assert shown["orders_total tenant=b"] == 9


def test_where_there_are_only_gauges_they_tell_who_is_large() -> None:
    shown = Target(fold=tenants(1)).shows("# TYPE g gauge", 'g{tenant="a"} 1', 'g{tenant="b"} 5', 'g{tenant="c"} 2')
    assert shown == {"g tenant=b": 5, "g tenant=other": 3}


def test_a_value_that_grows_clearly_more_takes_a_place_at_the_end_of_a_window_and_starts_at_zero() -> None:
    target = Target(fold=tenants(1))
    assert target.orders(a=60, b=40, c=1) == {"a": 60, "other": 41}
    assert target.orders(a=60, b=90, c=1) == {"a": 60, "other": 91}
    target.clock.advance(WINDOW_SECONDS - 1)
    assert target.orders(a=60, b=100, c=1) == {"a": 60, "other": 101}
    target.clock.advance(1)
    # b had all of the growth (score 1), a has half of its 60 of 101 left
    assert target.orders(a=60, b=110, c=1) == {"b": 10, "other": 101}
    assert target.orders(a=65, b=112, c=2) == {"b": 12, "other": 107}


def test_a_value_that_grows_a_little_more_does_not() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=60, b=40)
    for count in range(1, 20):
        target.clock.advance(WINDOW_SECONDS)
        assert target.orders(a=60 + 10 * count, b=40 + 15 * count) == {"a": 60 + 10 * count, "other": 40 + 15 * count}


def test_windows_in_which_nothing_grows_change_nothing() -> None:
    target = Target(fold=tenants(1))
    for _ in range(20):
        assert target.orders(a=60, b=40) == {"a": 60, "other": 40}
        target.clock.advance(WINDOW_SECONDS)
    # a still has half of its 0.6 from before: 0.7 is not more than 2 · (0.3 + 0.3)
    assert target.orders(a=63, b=47) == {"a": 63, "other": 47}


def test_growth_counts_from_the_restart_of_the_target() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=200, b=100)
    target.orders(a=0, b=90)
    target.clock.advance(WINDOW_SECONDS)
    # b has grown by 104 and a by 4, not both by 4; what is new since the last scrape counts where it is now
    assert target.orders(a=4, b=104) == {"b": 14, "other": 94}


def test_buckets_only_repeat_what_their_count_says() -> None:
    buckets = [f'size_bucket{{tenant="b",le="{le}"}} 9' for le in ("1", "2", "+Inf")]
    counts = ['size_bucket{tenant="a",le="+Inf"} 10', 'size_count{tenant="a"} 10', 'size_count{tenant="b"} 9']
    shown = Target(fold=tenants(1)).shows("# TYPE size histogram", *buckets, *counts)
    assert shown["size_count tenant=a"] == 10


def test_who_is_larger_does_not_depend_on_the_order_of_the_text() -> None:
    # 0.1 + 0.2 + 0.3 is more than 0.3 + 0.2 + 0.1
    a, b = ([f'n_total{{tenant="{t}",user_id="{u}"}} 0.{u}' for u in (1, 2, 3)] for t in "ab")
    for lines in ((*a, *b), (*reversed(a), *b), (*a, *reversed(b))):
        shown = Target(fold=tenants(1)).shows("# TYPE n_total counter", *lines)
        assert set(shown) == {"n_total tenant=a", "n_total tenant=other"}


def test_a_value_that_comes_back_goes_on_where_its_series_ended() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=60, b=40)
    target.clock.advance(WINDOW_SECONDS)
    assert target.orders(a=60, b=1000) == {"b": 960, "other": 40}
    assert target.orders(a=65, b=1001) == {"b": 961, "other": 45}
    for _ in range(2):
        target.clock.advance(WINDOW_SECONDS)
        target.orders(a=1065, b=1001)
    assert target.orders(a=1066, b=1002) == {"a": 1061, "other": 46}


def test_a_value_named_like_the_others_is_one_of_them() -> None:
    assert Target(fold=tenants(2, other="rest")).orders(rest=9, a=1, b=2, c=3) == {"b": 2, "c": 3, "rest": 10}


# Over a restart of LOMS


def test_totals_and_values_go_on_after_a_restart_of_loms() -> None:
    target = Target(fold=tenants(1))
    lines = ("process_start_time_seconds 1000", "# TYPE n_total counter")
    target.shows(*lines, 'n_total{tenant="a"} 60', 'n_total{tenant="b"} 5', 'n_total{tenant="c"} 7')
    assert target.shows(*lines, 'n_total{tenant="a"} 60', 'n_total{tenant="b"} 6')["n_total tenant=other"] == 13
    after = Target(target.stage.memory(), fold=tenants(1))
    shown = after.shows(*lines, 'n_total{tenant="a"} 61', 'n_total{tenant="b"} 100')
    assert (shown["n_total tenant=a"], shown["n_total tenant=other"]) == (61, 107)
    anew = Target(target.stage.memory(), fold=tenants(1))
    shown = anew.shows("process_start_time_seconds 2000", lines[1], 'n_total{tenant="a"} 1', 'n_total{tenant="b"} 2')
    assert (shown["n_total tenant=a"], shown["n_total tenant=other"]) == (1, 2)


def test_without_a_start_time_lower_counters_tell_that_the_target_has_begun_anew_meanwhile() -> None:
    target = Target(fold=tenants(1))
    lines = ("# TYPE n_total counter", "# TYPE all_total counter")
    target.shows(*lines, "all_total 100", 'n_total{tenant="a"} 60', 'n_total{tenant="b"} 5', 'n_total{tenant="c"} 7')
    target.shows(*lines, "all_total 100", 'n_total{tenant="a"} 60', 'n_total{tenant="b"} 5')
    for all_of, other in ((100, 13), (99, 6)):
        after = Target(target.stage.memory(), fold=tenants(1))
        shown = after.shows(*lines, f"all_total {all_of}", 'n_total{tenant="a"} 60', 'n_total{tenant="b"} 6')
        assert shown["n_total tenant=other"] == other


def test_a_memory_is_kept_until_the_target_is_seen_again() -> None:
    first = Target(fold=tenants(1))
    first.orders(a=60, b=5, c=7)
    first.orders(a=60, b=5)
    second = Target(first.stage.memory(), fold=tenants(1))
    second.shows("up 1")
    third = Target(second.stage.memory(), fold=tenants(1))
    assert third.orders(b=70, a=60) == {"a": 60, "other": 77}


def test_a_series_that_was_gone_may_return_lower_after_a_restart_of_loms() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=60, b=5, c=7)
    target.orders(a=60, b=5)
    for c, other in ((9, 14), (1, 13)):
        assert Target(target.stage.memory(), fold=tenants(1)).orders(a=60, b=5, c=c) == {"a": 60, "other": other}


def test_what_was_counted_before_all_governed_series_went_outlives_loms_too() -> None:
    target = Target(fold=tenants(1))
    target.orders(a=60, b=5, c=7)
    target.shows("up 1")
    assert Target(target.stage.memory(), fold=tenants(1)).orders(a=60, b=6) == {"a": 60, "other": 13}


def test_another_limit_of_values_lets_the_first_of_them_stay() -> None:
    target = Target(fold=tenants(3))
    target.orders(a=60, b=5, c=7)
    assert Target(target.stage.memory(), fold=tenants(1)).orders(a=60, b=500, c=7) == {"a": 60, "other": 507}


@pytest.mark.parametrize("memory", ["", "{", "[]", "[1, 2, 3, 4, 5]", '[0, 0, {}, [["a"]], []]', "null"])
def test_a_memory_that_cannot_be_read_is_none(memory: str) -> None:
    assert Target(memory, fold=tenants(1)).orders(a=2, b=1) == {"a": 2, "other": 1}


# The limit of a target


def names(shown: Mapping[str, float]) -> set[str]:
    return {text.partition(" ")[0] for text in shown}


def test_what_is_new_is_left_out_smallest_metrics_first_and_what_was_there_stays() -> None:
    before = dropped("series_cap")
    target = Target(max_series=6)
    many = [f'door{{n="{i}"}} {i}' for i in range(5)]
    assert len(target.shows(*many)) == 5
    assert target.stage.remark() == ""
    shown = target.shows(*many, *(f'key{{n="{i}"}} {i}' for i in range(3)), "lamp 1")
    assert names(shown) == {"door", "lamp"}
    assert target.stage.remark() == "3 series beyond the limit of 6 (labels.max_series) are not stored: key (3)"
    assert dropped("series_cap") - before == 3
    shown = target.shows(*many[1:], *(f'key{{n="{i}"}} {i}' for i in range(3)), "lamp 1")
    assert sorted(shown) == ["door n=1", "door n=2", "door n=3", "door n=4", "key n=0", "lamp"]
    assert len(target.shows(*many, "lamp 1")) == 6
    assert target.stage.remark() == ""


def test_at_the_first_scrape_a_metric_that_explodes_displaces_only_itself() -> None:
    shown = Target(max_series=12).shows(
        *(f'door{{n="{i}"}} {i}' for i in range(100)), *(f'key{{n="{i}"}} 1' for i in range(9))
    )
    assert sum(text.startswith("key") for text in shown) == 9
    assert sorted(text for text in shown if text.startswith("door")) == ["door n=0", "door n=1", "door n=10"]


def test_a_histogram_is_stored_as_a_whole_or_not_at_all() -> None:
    lines = ["# TYPE size histogram"]
    for n in (1, 2):
        lines += [f'size_bucket{{n="{n}",le="{le}"}} 1' for le in ("1", "2", "+Inf")]
        lines += [f'size_sum{{n="{n}"}} 1', f'size_count{{n="{n}"}} 1']
    target = Target(max_series=8)
    assert len(target.shows(*lines)) == 5
    assert target.stage.remark() == "5 series beyond the limit of 8 (labels.max_series) are not stored: size (5)"


def test_the_limit_counts_what_is_left_after_folding() -> None:
    target = Target(fold=tenants(1), max_series=2)
    assert target.orders(a=9, b=2, c=3) == {"a": 9, "other": 5}
    assert target.stage.remark() == ""


def test_a_remark_names_the_families_that_lose_most() -> None:
    lines = [f'f{size}{{n="{i}"}} 1' for size in range(2, 9) for i in range(size)]
    target = Target(max_series=1)
    target.shows("one 1", *lines)
    assert target.stage.remark() == (
        "35 series beyond the limit of 1 (labels.max_series) are not stored: "
        "f8 (8), f7 (7), f6 (6), f5 (5), f4 (4) and 2 more families"
    )
