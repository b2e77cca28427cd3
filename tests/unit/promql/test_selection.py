from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from promql.embedded import Embedded

from loms.core.clock import ManualClock
from loms.core.errors import QueryCancelledError, QueryLimitError, QueryTimeoutError
from loms.core.model import Series
from loms.promql.engine import Engine
from loms.promql.selection import Index, Selection, listed
from loms.promql.source import Budget, Limits
from loms.promql.syntax import NAME, Matcher
from loms.promql.values import VectorResult

NONE = np.empty(0, np.int64), np.empty(0)
MATCHERS = (Matcher(NAME, "=", "m"),)


class Counted:
    """The embedded database, counting what it is asked."""

    def __init__(self, embedded: Embedded) -> None:
        self._database = embedded.database
        self.asked = 0

    def query_columns(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]:
        self.asked += 1
        found: Mapping[str, Any] = self._database.query_columns(sql, parameters, settings)
        return found


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("selection"))
    yield embedded
    embedded.close()


def budget(max_series: int = 100) -> Budget:
    return Budget(Limits(max_series=max_series), ManualClock())


def test_a_selection_is_kept_until_there_may_be_new_series(embedded: Embedded) -> None:
    counted = Counted(embedded)
    selection = Selection(counted.query_columns, series_version=embedded.database.series_version)
    embedded.write([(Series.of("m", (("a", "1"),)), *NONE)])
    first = selection.find(MATCHERS, budget())
    asked = counted.asked
    assert selection.find(MATCHERS, budget()) is first
    assert counted.asked == asked
    with pytest.raises(QueryLimitError, match="matches more than 0 series"):
        selection.find(MATCHERS, budget(max_series=0))
    embedded.write([(Series.of("m", (("a", "2"),)), *NONE), (Series.of("other", ()), *NONE)])
    assert sorted(dict(labels)["a"] for labels in selection.find(MATCHERS, budget()).labels) == ["1", "2"]
    assert counted.asked > asked


def test_only_what_new_series_belong_to_is_looked_up_again(embedded: Embedded) -> None:
    counted, database = Counted(embedded), embedded.database
    selection = Selection(counted.query_columns, None, database.series_version, database.series_since)
    embedded.write([(Series.of("m", (("a", "1"),)), *NONE), (Series.of("other", ()), *NONE)])
    words = Matcher("a", "=~", "[12]")
    before = [selection.find(matchers, budget()) for matchers in (MATCHERS, (*MATCHERS, words))]
    asked = counted.asked
    embedded.write([(Series.of("other", (("a", "2"),)), *NONE), (Series.of("m", (("a", "1"),)), *NONE)])
    embedded.write([(Series.of("m", (("a", "3"),)), *NONE)])
    assert selection.find((*MATCHERS, words), budget()) is before[1]
    assert counted.asked == asked
    assert len(selection.find(MATCHERS, budget()).labels) == 2
    embedded.write([(Series(7, "m", (("a", "1"),)), *NONE)])
    assert [len(own) for own in selection.find((*MATCHERS, words), budget()).ids] == [2]
    embedded.clear()
    assert not selection.find(MATCHERS, budget()).labels


def test_series_come_by_their_labels(embedded: Embedded) -> None:
    embedded.write([(Series.of("m", (("i", str(i)), ("z", "x"))), *NONE) for i in range(50)])
    labels = Selection(embedded.database.query_columns).find(MATCHERS, budget()).labels
    assert list(labels) == sorted(labels)
    assert [dict(one)["i"] for one in labels] == sorted(map(str, range(50)))


def test_ties_go_to_the_first_by_labels(embedded: Embedded) -> None:
    embedded.write([(Series.of("m", (("i", str(i)),)), np.array([1_000]), np.array([1.0])) for i in range(50)])
    for expr in ("topk(3, m)", "bottomk(3, m)", "limitk(3, m)"):
        found = Engine(embedded.source).query(expr, 1_000)
        assert isinstance(found, VectorResult)
        assert [dict(one)["i"] for one in found.labels] == ["0", "1", "10"]


def test_without_a_version_the_table_is_asked_each_time(embedded: Embedded) -> None:
    counted = Counted(embedded)
    selection = Selection(counted.query_columns)
    embedded.write([(Series.of("m", ()), *NONE)])
    for times in (2, 3, 4):  # the labels are fetched once
        selection.find(MATCHERS, budget())
        assert counted.asked == times


def test_ids_are_spread_over_layers_so_that_none_is_in_two_sets() -> None:
    one, two, three = ((("i", str(i)),) for i in range(3))
    index = Index.of("1", {one: (1, 2), two: (2, 3), three: (4,)})
    assert index.found == 5
    assert [(layer.keys.tolist(), layer.rows.tolist()) for layer in index.layers] == [([1, 4], [0, 2]), ([2], [1])]
    assert "transform(series_id" in index.layers[0].key
    shared = Index.of("1", {one: (1,), two: (1,)})
    assert [(layer.keys.tolist(), layer.rows.tolist()) for layer in shared.layers] == [([1, 1], [0, 1])]


def test_listed_numbers_are_an_array_of_the_database(embedded: Embedded) -> None:
    numbers = [0, 2**64 - 1, 7]
    columns = embedded.database.query_columns(f"SELECT {listed(numbers)} AS a, {listed([], 'UInt32')} AS b")
    assert columns["a"].to_pylist() == [numbers]
    assert columns["b"].to_pylist() == [[]]


@pytest.mark.parametrize(
    ("sql", "settings", "error", "text"),
    [
        ("SELECT sum(number) AS x FROM numbers(1000000000000)", 1, QueryTimeoutError, "query timed out in expression"),
        (
            "SELECT groupArray(number) AS x FROM numbers(1000000000)",
            60,
            QueryLimitError,
            "query processing would load too many samples into memory",
        ),
    ],
)
def test_limits_of_the_database_in_prometheus_words(
    embedded: Embedded, sql: str, settings: float, error: type[Exception], text: str
) -> None:
    selection = Selection(embedded.database.query_columns)
    with pytest.raises(error, match=f"^{text}"):
        selection.query(sql, Budget(Limits(timeout_seconds=settings), ManualClock()))
    assert selection.query("SELECT 1 AS x", budget())["x"].to_pylist() == [1]


def test_a_statement_is_marked_so_that_it_can_be_ended(embedded: Embedded) -> None:
    ended: list[str] = []
    mark = "SELECT value AS x FROM system.settings WHERE name = 'log_comment'"
    with budget() as within:

        def query_columns(sql: str, parameters: object = None, settings: Any = None) -> Mapping[str, Any]:
            found: Mapping[str, Any] = embedded.database.query_columns(sql, settings=settings)
            within.cancel.cancel()
            return found

        marked = Selection(query_columns, ended.append).query(mark, within)["x"].to_pylist()
        assert ended
        assert marked == ended[:1]
        with pytest.raises(QueryCancelledError):
            within.remaining_seconds()
