"""Prometheus's own test language (promql/promqltest in its repository), as far as samples are plain numbers.

A file is blocks apart by blank or comment lines: ``load STEP`` with series, ``clear``, and ``eval`` with the rows
and ``expect`` lines of its answer. Native histograms (``{{…}}``) and start timestamps (``@st``) are not loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from promql.language import duration_ms, split_series

from loms.core.errors import QueryError
from loms.core.model import STALE_NAN, Floats, Ints, Labels
from loms.promql.engine import Engine
from loms.promql.lexer import tokens, unquoted
from loms.promql.values import MatrixResult, Result, ScalarResult, StringResult, VectorResult

Columns = dict[Labels, tuple[Ints, Floats]]
Number = float | None

_PLAIN = r"(?:[iI][nN][fF]|[nN][aA][nN]|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_ITEM = re.compile(rf"(?P<value>_|stale|[+-]?{_PLAIN})(?P<step>[+-]{_PLAIN})?(?:x(?P<times>\d+))?$")
_EVAL = re.compile(r"eval(?:_(?P<kind>fail|warn|info|ordered))?\s+(?P<rest>(?:instant|range)\s.*)")
_INSTANT = re.compile(r"instant\s+at\s+(?P<at>\S+)\s+(?P<expr>.+)")
_RANGE = re.compile(r"range\s+from\s+(?P<start>\S+)\s+to\s+(?P<end>\S+)\s+step\s+(?P<step>\S+)\s+(?P<expr>.+)")
_EXPECT = re.compile(
    r"expect\s+(?P<what>ordered|fail|warn|no_warn|info|no_info)(?:\s+(?P<how>msg|regex):(?P<text>.+))?"
)
_OF_THE_QUERY = re.compile(r"(start|end|range|step)\(\)")


@dataclass(frozen=True)
class Case:
    """One ``eval``: what was loaded before it, and what it must give."""

    line: int
    loads: tuple[str, ...]
    header: str
    body: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((self.header, *self.body))


def cases(text: str) -> Iterator[Case]:
    loads: list[str] = []
    for line, head, body in _blocks(text):
        if head == "clear":
            loads = []
        elif head.startswith("load"):
            loads.append("\n".join((head, *body)))
        else:
            yield Case(line, tuple(loads), head, tuple(body))


def _blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    block: list[str] = []
    first = 0
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = raw.strip()
        if line and not line.startswith("#"):
            first = first if block else number
            block.append(line)
            if line == "clear":
                yield first, line, []
                block = []
        elif block:
            yield first, block[0], block[1:]
            block = []


def numbers(text: str) -> list[Number]:
    """``1+2x3 _ stale`` as values; those of native histograms are left out."""
    found: list[Number] = []
    for item in re.sub(r"\{\{.*?\}\}([+-]\{\{.*?\}\})?(x\d+)?", lambda one: _blank(one[2]), text).split():
        match = _ITEM.match(item)
        assert match, f"{item!r} in {text!r}"
        times = int(match["times"] or 0)
        if match["value"] == "_":
            found += [None] * max(times, 1)
            continue
        value = STALE_NAN if match["value"] == "stale" else float(match["value"])
        step = float(match["step"] or 0)
        found += [value if step == 0 else value + step * i for i in range(times + 1)]
    return found


def _blank(times: str | None) -> str:
    return f"_x{int(times[1:]) + 1}" if times else "_"


def columns_of(loads: tuple[str, ...]) -> Columns:
    series: dict[Labels, dict[int, float]] = {}
    for load in loads:
        head, *lines = load.split("\n")
        step = duration_ms(head.split()[1])
        found: dict[Labels, dict[int, float]] = {}
        for line in lines:
            labels, text = split_series(line)
            if not text.startswith("@st"):
                points = enumerate(numbers(text))
                found[labels] = {number * step: value for number, value in points if value is not None}
        for labels, points_ in found.items():
            series.setdefault(labels, {}).update(points_)
    return {
        labels: (np.array(sorted(points_), np.int64), np.array([points_[at] for at in sorted(points_)], np.float64))
        for labels, points_ in series.items()
        if points_
    }


def almost_equal(a: float, b: float) -> bool:
    """Equal but for a relative millionth, as Prometheus's runner has it."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    least = 2.2250738585072014e-308
    if a == b:
        return True
    if a == 0 or b == 0 or abs(a) + abs(b) < least:
        return abs(a - b) < 1e-6 * least
    return abs(a - b) / min(abs(a) + abs(b), 1.7976931348623157e308) < 1e-6


