"""How the tests are shared out: several processes, the long files first, one browser, one file in one process."""

from __future__ import annotations

import pytest

LONG = ("web/", "test_up.py", "test_promql_live.py", "test_store_process.py", "test_lab_engine.py", "test_alerting")
"""Parts of paths, the longest-running first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        return next((i for i, part in enumerate(LONG) if part in item.path.as_posix()), len(LONG))

    items.sort(key=rank)
    for item in items:
        group = "browser" if item.get_closest_marker("browser") else item.path.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
