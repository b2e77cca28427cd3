"""Which series have their row in the ``series`` table, and when a living one is written again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loms.core.model import Ids, Series

REFRESH_MS = 86_400_000
"""Time after which ``last_seen`` of a living series is renewed, so that the table can expire too."""
WINDOW_MS = 600_000
"""A refresh looks this long for living series: longer than any scrape interval."""


PIECE_SERIES = 10_000
PIECE_CHARACTERS = 32 * 2**20
"""What is written at once: Arrow's strings of one array have 2 GiB at most, and a table is in memory twice."""


class SeriesRegister:
    """Series not yet written, and those written, of one process.

    `add` may be called while another thread is in any other method, but the calls of `add` and `take` must exclude
    one another.
    """

    def __init__(self, retention_seconds: float, now_ms: int) -> None:
        self._retention_ms = round(retention_seconds * 1000)
        self._pending: dict[Series, None] = {}
        self._written: dict[Series, int] = {}
        self._refresh_ms = now_ms + REFRESH_MS
        self._alive = np.empty(0, dtype=np.uint64)

    def __len__(self) -> int:
        """Series waiting to be written."""
        return len(self._pending)

    def add(self, series: Iterable[Series]) -> None:
        """Note series whose row must stand in the table; those that have one already cost a look-up."""
        self._pending.update((one, None) for one in series if one not in self._written)

    def take(self) -> tuple[Series, ...]:
        """The waiting series, which wait no more: the caller writes them, or gives them back to `add`."""
        taken = tuple(self._pending)
        self._pending.clear()
        return taken

    def wrote(self, series: Iterable[Series], now_ms: int) -> None:
        """The rows of ``series`` are acknowledged."""
        self._written.update((one, now_ms) for one in series)

    def observe(self, ids: Ids, now_ms: int) -> tuple[Series, ...]:
        """Samples of ``ids`` were written. Once a day, returns the living series, which `add` then takes again.

        A series without a sample for the whole retention is forgotten.
        """
        if now_ms < self._refresh_ms:
            return ()
        self._alive = np.union1d(self._alive, ids)
        if now_ms < self._refresh_ms + WINDOW_MS:
            return ()
        alive = set(self._alive.tolist())
        living = tuple(one for one in self._written if one.id in alive)
        oldest_ms = now_ms - self._retention_ms
        self._written = {one: t for one, t in self._written.items() if one.id not in alive and t > oldest_ms}
        self._alive = np.empty(0, dtype=np.uint64)
        self._refresh_ms = now_ms + REFRESH_MS
        return living


def pieces(series: Sequence[Series]) -> Iterator[Sequence[Series]]:
    """In their order, no more at a time than should be written at once (but at least one)."""
    for start in range(0, len(series), PIECE_SERIES):
        yield from _halved(series[start : start + PIECE_SERIES])


def _halved(series: Sequence[Series]) -> Iterator[Sequence[Series]]:
    characters = sum(len(text) for one in series for pair in one.labels for text in pair)
    if len(series) == 1 or characters <= PIECE_CHARACTERS:
        yield series
        return
    middle = len(series) // 2
    yield from _halved(series[:middle])
    yield from _halved(series[middle:])


def series_rows(series: Sequence[Series], now_ms: int) -> pa.Table:
    """Rows for the ``series`` table."""
    ends: Any = np.cumsum([0, *(len(one.labels) for one in series)], dtype=np.int32)
    keys = pa.array([key for one in series for key, _ in one.labels], pa.string())
    values = pa.array([value for one in series for _, value in one.labels], pa.string())
    columns: dict[str, Any] = {
        "id": np.array([one.id for one in series], dtype=np.uint64),
        "name": pa.array([one.name for one in series], pa.string()),
        "labels": pa.MapArray.from_arrays(ends, keys, values),
        "last_seen": np.full(len(series), now_ms, dtype="datetime64[ms]"),
    }
    return pa.table(columns)
