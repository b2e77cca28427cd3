from __future__ import annotations

import numpy as np
import pytest

from loms.core.clock import ManualClock
from loms.core.errors import QueryError, QueryLimitError, QueryTimeoutError
from loms.core.model import Floats, Labels, Querier, SampleBatch, Series, labels_of
from loms.promql.engine import Engine
from loms.promql.memory import MemorySource
from loms.promql.source import Limits
from loms.promql.values import EvaluationError, MatrixResult, ScalarResult, StringResult, VectorResult


def engine_of(series: dict[str, list[float]], step_ms: int = 60_000, limits: Limits | None = None) -> Engine:
    source = MemorySource()
    for name, values in series.items():
        source.add(labels_of({"__name__": name}), np.arange(len(values)) * step_ms, np.array(values))
    return Engine(source, limits)


def test_a_range_is_a_frame_with_nan_where_nothing_is() -> None:
    querier: Querier = engine_of({"b": [1, 2], "a": [3.0, np.nan]})
    frame = querier.range('{__name__=~"a|b"}', -60_000, 60_000, 60_000)
    assert frame.labels == ({"__name__": "a"}, {"__name__": "b"})
    assert frame.times_ms.tolist() == [-60_000, 0, 60_000]
    np.testing.assert_array_equal(frame.values, [[np.nan, 3, np.nan], [np.nan, 1, 2]])
    np.testing.assert_array_equal(frame.last, [np.nan, 2])


def test_an_instant_is_a_frame_of_one_column() -> None:
    frame = engine_of({"a": [3.0]}).instant("a * 2", 1_000)
    assert (frame.labels, frame.times_ms.tolist(), frame.values.tolist()) == (({},), [1_000], [[6.0]])


def test_nothing_found_is_an_empty_frame() -> None:
    frame = engine_of({}).range("up", 0, 60_000, 15_000)
    assert frame.labels == ()
    assert frame.values.shape == (0, 5)
    assert frame.last.shape == (0,)


def test_a_scalar_is_a_frame_of_one_series() -> None:
    frame = engine_of({}).range("time()", 0, 2_000, 1_000)
    assert (frame.labels, frame.values.tolist()) == (({},), [[0.0, 1.0, 2.0]])


def test_the_grid_ends_at_or_before_the_end() -> None:
    assert engine_of({}).range("time()", 0, 2_999, 1_000).times_ms.tolist() == [0, 1_000, 2_000]


