"""A store in a directory of its own, and LOMS's own counters as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loms.core.clock import SystemClock
from loms.store.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "store", 1e9, SystemClock()) as opened:
        yield opened
