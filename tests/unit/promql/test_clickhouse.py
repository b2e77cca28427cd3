from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from promql.embedded import Embedded

from loms.core.clock import ManualClock
from loms.core.errors import QueryLimitError, QueryTimeoutError
from loms.core.model import STALE_NAN, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.selection import condition, quoted
from loms.promql.source import Budget, Limits
from loms.promql.syntax import NAME, Matcher
from loms.promql.values import VectorResult

TIMES = np.arange(0, 300_000, 15_000)
NONE = np.empty(0, np.int64), np.empty(0)


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("source"))
    yield embedded
    embedded.close()


def instant(engine: Engine, expr: str, at_ms: int) -> dict[tuple[tuple[str, str], ...], float]:
    result = engine.query(expr, at_ms)
    assert isinstance(result, VectorResult)
    return dict(zip(result.labels, result.values.tolist(), strict=True))


def test_an_alias_reads_the_samples_of_the_series_it_names(embedded: Embedded) -> None:
    raw = Series.of("vllm:running", (("a", "1"),))
    embedded.write([(raw, TIMES, TIMES / 1000), (Series(raw.id, "running", (("b", "2"),)), *NONE)])
    engine = Engine(embedded.source)
    assert instant(engine, "running", 60_000) == {(("__name__", "running"), ("b", "2")): 60.0}
    assert instant(engine, "vllm:running", 60_000) == {(("__name__", "vllm:running"), ("a", "1")): 60.0}
    assert len(instant(engine, '{__name__=~".*running"}', 60_000)) == 2


@pytest.mark.parametrize(
    ("expr", "alone", "joined"),
    [
        ("last_over_time({}[1h])", 135, 285),
        ("count_over_time({}[1h])", 10, 20),
        ("increase({}[300s])", 142.5, 285),
        ("quantile_over_time(0, {}[1h])", 0, 0),
        ("stdvar_over_time({}[1h])", 1856.25, 7481.25),
    ],
)
def test_ids_of_one_name_and_labels_are_one_series(embedded: Embedded, expr: str, alone: float, joined: float) -> None:
    """A series that was an alias and then got samples of its own; the raw series is asked for in the same query."""
    raw, own = Series.of("raw", (("a", "1"),)), Series.of("canonical", (("a", "1"),))
    alias = Series(raw.id, "canonical", (("a", "1"),))
    embedded.write([(raw, TIMES[:10], TIMES[:10] / 1000), (alias, *NONE), (own, TIMES[10:], TIMES[10:] / 1000)])
    engine, at_ms = Engine(embedded.source), 285_000
    assert list(instant(engine, expr.format("canonical"), at_ms).values()) == [pytest.approx(joined)]
    both = f'sum(label_replace({expr.format("raw")}, "__name__", "r", "", "") or {expr.format("canonical")})'
    assert list(instant(engine, expr.format("raw"), at_ms).values()) == [pytest.approx(alone)]
    assert len(instant(engine, both, at_ms)) == 1
    if expr.startswith("last"):  # keeps its names, so that both fit into one selector
        assert sorted(instant(engine, expr.format('{__name__=~"raw|canonical"}'), at_ms).values()) == [alone, joined]


def test_samples_written_twice_count_once_in_raw_reads(embedded: Embedded) -> None:
    series = Series.of("m", ())
    embedded.write([(series, TIMES, TIMES / 1.0)])
    embedded.write([(series, TIMES, TIMES / 1.0)])
    assert list(instant(Engine(embedded.source), "stdvar_over_time(m[1h])", 285_000).values()) == [
        pytest.approx(float(np.var(TIMES)))
    ]


def test_new_series_and_new_labels_are_seen(embedded: Embedded) -> None:
    engine, first = Engine(embedded.source), Series.of("m", (("a", "1"),))
    embedded.write([(first, TIMES, TIMES / 1.0)])
    assert len(instant(engine, "m", 0)) == 1
    embedded.write([(Series.of("m", (("a", "2"),)), TIMES, TIMES / 1.0)])
    assert len(instant(engine, "m", 0)) == 2
    embedded.write([(Series(first.id, "m", (("a", "3"),)), *NONE)])
    assert [dict(labels)["a"] for labels in sorted(instant(engine, "m", 0))] == ["1", "2", "3"]


def test_more_ids_than_are_listed_in_sql(embedded: Embedded) -> None:
    embedded.write(
        (Series.of("many", (("i", str(i)),)), np.array([1_000 * (i % 5)]), np.array([float(i)])) for i in range(2_500)
    )
    engine = Engine(embedded.source)
    found = instant(engine, "many", 4_000)
    assert {labels: value for labels, value in found.items() if dict(labels)["i"] != str(int(value))} == {}
    assert len(found) == 2_500
    assert len(instant(engine, "stddev_over_time(many[1m])", 4_000)) == 2_500
    assert len(instant(engine, 'many{i=~"1.*"}', 2_999)) == sum(str(i)[0] == "1" and i % 5 < 3 for i in range(2_500))


