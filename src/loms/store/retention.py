"""How long samples are kept: a TTL on the tables, altered when the configuration says something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_DAY = 86_400
_LONGEST_SECONDS = 30 * 365 * _DAY
"""A TTL ends before the year 2106 or wraps around."""

SERIES_GRACE_SECONDS = 3 * _DAY
"""A series outlives its samples by this: a day between refreshes of ``last_seen``, a day until a part of samples is
dropped, and a day to spare."""


def apply_retention(
    command: Callable[[str], object], rows: Callable[[str], Sequence[Sequence[object]]], seconds: float
) -> None:
    """Make samples older than ``seconds`` go away, and the series that have none left.

    From two days on, the engine drops a part once its newest row is too old (at most a day late, for nothing); below
    that it rewrites parts to delete their old rows, within a tenth of the retention.
    """
    keep = min(math.ceil(seconds), _LONGEST_SECONDS)
    by_part = keep >= 2 * _DAY
    ttl = {
        "samples": f"ts + toIntervalSecond({keep})",
        "series": f"last_seen + toIntervalSecond({keep + SERIES_GRACE_SECONDS})",
    }
    engines = rows("SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
    for table, engine in engines:
        expression = ttl.get(str(table))
        if expression is not None and f"TTL {expression}" not in str(engine):
            command(
                f"ALTER TABLE {table} MODIFY SETTING ttl_only_drop_parts = {int(by_part and table == 'samples')}, "
                f"merge_with_ttl_timeout = {3600 if by_part else max(1, min(3600, keep // 10))}"
            )
            command(f"ALTER TABLE {table} MODIFY TTL {expression}")
