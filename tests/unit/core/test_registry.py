from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loms.core.errors import ConfigError
from loms.core.registry import Registry


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A package with two plug-in modules on disk, importable."""
    root = tmp_path / "plugins_for_registry_test"
    root.mkdir()
    (root / "__init__.py").write_text("from loms.core.registry import Registry\nitems = Registry('thing', __name__)\n")
    for name in ("beta", "alpha"):
        (root / f"{name}.py").write_text(
            f"from {root.name} import items\n@items.register({name!r})\ndef make() -> str:\n    return {name!r}\n"
        )
    sys.path.insert(0, str(tmp_path))
    yield root.name
    sys.path.remove(str(tmp_path))


def test_modules_register_themselves_when_loaded(package: str) -> None:
    items = __import__(package).items
    assert len(items) == 0
    assert list(items.load()) == ["alpha", "beta"]
    assert items["beta"]() == "beta"
    assert [name for name, _ in items.load().items()] == ["alpha", "beta"]


def test_an_unknown_name_gets_the_nearest_known_one() -> None:
    registry: Registry[object] = Registry("detector", "loms.core")
    registry.register("stall")(object())
    with pytest.raises(ConfigError, match="there is no detector named 'stal'") as caught:
        registry["stal"]
    assert caught.value.hint == "did you mean 'stall'?"


def test_two_plugins_of_one_name_are_refused() -> None:
    registry: Registry[object] = Registry("detector", "loms.core")
    registry.register("stall")(object())
    with pytest.raises(ConfigError, match="two detector plug-ins are named 'stall'"):
        registry.register("stall")(object())
