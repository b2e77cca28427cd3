"""A ClickHouse for tests: the test server's, or the one that ``LOMS_TEST_CLICKHOUSE`` names."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loms.core.settings import Store
from support.clickhouse_server import ClickHouseServer
from support.processes import free_port

REAL = os.environ.get("LOMS_TEST_CLICKHOUSE", "")
"""``clickhouse://user:password@host:8123``, without a database: each test makes one of its own."""
CLUSTER = os.environ.get("LOMS_TEST_CLICKHOUSE_CLUSTER", "")
"""The cluster's name there; empty for one server."""


@dataclass(frozen=True)
class Place:
    """Where a test's tables are to be."""

    address: str
    cluster: str
    own: ClickHouseServer | None

    @property
    def server(self) -> ClickHouseServer:
        """The test server, whose faults can be ordered; with a real one the test is skipped."""
        if self.own is None:
            pytest.skip("a fault cannot be ordered of a real ClickHouse")
        return self.own

    def settings(self, **others: Any) -> dict[str, Any]:
        """The section ``store``, with a database that is not there yet."""
        url = f"{self.address}/test_{uuid.uuid4().hex[:12]}"
        return {"url": url, "clickhouse": {"cluster": self.cluster}, **others}

    def store(self, path: Path) -> Store:
        return Store.model_validate(self.settings(path=path))


@contextmanager
def place(folder: Path, *, shards: bool = False) -> Iterator[Place]:
    """One server, or a cluster of two ``shards``, in a process of its own; a real one if there is one."""
    if REAL:
        yield Place(REAL.rstrip("/"), CLUSTER, None)
        return
    with ClickHouseServer(folder, free_port(), shards=shards) as server:
        yield Place(server.url("").rstrip("/"), server.cluster, server)
