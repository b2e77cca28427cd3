"""The two statements that make rollups: minutes from samples, hours from minutes. Both work on neighbours in order."""

from __future__ import annotations

from collections.abc import Mapping

from loms.core.model import STALE_NAN_BITS

MINUTE_MS = 60_000
HOUR_MS = 3_600_000

_STALE = f"reinterpretAsUInt64(value) = {STALE_NAN_BITS}"
_LEAST, _MOST = (f"if(empty({{0}}), nan, array{which}({{0}}))" for which in ("Min", "Max"))
_SETTINGS = "SETTINGS max_threads = 1, do_not_merge_across_partitions_select_final = 1"


def between(column: str, start_ms: int, end_ms: int) -> str:
    """The condition for times after the first and up to the second; of ``bucket`` they are whole seconds."""
    if column == "bucket":
        return f"bucket > toDateTime({start_ms // 1000}, 'UTC') AND bucket <= toDateTime({end_ms // 1000}, 'UTC')"
    return f"{column} > fromUnixTimestamp64Milli({start_ms}) AND {column} <= fromUnixTimestamp64Milli({end_ms})"


def _insert(table: str, columns: Mapping[str, str], source: str, version: int) -> str:
    names = ", ".join(["series_id", "bucket", *columns, "version"])
    values = ", ".join(["r.series_id", "r.bucket", *columns.values(), str(version)])
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM ({source}) AS r {_SETTINGS}"  # noqa: S608 - fixed texts


def from_samples(condition: str, start_ms: int, end_ms: int, version: int) -> str:
    """Write the minutes in (``start_ms``, ``end_ms``] of the series that ``condition`` selects; both whole minutes.

    Of samples with one time the largest counts, as in the engine's grid aggregates.
    """
    ms = "toUnixTimestamp64Milli(ts)"
    grouped = (
        f"SELECT series_id, toDateTime(intDiv({ms} + {MINUTE_MS - 1}, {MINUTE_MS}) * {MINUTE_MS // 1000}, 'UTC')"  # noqa: S608
        f" AS bucket, arraySort(groupArrayIf(({ms}, value), NOT stale)) AS pairs, maxIf({ms}, stale) AS marked"
        f" FROM (SELECT series_id, ts, value, {_STALE} AS stale FROM samples"
        f" WHERE {between('ts', start_ms, end_ms)} AND {condition}) GROUP BY series_id, bucket"
    )
    after = "arrayResize(arrayPopFront(g.pairs.1), length(g.pairs), -1)"
    kept = f"arrayFilter((pair, after) -> pair.1 != after, g.pairs, {after})"
    ordered = (
        f"SELECT g.series_id AS series_id, g.bucket AS bucket, g.marked AS marked, {kept} AS kept,"  # noqa: S608
        " kept.1 AS t, kept.2 AS v, arrayFilter(x -> NOT isNaN(x), v) AS numbers, arrayPopBack(v) AS before,"
        f" arrayPopFront(v) AS after, arrayAvg(v) AS mean FROM ({grouped}) AS g"
    )
    end = "toUnixTimestamp(r.bucket) * 1000"
    columns = {
        "samples": "length(r.v)",
        "total": "arraySum(r.v)",
        "lowest": _LEAST.format("r.numbers"),
        "highest": _MOST.format("r.numbers"),
        "spread": "arraySum(x -> (x - r.mean) * (x - r.mean), r.v)",
        "opening": "r.v[1]",
        "closing": "r.v[-1]",
        "opening_before_ms": f"if(empty(r.t), 0, {end} - r.t[1])",
        "closing_before_ms": f"if(empty(r.t), 0, {end} - r.t[-1])",
        "changes": "arrayCount((x, y) -> x != y AND NOT (isNaN(x) AND isNaN(y)), r.before, r.after)",
        "resets": "arrayCount((x, y) -> y < x, r.before, r.after)",
        "lost": "arraySum((x, y) -> if(y < x, x, 0.), r.before, r.after)",
        "ended": "empty(r.t) OR r.marked > r.t[-1]",
    }
    return _insert("rollup_minute", columns, ordered, version)


def from_minutes(condition: str, start_ms: int, end_ms: int, version: int) -> str:
    """Write the hours in (``start_ms``, ``end_ms``] of the series that ``condition`` selects; both whole hours."""
    seconds = HOUR_MS // 1000
    live = ("samples", "total", "lowest", "highest", "opening", "closing", "opening_before_ms", "closing_before_ms")
    inside, order = "groupArrayIf(m.{}, m.samples > 0)", "groupArrayIf(m.bucket, m.samples > 0)"
    arrays = ", ".join(f"arraySort((x, y) -> y, {inside.format(name)}, {order}) AS {name}" for name in live)
    grouped = (
        f"SELECT m.series_id AS series_id, m.hour AS bucket, {arrays}, arraySort({order}) AS minute,"  # noqa: S608
        " sum(m.spread) AS spread, sum(m.changes) AS changes, sum(m.resets) AS resets, sum(m.lost) AS lost,"
        " argMax(m.ended, m.bucket) AS ended FROM (SELECT *,"
        f" toDateTime(intDiv(toUnixTimestamp(bucket) + {seconds - 1}, {seconds}) * {seconds}, 'UTC') AS hour"
        f" FROM rollup_minute FINAL WHERE {between('bucket', start_ms, end_ms)} AND {condition}) AS m"
        " GROUP BY m.series_id, m.hour"
    )
    prepared = (
        "SELECT *, arrayFilter(x -> NOT isNaN(x), g.lowest) AS lows,"  # noqa: S608 - fixed texts and numbers
        " arrayFilter(x -> NOT isNaN(x), g.highest) AS highs,"
        " arrayPopBack(g.closing) AS before, arrayPopFront(g.opening) AS after,"
        f" arraySum(g.total) / arraySum(g.samples) AS mean FROM ({grouped}) AS g"
    )
    left_ms = "(toUnixTimestamp(r.bucket) - toUnixTimestamp(r.minute[{0}])) * 1000 + r.{1}[{0}]"
    columns = {
        "samples": "arraySum(r.samples)",
        "total": "arraySum(r.total)",
        "lowest": _LEAST.format("r.lows"),
        "highest": _MOST.format("r.highs"),
        "spread": "r.spread + arraySum((n, x) -> n * (x / n - r.mean) * (x / n - r.mean), r.samples, r.total)",
        "opening": "r.opening[1]",
        "closing": "r.closing[-1]",
        "opening_before_ms": f"if(empty(r.minute), 0, {left_ms.format(1, 'opening_before_ms')})",
        "closing_before_ms": f"if(empty(r.minute), 0, {left_ms.format(-1, 'closing_before_ms')})",
        "changes": "r.changes + arrayCount((x, y) -> x != y AND NOT (isNaN(x) AND isNaN(y)), r.before, r.after)",
        "resets": "r.resets + arrayCount((x, y) -> y < x, r.before, r.after)",
        "lost": "r.lost + arraySum((x, y) -> if(y < x, x, 0.), r.before, r.after)",
        "ended": "r.ended",
    }
    return _insert("rollup_hour", columns, prepared, version)
