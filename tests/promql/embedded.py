"""A store of samples for tests: loms.store's own tables in embedded ClickHouse, and an engine over them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from loms.core.clock import ManualClock
from loms.core.model import Floats, Ints, Labels, Series
from loms.promql.clickhouse import ClickHouseSource
from loms.store.database import Database
from loms.store.series import series_rows


class Embedded:
    """Opens a store under ``path``; close it before the next one is opened in this process."""

    def __init__(self, path: Path) -> None:
        self.database = Database.open(path, retention_seconds=86_400, clock=ManualClock())
        for table in ("series", "samples"):  # tests count time from 1970
            self.database.command(f"ALTER TABLE {table} REMOVE TTL")
        self.source = ClickHouseSource(
            self.database.query_columns, self.database.end_query, self.database.series_version
        )

    def write(self, rows: Iterable[tuple[Series, Ints, Floats]]) -> None:
        """Appends series with their samples; a series without samples is announced all the same."""
        series, times, values = zip(*rows, strict=True)
        ids = np.repeat(np.array([one.id for one in series], np.uint64), [len(one) for one in times])
        columns = {
            "series_id": ids,
            "ts": pa.array(np.concatenate(times).astype("datetime64[ms]")),
            "value": np.concatenate(values),
        }
        self.database.insert_arrow("series", series_rows(series, now_ms=0))
        self.database.insert_arrow("samples", pa.table(columns))

    def write_labelled(self, columns: Iterable[tuple[Labels, Ints, Floats]]) -> None:
        """Appends series given as labels with ``__name__``."""
        self.write((series_of(labels), times, values) for labels, times, values in columns)

    def clear(self) -> None:
        for table in ("series", "samples"):
            self.database.command(f"TRUNCATE TABLE {table}")

    def close(self) -> None:
        self.database.close()


def series_of(labels: Labels) -> Series:
    name = dict(labels).get("__name__", "")
    return Series.of(name, tuple(pair for pair in labels if pair[0] != "__name__"))
