"""Names and values of labels, found in the database: a store may have more series than a query may read."""

from __future__ import annotations

from collections.abc import Sequence

from loms.core.clock import Clock
from loms.core.model import Labels, labels_of
from loms.promql.parse import parse_selector
from loms.promql.selection import QueryColumns, Selection, between, condition, quoted, select
from loms.promql.source import Budget, Cancel, Limits
from loms.promql.syntax import NAME

_DAY_MS = 86_400_000
"""How often ``last_seen`` of a living series is renewed."""
_ROLLUPS = (("rollup_minute", 60), ("rollup_hour", 3600))
"""Tables and the width of their buckets in seconds."""


class StoredLabels:
    """What series of the store carry. Safe to call from several threads as ``query_columns`` is.

    With times, series count that have samples in [start, end]. Of more than a day those count that were seen since two
    days before its start, which is what the series table knows by itself. Without times, all of them count. Every
    method raises `QueryError` for a wrong selector, and the other kinds of it.
    """

    def __init__(self, query_columns: QueryColumns, limits: Limits, clock: Clock) -> None:
        self._selection = Selection(query_columns)
        self._limits = limits
        self._clock = clock

    def label_names(
        self, selectors: Sequence[str], start_ms: int | None, end_ms: int | None, cancel: Cancel | None = None, /
    ) -> list[str]:
        """In alphabetical order; ``__name__`` among them where there is any series."""
        where = self._where(selectors, start_ms, end_ms)
        found = self._column("DISTINCT arrayJoin(arrayPushBack(mapKeys(labels), '__name__')) AS v", where, cancel)
        return [name for name in found if name]

    def label_values(
        self,
        name: str,
        selectors: Sequence[str],
        start_ms: int | None,
        end_ms: int | None,
        cancel: Cancel | None = None,
        /,
    ) -> list[str]:
        """In alphabetical order."""
        column = "name" if name == NAME else f"labels[{quoted(name)}]"
        return [
            value
            for value in self._column(f"DISTINCT {column} AS v", self._where(selectors, start_ms, end_ms), cancel)
            if value
        ]

    def series(
        self,
        selectors: Sequence[str],
        start_ms: int | None,
        end_ms: int | None,
        cancel: Cancel | None = None,
        limit: int | None = None,
        /,
    ) -> list[Labels]:
        """Label sets with ``__name__``, by name; at most ``limit``.

        Raises `QueryLimitError` when, without a limit, they are more than a selector may match.
        """
        most = self._limits.max_series
        where = f"{self._where(selectors, start_ms, end_ms)} ORDER BY name, mapKeys(labels), mapValues(labels)"
        with Budget(self._limits, self._clock, cancel) as budget:
            bounded = f"{where} LIMIT {most + 1 if limit is None else limit}"
            table = self._selection.query(select("DISTINCT name, labels", "series", bounded), budget)
            if limit is None:
                budget.check_series(len(table["name"]))
        rows = zip(table["name"].to_pylist(), table["labels"].to_pylist(), strict=True)
        return [labels_of([(NAME, name), *labels]) for name, labels in rows]

    def _where(self, selectors: Sequence[str], start_ms: int | None, end_ms: int | None) -> str:
        matching = " OR ".join(f"({condition(parse_selector(text))})" for text in selectors) or "1"
        if start_ms is None or end_ms is None:
            return f"({matching})"
        if end_ms - start_ms > _DAY_MS:
            return f"({matching}) AND last_seen >= fromUnixTimestamp64Milli({max(start_ms - 2 * _DAY_MS, 0)})"
        series = f"series_id IN ({select('id', 'series', f'({matching})')})"
        found = [select("series_id", "samples", f"{series} AND {between(start_ms - 1, end_ms)}")]
        if start_ms < self._clock.now_ms() - _DAY_MS:  # of what is older, perhaps only the rollups are left
            found += [
                select(
                    "series_id",
                    table,
                    f"{series} AND bucket > {start_ms // 1000} AND bucket <= {end_ms // 1000 + width}",
                )
                for table, width in _ROLLUPS
            ]
        return f"({matching}) AND ({' OR '.join(f'id IN ({one})' for one in found)})"

    def _column(self, what: str, where: str, cancel: Cancel | None) -> list[str]:
        with Budget(self._limits, self._clock, cancel) as budget:
            table = self._selection.query(select(what, "series", f"{where} ORDER BY v"), budget)
        found: list[str] = table["v"].to_pylist()
        return found