def test_series_with_times_are_those_with_samples_then(embedded: Embedded) -> None:
    embedded.write([(Series.of("m", (("i", "old"),)), TIMES[:2], TIMES[:2] / 1.0)])
    embedded.write([(Series.of("m", (("i", "new"),)), TIMES[4:], TIMES[4:] / 1.0)])
    engine = Engine(embedded.source)
    assert engine.label_values("i") == ["new", "old"]
    assert engine.label_values("i", ["m"], 0, 15_000) == ["old"]
    assert engine.label_values("i", ["m"], 15_000, 60_000) == ["new", "old"]
    assert engine.label_values("i", ["m"], 15_001, 59_999) == []
    assert engine.label_names(['m{i="old"}']) == [NAME, "i"]


def test_staleness_markers_come_back_bit_for_bit(embedded: Embedded) -> None:
    embedded.write([(Series.of("m", ()), TIMES[:3], np.array([1.0, STALE_NAN, np.nan]))])
    budget = Budget(Limits(), ManualClock())
    samples = embedded.source.samples((Matcher(NAME, "=", "m"),), -1, 100_000, budget)
    assert samples.values.view(np.uint64).tolist() == [
        np.float64(1.0).view(np.uint64),
        np.float64(STALE_NAN).view(np.uint64),
        np.float64(np.nan).view(np.uint64),
    ]
    assert samples.fresh().times_ms.tolist() == [0, 30_000]


def test_threads_share_one_source(embedded: Embedded) -> None:
    embedded.write((Series.of(f"m{i}", ()), TIMES, TIMES * float(i)) for i in range(8))
    engine = Engine(embedded.source)

    def ask(i: int) -> bool:
        want = float(TIMES[-1]) * i
        return all(list(instant(engine, f"m{i}", 285_000).values()) == [want] for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


def test_limits_end_a_query(embedded: Embedded) -> None:
    embedded.write((Series.of("m", (("i", str(i)),)), TIMES, TIMES / 1.0) for i in range(10))
    with pytest.raises(QueryLimitError, match="matches more than 9 series"):
        Engine(embedded.source, Limits(max_series=9)).instant("m", 0)
    few = Engine(embedded.source, Limits(max_samples=100))
    assert len(few.instant("m", 0).labels) == 10
    for expr in ("stddev_over_time(m[1h])", "m[1h]"):
        with pytest.raises(QueryLimitError, match="too many samples"):
            few.query(expr, 285_000)
    with pytest.raises(QueryLimitError, match="too many samples"):
        few.range("m", 0, 285_000, 15_000)


def test_time_left_is_handed_to_the_database() -> None:
    """Without a database: what is asked, under which limits, and the end of time."""
    clock, asked = ManualClock(), []

    def query_columns(
        sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]:
        asked.append((sql, settings))
        clock.advance(20)
        return {name: pa.array([], pa.uint64()) for name in ("id", "digest")}

    engine = Engine(ClickHouseSource(query_columns), Limits(timeout_seconds=30), clock)
    with pytest.raises(QueryTimeoutError, match=r"^query timed out in expression"):
        engine.instant("a + b + c", 0)
    assert [dict(settings or {})["max_execution_time"] for _, settings in asked] == [30, 10]


@pytest.mark.parametrize(
    ("matcher", "sql"),
    [
        (Matcher(NAME, "=", "up"), "(name = 'up')"),
        (Matcher("job", "!=", "it's"), "NOT (labels['job'] = 'it\\'s')"),
        (Matcher("a'b", "=", "\\"), "(labels['a\\'b'] = '\\\\')"),
        (Matcher("zone", "=~", "eu|us"), "(labels['zone'] IN ('eu', 'us'))"),
        (Matcher("zone", "!~", "e.+"), "NOT match(labels['zone'], '^(?s:e.+)$')"),
        (Matcher("zone", "=~", ""), "(labels['zone'] IN (''))"),
    ],
)
def test_matchers_as_sql(matcher: Matcher, sql: str) -> None:
    assert condition((matcher,)) == sql


def test_quoted_text_stays_inside_its_quotes(embedded: Embedded) -> None:
    for text in ("'", "\\", "\\'", "\0", "a\nb", "{x:String}", "%s", "''", "\\0", "é"):
        column = embedded.database.query_columns(f"SELECT {quoted(text)} AS text")["text"]
        assert column.to_pylist() == [text]
