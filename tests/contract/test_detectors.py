"""What holds for every detector, and the labelled streams of each.

A stream is ``tests/data/detectors/<detector>/<case>.yaml``: frames by input, and the findings they must give. Values
are written ``5x3`` (5 5 5), ``5+2x3`` (5 7 9), ``_x3`` (three gaps). An input that a case leaves out has no series.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml

from loms.core.model import SEVERITIES, Finding, Frame
from loms.detect.detector import Detector, detectors
from loms.promql.parse import parse

DATA = Path(__file__).parents[1] / "data" / "detectors"
NAMES = list(detectors.load())
CASES = [(path.parent.name, path.stem) for path in sorted(DATA.glob("*/*.yaml"))]


def numbers(text: str) -> list[float]:
    found: list[float] = []
    for word in str(text).split():
        one, _, count = word.partition("x")
        first, _, step = one.partition("+")
        repeated = range(int(count or 1))
        found += [np.nan if first == "_" else float(first) + float(step or 0) * i for i in repeated]
    return found


def empty(detector: Detector, at_ms: int) -> dict[str, Frame]:
    """No series at all, on the grids that the detector asks for."""
    frames = {}
    for name, wanted in detector.inputs(detector.Config()).items():
        count = round(wanted.window_seconds / wanted.step_seconds) + 1
        times = at_ms - np.arange(count - 1, -1, -1, dtype=np.int64) * round(wanted.step_seconds * 1000)
        frames[name] = Frame((), times, np.empty((0, count)))
    return frames


def load(name: str, case: str) -> tuple[Mapping[str, object], Detector, dict[str, Frame], int]:
    stream = yaml.safe_load((DATA / name / f"{case}.yaml").read_text())
    detector, at_ms = detectors[name](), round(stream["at"] * 1000)
    frames = empty(detector, at_ms)
    assert set(stream["frames"]) <= set(frames)
    for key, written in stream["frames"].items():
        values = np.array([numbers(row["values"]) for row in written["series"]])
        count = values.shape[1]
        times = at_ms - np.arange(count - 1, -1, -1, dtype=np.int64) * round(written["step"] * 1000)
        frames[key] = Frame(tuple(row["labels"] for row in written["series"]), times, values)
    return stream, detector, frames, at_ms


def alarms(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "none"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_documented_and_named_alike_everywhere(name: str) -> None:
    detector = detectors[name]()
    text = inspect.getdoc(sys.modules[type(detector).__module__]) or ""
    assert type(detector).__module__.endswith(f".{name}")
    assert (detector.name, detector.Config().model_dump()["type"]) == (name, name)
    assert len(text) > 800
    assert inspect.getdoc(type(detector))
    assert [kind for kind in detector.kinds if f"``{kind}``" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_its_inputs_are_promql_on_a_regular_grid(name: str) -> None:
    detector = detectors[name]()
    for wanted in detector.inputs(detector.Config()).values():
        parse(wanted.expr)
        assert wanted.step_seconds > 0
        assert wanted.window_seconds % wanted.step_seconds == 0


@pytest.mark.parametrize("name", NAMES)
def test_nothing_gives_nothing(name: str) -> None:
    detector = detectors[name]()
    assert detector.detect(empty(detector, 10_000_000), 10_000_000, detector.Config()) == []


@pytest.mark.parametrize("name", NAMES)
def test_it_has_streams_with_and_without_alarms(name: str) -> None:
    quiet = [bool(load(name, case)[0].get("quiet")) for owner, case in CASES if owner == name]
    assert {True, False} <= set(quiet)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_labelled_stream_gives_its_findings(name: str, case: str) -> None:
    stream, detector, frames, at_ms = load(name, case)
    findings = detector.detect(frames, at_ms, detector.Config())
    seen = [
        {"kind": f.kind, "severity": f.severity, "value": pytest.approx(f.value, nan_ok=True), **dict(f.labels)}
        for f in findings
    ]
    expected = stream["expected"]
    assert [{key: one[key] for key in wanted} for wanted, one in zip(expected, seen, strict=True)] == expected
    assert not (stream.get("quiet") and alarms(findings))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_findings_are_complete(name: str, case: str) -> None:
    _, detector, frames, at_ms = load(name, case)
    for finding in detector.detect(frames, at_ms, detector.Config()):
        assert finding.detector == name
        assert finding.kind in detector.kinds
        assert finding.severity in SEVERITIES
        assert finding.summary
        assert dict(finding.labels)["instance"]
        for evidence in finding.evidence:
            assert evidence.text
            if evidence.expr:
                parse(evidence.expr)
        assert finding.severity == "none" or any(evidence.expr for evidence in finding.evidence)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_it_is_deterministic_and_leaves_its_frames_alone(name: str, case: str) -> None:
    _, detector, frames, at_ms = load(name, case)
    before = {key: frame.values.copy() for key, frame in frames.items()}
    first, second = (detector.detect(frames, at_ms, detector.Config()) for _ in range(2))
    assert repr(first) == repr(second)
    for key, values in before.items():
        np.testing.assert_array_equal(frames[key].values, values)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_order_of_series_does_not_matter(name: str, case: str) -> None:
    _, detector, frames, at_ms = load(name, case)
    turned = {k: Frame(f.labels[::-1], f.times_ms, f.values[::-1]) for k, f in frames.items()}
    first, second = (detector.detect(each, at_ms, detector.Config()) for each in (frames, turned))
    assert sorted(map(repr, first)) == sorted(map(repr, second))


@pytest.mark.parametrize(("name", "case"), CASES)
def test_gaps_never_raise_and_absence_never_alarms(name: str, case: str) -> None:
    stream, detector, frames, at_ms = load(name, case)
    rng = np.random.default_rng(7)
    for share in (0.05, 0.3, 0.7):
        holes = {k: _with(f, np.where(rng.random(f.values.shape) < share, np.nan, f.values)) for k, f in frames.items()}
        findings = detector.detect(holes, at_ms, detector.Config())
        assert not (stream.get("quiet") and alarms(findings)), (share, findings)
    nothing = {key: _with(frame, np.full(frame.values.shape, np.nan)) for key, frame in frames.items()}
    assert alarms(detector.detect(nothing, at_ms, detector.Config())) == []
    for missing in frames:
        without = {**frames, missing: empty(detector, at_ms)[missing]}
        assert not (stream.get("quiet") and alarms(detector.detect(without, at_ms, detector.Config())))


def _with(frame: Frame, values: np.ndarray) -> Frame:
    return Frame(frame.labels, frame.times_ms, values)
