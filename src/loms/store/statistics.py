"""The figures of the series table that Prometheus tells of its head block: the largest metrics, labels and pairs."""

from __future__ import annotations

from dataclasses import dataclass

from loms.store.database import Database

Rows = tuple[tuple[str, int], ...]
"""Names with their numbers, the largest first."""

_SERIES = "SELECT DISTINCT name, labels FROM series"
_PAIRS = f"SELECT label, value, name FROM ({_SERIES}) ARRAY JOIN mapKeys(labels) AS label, mapValues(labels) AS value"  # noqa: S608 - fixed texts
_LIMITED = "ORDER BY count DESC, key LIMIT {limit:UInt32}"
_BY_METRIC = f"SELECT name AS key, count() AS count FROM ({_SERIES}) GROUP BY key {_LIMITED}"  # noqa: S608 - fixed texts
_VALUES_OF_NAME = f"SELECT '__name__' AS label, name AS value FROM ({_SERIES})"  # noqa: S608 - fixed texts
_EVERY_PAIR = f"(SELECT label, value FROM ({_PAIRS}) UNION ALL {_VALUES_OF_NAME})"  # noqa: S608 - fixed texts
_BY_LABEL = f"SELECT label AS key, uniqExact(value) AS count FROM {_EVERY_PAIR} GROUP BY key {_LIMITED}"  # noqa: S608 - fixed texts
_BYTES = f"SELECT label AS key, sum(length(value)) AS count FROM {_EVERY_PAIR} GROUP BY key {_LIMITED}"  # noqa: S608 - fixed texts
_BY_PAIR = f"SELECT concat(label, '=', value) AS key, count() AS count FROM {_EVERY_PAIR} GROUP BY key {_LIMITED}"  # noqa: S608 - fixed texts
_TOTAL = f"SELECT count() AS series, (SELECT uniqExact(label, value) FROM {_EVERY_PAIR}) AS pairs FROM ({_SERIES})"  # noqa: S608 - fixed texts
_TIMES = """
    SELECT count() AS samples, toUnixTimestamp64Milli(min(ts)) AS first, toUnixTimestamp64Milli(max(ts)) AS last
    FROM samples"""


@dataclass(frozen=True, slots=True)
class Statistics:
    series: int
    label_pairs: int
    parts: int
    """Parts of the samples table."""
    first_ms: int
    last_ms: int
    """Times of the first and last sample; both 0 where there is none."""
    series_by_metric: Rows
    values_by_label: Rows
    bytes_by_label: Rows
    """Length of all values of a label, counted once for each series."""
    series_by_pair: Rows
    """``name=value`` and the series that carry it."""


def statistics(database: Database, limit: int) -> Statistics:
    """At most ``limit`` rows each. Raises what `Database.query_columns` does."""
    total, times = database.query_columns(_TOTAL), database.query_columns(_TIMES)
    some = times["samples"][0].as_py() > 0
    return Statistics(
        series=total["series"][0].as_py(),
        label_pairs=total["pairs"][0].as_py(),
        parts=database.figures().parts,
        first_ms=times["first"][0].as_py() if some else 0,
        last_ms=times["last"][0].as_py() if some else 0,
        series_by_metric=_rows(database, _BY_METRIC, limit),
        values_by_label=_rows(database, _BY_LABEL, limit),
        bytes_by_label=_rows(database, _BYTES, limit),
        series_by_pair=_rows(database, _BY_PAIR, limit),
    )


def _rows(database: Database, sql: str, limit: int) -> Rows:
    columns = database.query_columns(sql, {"limit": limit})
    return tuple(zip(columns["key"].to_pylist(), columns["count"].to_pylist(), strict=True))
