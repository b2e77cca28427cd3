from __future__ import annotations

import numpy as np
import pytest

from loms.core.model import Finding, Frame
from loms.detect.latency_baseline import LatencyBaseline

AT = 7_200_000
A, B = {"instance": "a:1", "job": "llm"}, {"instance": "b:1", "job": "llm"}


def frame(rows, columns: int) -> Frame:
    values = np.array([values for _, values in rows], dtype=np.float64).reshape(len(rows), columns)
    return Frame(tuple(labels for labels, _ in rows), AT - np.arange(columns - 1, -1, -1) * 60_000, values)


def detect(now: list, history: list, signal: str = "e2e", **settings: object) -> list[Finding]:
    config = LatencyBaseline.Config(signals=(signal,), **settings)
    frames = {
        f"{signal}_now": frame([(labels, [value]) for labels, value in now], 1),
        f"{signal}_history": frame(history, 61),
    }
    return LatencyBaseline().detect(frames, AT, config)


def test_the_scatter_decides_where_it_is_wide() -> None:
    """Median 2, MAD 0.5 (half of the values are 0.5 away): 2 + 3 * 1.4826 * 0.5 = 4.2239."""
    spread = [1.5, 2.5] * 30 + [2.0]
    assert [f.kind for f in detect([(A, 4.23)], [(A, spread)])] == ["above_baseline"]
    assert detect([(A, 4.22)], [(A, spread)]) == []
    mostly_two = [2.0, 1.5, 2.0] * 20 + [2.0]  # MAD 0, so 2 + 3 * max(0.1 * 2, 0.25) = 2.75
    assert len(detect([(A, 2.76)], [(A, mostly_two)])) == 1


def test_the_relative_floor_decides_on_a_nearly_constant_metric() -> None:
    """Median 10, MAD 0: 10 + 3 * 0.1 * 10 = 13."""
    assert detect([(A, 12.99)], [(A, [10.0] * 61)]) == []
    assert len(detect([(A, 13.01)], [(A, [10.0] * 61)])) == 1
    assert len(detect([(A, 11.01)], [(A, [10.0] * 61)], relative_floor=0.0, floor_seconds={"e2e": 0.3})) == 1


def test_the_absolute_floor_decides_on_a_fast_engine() -> None:
    """Median 0.1, MAD 0: 0.1 + 3 * 0.25 = 0.85."""
    assert detect([(A, 0.84)], [(A, [0.1] * 61)]) == []
    assert len(detect([(A, 0.86)], [(A, [0.1] * 61)])) == 1


def test_each_engine_has_its_own_baseline() -> None:
    found = detect([(A, 5.0), (B, 5.0)], [(B, [1.0] * 61), (A, [5.0] * 61)])
    assert [dict(f.labels) for f in found] == [{**B, "signal": "e2e"}]


def test_an_engine_without_history_is_not_judged() -> None:
    assert detect([(A, 99.0)], [(B, [1.0] * 61)]) == []
    assert detect([(A, 99.0)], []) == []


def test_the_hard_limit_holds_for_whole_requests_only_where_configured() -> None:
    assert detect([(A, 30.0)], [(A, [30.0] * 61)]) == []
    (found,) = detect([(A, 30.0)], [(A, [30.0] * 61)], hard_limit_seconds={"e2e": 2.5})
    assert (found.kind, found.value) == ("above_hard_limit", 30.0)
    assert found.summary == "P99 of the wait for a whole request is 30.00 s, hard limit 2.50 s"


def test_evidence_shows_the_median() -> None:
    (found,) = detect([(A, 5.0)], [(A, [1.0] * 61)])
    assert [(e.text, e.value) for e in found.evidence[:2]] == [
        ("P99 is 5.00 s, expected at most 1.75 s", 5.0),
        ("the median of 56 earlier minutes is 1.00 s", 1.0),
    ]
    assert 'instance="a:1"' in found.evidence[0].expr


@pytest.mark.parametrize(
    "settings", [{"hard_limit_seconds": {"tfft": 1}}, {"signals": ("p99",)}, {"sigmas": 0}, {"x": 1}]
)
def test_wrong_settings_are_refused(settings) -> None:
    with pytest.raises(ValueError, match="validation error"):
        LatencyBaseline.Config(**settings)
