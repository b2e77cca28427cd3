"""Spellings of Prometheus's HTTP API; expected texts were taken from Prometheus 2.42's answers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loms.core.errors import QueryError
from loms.server import wire


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000", 1_700_000_000_000),
        ("1700000000.1234", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
        ("1.7e9", 1_700_000_000_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert wire.parse_time("time", text) == ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "nan", "inf", "1e30", "12:00", "9999-12-31T00:00:00Z", "0001-01-01T00:00:00Z"]
)
def test_a_wrong_time_is_named(text: str) -> None:
    with pytest.raises(QueryError, match=r'invalid parameter "start": cannot parse'):
        wire.parse_time("start", text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("9999-12-31T00:00:00Z", 9_223_372_036_000), ("0001-01-01T00:00:00Z", 0), ("-5", 0), ("1e30", 9_223_372_036_000)],
)
def test_a_time_beyond_the_store_can_be_moved_to_its_end(text: str, ms: int) -> None:
    assert wire.parse_time("start", text, clamped=True) == ms


@pytest.mark.parametrize(("text", "ms"), [("15", 15_000), ("0.5", 500), ("1m", 60_000), ("1h30m", 5_400_000)])
def test_steps(text: str, ms: int) -> None:
    assert wire.parse_step("step", text) == ms


@pytest.mark.parametrize(
    ("text", "message"), [("0", "zero or negative"), ("-1", "zero or negative"), ("x", "cannot parse")]
)
def test_a_wrong_step_is_refused(text: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        wire.parse_step("step", text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_values_read_back_exactly_and_have_no_exponent(value: float) -> None:
    text = wire.format_value(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert "e" not in text
    assert not text.endswith(".")
