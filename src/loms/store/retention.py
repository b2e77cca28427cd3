"""How long rows are kept: a TTL on each table, altered when the configuration says something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from loms.core.settings import Receive, Store

_DAY = 86_400
_LONGEST_SECONDS = 30 * 365 * _DAY
"""A TTL ends before the year 2106 or wraps around."""

SERIES_GRACE_SECONDS = 3 * _DAY
"""A series outlives its samples by this: a day between refreshes of ``last_seen``, a day until a part of samples is
dropped, and a day to spare."""
METADATA_SECONDS = 400 * _DAY
"""Types and help texts are few and are written again while their metrics live."""

_BY_PART_FROM_SECONDS = {"rollup_hour": 62 * _DAY}
"""From here on a part is dropped as a whole, once its newest row is too old. Else two days: parts are of a day."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long each kind of row is kept, in seconds; None leaves the tables as they are."""

    samples: float
    minute: float | None = None
    hour: float | None = None
    traces: float | None = None
    logs: float | None = None

    @classmethod
    def of(cls, store: Store, receive: Receive | None = None) -> Self:
        """What the settings say, but that no rollup goes before what it was made from."""
        minute = max(store.rollups.minute, store.retention)
        return cls(
            samples=store.retention,
            minute=minute if store.rollups.enabled else None,
            hour=max(store.rollups.hour, minute) if store.rollups.enabled else None,
            traces=receive.traces_retention if receive else None,
            logs=receive.logs_retention if receive else None,
        )

    def limits(self) -> dict[str, tuple[str, int]]:
        """Table → the time that a row's age counts from, and how old it gets."""
        seconds = {
            "samples": ("ts", self.samples),
            "rollup_minute": ("bucket", self.minute),
            "rollup_hour": ("bucket", self.hour),
            "series": ("last_seen", max(self.samples, self.hour or 0) + SERIES_GRACE_SECONDS),
            "otel_traces": ("toDateTime(Timestamp)", self.traces),
            "otel_traces_trace_id_ts": ("toDateTime(Start)", self.traces),
            "otel_logs": ("toDateTime(Timestamp)", self.logs),
            "metric_metadata": ("seen", METADATA_SECONDS),
        }
        return {
            table: (time, min(math.ceil(age), _LONGEST_SECONDS))
            for table, (time, age) in seconds.items()
            if age is not None
        }


def apply_retention(
    command: Callable[[str], object], rows: Callable[[str], Sequence[Sequence[object]]], retention: Retention
) -> None:
    """Make rows older than ``retention`` go away, and the series that have none left.

    From two days on, the engine drops a part once its newest row is too old (at most a day late, for nothing); below
    that it rewrites parts to delete their old rows, within a tenth of the retention.
    """
    limits = retention.limits()
    # In a cluster the rows lie in tables named <name>_local; what is Distributed has no TTL.
    engines = rows(
        "SELECT replaceOne(name, '_local', '') AS name, engine_full FROM system.tables"
        " WHERE database = currentDatabase() AND engine != 'Distributed'"
    )
    for table, engine in engines:
        if str(table) not in limits:
            continue
        time, keep = limits[str(table)]
        ttl = f"{time} + toIntervalSecond({keep})"
        if f"TTL {ttl}" not in str(engine):
            by_time = table not in ("series", "metric_metadata")
            by_part = by_time and keep >= _BY_PART_FROM_SECONDS.get(str(table), 2 * _DAY)
            command(
                f"ALTER TABLE {table} MODIFY SETTING ttl_only_drop_parts = {int(by_part)}, "
                f"merge_with_ttl_timeout = {3600 if keep >= 2 * _DAY else max(1, min(3600, keep // 10))}"
            )
            command(f"ALTER TABLE {table} MODIFY TTL {ttl}")
