"""Functions over windows of rollup rows, as SQL.

Rows are put together twice by the same rules: those of the same windows first, then what each window has of these. A
window reaches over whole rows, so a function needs no more than sums, extremes, first and last values, and what
happens between neighbours (a reset, a change), for which the rows are brought into order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loms.promql.selection import Layer, select
from loms.promql.values import Grid

ENDING = frozenset({"last", "timestamp"})
"""Functions of the newest sample up to a time, wherever the window begins."""

FINAL_BY_PARTITION = "do_not_merge_across_partitions_select_final = 1"

_END = "toInt64(toUnixTimestamp(bucket)) * 1000"
_OPENING_MS, _CLOSING_MS = f"{_END} - opening_before_ms", f"{_END} - closing_before_ms"


def _between(pair: str, kind: str) -> str:
    """``kind`` of array function over neighbours: ``x`` the last value of a row, ``y`` the first of the next."""
    closing, opening = (f"arraySort((x, y) -> y, groupArray(s.{one}), groupArray(s.opening_ms))" for one in _VALUES)
    return f"array{kind}((x, y) -> {pair}, arrayPopBack({closing}), arrayPopFront({opening}))"


_VALUES = ("closing", "opening")


def _extreme(column: str, function: str) -> tuple[str, str]:
    number = f"NOT isNaN(s.{column})"
    return column, f"if(countIf({number}) = 0, nan, {function}If(s.{column}, {number}))"


_COLUMNS: Mapping[str, tuple[str, str]] = {
    "samples": ("samples", "sum(s.samples)"),
    "total": ("total", "sum(s.total)"),
    "lowest": _extreme("lowest", "min"),
    "highest": _extreme("highest", "max"),
    "opening": ("opening", "argMin(s.opening, s.opening_ms)"),
    "closing": ("closing", "argMax(s.closing, s.closing_ms)"),
    "opening_ms": (_OPENING_MS, "min(s.opening_ms)"),
    "closing_ms": (_CLOSING_MS, "max(s.closing_ms)"),
    "changes": (
        "changes",
        f"sum(s.changes) + {_between('x != y AND NOT (isNaN(x) AND isNaN(y))', 'Count')}",
    ),
    "resets": ("resets", f"sum(s.resets) + {_between('y < x', 'Count')}"),
    "lost": ("lost", f"sum(s.lost) + {_between('if(y < x, x, 0.)', 'Sum')}"),
    "spread": (
        "spread",
        # What the rows' means are off the common mean adds to the distances within rows.
        "sum(s.spread) + arraySum((n, x) -> n * (x / n - mean) * (x / n - mean), groupArray(s.samples),"
        " groupArray(s.total)) AS spread, sum(s.total) / sum(s.samples) AS mean",
    ),
    # The newest sample of all: a series that has ended counts from the row's beginning, so that another id's row of the
    # same bucket, which goes on, is newer.
    "newest": ("closing", "argMax(s.newest, s.order_ms)"),
    "newest_ms": (f"if(ended, -1, {_CLOSING_MS})", "argMax(s.newest_ms, s.order_ms)"),
    "order_ms": (f"if(ended, {_END} - {{width}} + 1, {_CLOSING_MS})", "max(s.order_ms)"),
}
"""Column → what it is in a row of the table, and in several rows ``s`` put together."""

_EDGES = ("samples", "opening", "closing", "opening_ms", "closing_ms")
_SECONDS = "((closing_ms - opening_ms) / 1000)"
_CHANGE = "(closing - opening)"
_GROWTH = f"({_CHANGE} + lost)"


def _edge(distance: str) -> str:
    """How far the change is stretched towards an edge: fully if it is near, else by half an interval."""
    interval = f"({_SECONDS} / (samples - 1))"
    return f"if({distance} >= {interval} * 1.1, {interval} / 2, greatest({distance}, 0.))"


_TO_START = _edge("((opening_ms - ({end} - {window})) / 1000)")
_TO_END = _edge("(({end} - closing_ms) / 1000)")
_TO_ZERO = f"if({_GROWTH} > 0 AND opening >= 0, {_SECONDS} * (opening / {_GROWTH}), inf)"


def _stretched(change: str, to_start: str) -> str:
    return f"({change} * (({_SECONDS} + {to_start} + {_TO_END}) / {_SECONDS}))"


_INCREASE = _stretched(_GROWTH, f"least({_TO_START}, {_TO_ZERO})")
_TWO = "samples >= 2"


@dataclass(frozen=True, slots=True)
class WindowSql:
    """``value`` from the columns of a window; no value where ``there`` is false.

    Both may name ``{end}`` and ``{window}``, the window's end and width in ms.
    """

    value: str
    columns: tuple[str, ...]
    there: str = "1"
    ending: bool = False
    """Whether it is a function of the newest sample, staleness markers included."""

    def sql(self, layer: Layer, grid: Grid, window_ms: int, width_ms: int, exact: bool) -> str:
        """A SELECT of ``k, i, v`` (see `loms.promql.rollups.rows_sql`) from buckets of ``width_ms``."""
        whole_ms = -(-window_ms // width_ms) * width_ms if exact else max(window_ms, width_ms)
        step_ms = grid.step_ms if len(grid) > 1 else whole_ms
        rows = self._rows(layer, grid.start_ms, step_ms, len(grid), whole_ms, width_ms)
        if whole_ms > step_ms:
            shared = _together(rows, self.columns, ("k", "first", "last"))
            spread = f"SELECT *, arrayJoin(range(toUInt64(first), toUInt64(last + 1))) AS i FROM ({shared})"  # noqa: S608
            found = _together(spread, self.columns, ("k", "i"))
        else:
            found = _together(rows, self.columns, ("k", "first")).replace("s.first AS first", "s.first AS i", 1)
        places = {"end": f"({grid.start_ms} + toInt64(i) * {step_ms})", "window": str(whole_ms)}
        there = self.there
        if self.ending:
            there = f"newest_ms > {{end}} - {window_ms}" if exact else "newest_ms >= 0"
        value, there = (text.format(**places) for text in (self.value, there))
        return select(f"k, toUInt32(i) AS i, toFloat64({value}) AS v", f"({found})", there)

    def _rows(self, layer: Layer, start_ms: int, step_ms: int, length: int, window_ms: int, width_ms: int) -> str:
        """The table's rows with the ``first`` and ``last`` place of the windows that they lie in."""
        end_ms = start_ms + (length - 1) * step_ms
        # Everything is counted from a time before all rows, because division cuts off towards zero.
        ahead = window_ms // step_ms + 2
        zero_ms = start_ms - ahead * step_ms
        middle = f"({_END} - {width_ms // 2} - ({zero_ms}))"
        first = f"greatest(intDiv({middle} + {step_ms - 1}, {step_ms}) - {ahead}, 0)"
        last = f"least(intDiv({middle} + {window_ms + step_ms - 1}, {step_ms}) - {ahead} - 1, {length - 1})"
        table = "rollup_minute" if width_ms == 60_000 else "rollup_hour"
        columns = ", ".join(f"{_COLUMNS[name][0].format(width=width_ms)} AS {name}_" for name in self.columns)
        names = ", ".join(f"{name}_ AS {name}" for name in self.columns)
        where = [layer.where, *(("1",) if self.ending else ("samples > 0",)), "last >= first"]
        for sign, time_ms in ((">", start_ms - window_ms + width_ms // 2), ("<=", end_ms + width_ms // 2)):
            where.append(f"bucket {sign} toDateTime({max(time_ms // 1000, 0)}, 'UTC')")
        what = f"{layer.key} AS k, {first} AS first, {last} AS last, {columns}"
        # A bucket lies in one partition, and one that is merged into a single part has nothing to replace.
        inner = f"{select(what, f'{table} FINAL', ' AND '.join(where))} SETTINGS {FINAL_BY_PARTITION}"
        return f"SELECT k, first, last, {names} FROM ({inner})"  # noqa: S608


def _together(rows: str, columns: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """Rows with the same ``keys`` as one."""
    named = ", ".join(f"s.{key} AS {key}" for key in keys)
    grouped = ", ".join(f"s.{key}" for key in keys)
    values = ", ".join(
        _COLUMNS[name][1] if " AS " in _COLUMNS[name][1] else f"{_COLUMNS[name][1]} AS {name}" for name in columns
    )
    return f"SELECT {named}, {values} FROM ({rows}) AS s GROUP BY {grouped}"  # noqa: S608 - fixed texts and numbers


windows: Mapping[str, WindowSql] = {
    "avg_over_time": WindowSql("total / samples", ("total", "samples")),
    "changes": WindowSql("changes", ("changes", "closing", "closing_ms", "opening", "opening_ms")),
    "count_over_time": WindowSql("samples", ("samples",)),
    "delta": WindowSql(_stretched(_CHANGE, _TO_START), _EDGES, _TWO),
    "first_over_time": WindowSql("opening", ("opening", "opening_ms")),
    "increase": WindowSql(_INCREASE, (*_EDGES, "lost"), _TWO),
    "last": WindowSql("newest", ("newest", "newest_ms", "order_ms"), ending=True),
    "last_over_time": WindowSql("closing", ("closing", "closing_ms")),
    "max_over_time": WindowSql("highest", ("highest",)),
    "min_over_time": WindowSql("lowest", ("lowest",)),
    "present_over_time": WindowSql("1", ("samples",)),
    "rate": WindowSql(f"{_INCREASE} / ({{window}} / 1000)", (*_EDGES, "lost"), _TWO),
    "resets": WindowSql("resets", ("resets", "closing", "closing_ms", "opening", "opening_ms")),
    "stddev_over_time": WindowSql("sqrt(spread / samples)", ("samples", "total", "spread")),
    "stdvar_over_time": WindowSql("spread / samples", ("samples", "total", "spread")),
    "sum_over_time": WindowSql("total", ("total",)),
    "timestamp": WindowSql("newest_ms / 1000", ("newest_ms", "order_ms"), ending=True),
}
"""PromQL function (or ``last``, ``timestamp``) → its SQL."""

ORDERED = frozenset(name for name, one in windows.items() if {"changes", "resets", "lost"} & set(one.columns))
"""Functions that look at neighbours, which costs several times as much."""