def test_typed_results() -> None:
    engine = engine_of({"a": [1.0, np.nan, 3.0]})
    assert engine.query("1", 5) == ScalarResult(5, 1.0)
    assert engine.query('"x"', 5) == StringResult(5, "x")
    vector = engine.query("a", 60_000)
    assert isinstance(vector, VectorResult)
    assert vector.labels == ((("__name__", "a"),),)
    assert np.isnan(vector.values).tolist() == [True]
    matrix = engine.query("a[10m]", 120_000)
    assert isinstance(matrix, MatrixResult)
    assert matrix.times_ms[0].tolist() == [0, 60_000, 120_000]
    ranged = engine.query_range("a > 2", 0, 120_000, 60_000)
    assert [times.tolist() for times in ranged.times_ms] == [[120_000]]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "step_ms", "message"),
    [
        (0, 1, 0, "zero or negative query resolution"),
        (1, 0, 1, "end timestamp must not be before start time"),
        (0, 11_000, 1, "exceeded maximum resolution of 11,000 points per timeseries"),
    ],
)
def test_impossible_grids_are_refused(start_ms: int, end_ms: int, step_ms: int, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        engine_of({}).range("up", start_ms, end_ms, step_ms)


@pytest.mark.parametrize("expr", ["a[5m]", '"text"'])
def test_what_gives_no_frame_is_refused(expr: str) -> None:
    with pytest.raises(QueryError) as error:
        engine_of({}).instant(expr, 0)
    assert error.value.kind == "bad_data"
    with pytest.raises(QueryError, match="must be Scalar or instant Vector"):
        engine_of({}).range(expr, 0, 1, 1)


def test_errors_name_their_kind() -> None:
    engine = engine_of({"a": [1.0], "b": [1.0]})
    with pytest.raises(QueryError) as parse_error:
        engine.query("sum(", 0)
    assert (parse_error.value.kind, parse_error.value.hint) == ("bad_data", "the expression is: sum(")
    with pytest.raises(EvaluationError) as evaluation_error:
        engine.query('abs({__name__=~"a|b"})', 0)
    assert evaluation_error.value.kind == "execution"


def test_limits() -> None:
    engine = engine_of({"a": [1.0] * 100, "b": [1.0] * 100}, limits=Limits(max_series=1, max_samples=50))
    with pytest.raises(QueryLimitError, match="more than 1 series"):
        engine.query('{__name__=~"a|b"}', 0)
    with pytest.raises(QueryLimitError, match="too many samples"):
        engine.query("sum_over_time(a[1h])", 3_600_000)
    with pytest.raises(QueryLimitError, match="too many samples"):
        engine.query("max_over_time(vector(1)[1h:1m])", 3_600_000)


def test_time_runs_out_inside_a_query() -> None:
    clock = ManualClock()

    class Slow(MemorySource):
        def _matching(self, *args: object) -> list[Labels]:
            clock.advance(2)
            return []

    assert Engine(Slow(), Limits(timeout_seconds=5), clock).query("a + b", 0)
    with pytest.raises(QueryTimeoutError, match=r"^query timed out in expression"):
        Engine(Slow(), Limits(timeout_seconds=5), clock).query("a + b + c + d", 0)


def test_look_back_and_subquery_step_are_limits_too() -> None:
    limits = Limits(lookback_ms=10_000, subquery_step_ms=1_000)
    engine = engine_of({"a": [1.0]}, limits=limits)
    assert len(engine.instant("a", 9_999).labels) == 1
    assert len(engine.instant("a", 10_000).labels) == 0
    assert engine.instant("count_over_time(vector(1)[5s:])", 60_000).values.tolist() == [[5.0]]


def test_a_leaf_that_occurs_twice_is_read_once() -> None:
    reads = []

    class Counting(MemorySource):
        def _matching(self, *args: object) -> list[Labels]:
            reads.append(args)
            return []

    Engine(Counting()).query("rate(a[5m]) / (rate(a[5m]) + rate(a[1m]))", 0)
    assert len(reads) == 2


def test_metadata() -> None:
    engine = engine_of({"a": [1.0, 2.0], "b": [1.0]})
    assert engine.series(["a", '{__name__="b"}', "a"]) == [(("__name__", "a"),), (("__name__", "b"),)]
    assert engine.series(['{__name__=~"a|b"}'], 1, 60_000) == [(("__name__", "a"),)]
    assert engine.label_values("__name__") == ["a", "b"]
    assert engine.label_names() == ["__name__"]
    with pytest.raises(QueryError, match="not a series selector"):
        engine.series(["rate(a[5m])"])


def test_batches_as_a_source() -> None:
    one, two = Series.of("m", (("i", "1"),)), Series.of("m", (("i", "2"),))
    alias = Series(one.id, "other", (("j", "1"),))

    def batch(ids: list[int], times: list[int], values: list[float], *series: Series) -> SampleBatch:
        column: Floats = np.array(values)
        return SampleBatch(np.array(ids, np.uint64), np.array(times, np.int64), column, series)

    source = MemorySource.from_batches(
        [batch([one.id, two.id], [2, 2], [20, 200], one, two), batch([one.id], [1], [10], alias)]
    )
    assert Engine(source).query("sum_over_time({i='1'}[1s])", 2).values.tolist() == [30.0]  # type: ignore[union-attr]
    assert Engine(source).query("other", 1).values.tolist() == [10.0]  # type: ignore[union-attr]
    assert Engine(MemorySource.from_batches([])).series(["m"]) == []


def test_answers_carry_their_annotations() -> None:
    engine = engine_of({"a": [1.0, 2.0], "b_total": [1.0, 2.0]})
    ranged = engine.query_range("quantile(2, rate(a[2m]))", 60_000, 120_000, 60_000)
    assert [one.rpartition(" ")[2] for one in (*ranged.warnings, *ranged.infos)] == ["(1:10)", "(1:18)"]
    instant = engine.query("rate(b_total[2m])", 60_000)
    assert isinstance(instant, VectorResult)
    assert instant.warnings == instant.infos == ()
    scalar = engine.query("scalar(quantile(-1, a))", 60_000)
    assert isinstance(scalar, ScalarResult)
    assert scalar.warnings == ("PromQL warning: quantile value should be between 0 and 1, got -1 (1:17)",)


def test_names_go_at_once_or_at_the_end() -> None:
    expr = 'label_replace(rate(a_total[2m]), "was", "$1", "__name__", "(.*)")'
    at_once = engine_of({"a_total": [1.0, 2.0]}).instant(expr, 60_000)
    late = engine_of({"a_total": [1.0, 2.0]}, limits=Limits(delayed_names=True)).instant(expr, 60_000)
    assert [dict(one) for one in (*at_once.labels, *late.labels)] == [{}, {"was": "a_total"}]


def test_a_subquery_of_too_many_steps_is_refused() -> None:
    with pytest.raises(QueryLimitError, match="too many samples"):
        engine_of({"a": [1.0]}).query("sum_over_time(vector(1)[290y:1ms])", 0)
