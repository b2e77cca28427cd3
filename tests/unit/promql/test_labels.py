"""Names and values of labels straight from the tables give what the engine finds by reading series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from promql.embedded import Embedded

from loms.core.clock import ManualClock
from loms.core.errors import QueryError, QueryLimitError, QueryTimeoutError
from loms.core.model import Series, labels_of
from loms.promql.engine import Engine
from loms.promql.labels import StoredLabels
from loms.promql.source import Limits
from loms.store.series import series_rows

SERIES = (
    Series.of("up", labels_of({"job": "a", "instance": "h:1"})),
    Series.of("up", labels_of({"job": "b", "instance": "h:2", "odd'name\\": "x"})),
    Series.of("depth", labels_of({"job": "b"})),
)
TIMES = ((1_000, 2_000), (5_000,), ())


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("labels") / "store")
    embedded.write((s, np.array(t, np.int64), np.ones(len(t))) for s, t in zip(SERIES, TIMES, strict=True))
    yield embedded
    embedded.close()


def stored(embedded: Embedded, limits: Limits | None = None) -> StoredLabels:
    return StoredLabels(embedded.database.query_columns, limits or Limits(), ManualClock())


@pytest.mark.parametrize("span", [(None, None), (0, 10_000), (1_500, 2_000), (2_000, 2_000), (2_001, 4_999)])
@pytest.mark.parametrize("selectors", [[], ["up"], ["depth", '{job="a"}'], ['{instance=~"h:.+"}'], ["nothing"]])
def test_the_same_as_by_reading_series(
    embedded: Embedded, selectors: list[str], span: tuple[int | None, int | None]
) -> None:
    labels, engine = stored(embedded), Engine(embedded.source)
    assert labels.label_names(selectors, *span) == engine.label_names(selectors, *span)
    assert sorted(labels.series(selectors, *span)) == engine.series(selectors or ['{__name__!=""}'], *span)
    for name in ("__name__", "job", "instance", "odd'name\\", "absent"):
        assert labels.label_values(name, selectors, *span) == engine.label_values(name, selectors, *span)


def test_more_series_than_a_query_may_read_are_no_obstacle(embedded: Embedded) -> None:
    labels = stored(embedded, Limits(max_series=1))
    assert labels.label_values("job", [], None, None) == ["a", "b"]
    with pytest.raises(QueryLimitError):
        labels.series([], None, None)
    assert [dict(one)["__name__"] for one in labels.series([], None, None, None, 2)] == ["depth", "up"]


def test_wrong_selectors_and_no_time_left_are_refused(embedded: Embedded) -> None:
    with pytest.raises(QueryError, match="parse error"):
        stored(embedded).label_names(["up{"], None, None)
    with pytest.raises(QueryTimeoutError):
        stored(embedded, Limits(timeout_seconds=0)).label_names([], None, None)


def test_of_long_spans_series_count_that_were_seen_since(embedded: Embedded) -> None:
    day, chosen = 86_400_000, ['{__name__=~"seen.+"}']
    for number, seen in enumerate((10 * day, 20 * day)):
        embedded.database.insert_arrow("series", series_rows([Series.of(f"seen{number}", ())], seen))
    labels = StoredLabels(embedded.database.query_columns, Limits(), ManualClock(now_ms=30 * day))
    assert labels.label_values("__name__", chosen, 12 * day, 30 * day) == ["seen0", "seen1"]
    assert labels.label_values("__name__", chosen, 13 * day, 30 * day) == ["seen1"]


def test_of_old_times_the_rollups_count_too(embedded: Embedded) -> None:
    day, old = 86_400_000, Series.of("old", ())
    embedded.database.insert_arrow("series", series_rows([old], day))
    row = {"series_id": np.array([old.id], np.uint64), "bucket": np.array([2 * 86_400], np.uint32)}
    embedded.database.insert_arrow("rollup_hour", pa.table(row))
    labels = StoredLabels(embedded.database.query_columns, Limits(), ManualClock(now_ms=30 * day))
    assert labels.label_values("__name__", ["old"], 2 * day - 60_000, 2 * day - 1_000) == ["old"]
    assert labels.label_values("__name__", ["old"], 2 * day, 2 * day + 60_000) == []
