"""The store's tables as a source: leaves become SQL, windows are computed by ClickHouse's grid aggregates.

Two tables are read, ``series(id, name, labels)`` and ``samples(series_id, ts, value)``. One id may stand under
several names (an alias) and several ids under the same name and labels; a series here is a name with labels, and
its samples are those of all its ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loms.core.model import STALE_NAN_BITS, Bools, Floats, Ids, Ints, Labels, is_stale
from loms.promql.regexes import anchored, check
from loms.promql.source import Budget, Samples
from loms.promql.syntax import NAME, Matcher, Matchers
from loms.promql.values import Grid, Vector

GRID_FUNCTIONS: Mapping[str, str] = {
    "avg_over_time": "Avg",
    "changes": "Changes",
    "count_over_time": "Count",
    "delta": "Delta",
    "deriv": "Deriv",
    "idelta": "InstantDelta",
    "increase": "Increase",
    "irate": "InstantRate",
    "last": "Last",
    "last_over_time": "Last",
    "max_over_time": "Max",
    "min_over_time": "Min",
    "predict_linear": "PredictLinear",
    "present_over_time": "Count",
    "rate": "Rate",
    "resets": "Resets",
    "sum_over_time": "Sum",
    "timestamp": "Last",
}
"""PromQL function → the X of ClickHouse's ``timeSeriesXToGrid``."""

_LISTED_IDS = 1_000
"""Up to so many ids are written into the SQL; more are selected from the series table again."""
_CACHED_LABELS = 500_000
_LITERALS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:-/|")
_STALE = f"reinterpretAsUInt64(value) = {STALE_NAN_BITS}"

_VALUES = {
    "changes": "value + 0.0",  # -0 is no other value than 0; the aggregate compares bits
    "timestamp": f"if({_STALE}, value, toUnixTimestamp64Milli(ts) / 1000)",
}


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
class _Index:
    """The series of a selector: ``ids[i]`` are the ids whose samples make up the series ``labels[i]``."""

    condition: str
    labels: tuple[Labels, ...]
    ids: tuple[tuple[int, ...], ...]

    def layers(self) -> Iterator[_Layer]:
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
            yield _Layer.of(layer, self.condition)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Disjoint sets of ids. The least id of a set is its key, and ``keys[i]`` belongs to the series ``rows[i]``."""

    where: str
    key: str
    keys: Ids
    rows: Ints

    @classmethod
    def of(cls, sets: Mapping[tuple[int, ...], list[int]], condition: str) -> _Layer:
        pairs = sorted((ids[0], row) for ids, rows in sets.items() for row in rows)
        listed = [one for ids in sets for one in ids]
        inner = ", ".join(map(str, listed)) if len(listed) <= _LISTED_IDS else _select("id", "series", condition)
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


class ClickHouseSource:
    """A `loms.promql.source.Source` over the tables of one ClickHouse database, embedded or remote.

    Safe to use from several threads as ``query_columns`` is.
    """

    def __init__(self, query_columns: QueryColumns) -> None:
        self._query_columns = query_columns
        self._labels: dict[int, Labels] = {}

    def series(self, matchers: Matchers, start_ms: int | None, end_ms: int | None, budget: Budget) -> Sequence[Labels]:
        index = self._index(matchers, budget)
        if start_ms is None or end_ms is None:
            return index.labels
        found: set[int] = set()
        for layer in index.layers():
            where = f"{layer.where} AND {_between(start_ms - 1, end_ms)}"
            table = self._query(_select(f"DISTINCT {layer.key} AS k", "samples", where), budget)
            found.update(layer.rows[np.isin(layer.keys, table["k"].to_numpy())].tolist())
        return [labels for row, labels in enumerate(index.labels) if row in found]

    def samples(self, matchers: Matchers, start_ms: int, end_ms: int, budget: Budget) -> Samples:
        index = self._index(matchers, budget)
        counts = np.zeros(len(index.labels), np.int64)
        parts: list[tuple[Ints, Ints, Floats]] = []
        for layer in index.layers():
            key, times, values = self._rows(layer, start_ms, end_ms, budget)
            low, high = np.searchsorted(key, layer.keys, "left"), np.searchsorted(key, layer.keys, "right")
            sizes = high - low
            counts[layer.rows] = sizes
            place = np.arange(sizes.sum()) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
            parts.append((np.repeat(layer.rows, sizes), times[place], values[place]))
        if not parts:
            return Samples((), np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0))
        rows, times, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return Samples(index.labels, np.concatenate(([0], np.cumsum(counts))), times[order], values[order])

    def grid(
        self, function: str, matchers: Matchers, grid: Grid, window_ms: int, arg: float | None, budget: Budget
    ) -> Vector | None:
        if function not in GRID_FUNCTIONS:
            return None
        index = self._index(matchers, budget)
        values = np.zeros((len(index.labels), len(grid)))
        present = np.zeros(values.shape, dtype=np.bool_)
        for layer in index.layers():
            budget.take_samples(len(layer.rows) * len(grid))
            found = self._query(_grid_sql(function, layer, grid, window_ms, arg), budget)
            keys = found["k"].to_numpy()
            order = np.argsort(keys)
            place = np.minimum(np.searchsorted(keys, layer.keys, sorter=order), max(len(keys) - 1, 0))
            if not len(keys):
                continue
            hit = keys[order[place]] == layer.keys
            rows, of = layer.rows[hit], order[place[hit]]
            layer_values, layer_present = _lists(found["g"], len(grid))
            values[rows], present[rows] = layer_values[of], layer_present[of]
        if function == "present_over_time":
            values = np.ones(values.shape)
        elif function in ("last", "timestamp"):
            present &= ~is_stale(values)
        elif function in ("rate", "increase") and np.isnan(values[present]).any():
            return None  # after an infinite value the aggregate gives NaN for good, not only while it is in the window
        return Vector(index.labels, values, present)

    def _index(self, matchers: Matchers, budget: Budget) -> _Index:
        where = condition(matchers)
        limit = budget.limits.max_series + 1
        digest = "cityHash64(name, mapKeys(labels), mapValues(labels))"
        sql = _select(f"id, {digest} AS digest", "series FINAL", where)
        table = self._query(f"{sql} LIMIT {limit}", budget)
        budget.check_series(len(table["id"]))
        ids, digests = table["id"].to_pylist(), table["digest"].to_pylist()
        # Labels are text, and text is slow: they are fetched once for each digest and kept.
        new = [one for one, key in zip(ids, digests, strict=True) if key not in self._labels]
        if new:
            narrowed = f"id IN ({', '.join(map(str, new))}) AND " if len(new) <= _LISTED_IDS else ""
            self._learn(_select(f"name, labels, {digest} AS digest", "series FINAL", narrowed + where), budget)
        by_labels: dict[Labels, list[int]] = {}
        for one, key in zip(ids, digests, strict=True):
            if (labels := self._labels.get(key)) is not None:
                by_labels.setdefault(labels, []).append(one)
        return _Index(where, tuple(by_labels), tuple(tuple(sorted(own)) for own in by_labels.values()))

    def _learn(self, sql: str, budget: Budget) -> None:
        if len(self._labels) > _CACHED_LABELS:
            self._labels = {}
        table = self._query(sql, budget)
        pair: dict[tuple[str, str], tuple[str, str]] = {}
        columns = zip(table["name"].to_pylist(), table["labels"].to_pylist(), table["digest"].to_pylist(), strict=True)
        for name, labels, key in columns:
            pairs = sorted(((NAME, name), *((k, v) for k, v in labels if v)))
            self._labels[key] = tuple(pair.setdefault(one, one) for one in pairs)

    def _rows(self, layer: _Layer, start_ms: int, end_ms: int, budget: Budget) -> tuple[Ids, Ints, Floats]:
        """Keys, times and values of the layer's samples, by key and time, each time once."""
        limit = budget.remaining_samples() + 1
        where = f"{layer.where} AND {_between(start_ms, end_ms)}"
        sql = _select(f"{layer.key} AS k, toUnixTimestamp64Milli(ts) AS t, value", "samples", where)
        table = self._query(f"{sql} ORDER BY k, t LIMIT {limit}", budget)
        budget.take_samples(len(table["k"]))
        key, times, values = (table[name].to_numpy() for name in ("k", "t", "value"))
        last = np.append((key[1:] != key[:-1]) | (times[1:] != times[:-1]), np.ones(min(len(key), 1), np.bool_))
        return key[last], times[last], values[last]

    def _query(self, sql: str, budget: Budget) -> Mapping[str, Any]:
        settings: dict[str, float | str] = {
            "max_execution_time": math.ceil(budget.remaining_seconds()),
            "allow_experimental_time_series_aggregate_functions": 1,
        }
        return self._query_columns(sql, settings=settings)


