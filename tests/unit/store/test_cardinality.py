"""Counts of series against ones made by hand, a copy that is not merged yet and a second name among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, Series, labels_of
from loms.store.cardinality import SHORTEST_SECONDS, Report, cardinality
from loms.store.database import Database
from loms.store.series import series_rows

NOW = 1_800_000_000_000
A, B = {"job": "j", "instance": "a:1"}, {"job": "j", "instance": "b:1"}


def series(name: str, **labels: str) -> Series:
    return Series.of(name, labels_of(labels))


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with Database.open(tmp_path, 1e9, ManualClock(NOW)) as opened:
        orders = [series("orders_total", **A, tenant=f"t{i}") for i in range(5)]
        orders += [series("orders_total", **B, tenant=f"t{i}") for i in range(3, 7)]
        buckets = [series("wait_bucket", **A, tenant="t0", le=str(i)) for i in range(3)]
        up = [series("up", **A), series("up", **B), series("lost")]
        alias = replace(up[0], name="alive")
        opened.insert_arrow("series", series_rows([*orders, *buckets, *up, alias], NOW - 3_600_000))
        opened.insert_arrow("series", series_rows(orders[:3], NOW))  # written again, not merged yet
        old = [series("gone", **A, user_id=str(i)) for i in range(50)]
        opened.insert_arrow("series", series_rows(old, NOW - round(SHORTEST_SECONDS * 1000) - 1))
        yield opened


def rows(report: Report, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in report.rows]


def test_metrics_with_most_series_come_first(database: Database) -> None:
    report = cardinality(database, NOW, "metric")
    expected = [("orders_total", 9), ("wait_bucket", 3), ("up", 2), ("alive", 1), ("lost", 1)]
    assert rows(report, "name", "series") == expected
    assert (report.series, report.stored, report.groups) == (16, 15, 5)
    assert report.rows[0].share == 9 / 16


def test_labels_with_most_values_come_first_and_name_the_metric_that_has_them(database: Database) -> None:
    report = cardinality(database, NOW, "label")
    assert rows(report, "name", "values", "series", "metric") == [
        ("tenant", 7, 12, "orders_total"),
        ("le", 3, 3, "wait_bucket"),
        ("instance", 2, 15, "orders_total"),
        ("job", 1, 15, "orders_total"),
    ]


def test_targets_with_most_series_come_first_and_tell_what_was_added_lately(database: Database) -> None:
    added = [series("scrape_series_added", **labels) for labels in (A, B)]
    database.insert_arrow("series", series_rows(added, NOW))
    samples: Mapping[str, Any] = {
        "series_id": np.array([added[0].id] * 4 + [added[1].id], np.uint64),
        "ts": np.array([NOW - 3_600_001, NOW - 3_500_000, NOW - 5, NOW - 1, NOW], "datetime64[ms]"),
        "value": np.array([100.0, 7.0, 2.0, STALE_NAN, 0.0]),
    }
    database.insert_arrow("samples", pa.table(dict(samples)))
    report = cardinality(database, NOW, "target")
    assert rows(report, "job", "name", "series", "added") == [("j", "a:1", 11, 9), ("j", "b:1", 6, 0)]


def test_a_limit_cuts_the_list_and_tells_how_long_it_is(database: Database) -> None:
    report = cardinality(database, NOW, "metric", limit=1)
    assert rows(report, "name") == [("orders_total",)]
    assert report.groups == 5


def test_a_longer_span_counts_what_has_ended(database: Database) -> None:
    report = cardinality(database, NOW, "label", limit=1, since_seconds=2 * 86_400)
    assert rows(report, "name", "values") == [("user_id", 50)]


@pytest.mark.parametrize("by", ["metric", "label", "target"])
def test_an_empty_store_has_nothing(tmp_path: Path, by: Any) -> None:
    with Database.open(tmp_path, 1e9, ManualClock(NOW)) as empty:
        assert cardinality(empty, NOW, by) == Report(by, SHORTEST_SECONDS, 0, 0, 0, ())
