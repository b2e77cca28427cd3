"""A store with rollups for tests, on a clock of their own that counts from 1970."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from loms.core.clock import Clock, ManualClock
from loms.core.model import Floats, Ints, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.rollups import Rollups
from loms.promql.source import Limits
from loms.store.database import Database
from loms.store.rollups import Roller
from loms.store.series import series_rows

DAY = 86_400
TABLES = ("series", "samples", "rollup_minute", "rollup_hour", "rollup_progress", "rollup_late")
LIMITS = Limits(max_samples=500_000_000, timeout_seconds=120)


class Rolled:
    """Samples, the roller, and two engines: ``raw`` knows no rollups."""

    def __init__(self, path: Path, retention_seconds: float = 30 * DAY) -> None:
        self.database = Database.open(path, retention_seconds, ManualClock())
        self.retention_seconds = retention_seconds
        for table in ("series", "samples", "rollup_late"):
            self.database.command(f"ALTER TABLE {table} REMOVE TTL")
        self.begin()

    def begin(self, now_ms: int = 0, job_samples: int = 2_000_000) -> None:
        """An empty store, at this time."""
        for table in TABLES:
            self.database.command(f"TRUNCATE TABLE {table}")
        self.clock = ManualClock(now_ms)
        self.restart(job_samples)

    def restart(self, job_samples: int = 2_000_000) -> None:
        """A new roller and new engines, as after a start of the process."""
        self.roller = Roller(self.database, self.clock, job_samples=job_samples)
        self.raw = Engine(ClickHouseSource(self.database.query_columns), LIMITS, self.clock)
        self.engine = self.engine_at(self.clock)

    def engine_at(self, clock: Clock) -> Engine:
        return Engine(self.source_at(clock), LIMITS, clock)

    def source_at(self, clock: Clock) -> ClickHouseSource:
        rollups = Rollups(
            self.database.query_columns, clock, samples_seconds=self.retention_seconds, minute_seconds=90 * DAY, dense=0
        )
        return ClickHouseSource(self.database.query_columns, rollups=rollups)

    def advance_to(self, now_ms: int) -> None:
        self.clock.advance((now_ms - self.clock.now_ms()) / 1000)

    def write(self, rows: Iterable[tuple[Series, Ints, Floats]]) -> None:
        """Note and insert samples as the writer does."""
        series, times, values = zip(*rows, strict=True)
        ids = np.repeat(np.array([one.id for one in series], np.uint64), [len(one) for one in times])
        stamps = np.concatenate(times)
        self.database.insert_arrow("series", series_rows(series, self.clock.now_ms()))
        self.roller.note(ids, stamps)
        columns = {"series_id": ids, "ts": stamps.astype("datetime64[ms]"), "value": np.concatenate(values)}
        self.database.insert_arrow("samples", pa.table(columns))

    def roll(self) -> int:
        """Do all work that is due; how many pieces it was."""
        done = 0
        while self.roller.roll():
            done += 1
        return done

    def close(self) -> None:
        self.database.close()
