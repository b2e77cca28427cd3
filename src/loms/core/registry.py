"""A registry: things of one kind that announce themselves when their module is imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from loms.core.errors import ConfigError
from loms.core.nearest import did_you_mean

T = TypeVar("T")
U = TypeVar("U")


class Registry(Generic[T]):
    """Things of one ``kind``, which is also the entry-point group ``loms.<kind>``; ``package`` holds the built-ins.

    Built-ins and plug-ins come through the same door: `load` imports the package's modules in sorted order, then
    whatever other distributions offer as entry points.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._items: dict[str, T] = {}

    def register(self, name: str) -> Callable[[U], U]:
        """Class or function decorator: what it decorates must be a ``T`` (checked where it is used)."""

        def add(item: U) -> U:
            if name in self._items:
                raise ConfigError(f"two {self.kind} plug-ins are named {name!r}", hint="rename one of them")
            self._items[name] = item  # type: ignore[assignment]
            return item

        return add

    def load(self) -> Registry[T]:
        """Import every module of the package, then the entry points; importing twice changes nothing."""
        package = importlib.import_module(self._package)
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            importlib.import_module(f"{self._package}.{module.name}")
        for point in sorted(entry_points(group=f"loms.{self.kind}"), key=lambda p: p.name):
            point.load()
        return self

    def __getitem__(self, name: str) -> T:
        if name in self._items:
            return self._items[name]
        raise ConfigError(f"there is no {self.kind} named {name!r}", hint=did_you_mean(name, self))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> list[tuple[str, T]]:
        return sorted(self._items.items())
