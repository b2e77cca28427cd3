from __future__ import annotations

import pytest

from loms.core.errors import QueryError
from loms.detect.detector import Input
from loms.rules.inputs import Inputs

HOUR = Input("hour", 3600, 60)
SHORT = Input("short", 10, 2)
INSTANT = Input("instant", 0, 120)


def test_a_short_step_is_asked_for_anew(answers) -> None:
    answers.vectors["short"] = [({"a": "x"}, 0)]
    inputs = Inputs(answers)
    assert inputs.frame(SHORT, 20_000).times_ms.tolist() == [10_000, 12_000, 14_000, 16_000, 18_000, 20_000]
    assert inputs.frame(SHORT, 21_000).times_ms[-1] == 21_000
    inputs.frame(SHORT, 21_000)
    assert [end for _, _, end, _ in answers.asked] == [20_000, 21_000]


def test_an_instant_is_asked_for_once_in_a_step(answers) -> None:
    inputs = Inputs(answers)
    for at in (120_000, 180_000, 239_999, 240_000):
        inputs.frame(INSTANT, at)
    assert [at for _, at, _, _ in answers.asked] == [120_000, 240_000]


def test_of_a_long_window_only_new_columns_are_asked_for(answers) -> None:
    answers.vectors["hour"] = [({"a": "x"}, 0)]
    inputs = Inputs(answers)
    first = inputs.frame(HOUR, 7_230_000)
    assert (first.times_ms[0], first.times_ms[-1], first.values.shape) == (3_600_000, 7_200_000, (1, 61))
    assert inputs.frame(HOUR, 7_259_999) is first
    second = inputs.frame(HOUR, 7_325_000)
    assert answers.asked == [("hour", 3_600_000, 7_200_000, 60_000), ("hour", 7_140_000, 7_320_000, 60_000)]
    assert (second.times_ms[0], second.times_ms[-1], second.values.shape) == (3_720_000, 7_320_000, (1, 61))
    assert (second.values[0] * 1000 == second.times_ms).all()


def test_series_come_and_go(answers) -> None:
    answers.vectors["hour"] = [({"a": "x"}, 0)]
    inputs = Inputs(answers)
    inputs.frame(HOUR, 7_200_000)
    answers.vectors["hour"] = [({"a": "y"}, 0)]
    both = inputs.frame(HOUR, 7_260_000)
    assert [dict(row) for row in both.labels] == [{"a": "x"}, {"a": "y"}]
    assert both.values[0, -2:].tolist() == pytest.approx([float("nan")] * 2, nan_ok=True)
    assert both.values[1, -2:].tolist() == [7200.0, 7260.0]
    much_later = inputs.frame(HOUR, 10_800_000)
    assert [dict(row) for row in much_later.labels] == [{"a": "y"}]


def test_after_a_long_pause_or_a_step_back_everything_is_asked_for(answers) -> None:
    inputs = Inputs(answers)
    for at in (7_200_000, 72_000_000, 7_200_000):
        inputs.frame(HOUR, at)
    assert [end - start for _, start, end, _ in answers.asked] == [3_600_000] * 3


def test_a_failed_query_forgets_nothing(answers) -> None:
    inputs = Inputs(answers)
    inputs.frame(HOUR, 7_200_000)
    answers.vectors["hour"] = QueryError("no")
    with pytest.raises(QueryError):
        inputs.frame(HOUR, 7_260_000)
    answers.vectors["hour"] = []
    inputs.frame(HOUR, 7_320_000)
    assert answers.asked[-1] == ("hour", 7_140_000, 7_320_000, 60_000)
