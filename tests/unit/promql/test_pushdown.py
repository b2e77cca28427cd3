from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from promql.embedded import Embedded

from loms.core.model import STALE_NAN, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.pushdown import Threshold
from loms.promql.values import VectorResult

TIMES = np.arange(0, 300_000, 15_000)
NONE = np.empty(0, np.int64), np.empty(0)
AT = 285_000


class Asked:
    """An engine that folds in the database from ten series on, five a group, and what it asked the database."""

    def __init__(self, embedded: Embedded) -> None:
        self._database = embedded.database
        self.sql: list[str] = []
        self.engine = Engine(ClickHouseSource(self._query_columns, pushed_from=Threshold(10, 5)))

    def _query_columns(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]:
        self.sql.append(sql)
        found: Mapping[str, Any] = self._database.query_columns(sql, parameters, settings)
        return found

    def query(self, expr: str) -> dict[str, float]:
        """Value by the label ``g`` (empty without it)."""
        self.sql.clear()
        result = self.engine.query(expr, AT)
        assert isinstance(result, VectorResult)
        return {dict(labels).get("g", ""): value for labels, value in zip(result.labels, result.values, strict=True)}

    @property
    def folded(self) -> bool:
        return any("ForEach" in sql for sql in self.sql)


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("pushdown"))
    yield embedded
    embedded.close()


@pytest.fixture
def asked(embedded: Embedded) -> Asked:
    """Counters c{i, g}: i = 0 … 19 grow by i a second; g is x for even i, else y. gauge{i} is NaN, +Inf, …"""
    embedded.write(
        (Series.of("c_total", (("g", "xy"[i % 2]), ("i", str(i)))), TIMES, TIMES / 1000 * i) for i in range(20)
    )
    embedded.write((Series.of("level", (("i", str(i)),)), TIMES, np.full(20, float(i))) for i in range(10))
    return Asked(embedded)


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("sum by (g) (rate(c_total[1m]))", {"x": 90, "y": 100}),
        ("sum(rate(c_total[1m]))", {"": 190}),
        ("avg without (i) (increase(c_total[1m]))", {"x": 9 * 60, "y": 10 * 60}),
        ("max by (g) (c_total)", {"x": 18 * 285, "y": 19 * 285}),
        ("min by (g) (max_over_time(c_total[2m]))", {"x": 0, "y": 285}),
        ("count by (g) (c_total offset 1m)", {"x": 10, "y": 10}),
        ("group by (g) (present_over_time(c_total[1m]))", {"x": 1, "y": 1}),
        ("sum(c_total @ 30)", {"": 190 * 30}),
        ("sum(c_total offset 1h)", {}),
    ],
)
def test_aggregations_over_many_series_are_folded_in_the_database(
    asked: Asked, expr: str, want: dict[str, float]
) -> None:
    assert asked.query(expr) == pytest.approx(want)
    assert asked.folded


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        ("sum(level{i!='0'})", {"": 45}),  # nine series are few
        ("count(sum by (i) (c_total))", {"": 20}),  # as many groups as series
        ("sum(abs(c_total))", {"": 190 * 285}),  # no plain leaf
        ("stddev(level)", {"": 8.25**0.5}),
        ("sum(quantile_over_time(0, c_total[1m]))", {"": 190 * 240}),
        ('sum(rate({__name__=~"c_.*"}[1m]))', {"": 190}),  # what would become of two series that lose their names?
        ("sum(rate(c_total[2m:15s]))", {"": 190}),
    ],
)
def test_others_are_folded_here(asked: Asked, expr: str, want: dict[str, float]) -> None:
    assert asked.query(expr) == pytest.approx(want)
    assert not asked.folded


def test_staleness_markers_and_gaps_are_no_values(asked: Asked, embedded: Embedded) -> None:
    late = np.array([AT])
    embedded.write(
        (Series.of("c_total", (("g", "xy"[i % 2]), ("i", str(i)))), late, np.array([STALE_NAN])) for i in (1, 3)
    )
    embedded.write([(Series.of("c_total", (("g", "x"), ("i", "old"))), np.array([-400_000]), np.array([1e9]))])
    found = asked.query("count by (g) (c_total)")
    assert found["x"] == 10
    assert asked.folded


@pytest.mark.parametrize(("value", "want"), [(np.inf, np.inf), (np.nan, np.nan)])
def test_values_that_do_not_add_up_are_left_to_the_engine(
    asked: Asked, embedded: Embedded, value: float, want: float
) -> None:
    embedded.write([(Series.of("level", (("i", "odd"),)), TIMES, np.full(20, value))])
    assert asked.query("sum(level)") == pytest.approx({"": want}, nan_ok=True)
    assert asked.query("max(level)") == {"": np.inf if value == np.inf else 9}
    assert asked.folded


def test_an_id_under_two_names_of_one_selector_is_left_to_the_engine(asked: Asked, embedded: Embedded) -> None:
    first = Series.of("c_total", (("g", "y"), ("i", "1")))
    embedded.write([(Series(first.id, "c_total", (("g", "z"), ("i", "alias"))), *NONE)])
    assert asked.query("sum by (g) (rate(c_total[1m]))") == pytest.approx({"x": 90, "y": 100, "z": 1})
    assert not asked.folded


def test_a_name_that_is_no_counters_is_told(asked: Asked) -> None:
    result = asked.engine.query("sum(rate(level[1m]))", AT)
    assert isinstance(result, VectorResult)
    assert asked.folded
    assert len(result.infos) == 1
