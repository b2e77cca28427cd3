"""Against numpy and exact fractions on what is easy, and against known answers on what is not."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.promql import reductions

rows = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


@given(rows)
def test_sums_are_exact_to_the_last_digit(values: list[float]) -> None:
    exact = float(sum(map(Fraction, values)))
    column = np.array(values)[:, None]
    for got in (reductions.total(column)[0], reductions.segment_total(column, np.array([0]))[0, 0]):
        assert got == pytest.approx(exact, rel=1e-15, abs=1e-15)


@given(st.lists(rows, min_size=1, max_size=6))
def test_segments_are_summed_apart(segments: list[list[float]]) -> None:
    flat = np.array([value for segment in segments for value in segment])[:, None]
    lengths = np.array([len(segment) for segment in segments])
    got = reductions.segment_total(flat, np.cumsum(lengths) - lengths)[:, 0]
    np.testing.assert_allclose(got, [float(sum(map(Fraction, segment))) for segment in segments], rtol=1e-14, atol=1e-9)


def test_infinities_and_nan_pass_through_sums() -> None:
    columns = np.array([[np.inf, np.inf, np.nan, 1e308], [1.0, -np.inf, 1.0, 1e308]])
    want = [np.inf, np.nan, np.nan, np.inf]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(reductions.total(columns), want)
        np.testing.assert_array_equal(reductions.segment_total(columns, np.array([0]))[0], want)


@given(rows, st.floats(0, 1))
def test_quantiles_are_numpys_linear_ones(values: list[float], q: float) -> None:
    column = np.array([*values, 0.0])[:, None]
    mask = np.array([True] * len(values) + [False])[:, None]
    got = reductions.quantile(column, mask, np.array([q]))[0]
    assert got == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)


def test_quantiles_of_sets_of_several_sizes() -> None:
    columns = np.array([[1.0, 5.0, np.nan], [3.0, 9.0, 4.0], [2.0, 9.0, 9.0]])
    mask = np.array([[True, True, True], [True, False, True], [True, False, False]])
    np.testing.assert_array_equal(reductions.quantile(columns, mask, np.array([0.5, 0.9, 1.0])), [2.0, 5.0, 4.0])


@given(rows)
def test_variances(values: list[float]) -> None:
    column = np.array([*values, 7.0])[:, None]
    mask = np.array([True] * len(values) + [False])[:, None]
    got = reductions.variance(np.where(mask, column, 0.0), mask, np.array([len(values)]))[0]
    mean = sum(map(Fraction, values)) / len(values)
    exact = float(sum((Fraction(value) - mean) ** 2 for value in values) / len(values))
    assert got == pytest.approx(exact, rel=1e-9, abs=1e-9 * max(1.0, max(map(abs, values))))