def _select(what: str, table: str, where: str) -> str:
    return f"SELECT {what} FROM {table} WHERE {where}"  # noqa: S608  (texts in it have passed `quoted`)


def _between(after_ms: int, until_ms: int) -> str:
    return f"ts > fromUnixTimestamp64Milli({after_ms}) AND ts <= fromUnixTimestamp64Milli({until_ms})"


def _seconds(ms: int) -> str:
    return f"toDecimal64('{ms // 1000}.{ms % 1000:03d}', 3)"


def _grid_sql(function: str, layer: _Layer, grid: Grid, window_ms: int, arg: float | None) -> str:
    start_ms, end_ms = grid.start_ms, grid.start_ms + (len(grid) - 1) * grid.step_ms
    where = f"{layer.where} AND {_between(start_ms - window_ms, end_ms)}"
    if function not in ("last", "timestamp"):  # there a staleness marker ends the series; windows leave it out
        where += f" AND NOT ({_STALE})"
    value = _VALUES.get(function, "value")
    parameters = [
        f"fromUnixTimestamp64Milli({start_ms})",
        f"fromUnixTimestamp64Milli({end_ms})",
        _seconds(grid.step_ms),
        _seconds(window_ms),
        *([repr(arg)] if function == "predict_linear" else []),
    ]
    aggregate = f"timeSeries{GRID_FUNCTIONS[function]}ToGrid({', '.join(parameters)})(ts, {value})"
    return _select(f"{layer.key} AS k, {aggregate} AS g", "samples", f"{where} GROUP BY k")


def _lists(column: Any, length: int) -> tuple[Floats, Bools]:
    """A column of equally long lists with NULLs as values and presence, both [row, length]."""
    flat = column.flatten()
    present = flat.is_valid().to_numpy(zero_copy_only=False)
    return flat.to_numpy(zero_copy_only=False).reshape(-1, length), present.reshape(-1, length)
