"""Texts about targets that must survive a restart of LOMS."""

from __future__ import annotations

from collections.abc import Mapping

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
        self._version = 0

    def load(self) -> dict[tuple[str, str], str]:
        """The newest text of each target."""
        columns = self._database.query_columns(
            "SELECT job, instance, argMax(payload, version) AS payload, max(version) AS newest FROM target_notes"
            " WHERE kind = {kind:String} AND seen > fromUnixTimestamp64Milli({since:Int64}) GROUP BY job, instance",
            {"kind": self._kind, "since": self._clock.now_ms() - FORGET_AFTER_MS},
        )
        self._version = max(self._version, *columns["newest"].to_pylist(), 0)
        rows = zip(*(columns[name].to_pylist() for name in ("job", "instance", "payload")), strict=True)
        return {(job, instance): payload for job, instance, payload in rows}

    def save(self, job: str, instance: str, payload: str) -> None:
        """Keep this text for the target; it is on its way to the disk when the call returns."""
        self.save_all({(job, instance): payload})

    def save_all(self, notes: Mapping[tuple[str, str], str]) -> None:
        """Keep one text for each of these targets, in one insert."""
        now, count = self._clock.now_ms(), len(notes)
        self._version = max(now, self._version + 1)  # also where the clock has been set back
        columns = {
            "kind": [self._kind] * count,
            "job": [job for job, _ in notes],
            "instance": [instance for _, instance in notes],
            "version": pa.array([self._version] * count, pa.uint64()),
            "seen": pa.array([now] * count, pa.timestamp("ms")),
            "payload": list(notes.values()),
        }
        self._database.insert_arrow("target_notes", pa.table(columns))
