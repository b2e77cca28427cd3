"""Texts about targets that must survive a restart of LOMS."""

from __future__ import annotations

import pyarrow as pa

from loms.core.clock import Clock
from loms.store.database import Database

FORGET_AFTER_MS = 30 * 86_400_000
"""A note that was not written anew for so long is not read any more."""


class TargetNotes:
    """One text of one kind for each target, by (job, instance). Every method raises `loms.core.errors.StoreError` when
    the store refuses."""

    def __init__(self, database: Database, clock: Clock, kind: str) -> None:
        self._database = database
        self._clock = clock
        self._kind = kind

    def load(self) -> dict[tuple[str, str], str]:
        """The newest text of each target."""
        columns = self._database.query_columns(
            "SELECT job, instance, argMax(payload, version) AS payload FROM target_notes WHERE kind = {kind:String}"
            " AND seen > fromUnixTimestamp64Milli({since:Int64}) GROUP BY job, instance",
            {"kind": self._kind, "since": self._clock.now_ms() - FORGET_AFTER_MS},
        )
        rows = zip(*(columns[name].to_pylist() for name in ("job", "instance", "payload")), strict=True)
        return {(job, instance): payload for job, instance, payload in rows}

    def save(self, job: str, instance: str, payload: str) -> None:
        """Keep this text for the target; it is on its way to the disk when the call returns."""
        now = self._clock.now_ms()
        columns = {
            "kind": [self._kind],
            "job": [job],
            "instance": [instance],
            "version": pa.array([now], pa.uint64()),
            "seen": pa.array([now], pa.timestamp("ms")),
            "payload": [payload],
        }
        self._database.insert_arrow("target_notes", pa.table(columns))
