from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loms.core.model import Floats
from loms.server.prometheus.points import points_json, texts
from loms.server.wire import format_time, format_value

ODD = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e15, -1e15, 1e14, 1e-4, 1e-5, -1e-7, 1e21, 5e-324, 1.7976931348623157e308]
"""Where notations change."""
floats = st.one_of(st.floats(), st.sampled_from(ODD), st.integers(-(10**17), 10**17).map(float))


@given(st.lists(floats, max_size=30))
def test_values_are_written_as_one_by_one(values: list[float]) -> None:
    assert texts(np.array(values, dtype=np.float64)).to_pylist() == [format_value(one) for one in values]


@given(st.lists(st.lists(st.tuples(st.integers(-(10**13), 10**13), floats), max_size=5), max_size=5))
def test_points_of_each_series(series: list[list[tuple[int, float]]]) -> None:
    times = [np.array([t for t, _ in row], dtype=np.int64) for row in series]
    values: list[Floats] = [np.array([v for _, v in row], dtype=np.float64) for row in series]
    written = [json.loads(f"[{text}]") for text in points_json(times, values)]
    assert written == [[[format_time(t), format_value(v)] for t, v in row] for row in series]


def test_many_points_are_written_in_pieces() -> None:
    times = [np.arange(300_000, dtype=np.int64) * 1000] * 4
    values = [np.full(300_000, float(row)) for row in range(4)]
    for row, text in enumerate(points_json(times, values)):
        assert text.startswith(f'[0,"{row}"],[1,"{row}"],')
        assert text.endswith(f'[299999,"{row}"]')
        assert text.count("[") == 300_000
