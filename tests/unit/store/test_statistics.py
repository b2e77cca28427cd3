"""Figures of the series table; expected ones are counted by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from loms.core.model import Series, labels_of
from loms.store.database import Database
from loms.store.series import series_rows
from loms.store.statistics import statistics


def test_an_empty_store_has_none(database: Database) -> None:
    found = statistics(database, 10)
    assert (found.series, found.label_pairs, found.first_ms, found.last_ms) == (0, 0, 0, 0)
    assert (found.series_by_metric, found.values_by_label) == ((), ())


def test_metrics_labels_and_pairs_the_largest_first(database: Database) -> None:
    rows = [("a", {"job": "x", "code": "200"}), ("a", {"job": "x", "code": "500"}), ("b", {"job": "x"})]
    series = [Series.of(name, labels_of(labels)) for name, labels in rows]
    now = 1_800_000_000_000
    database.insert_arrow("series", series_rows(series, now))
    database.insert_arrow("series", series_rows(series[:1], now + 1))  # a second row of the same series
    times = np.array([now, now + 5000], "datetime64[ms]")
    samples = {"series_id": np.array([series[0].id] * 2, np.uint64), "ts": times, "value": np.ones(2)}
    database.insert_arrow("samples", pa.table(samples))
    found = statistics(database, 2)
    assert (found.series, found.first_ms, found.last_ms) == (3, now, now + 5000)
    assert found.label_pairs == 5  # a, b, job=x, code=200, code=500
    assert found.series_by_metric == (("a", 2), ("b", 1))
    assert found.values_by_label == (("__name__", 2), ("code", 2))
    assert found.bytes_by_label == (("code", 6), ("__name__", 3))
    assert found.series_by_pair == (("job=x", 3), ("__name__=a", 2))
    assert statistics(database, 10).bytes_by_label == (("code", 6), ("__name__", 3), ("job", 3))
