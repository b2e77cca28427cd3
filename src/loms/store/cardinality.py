"""What the stored series are: how many there are of each metric, label and target.

``last_seen`` of a living series is renewed once a day (`loms.store.series`), so a span is at least that long, and a
series that has ended is counted for as long. With a million series each report takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loms.store.database import Database
from loms.store.series import REFRESH_MS, WINDOW_MS

By = Literal["metric", "label", "target"]

SHORTEST_SECONDS = (REFRESH_MS + WINDOW_MS) / 1000
_ADDED_MS = 3_600_000

_TOTAL = """
    SELECT uniqExact(cityHash64(name, labels)) AS series, uniqExact(id) AS stored
    FROM series WHERE last_seen >= fromUnixTimestamp64Milli({since:Int64})"""
_LARGEST: dict[By, str] = {
    "metric": """
        SELECT *, count() OVER () AS groups FROM (
            SELECT name AS key, uniqExact(cityHash64(labels)) AS series
            FROM series WHERE last_seen >= fromUnixTimestamp64Milli({since:Int64}) GROUP BY key)
        ORDER BY series DESC, key LIMIT {limit:UInt32}""",
    "label": """
        SELECT *, count() OVER () AS groups FROM (
            SELECT key, sum(carriers) AS series, uniqExactMerge(hashes) AS values,
                argMin(metric, (-toInt64(distinct), -toInt64(carriers), metric)) AS most
            FROM (
                SELECT label AS key, name AS metric, uniqExact(cityHash64(labels)) AS carriers,
                    uniqExactState(cityHash64(value)) AS hashes, uniqExact(cityHash64(value)) AS distinct
                FROM series ARRAY JOIN mapKeys(labels) AS label, mapValues(labels) AS value
                WHERE last_seen >= fromUnixTimestamp64Milli({since:Int64}) GROUP BY key, metric)
            GROUP BY key)
        ORDER BY values DESC, series DESC, key LIMIT {limit:UInt32}""",
    "target": """
        SELECT *, count() OVER () AS groups FROM (
            SELECT labels['instance'] AS key, labels['job'] AS job, uniqExact(cityHash64(name, labels)) AS series
            FROM series WHERE last_seen >= fromUnixTimestamp64Milli({since:Int64}) AND key != '' GROUP BY key, job)
        ORDER BY series DESC, key, job LIMIT {limit:UInt32}""",
}
_ADDED = """
    SELECT labels['instance'] AS key, labels['job'] AS job, sum(total) AS added
    FROM (
        SELECT series_id AS id, sum(value) AS total FROM samples
        WHERE series_id IN (SELECT id FROM series WHERE name = 'scrape_series_added')
            AND ts >= fromUnixTimestamp64Milli({since:Int64}) AND NOT isNaN(value)
        GROUP BY id) AS sums
    INNER JOIN (SELECT DISTINCT id, labels FROM series WHERE name = 'scrape_series_added') AS targets USING (id)
    GROUP BY key, job"""


@dataclass(frozen=True, slots=True)
class Row:
    """A metric, a label, or a target (then ``name`` is its instance)."""

    name: str
    series: int
    """How many it has; of a label, how many carry it."""
    share: float
    """Of all series."""
    values: int | None = None
    """How many values the label has."""
    metric: str | None = None
    """The metric that has most of them."""
    job: str | None = None
    added: int | None = None
    """Raw series of the target that were new in the last hour; in the hour after LOMS's start that is all of them."""


@dataclass(frozen=True, slots=True)
class Report:
    """``rows`` has the largest first, by series or, for labels, by values."""

    by: By
    since_seconds: float
    series: int
    """All series seen within the span."""
    stored: int
    """Those with samples of their own; the others are second names."""
    groups: int
    """How many rows there would be without a limit."""
    rows: tuple[Row, ...]


def cardinality(
    database: Database, now_ms: int, by: By, *, limit: int = 20, since_seconds: float = SHORTEST_SECONDS
) -> Report:
    """The ``limit`` largest by ``by``. ``since_seconds`` is at least `SHORTEST_SECONDS`.

    Raises what `Database.query_columns` does.
    """
    since = {"since": now_ms - round(since_seconds * 1000)}
    (total,) = _table(database, _TOTAL, since)
    found = _table(database, _LARGEST[by], {**since, "limit": limit})
    added = {}
    if by == "target":
        rows = _table(database, _ADDED, {"since": now_ms - _ADDED_MS})
        added = {(row["key"], row["job"]): round(row["added"]) for row in rows}
    return Report(
        by=by,
        since_seconds=since_seconds,
        series=total["series"],
        stored=total["stored"],
        groups=found[0]["groups"] if found else 0,
        rows=tuple(
            Row(
                name=row["key"],
                series=row["series"],
                share=row["series"] / total["series"],
                values=row.get("values"),
                metric=row.get("most"),
                job=row.get("job"),
                added=added.get((row["key"], row["job"]), 0) if by == "target" else None,
            )
            for row in found
        ),
    )


def _table(database: Database, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = database.query_columns(sql, parameters)
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)]
