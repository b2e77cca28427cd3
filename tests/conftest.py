"""Several processes share the tests by whole files (``--dist loadfile``); the long files come first."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

LONG = (
    "test_up.py",
    "test_clickhouse.py",
    "test_promql_live.py",
    "test_store_process.py",
    "test_clickhouse_store.py",
    "web/test_live.py",
    "web/",
    "test_lab_engine.py",
    "test_promql_prometheus.py",
    "integration/",
    "property/",
)
"""Parts of paths, the longest-running first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, part in enumerate(LONG) if part in item.path.as_posix()), len(LONG))

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that is run in this process sets up logging; the next test has it as before."""
    root, loms = logging.getLogger(), logging.getLogger("loms")
    handlers, levels = root.handlers[:], (root.level, loms.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    loms.setLevel(levels[1])
