"""What rollups cost and what they save: long panels from samples, and from the rows of a minute or an hour.

Counters are written straight into an embedded store, one part a day as merges leave them; the roller catches up; then
each panel is asked, in turns, of an engine that knows no rollups, of one that uses them as it sees fit, and of one that
reads minutes wherever they are right. The answers are compared. CPU seconds are the whole process's.

    python benchmarks/rollups.py [--quick] [--interval SECONDS] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from loms.core.clock import SystemClock
from loms.core.model import Series, labels_of
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.rollups import Rollups
from loms.promql.source import Limits
from loms.promql.values import MatrixResult
from loms.store.database import Database
from loms.store.rollups import Roller
from loms.store.series import series_rows

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PANELS = {
    "rate, 1 h": ("rate(m[1h])", HOUR_MS),
    "average, 1 h": ("avg_over_time(m[1h])", HOUR_MS),
    "newest, 1 h": ("m", HOUR_MS),
    "sum of rates, 1 h": ("sum(rate(m[1h]))", HOUR_MS),
    "rate, 5 min": ("rate(m[5m])", 300_000),
    "average, 5 min": ("avg_over_time(m[5m])", 300_000),
    "newest, 5 min": ("m", 300_000),
    "rate, 30 min": ("rate(m[30m])", 1_800_000),
    "rate of 1 h, 30 min": ("rate(m[1h])", 1_800_000),
}
LIMITS = Limits(max_samples=500_000_000, timeout_seconds=120)


def fill(database: Database, series: list[Series], days: int, interval_ms: int, now_ms: int) -> int:
    database.insert_arrow("series", series_rows(series, now_ms))
    ids = ", ".join(str(one.id) for one in series)
    per_day = DAY_MS // interval_ms
    for day in range(days, 0, -1):
        start_ms = now_ms - day * DAY_MS
        database.command(
            f"INSERT INTO samples SELECT [{ids}][s + 1] AS series_id,"
            f" fromUnixTimestamp64Milli(toInt64({start_ms} + i * {interval_ms} + s * 37 + cityHash64(s, i) % 9)) AS ts,"
            f" (({days - day} * {per_day} + i) * 10 + cityHash64(i, s) % 10) % (500000 + s * 1000) AS value"
            f" FROM (SELECT intDiv(number, {per_day}) AS s, number % {per_day} AS i"
            f" FROM numbers({len(series) * per_day}))"
        )
    database.command("OPTIMIZE TABLE samples FINAL")
    return days * per_day * len(series)


def size(database: Database) -> dict[str, int]:
    found = database.query_columns(
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts"
        " WHERE active AND database = currentDatabase() GROUP BY table"
    )
    return dict(zip(found["table"].to_pylist(), found["bytes"].to_pylist(), strict=True))


def seconds(ask: Callable[[], MatrixResult]) -> tuple[float, float, MatrixResult]:
    wall, cpu = time.monotonic(), time.process_time()
    answer = ask()
    return time.monotonic() - wall, time.process_time() - cpu, answer


def same(left: MatrixResult, right: MatrixResult) -> bool:
    return left.labels == right.labels and all(
        np.array_equal(t, u) and np.allclose(v, w, rtol=1e-9, atol=1e-9, equal_nan=True)
        for t, u, v, w in zip(left.times_ms, right.times_ms, left.values, right.values, strict=True)
    )


def panel(engines: dict[str, Engine], query: str, start_ms: int, end_ms: int, step_ms: int, times: int) -> object:
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    agreed = True
    for _ in range(times):
        answers = []
        for name, engine in engines.items():
            wall, cpu, answer = seconds(lambda e=engine: e.query_range(query, start_ms, end_ms, step_ms))
            runs[name].append((wall, cpu))
            answers.append(answer)
        agreed = agreed and all(same(answers[0], one) for one in answers[1:])
    median = {name: [statistics.median(column) for column in zip(*found, strict=True)] for name, found in runs.items()}
    return {
        **{f"{name}_{what}": median[name][i] for name in median for i, what in enumerate(("seconds", "cpu_seconds"))},
        "ratio": median["samples"][0] / median["rollups"][0],
        "same": agreed,
    }


def measure(quick: bool, interval_ms: int) -> dict[str, object]:
    days, count, times = (7, 100, 2) if quick else (30, 200, 3)
    clock = SystemClock()
    end_ms = clock.now_ms() // HOUR_MS * HOUR_MS
    series = [Series.of("m", labels_of({"i": str(i)})) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder), 60 * 86_400, clock) as database:
        written = fill(database, series, days, interval_ms, end_ms)
        roller, cpu, begin, longest = Roller(database, clock), time.process_time(), time.monotonic(), 0.0
        while True:
            before = time.monotonic()
            if not roller.roll():
                break
            longest = max(longest, time.monotonic() - before)
        result: dict[str, object] = {
            "samples": written,
            "roll_cpu_seconds_per_million": (time.process_time() - cpu) / written * 1e6,
            "roll_seconds": time.monotonic() - begin,
            "longest_statement_seconds": longest,
        }
        for table in ("rollup_minute", "rollup_hour"):
            database.command(f"OPTIMIZE TABLE {table} FINAL")
        sizes = size(database)
        result["bytes"] = {table: sizes[table] for table in ("samples", "rollup_minute", "rollup_hour")}
        rollups = {
            name: Rollups(
                database.query_columns, clock, samples_seconds=60 * 86_400, minute_seconds=90 * 86_400, dense=dense
            )
            for name, dense in (("rollups", 1.0), ("minutes", 0.0))
        }
        engines = {
            name: Engine(ClickHouseSource(database.query_columns, rollups=rollups.get(name)), LIMITS, clock)
            for name in ("samples", *rollups)
        }
        result["panels"] = {
            name: panel(engines, query, end_ms - (days - 1) * DAY_MS, end_ms, step_ms, times)
            for name, (query, step_ms) in PANELS.items()
        }
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--interval", type=int, default=15, help="between samples, in seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    result = {"cpus": os.cpu_count(), **measure(options.quick, options.interval * 1000)}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            for line in value.items() if isinstance(value, dict) else [("", value)]:
                print(f"{name:30} {line[0]:22} {json.dumps(line[1])}")


if __name__ == "__main__":
    main()
