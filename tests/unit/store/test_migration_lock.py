from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from loms.core.clock import ManualClock
from loms.core.errors import StoreBusyError
from loms.store.ddl import Layout
from loms.store.embedded import Embedded
from loms.store.engine import Session, rows_of
from loms.store.migration_lock import HOLD_MS, RENEW_MS, MigrationLock

NOW = 1_700_000_000_000


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    engine = Embedded(tmp_path, {})
    engine.prepare(lambda _, __: None)
    writer = engine.writer()
    yield writer
    writer.close()
    engine.close()


def lock(session: Session, clock: ManualClock) -> MigrationLock:
    return MigrationLock(session, partial(rows_of, session), clock, layout=Layout("loms"), where="here", wait_seconds=0)


def tables(session: Session) -> dict[str, int]:
    """Lock table → until when it is held."""
    found = rows_of(session, "SELECT name, comment FROM system.tables WHERE database = 'loms' ORDER BY name")
    return {str(name): json.loads(str(comment))["until_ms"] for name, comment in found}


def test_one_holds_it_at_a_time(session: Session) -> None:
    clock = ManualClock(NOW)
    with lock(session, clock):
        assert tables(session) == {"migration_lock_1": NOW + HOLD_MS}
        with pytest.raises(StoreBusyError, match=r"^here: the schema is being changed by another LOMS \(\S+:\d+\)$"):
            lock(session, clock).__enter__()
    assert tables(session) == {"migration_lock_1": 0}
    with lock(session, clock):
        assert tables(session) == {"migration_lock_2": NOW + HOLD_MS}


def test_the_lock_of_one_that_died_is_taken_after_its_time(session: Session) -> None:
    clock = ManualClock(NOW)
    lock(session, clock).__enter__()
    clock.advance(HOLD_MS / 1000 - 1)
    with pytest.raises(StoreBusyError):
        lock(session, clock).__enter__()
    clock.advance(1)
    with lock(session, clock):
        assert tables(session) == {"migration_lock_2": NOW + 2 * HOLD_MS}


def test_a_holder_that_goes_on_keeps_it(session: Session) -> None:
    clock = ManualClock(NOW)
    with lock(session, clock) as held:
        held.renew()
        assert tables(session) == {"migration_lock_1": NOW + HOLD_MS}
        for _ in range(15):
            clock.advance(RENEW_MS / 1000)
            held.renew()
        assert tables(session) == {"migration_lock_1": NOW + 15 * RENEW_MS + HOLD_MS}
        with pytest.raises(StoreBusyError):
            lock(session, clock).__enter__()


class Late:
    """Answers as a server does whose catalogue is behind: the first time there seems to be no lock."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.behind = True

    def __call__(self, sql: str) -> list[tuple[object, ...]]:
        behind, self.behind = self.behind, False
        return [] if behind else list(rows_of(self._session, sql))  # type: ignore[arg-type]


def test_a_winner_that_had_read_an_old_state_gives_way(session: Session) -> None:
    clock = ManualClock(NOW)
    with lock(session, clock):
        pass
    with lock(session, clock):  # number 2; number 1 is gone
        late = MigrationLock(session, Late(session), clock, layout=Layout("loms"), where="here", wait_seconds=0)
        with pytest.raises(StoreBusyError):
            late.__enter__()
        assert tables(session) == {"migration_lock_2": NOW + HOLD_MS}
