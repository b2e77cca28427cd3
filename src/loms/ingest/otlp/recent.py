"""What was used lately, bounded: things that nobody asked for during a whole generation are forgotten."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping of two generations. A new one begins after ``lifetime_seconds`` or when ``most`` things are in one.

    >>> few: Recent[str, int] = Recent(most=2, lifetime_seconds=60)
    >>> few.put("a", 1), few.put("b", 2), few.put("c", 3), few.get("a"), few.put("d", 4), few.get("b"), few.get("a")
    (None, None, None, 1, None, None, 1)
    """

    def __init__(self, most: int, lifetime_seconds: float) -> None:
        self._most = most
        self._lifetime_seconds = lifetime_seconds
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None and (found := self._old.pop(key, None)) is not None:
            self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._most:
            self._turn()
        self._young[key] = value

    def tick(self, monotonic: float) -> None:
        """Say what time it is (seconds that never jump), now and then."""
        if monotonic - self._since >= self._lifetime_seconds:
            self._since = monotonic
            self._turn()

    def _turn(self) -> None:
        self._old, self._young = self._young, {}
