"""The language of ``*.test``: samples, expressions, and the answers they must give.

    load 30s
      requests_total{instance="a"}  0+10x4 _ NaN stale 3x2

    eval instant at 2m  rate(requests_total[1m])
      {instance="a"}  0.333

    eval range from 0 to 2m step 1m  requests_total
      requests_total{instance="a"}  0 20 40

    eval instant at 0  requests_total + on() requests_total
      expect fail msg: part of the message

    clear

``0+10x4`` is five values from 0 in steps of 10, ``3x2`` three 3s, ``_`` no sample, ``stale`` a staleness marker;
``expect ordered`` wants the vector in the order written. A lone number is a scalar, a quoted text a string. Every
instant is also asked for as the middle of a range.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from loms.core.errors import QueryError
from loms.core.model import STALE_NAN, Floats, Ints, Labels
from loms.promql.engine import Engine
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult

Columns = dict[Labels, tuple[Ints, Floats]]
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
LABEL = re.compile(r'("(?:\\.|[^"\\])*"|[\w.:]+)\s*=\s*"((?:\\.|[^"\\])*)"|"((?:\\.|[^"\\])*)"')


def duration_ms(text: str) -> int:
    """``1h30m`` → milliseconds; a bare number is seconds."""
    if re.fullmatch(r"-?[\d.]+", text):
        return round(float(text) * 1000)
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def split_series(line: str) -> tuple[Labels, str]:
    """``name{a="b"} rest`` → labels with ``__name__``, rest."""
    found = re.match(r'([\w:.]*)(\{(?:"(?:\\.|[^"\\])*"|[^"}])*\})?', line)
    assert found is not None
    pairs = {"__name__": found[1]}
    for key, value, alone in LABEL.findall(found[2] or ""):
        pairs[key.strip('"') or "__name__"] = json.loads(f'"{value or alone}"')
    return tuple(sorted((key, value) for key, value in pairs.items() if value)), line[found.end() :].strip()


def number(text: str) -> float:
    return STALE_NAN if text == "stale" else float(text)


def values_of(text: str) -> list[float | None]:
    out: list[float | None] = []
    for word in text.split():
        if gap := re.fullmatch(r"_(?:x(\d+))?", word):
            out += [None] * int(gap[1] or 1)
        elif run := re.fullmatch(r"([^x]+?)(?:([+-][^x]+))?x(\d+)", word):
            first, step = number(run[1]), float(run[2] or 0)
            out += [first if step == 0 else first + step * i for i in range(int(run[3]) + 1)]
        else:
            out.append(number(word))
    return out


@dataclass
class Case:
    """One ``eval`` with what was loaded before it."""

    line: int
    loads: tuple[str, ...]
    header: str
    expected: list[str] = field(default_factory=list)

    @property
    def directives(self) -> list[str]:
        return [line.removeprefix("expect").strip() for line in self.expected if line.startswith("expect")]

    @property
    def rows(self) -> list[str]:
        return [line for line in self.expected if not line.startswith("expect")]


def cases(text: str) -> Iterator[Case]:
    loads: list[str] = []
    current: Case | None = None
    for number_, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if raw[0].isspace():
            if current is not None:
                current.expected.append(line)
            else:
                loads[-1] += "\n" + line
            continue
        if current is not None:
            yield current
            current = None
        if line == "clear":
            loads = []
        elif line.startswith("load"):
            loads.append(line)
        else:
            current = Case(number_, tuple(loads), line)
    if current is not None:
        yield current


def samples_of(loads: tuple[str, ...]) -> Columns:
    out: Columns = {}
    for load in loads:
        head, *lines = load.split("\n")
        step = duration_ms(head.split()[1])
        for line in lines:
            labels, text = split_series(line)
            points = [(i * step, value) for i, value in enumerate(values_of(text)) if value is not None]
            times, values = np.array([t for t, _ in points], np.int64), np.array([v for _, v in points], np.float64)
            if labels in out:
                times, values = np.append(out[labels][0], times), np.append(out[labels][1], values)
            out[labels] = times, values
    return out


def close(got: float, want: float) -> bool:
    if math.isnan(want) or math.isinf(want):
        return math.isnan(got) if math.isnan(want) else got == want
    return got == want or abs(got - want) <= 1e-9 * max(abs(got), abs(want)) + 1e-300


def points(result: Result, times: list[int]) -> dict[Labels, list[float | None]]:
    """A vector or matrix as values at the given times."""
    if isinstance(result, VectorResult):
        return {labels: [float(value)] for labels, value in zip(result.labels, result.values, strict=True)}
    assert isinstance(result, MatrixResult)
    found = zip(result.labels, result.times_ms, result.values, strict=True)
    return {labels: [dict(zip(t.tolist(), v.tolist(), strict=True)).get(at) for at in times] for labels, t, v in found}


def check_rows(got: dict[Labels, list[float | None]], rows: list[str]) -> None:
    wanted = {}
    for row in rows:
        labels, text = split_series(row)
        wanted[labels] = values_of(text)
    assert set(got) == set(wanted), f"got series {sorted(got)}, want {sorted(wanted)}"
    for labels, want in wanted.items():
        have = got[labels]
        want += [None] * (len(have) - len(want))
        same = [
            (a is None and b is None) or (a is not None and b is not None and close(a, b))
            for a, b in zip(have, want, strict=True)
        ]
        assert all(same), f"{labels}: got {have}, want {want}"


def check(case: Case, engine: Engine) -> None:
    """Runs one case; raises AssertionError where the answer differs."""
    header = re.sub(r"^eval_(fail|warn|info|ordered)", "eval", case.header)
    fails = [one for one in case.directives if one.startswith("fail")] or (
        ["fail"] if "eval_fail" in case.header else []
    )
    instant = re.match(r"eval instant at (?P<at>\S+)\s+(?P<expr>.*)", header)
    ranged = re.match(r"eval range from (?P<from>\S+) to (?P<to>\S+) step (?P<step>\S+)\s+(?P<expr>.*)", header)
    match = instant or ranged
    assert match is not None, header

    def run() -> tuple[Result, list[int]]:
        if instant:
            at = duration_ms(match["at"])
            return engine.query(match["expr"], at), [at]
        start, end, step = (duration_ms(match[key]) for key in ("from", "to", "step"))
        return engine.query_range(match["expr"], start, end, step), list(range(start, end + 1, step))

    if fails:
        with pytest.raises(QueryError) as error:
            run()
        assert fails[0].partition("msg:")[2].strip() in error.value.message
        return
    result, times = run()
    if isinstance(result, StringResult):
        assert f'"{result.value}"' in [*case.rows, *(d.removeprefix("string ") for d in case.directives)]
    elif isinstance(result, ScalarResult):
        assert close(result.value, float(case.rows[0].split()[-1]))
    else:
        check_vector(case, match, engine, result, times)


def check_vector(case: Case, match: re.Match[str], engine: Engine, result: Result, times: list[int]) -> None:
    ordered = "ordered" in case.directives or case.header.startswith("eval_ordered")
    for directive in case.directives:
        if window := re.match(r"range vector from (\S+) to (\S+) step (\S+)", directive):
            start, end, step = (duration_ms(one) for one in window.groups())
            times = list(range(start, end + 1, step))
    check_rows(points(result, times), case.rows)
    if ordered:
        assert isinstance(result, VectorResult)
        assert list(result.labels) == [split_series(row)[0] for row in case.rows]
    if (
        isinstance(result, VectorResult)
        and not ordered
        and not re.search(r"@ *(start|end)|(limitk|limit_ratio|step\(|range\()", match["expr"])
    ):
        at = times[0]
        around = engine.query_range(match["expr"], at - 60_000, at + 60_000, 60_000)
        middle = {labels: found for labels, found in points(around, [at]).items() if found != [None]}
        check_rows(middle, case.rows)
