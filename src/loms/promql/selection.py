"""Which series a selector means, and the sets of ids under which their samples stand.

Two tables are read, ``series(id, name, labels)`` and ``samples(series_id, ts, value)``. One id may stand under
several names (an alias) and several ids under the same name and labels; a series here is a name with labels, and
its samples are those of all its ids.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from loms.core.errors import QueryLimitError, QueryTimeoutError
from loms.core.model import Ids, Ints, Labels
from loms.promql.regexes import anchored, check, fitting
from loms.promql.source import Budget
from loms.promql.syntax import NAME, Matcher, Matchers

_LISTED_IDS = 10_000
"""Up to so many ids are written into the SQL (200 kB); more are selected from the series table again."""
FURTHEST_MS = 9_223_372_036_000
"""What the store's times can hold, from 0 on."""
_CACHED_LABELS = 500_000
_CACHED_SERIES = 500_000
"""Series in all selections that are kept, together."""
_LITERALS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-/|")


class QueryColumns(Protocol):
    """Runs a SELECT and returns its columns as `pyarrow.Array`; safe to call from several threads.

    Raises `QueryTimeoutError` and `QueryLimitError` when the database ends the query for its limits.
    """

    def __call__(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]: ...


SeriesSince = Callable[[int], Sequence[tuple[int, str, Sequence[tuple[str, str]]]] | None]
"""Ids, names and labels of the rows that the series table got since it had a version; None when that is not known."""


def quoted(text: str) -> str:
    """A SQL string literal of any text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def condition(matchers: Matchers) -> str:
    """The matchers as a condition on the series table. Raises `QueryError` for a regex that RE2 refuses."""
    return " AND ".join(_one_condition(matcher) for matcher in matchers)


def _one_condition(matcher: Matcher) -> str:
    column = "name" if matcher.name == NAME else f"labels[{quoted(matcher.name)}]"
    negation = "NOT " if matcher.op.startswith("!") else ""
    if matcher.op in ("=", "!="):
        return f"{negation}({column} = {quoted(matcher.value)})"
    if _LITERALS.issuperset(matcher.value):  # an alternation of plain words can use the primary key
        words = ", ".join(quoted(word) for word in matcher.value.split("|"))
        return f"{negation}({column} IN ({words}))"
    check(matcher.value)
    return f"{negation}match({column}, {quoted(anchored(matcher.value))})"


def listed(numbers: Iterable[int], kind: str = "UInt64") -> str:
    """A constant array: one literal, because parsing thousands of them takes longer than reading their samples."""
    return f"CAST('[{','.join(map(str, numbers))}]', 'Array({kind})')"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Index:
    """The series of a selector, and the layers in which their samples are read."""

    labels: tuple[Labels, ...]
    layers: tuple[Layer, ...]
    ids: tuple[tuple[int, ...], ...]
    """Of each series."""
    found: int
    """Rows of the series table that matched."""

    @classmethod
    def of(cls, condition: str, ids: Mapping[Labels, tuple[int, ...]]) -> Index:
        """``ids`` of labels are those whose samples make up the series, which come by their labels, as Prometheus's."""
        labels = sorted(ids)
        series = tuple(ids[one] for one in labels)
        return cls(tuple(labels), tuple(_layers(condition, series)), series, sum(map(len, series)))


def _layers(condition: str, series: tuple[tuple[int, ...], ...]) -> Iterator[Layer]:
    """The sets of ids, spread over as few queries as it takes for no id to be in two sets of one query."""
    rest: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(series):
        rest.setdefault(ids, []).append(row)
    while rest:
        taken: set[int] = set()
        layer: dict[tuple[int, ...], list[int]] = {}
        for ids in list(rest):
            if taken.isdisjoint(ids):
                taken.update(ids)
                layer[ids] = rest.pop(ids)
        yield Layer.of(layer, condition)


@dataclass(frozen=True, slots=True)
class Layer:
    """Disjoint sets of ids. The least id of a set is its key, and ``keys[i]`` belongs to the series ``rows[i]``."""

    where: str
    key: str
    keys: Ids
    rows: Ints

    @classmethod
    def of(cls, sets: Mapping[tuple[int, ...], list[int]], condition: str) -> Layer:
        pairs = sorted((ids[0], row) for ids, rows in sets.items() for row in rows)
        members = [one for ids in sets for one in ids]
        inner = listed(members) if len(members) <= _LISTED_IDS else f"({select('id', 'series', condition)})"
        merged = [(other, ids[0]) for ids in sets for other in ids[1:]]
        key = "series_id"
        if merged:
            others, firsts = (listed(column) for column in zip(*merged, strict=True))
            key = f"transform(series_id, {others}, {firsts}, series_id)"
        return cls(
            f"series_id IN {inner}",
            key,
            np.array([first for first, _ in pairs], np.uint64),
            np.array([row for _, row in pairs], np.int64),
        )


