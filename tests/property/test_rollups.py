"""What is read from rollups is what the same engine reads from the samples, however these came."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rolled import Rolled

from loms.core.model import STALE_NAN, Bools, Floats, Ints, Series
from loms.promql.engine import Engine
from loms.promql.rollup_windows import windows
from loms.promql.values import MatrixResult

MINUTE, HOUR = 60_000, 3_600_000
END = 6 * HOUR

gaps = st.one_of(
    st.integers(1, 90_000),
    st.sampled_from([1, 15_000, 15_000, 15_000, 60_000, 60_000, 400_000, 3 * HOUR]),
)
values = st.one_of(
    st.integers(0, 1_000).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf, STALE_NAN, STALE_NAN]),
)


@st.composite
def series(draw: st.DrawFn) -> tuple[Ints, Floats, Bools]:
    """Irregular samples, many of them on the edges of minutes, in order of time, and which of them come late."""
    spaces = draw(st.lists(gaps, min_size=1, max_size=60))
    points = np.array(draw(st.lists(values, min_size=len(spaces), max_size=len(spaces))), np.float64)
    if draw(st.booleans()):
        points = np.where(np.isfinite(points), np.cumsum(np.abs(np.nan_to_num(points, posinf=0, neginf=0))), points)
    times = draw(st.sampled_from([0, 1, 59_999])) + np.cumsum(np.array(spaces, np.int64))
    late = np.array(draw(st.lists(st.booleans(), min_size=len(spaces), max_size=len(spaces))), np.bool_)
    inside = times < END
    return times[inside], points[inside], late[inside]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rolled]:
    store = Rolled(tmp_path_factory.mktemp("rolled"))
    yield store
    store.close()


def assert_same(got: MatrixResult, want: MatrixResult, what: str, scale: float) -> None:
    assert got.labels == want.labels, what
    for labels, t, u, v, w in zip(got.labels, got.times_ms, want.times_ms, got.values, want.values, strict=True):
        assert t.tolist() == u.tolist(), (what, labels)
        np.testing.assert_allclose(v, w, rtol=1e-9, atol=1e-9 * scale, err_msg=f"{what} {labels}")


def assert_all_same(got: Engine, want: Engine, scale: float, step_ms: int, window_ms: int, offset_ms: int) -> None:
    for function in windows:
        ranged = "" if function in ("last", "timestamp") else f"[{window_ms}ms]"
        selector = f"m{ranged} offset {offset_ms}ms"
        expr = selector if function == "last" else f"{function}({selector})"
        answers = (one.query_range(expr, HOUR, END + HOUR, step_ms) for one in (got, want))
        size = scale**2 if function == "stdvar_over_time" else scale
        assert_same(*answers, f"{expr} step {step_ms}", size)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(series(), min_size=1, max_size=3),
    first_ms=st.integers(10 * MINUTE, END),
    job_samples=st.sampled_from([150, 2_000_000]),
    restarts=st.booleans(),
    step_ms=st.sampled_from([5 * MINUTE, 7 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR]),
    window_ms=st.sampled_from([MINUTE, 5 * MINUTE, 12 * MINUTE, HOUR, 3 * HOUR]),
    offset_ms=st.sampled_from([0, 3 * MINUTE, HOUR]),
)
def test_rollups_agree_with_samples(
    store: Rolled,
    data: list[tuple[Ints, Floats, Bools]],
    first_ms: int,
    job_samples: int,
    restarts: bool,
    step_ms: int,
    window_ms: int,
    offset_ms: int,
) -> None:
    store.begin(first_ms, job_samples)
    names = [Series.of("m", (("i", str(i)),)) for i in range(len(data))]
    early = [(times < first_ms) & ~late for times, _, late in data]
    store.write((one, t[now], v[now]) for one, (t, v, _), now in zip(names, data, early, strict=True))
    store.roll()
    store.advance_to(END)
    store.write((one, t[~now], v[~now]) for one, (t, v, _), now in zip(names, data, early, strict=True))
    if restarts:
        store.restart(job_samples)
    store.advance_to(END + 10 * MINUTE)
    store.roll()
    points = np.concatenate([v for _, v, _ in data])
    scale = float(np.abs(points[np.isfinite(points)]).max(initial=1.0))
    assert_all_same(store.engine, store.raw, scale, step_ms, window_ms, offset_ms)
