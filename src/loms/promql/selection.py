"""Which series a selector means, and the sets of ids under which their samples stand.

Two tables are read, ``series(id, name, labels)`` and ``samples(series_id, ts, value)``. One id may stand under
several names (an alias) and several ids under the same name and labels; a series here is a name with labels, and
its samples are those of all its ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loms.core.model import Ids, Ints, Labels
from loms.promql.regexes import anchored, check
from loms.promql.source import Budget
from loms.promql.syntax import NAME, Matcher, Matchers

_LISTED_IDS = 1_000
"""Up to so many ids are written into the SQL; more are selected from the series table again."""
_CACHED_LABELS = 500_000
_LITERALS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-/|")


class QueryColumns(Protocol):
    """Runs a SELECT and returns its columns as `pyarrow.Array`; safe to call from several threads.

    Raises `QueryTimeoutError` and `QueryLimitError` when the database ends the query for its limits.
    """

    def __call__(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, float | str] | None = None
    ) -> Mapping[str, Any]: ...


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


@dataclass(frozen=True, slots=True)
class Index:
    """The series of a selector: ``ids[i]`` are the ids whose samples make up the series ``labels[i]``."""

    condition: str
    labels: tuple[Labels, ...]
    ids: tuple[tuple[int, ...], ...]

    def layers(self) -> Iterator[Layer]:
        """The sets of ids, spread over as few queries as it takes for no id to be in two sets of one query."""
        rest: dict[tuple[int, ...], list[int]] = {}
        for row, ids in enumerate(self.ids):
            rest.setdefault(ids, []).append(row)
        while rest:
            taken: set[int] = set()
            layer: dict[tuple[int, ...], list[int]] = {}
            for ids in list(rest):
                if taken.isdisjoint(ids):
                    taken.update(ids)
                    layer[ids] = rest.pop(ids)
            yield Layer.of(layer, self.condition)


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
        listed = [one for ids in sets for one in ids]
        inner = ", ".join(map(str, listed)) if len(listed) <= _LISTED_IDS else select("id", "series", condition)
        merged = [(other, ids[0]) for ids in sets for other in ids[1:]]
        key = "series_id"
        if merged:
            others, firsts = (", ".join(f"toUInt64({one})" for one in column) for column in zip(*merged, strict=True))
            key = f"transform(series_id, [{others}], [{firsts}], series_id)"
        return cls(
            f"series_id IN ({inner})",
            key,
            np.array([first for first, _ in pairs], np.uint64),
            np.array([row for _, row in pairs], np.int64),
        )


class Selection:
    """Finds the series of selectors and keeps their labels. Safe from several threads as ``query_columns`` is."""

    def __init__(self, query_columns: QueryColumns) -> None:
        self._query_columns = query_columns
        self._labels: dict[int, Labels] = {}

    def find(self, matchers: Matchers, budget: Budget) -> Index:
        """The series that match. Raises `QueryLimitError` when they are more than a selector may match."""
        where = condition(matchers)
        limit = budget.limits.max_series + 1
        digest = "cityHash64(name, mapKeys(labels), mapValues(labels))"
        sql = select(f"id, {digest} AS digest", "series FINAL", where)
        table = self.query(f"{sql} LIMIT {limit}", budget)
        budget.check_series(len(table["id"]))
        ids, digests = table["id"].to_pylist(), table["digest"].to_pylist()
        # Labels are text, and text is slow: they are fetched once for each digest and kept.
        new = [one for one, key in zip(ids, digests, strict=True) if key not in self._labels]
        if new:
            narrowed = f"id IN ({', '.join(map(str, new))}) AND " if len(new) <= _LISTED_IDS else ""
            self._learn(select(f"name, labels, {digest} AS digest", "series FINAL", narrowed + where), budget)
        by_labels: dict[Labels, list[int]] = {}
        for one, key in zip(ids, digests, strict=True):
            if (labels := self._labels.get(key)) is not None:
                by_labels.setdefault(labels, []).append(one)
        return Index(where, tuple(by_labels), tuple(tuple(sorted(own)) for own in by_labels.values()))

    def _learn(self, sql: str, budget: Budget) -> None:
        if len(self._labels) > _CACHED_LABELS:
            self._labels = {}
        table = self.query(sql, budget)
        pair: dict[tuple[str, str], tuple[str, str]] = {}
        columns = zip(table["name"].to_pylist(), table["labels"].to_pylist(), table["digest"].to_pylist(), strict=True)
        for name, labels, key in columns:
            pairs = sorted(((NAME, name), *((k, v) for k, v in labels if v)))
            self._labels[key] = tuple(pair.setdefault(one, one) for one in pairs)

    def query(self, sql: str, budget: Budget) -> Mapping[str, Any]:
        """Run a SELECT within what the budget leaves of time."""
        settings: dict[str, float | str] = {
            "max_execution_time": math.ceil(budget.remaining_seconds()),
            "allow_experimental_time_series_aggregate_functions": 1,
        }
        return self._query_columns(sql, settings=settings)


def select(what: str, table: str, where: str) -> str:
    """``SELECT what FROM table WHERE where``; texts in them have passed `quoted`."""
    return f"SELECT {what} FROM {table} WHERE {where}"  # noqa: S608


def between(after_ms: int, until_ms: int) -> str:
    """The condition for samples of a window, open on the left."""
    return f"ts > fromUnixTimestamp64Milli({after_ms}) AND ts <= fromUnixTimestamp64Milli({until_ms})"