def check(case: Case, engine: Engine) -> None:
    """Raises AssertionError, or what the engine raises, where the answer is another."""
    head = _EVAL.match(case.header)
    assert head, case.header
    expects = [match for line in case.body if (match := _EXPECT.fullmatch(line))]
    rows = [line for line in case.body if not line.startswith("expect")]
    wanted = {one["what"] for one in expects} | ({head["kind"]} if head["kind"] else set())
    asked = _INSTANT.fullmatch(head["rest"]) or _RANGE.fullmatch(head["rest"])
    assert asked, case.header
    try:
        result = _ask(engine, asked)
    except QueryError as error:
        _check_failure(expects, wanted, error.message)
        return
    assert "fail" not in wanted, "does not fail"
    if not isinstance(result, StringResult):
        _check_annotations(expects, wanted, result)
    assert "{{" not in "".join(rows), "native histograms expected"
    _check_result(asked, case, result, rows, "ordered" in wanted)
    if isinstance(result, VectorResult | ScalarResult) and not _OF_THE_QUERY.search(asked["expr"]):
        _check_as_range(asked, engine, rows)


def _check_failure(expects: list[re.Match[str]], wanted: set[str], message: str) -> None:
    assert "fail" in wanted, f"fails: {message}"
    for one in expects:
        assert _matches(one, message), f"another message: {message}"


def _ask(engine: Engine, asked: re.Match[str]) -> Result:
    if "at" in asked.groupdict():
        return engine.query(asked["expr"], duration_ms(asked["at"]))
    return engine.query_range(asked["expr"], *(duration_ms(asked[one]) for one in ("start", "end", "step")))


def _matches(expected: re.Match[str], text: str) -> bool:
    if expected["how"] == "regex":
        return re.search(expected["text"].strip(), text) is not None
    return expected["how"] is None or expected["text"].strip() == text


def _check_annotations(
    expects: list[re.Match[str]], wanted: set[str], result: ScalarResult | VectorResult | MatrixResult
) -> None:
    for kind, texts in (("warn", result.warnings), ("info", result.infos)):
        assert not (texts and f"no_{kind}" in wanted), f"unexpected: {texts}"
        assert texts or kind not in wanted, f"no {kind}"
        of_kind = [one for one in expects if one["what"] == kind]
        for one in of_kind:
            assert any(_matches(one, text) for text in texts), f"not among {texts}: {one[0]}"
        for text in texts if of_kind else ():
            assert any(_matches(one, text) for one in of_kind), f"unexpected: {text}"


def _check_result(asked: re.Match[str], case: Case, result: Result, rows: list[str], ordered: bool) -> None:
    if isinstance(result, StringResult):
        literal = next(line for line in case.body if line.startswith("expect string")).removeprefix("expect string ")
        assert result.value == unquoted(literal.strip(), tokens(literal.strip())[0])
    elif isinstance(result, ScalarResult):
        assert len(rows) == 1, rows
        assert almost_equal(result.value, float(rows[0])), f"got {result.value}"
    elif isinstance(result, VectorResult):
        found = {labels: [float(one)] for labels, one in zip(result.labels, result.values, strict=True)}
        assert len(found) == len(result.labels), "the same labels twice"
        _check_rows(found, rows)
        assert not ordered or list(result.labels) == [split_series(row)[0] for row in rows], "another order"
    else:
        window = re.search(r"expect range vector from (\S+) to (\S+) step (\S+)", case.text)
        bounds = window.groups() if window else tuple(asked[one] for one in ("start", "end", "step"))
        start, end, step = (duration_ms(one) for one in bounds)
        assert list(result.labels) == sorted(result.labels)
        _check_rows(_points(result, list(range(start, end + 1, step))), rows)


def _check_as_range(asked: re.Match[str], engine: Engine, rows: list[str]) -> None:
    """An instant is also the middle of a range."""
    at = duration_ms(asked["at"])
    around = _points(engine.query_range(asked["expr"], at - 60_000, at + 60_000, 60_000), [at])
    rows = [f"{{}} {row}" if re.fullmatch(rf"[+-]?{_PLAIN}", row) else row for row in rows]
    _check_rows({labels: found for labels, found in around.items() if found != [None]}, rows)


def _points(result: MatrixResult, times: list[int]) -> dict[Labels, list[Number]]:
    found: dict[Labels, list[Number]] = {}
    for labels, at, values in zip(result.labels, result.times_ms, result.values, strict=True):
        points = dict(zip(at.tolist(), values.tolist(), strict=True))
        found[labels] = [points.get(time) for time in times]
    return found


def _check_rows(got: dict[Labels, list[Number]], rows: list[str]) -> None:
    wanted = {labels: numbers(text) for labels, text in map(split_series, rows)}
    assert set(got) == set(wanted), f"got series {sorted(got)}, want {sorted(wanted)}"
    for labels, want in wanted.items():
        have = got[labels]
        want += [None] * (len(have) - len(want))
        same = len(have) == len(want) and all(
            a is b if a is None or b is None else almost_equal(a, b) for a, b in zip(have, want, strict=True)
        )
        assert same, f"{labels}: got {have}, want {want}"
