"""What ClickHouse computes over windows is what numpy computes from the same raw samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from promql.embedded import Embedded

from loms.core.model import STALE_NAN, Floats, Ints, Series, labels_of
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.grids import GRID_FUNCTIONS
from loms.promql.memory import MemorySource
from loms.promql.pushdown import Threshold
from loms.promql.values import MatrixResult

ARGUMENTS = {"predict_linear": "({}, 600)", "quantile_over_time": "(0.9, {})"}
NAMES = count()

gaps = st.one_of(st.integers(1, 40_000), st.sampled_from([1, 15_000, 15_000, 15_000, 400_000]))
values = st.one_of(
    st.integers(0, 1_000).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([0.0, np.nan, np.inf, -np.inf, STALE_NAN, STALE_NAN]),
)


@st.composite
def series(draw: st.DrawFn) -> tuple[Ints, Floats]:
    """Irregular samples: gaps, falls, NaN, infinities, staleness markers; some only climb, as counters do."""
    spaces = draw(st.lists(gaps, min_size=0, max_size=40))
    points = np.array(draw(st.lists(values, min_size=len(spaces), max_size=len(spaces))), np.float64)
    if draw(st.booleans()):
        points = np.where(np.isfinite(points), np.cumsum(np.abs(np.nan_to_num(points, posinf=0, neginf=0))), points)
    return np.cumsum(np.array(spaces, np.int64)), points


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("pushdown"))
    yield embedded
    embedded.close()


def assert_same(got: MatrixResult, want: MatrixResult, what: str) -> None:
    assert got.labels == want.labels, what
    for labels, t, u, v, w in zip(got.labels, got.times_ms, want.times_ms, got.values, want.values, strict=True):
        assert t.tolist() == u.tolist(), (what, labels)
        np.testing.assert_allclose(v, w, rtol=1e-9, atol=1e-9, err_msg=f"{what} {labels}")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(series(), min_size=1, max_size=4),
    start_ms=st.integers(-100_000, 300_000),
    step_ms=st.sampled_from([1_000, 15_000, 7_321, 60_000, 250]),
    steps=st.integers(0, 40),
    window_ms=st.sampled_from([1, 500, 15_000, 30_001, 61_234, 300_000]),
)
def test_grid_aggregates_agree_with_raw_samples(
    embedded: Embedded,
    data: list[tuple[Ints, Floats]],
    start_ms: int,
    step_ms: int,
    steps: int,
    window_ms: int,
) -> None:
    name, memory, end_ms = f"m{next(NAMES)}", MemorySource(), start_ms + steps * step_ms
    rows = [(Series.of(name, (("i", str(i)),)), *column) for i, column in enumerate(data)]
    embedded.write(rows)
    for one, times, points in rows:
        memory.add((("__name__", name), *one.labels), times, points)
    for function in sorted({*GRID_FUNCTIONS, "quantile_over_time", "stddev_over_time", "first_over_time"}):
        selector = name if function in ("last", "timestamp") else f"{name}[{window_ms}ms]"
        arguments = ARGUMENTS.get(function, "({})").format(selector)
        expr = selector if function == "last" else function + arguments
        got, want = (Engine(one).query_range(expr, start_ms, end_ms, step_ms) for one in (embedded.source, memory))
        assert_same(got, want, expr)


GROUPINGS = ("", "by (g) ", "by (missing) ", "without (i) ", "without (i, g) ", "by (g, i) ", "by (__name__) ")
WINDOWED = sorted({*GRID_FUNCTIONS} - {"last", "timestamp", "predict_linear"})
LEAVES = ("{}", *(f"{function}({{}}[{{}}ms])" for function in WINDOWED))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(st.tuples(st.sampled_from(["", "a", "b"]), series()), min_size=1, max_size=8),
    shared=st.booleans(),
    split=st.booleans(),
    start_ms=st.integers(-100_000, 300_000),
    step_ms=st.sampled_from([1_000, 15_000, 7_321, 60_000]),
    steps=st.integers(0, 40),
    window_ms=st.sampled_from([500, 30_001, 61_234, 300_000]),
)
def test_folded_aggregations_agree_with_raw_samples(
    embedded: Embedded,
    data: list[tuple[str, tuple[Ints, Floats]]],
    shared: bool,
    split: bool,
    start_ms: int,
    step_ms: int,
    steps: int,
    window_ms: int,
) -> None:
    """Also where two series of a selector share an id (``shared``), or one stands under two ids (``split``)."""
    name, memory, end_ms = f"m{next(NAMES)}", MemorySource(), start_ms + steps * step_ms
    rows = [(Series.of(name, labels_of({"i": str(i), "g": g})), *column) for i, (g, column) in enumerate(data)]
    stored = list(rows)
    if shared:
        first, times, points = rows[0]
        alias = Series(first.id, name, labels_of({"i": "alias", "g": "a"}))
        rows.append((alias, times, points))
        stored.append((alias, np.empty(0, np.int64), np.empty(0)))
    if split:
        one, times, points = stored[0]
        half = len(times) // 2
        stored[0] = (one, times[:half], points[:half])
        stored.append((Series(one.id ^ 1, one.name, one.labels), times[half:], points[half:]))
        shared_rows = [row for row in rows if row[0].id == one.id and row[0] != one]
        for row in shared_rows:  # the alias has the first id only
            rows.remove(row)
            rows.append((row[0], times[:half], points[:half]))
    embedded.write(stored)
    for one, times, points in rows:
        memory.add(tuple(sorted((("__name__", name), *one.labels))), times, points)
    source = ClickHouseSource(embedded.database.query_columns, pushed_from=Threshold(1, 0))
    for place, leaf in enumerate(LEAVES):
        for number, op in enumerate(("sum", "avg", "min", "max", "count", "group")):
            expr = f"{op} {GROUPINGS[(place + number) % len(GROUPINGS)]}({leaf.format(name, window_ms)})"
            got, want = (Engine(one).query_range(expr, start_ms, end_ms, step_ms) for one in (source, memory))
            assert_same(got, want, expr)
