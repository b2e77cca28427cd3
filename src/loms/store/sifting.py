"""What cannot be written together is written by halves, to find what it is that is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 32
"""Refusals in a row, at the beginning, after which it is the store that is away: nothing of it would pass."""


@dataclass(slots=True)
class Sifted(Generic[T]):
    passed: int = 0
    """Things that were written."""
    refused: list[T] = field(default_factory=list)
    """Refused alone."""
    untried: list[T] = field(default_factory=list)


def sift(items: Sequence[T], write: Callable[[Sequence[T]], bool], patience: int = PATIENCE) -> Sifted[T]:
    """Write all of ``items`` that can be; ``write`` says whether it went well.

    >>> sift([1, 2, 3, 4, 5], lambda some: 4 not in some)
    Sifted(passed=4, refused=[4], untried=[])
    >>> sift([1, 2, 3, 4, 5], lambda some: False, patience=4)
    Sifted(passed=0, refused=[1, 2], untried=[3, 4, 5])
    """
    found: Sifted[T] = Sifted()
    failures = 0
    waiting = [items] if items else []
    while waiting:
        some = waiting.pop()
        if failures >= patience and not found.passed:
            found.untried += some
        elif write(some):
            found.passed += len(some)
        else:
            failures += 1
            if len(some) == 1:
                found.refused += some
            else:
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]]
    return found
