"""What is known of metric families beside their samples: type, help, unit. The newest that was told counts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Self

import pyarrow as pa

from loms.core import selfmetrics
from loms.core.clock import Clock
from loms.core.errors import StoreError
from loms.core.guard import guard
from loms.core.model import Metadata
from loms.store.database import Database

MOST_FAMILIES = 100_000
"""Families that one process keeps in mind; further ones are left out and counted."""
MOST_TEXT = 4096
"""Characters of a help text or a name that are kept."""
PAUSE_SECONDS = 1.0
"""Between two inserts, so that a fleet that comes up costs one."""


class MetadataStore:
    """The table ``metric_metadata``. `note` costs a look-up and returns at once; a thread writes what is new.

    Safe to call from several threads. A context manager: leaving it, like `close`, writes what is waiting.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Metadata] = {}
        self._waiting: dict[str, Metadata] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._version = 0
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, told: Iterable[Metadata]) -> None:
        """Remember what is new in it."""
        with self._changed:
            for one in told:
                if self._known.get(one.family) == one:
                    continue
                if len(one.family) > MOST_TEXT or (one.family not in self._known and len(self._known) >= MOST_FAMILIES):
                    selfmetrics.metadata_dropped.inc()
                    continue
                self._known[one.family] = self._waiting[one.family] = one
            if self._waiting:
                self._changed.notify()

    def of(self, family: str | None = None, limit: int | None = None) -> dict[str, Metadata]:
        """What is known of one family or of all, by family, in alphabetical order; at most ``limit`` of them.

        Raises `loms.core.errors.StoreError` when the store refuses.
        """
        where = "WHERE family = {family:String} " if family is not None else ""
        columns = self._database.query_columns(
            f"SELECT family, type, help, unit FROM metric_metadata FINAL {where}ORDER BY family LIMIT {{limit:UInt64}}",  # noqa: S608 - fixed texts
            {"limit": 2**63 if limit is None else limit, **({} if family is None else {"family": family})},
        )
        rows = zip(*(columns[name].to_pylist() for name in ("family", "type", "help", "unit")), strict=True)
        found = {row[0]: Metadata(*row) for row in rows}
        with self._changed:
            waiting = dict(self._waiting)
        found.update((name, one) for name, one in waiting.items() if family in (None, name))
        return dict(sorted(found.items())[:limit])

    def flush(self) -> bool:
        """Write what is waiting now. False when the store refuses; then it waits on."""
        with self._changed:
            taken = dict(self._waiting)
        if not taken:
            return True
        self._version = now = max(self._clock.now_ms(), self._version + 1)  # also where the clock has been set back
        rows = {
            "family": list(taken),
            "type": [one.type for one in taken.values()],
            "unit": [one.unit[:MOST_TEXT] for one in taken.values()],
            "help": [one.help[:MOST_TEXT] for one in taken.values()],
            "seen": pa.array([now] * len(taken), pa.timestamp("ms")),
        }
        try:
            self._database.insert_arrow("metric_metadata", pa.table(rows))
        except StoreError:
            return False
        with self._changed:
            for family, one in taken.items():
                if self._waiting.get(family) is one:
                    del self._waiting[family]
        return True

    def close(self) -> None:
        """Write what is waiting and end the thread. Calling again does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        """Write soon after something is new; after a refusal, try again with the next pause."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                closed = self._changed.wait_for(lambda: self._closed, PAUSE_SECONDS)
            with guard("metadata"):
                self.flush()
            if closed:
                return