class Selection:
    """Finds the series of selectors and keeps them. Safe from several threads as ``query_columns`` is.

    ``end_query`` ends the running query whose setting ``log_comment`` it is given. ``series_version`` is another number
    as soon as the series table may have new rows; without it the table is asked each time. ``series_since`` tells the
    rows that are new since a version, so that only what they belong to is looked up again.
    """

    def __init__(
        self,
        query_columns: QueryColumns,
        end_query: Callable[[str], None] | None = None,
        series_version: Callable[[], int] | None = None,
        series_since: SeriesSince | None = None,
    ) -> None:
        self._query_columns = query_columns
        self._end_query = end_query
        self._series_version = series_version
        self._series_since = series_since
        self._labels: dict[int, Labels] = {}
        self._found: tuple[int, dict[tuple[Matchers, int], Index]] = (-1, {})
        """A version of the series table, and what was found in it."""

    def find(self, matchers: Matchers, budget: Budget, seen_ms: int = 0) -> Index:
        """The series that match, and were seen since ``seen_ms``.

        Raises `QueryLimitError` when they are more than a selector may match.
        """
        if self._series_version is None:
            return self._searched(matchers, seen_ms, budget)
        version = self._series_version()
        found_in, found = self._found
        if version != found_in:
            found = self._untouched(found, found_in)
            self._found = version, found
        index = found.get((matchers, seen_ms))
        if index is None:
            index = self._searched(matchers, seen_ms, budget)
            if sum(one.found for one in tuple(found.values())) + index.found > _CACHED_SERIES:
                found.clear()
            found[matchers, seen_ms] = index
        budget.check_series(index.found)
        return index

    def _untouched(self, found: dict[tuple[Matchers, int], Index], version: int) -> dict[tuple[Matchers, int], Index]:
        """What was found in that version of the table, without what rows that came since then belong to."""
        news = self._series_since(version) if self._series_since else None
        if news is None:
            return {}
        if not news:
            return dict(found)
        series = [(one, _labels(name, pairs, {})) for one, name, pairs in news]
        return {key: index for key, index in tuple(found.items()) if not _is_news(key[0], index, series)}

    def _searched(self, matchers: Matchers, seen_ms: int, budget: Budget) -> Index:
        where = condition(matchers)
        if seen_ms > 0:
            where += f" AND last_seen >= fromUnixTimestamp64Milli({seen_ms})"
        known = self._labels
        if len(known) > _CACHED_LABELS:
            known = self._labels = {}
        limit = budget.limits.max_series + 1
        digest = "cityHash64(name, mapKeys(labels), mapValues(labels))"
        sql = select(f"id, {digest} AS digest", "series FINAL", where)
        table = self.query(f"{sql} LIMIT {limit}", budget)
        budget.check_series(len(table["id"]))
        ids, digests = table["id"].to_pylist(), table["digest"].to_pylist()
        # Labels are text, and text is slow: they are fetched once for each digest and kept.
        new = [one for one, key in zip(ids, digests, strict=True) if key not in known]
        if new:
            narrowed = f"id IN ({', '.join(map(str, new))}) AND " if len(new) <= _LISTED_IDS else ""
            self._learn(known, select(f"name, labels, {digest} AS digest", "series FINAL", narrowed + where), budget)
        by_labels: dict[Labels, list[int]] = {}
        for one, key in zip(ids, digests, strict=True):
            if (labels := known.get(key)) is not None:
                by_labels.setdefault(labels, []).append(one)
        return Index.of(where, {labels: tuple(sorted(own)) for labels, own in by_labels.items()})

    def _learn(self, known: dict[int, Labels], sql: str, budget: Budget) -> None:
        table = self.query(sql, budget)
        pair: dict[tuple[str, str], tuple[str, str]] = {}
        columns = zip(table["name"].to_pylist(), table["labels"].to_pylist(), table["digest"].to_pylist(), strict=True)
        for name, labels, key in columns:
            known[key] = _labels(name, labels, pair)

    def query(self, sql: str, budget: Budget) -> Mapping[str, Any]:
        """Run a SELECT within what the budget leaves of time, until it is cancelled.

        The database's own limits are told in Prometheus's words.
        """
        settings: dict[str, float | str] = {
            "max_execution_time": math.ceil(budget.remaining_seconds()),
            "allow_experimental_time_series_aggregate_functions": 1,
            "output_format_arrow_compression_method": "'none'",
        }
        try:
            if self._end_query is None:
                return self._query_columns(sql, settings=settings)
            comment = f"promql-{secrets.token_hex(8)}"
            with budget.cancel.ending(partial(self._end_query, comment)):
                return self._query_columns(sql, settings=settings | {"log_comment": quoted(comment)})
        except QueryTimeoutError:
            raise budget.timed_out() from None
        except QueryLimitError:
            raise budget.too_large() from None


def _labels(name: str, labels: Sequence[tuple[str, str]], known: dict[tuple[str, str], tuple[str, str]]) -> Labels:
    """The labels of a row, with ``__name__``; equal pairs are one object."""
    return tuple(known.setdefault(one, one) for one in sorted(((NAME, name), *((k, v) for k, v in labels if v))))


def _is_news(matchers: Matchers, index: Index, series: Sequence[tuple[int, Labels]]) -> bool:
    """Whether the matchers match a row that ``index`` lacks."""
    rows = list(series)
    for matcher in matchers:
        texts = [dict(labels).get(matcher.name, "") for _, labels in rows]
        rows = [row for row, fits in zip(rows, fitting(matcher.op, matcher.value, texts), strict=True) if fits]
        if not rows:
            return False
    ids = dict(zip(index.labels, index.ids, strict=True))
    return any(one not in ids.get(labels, ()) for one, labels in rows)


def select(what: str, table: str, where: str) -> str:
    """``SELECT what FROM table WHERE where``; texts in them have passed `quoted`."""
    return f"SELECT {what} FROM {table} WHERE {where}"  # noqa: S608


def between(after_ms: int, until_ms: int) -> str:
    """The condition for samples of a window, open on the left; it may reach over what the store's times can hold."""
    after_ms, until_ms = (min(max(one, -1), FURTHEST_MS) for one in (after_ms, until_ms))
    return f"ts > fromUnixTimestamp64Milli({after_ms}) AND ts <= fromUnixTimestamp64Milli({until_ms})"
