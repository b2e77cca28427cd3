from __future__ import annotations

import numpy as np
import pytest

from loms.promql.annotations import Annotations, number_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2"),
        (-0.5, "-0.5"),
        (0.0001, "0.0001"),
        (1e-5, "1e-05"),
        (1e21, "1e+21"),
        (123456789.0, "1.23456789e+08"),
        (100000.0, "100000"),
        (1e6, "1e+06"),
        (np.inf, "+Inf"),
        (-np.inf, "-Inf"),
        (np.nan, "NaN"),
    ],
)
def test_numbers_are_written_as_go_writes_them(value: float, text: str) -> None:
    """``fmt.Sprintf("%g", value)``."""
    assert number_text(value) == text


def test_each_text_is_told_once() -> None:
    notes = Annotations()
    notes.check_quantile(np.array([0.5, 2.0, np.nan, -1.0, 3.0]), "1:10")
    notes.check_quantile(np.array([3.0]), "1:10")
    assert notes.warnings == tuple(
        f"PromQL warning: quantile value should be between 0 and 1, got {q} (1:10)" for q in ("NaN", "3", "-1")
    )
    assert notes.infos == ()


def test_ratios_are_capped_at_both_ends() -> None:
    notes = Annotations()
    notes.check_ratio(np.array([-0.5, 1.0]), "1:1")
    assert notes.warnings == ()
    notes.check_ratio(np.array([-2.0, 1.5]), "1:1")
    assert [one.partition("got ")[2] for one in notes.warnings] == [
        "1.5, capping to 1 (1:1)",
        "-2, capping to -1 (1:1)",
    ]


def test_counters_are_known_by_their_names() -> None:
    notes = Annotations()
    notes.check_counters([(("__name__", "a_total"),), (("__name__", "b"), ("i", "1")), (("i", "2"),)], "2:3")
    assert [one.rpartition(": ")[2] for one in notes.infos] == ['"b" (2:3)']
