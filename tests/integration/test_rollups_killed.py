"""A process that rolls up is killed again and again, while samples come late: nothing is lost and nothing counts twice.

Run as a program, this file is the victim: ``python test_rollups_killed.py DIRECTORY NOW_MS ROUND`` writes samples that
come late and rolls, some hundred samples a piece, saying ``rolled`` after each piece.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from loms.core.clock import ManualClock
from loms.core.model import STALE_NAN, Floats, Ints, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.rollup_windows import windows
from loms.promql.rollups import Rollups
from loms.store.database import Database
from loms.store.rollups import Roller
from loms.store.series import series_rows

pytestmark = pytest.mark.integration

DAY, MINUTE_MS, HOUR_MS = 86_400, 60_000, 3_600_000
RETENTION = 30.0 * DAY
HOURS, SERIES, KILLS = 5, 12, 8
STEP_MS = 13_000
NAMES = [Series.of("m", (("i", str(i)),)) for i in range(SERIES)]


def opened(directory: str, clock: ManualClock) -> Database:
    return Database.open(Path(directory), RETENTION, clock)


def insert(database: Database, series: list[Series], times: list[Ints], values: list[Floats]) -> None:
    ids = np.repeat(np.array([one.id for one in series], np.uint64), [len(one) for one in times])
    columns = {
        "series_id": ids,
        "ts": np.concatenate(times).astype("datetime64[ms]"),
        "value": np.concatenate(values),
    }
    database.insert_arrow("samples", pa.table(columns))


def column(seed: int, begin_ms: int, share: float) -> tuple[Ints, Floats]:
    """Some of the samples of a counter that falls now and then, with a few markers and gaps."""
    random_ = np.random.default_rng(seed)
    times = begin_ms + np.arange(0, HOURS * HOUR_MS, STEP_MS) + seed % STEP_MS
    values = np.cumsum(random_.integers(0, 9, len(times))) % 211.0
    values[random_.random(len(times)) < 0.02] = STALE_NAN
    kept = random_.random(len(times)) < share
    return times[kept], values[kept]


def victim(directory: str, now: str, number: str) -> None:
    now_ms, clock = int(now), ManualClock(int(now))
    database = opened(directory, clock)
    roller = Roller(database, clock, job_samples=1_500)
    times, values = column(int(number), now_ms // HOUR_MS * HOUR_MS - HOURS * HOUR_MS, 0.05)
    series = NAMES[int(number) % SERIES]
    roller.note(np.full(len(times), series.id, np.uint64), times)
    insert(database, [series], [times], [values])
    while True:
        while roller.roll():
            os.write(1, b"rolled\n")
        os.write(1, b"idle\n")
        clock.advance(61)


def test_kills_neither_lose_nor_double_anything(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    begin_ms = now_ms // HOUR_MS * HOUR_MS - HOURS * HOUR_MS
    with opened(str(tmp_path), ManualClock(now_ms)) as database:
        columns = [column(i, begin_ms, 0.9) for i in range(SERIES)]
        database.insert_arrow("series", series_rows(NAMES, now_ms))
        insert(database, NAMES, [times for times, _ in columns], [values for _, values in columns])
    chance = random.Random(4)
    for number in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), str(now_ms + number * 5 * MINUTE_MS), str(100 + number)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            assert process.stdout.readline(), "the victim ended by itself"
        process.kill()
        process.wait()
        process.stdout.close()
    clock = ManualClock(now_ms + (KILLS * 5 + 10) * MINUTE_MS)
    with opened(str(tmp_path), clock) as database:
        roller = Roller(database, clock)
        while roller.roll():
            pass
        rollups = Rollups(database.query_columns, clock, samples_seconds=RETENTION, minute_seconds=90 * DAY, dense=0)
        raw, rolled = (
            Engine(ClickHouseSource(database.query_columns, rollups=one), clock=clock) for one in (None, rollups)
        )
        end_ms = begin_ms + HOURS * HOUR_MS
        for function in windows:
            for step_ms, window_ms in ((5 * MINUTE_MS, 10 * MINUTE_MS), (HOUR_MS, HOUR_MS)):
                ranged = "m" if function in ("last", "timestamp") else f"m[{window_ms}ms]"
                expr = ranged if function == "last" else f"{function}({ranged})"
                got, want = (one.query_range(expr, begin_ms, end_ms, step_ms) for one in (rolled, raw))
                assert want.labels
                assert got.labels == want.labels
                for t, u, v, w in zip(got.times_ms, want.times_ms, got.values, want.values, strict=True):
                    assert t.tolist() == u.tolist(), expr
                    np.testing.assert_allclose(v, w, rtol=1e-9, atol=1e-7, err_msg=expr)


if __name__ == "__main__":
    victim(*sys.argv[1:])
