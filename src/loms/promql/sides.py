"""Both sides of an operator at the same time: each waits for the database most of its time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import TypeVar

from loms.promql.syntax import Aggregation, Binary, Call, Negation, Node, Range, Selector, Subquery

_Left = TypeVar("_Left")
_Right = TypeVar("_Right")


class Sides:
    """One query's share of ``workers``: one of them at a time, so that no worker ever waits for another."""

    def __init__(self, workers: Executor | None = None) -> None:
        self._workers = workers
        self._free = threading.Lock()

    def both(self, left: Callable[[], _Left], right: Callable[[], _Right]) -> tuple[_Left, _Right]:
        """What the two return. When both raise, what the left one raises; neither runs on after the return."""
        if self._workers is None or not self._free.acquire(blocking=False):
            return left(), right()
        try:
            beside = self._workers.submit(contextvars.copy_context().run, right)
            try:
                first = left()
            except BaseException:
                beside.cancel()
                wait((beside,))
                raise
            return first, right() if beside.cancel() else beside.result()
        finally:
            self._free.release()


def selectors_of(node: Node) -> frozenset[Selector]:
    """The selectors that a node reads."""
    found, waiting = set[Selector](), [node]
    while waiting:
        match waiting.pop():
            case Selector() as one:
                found.add(one)
            case Range(selector=one):
                found.add(one)
            case Subquery(expr=one) | Negation(expr=one):
                waiting.append(one)
            case Aggregation(expr=one, param=param):
                waiting.extend((one,) if param is None else (one, param))
            case Binary(left=left, right=right):
                waiting.extend((left, right))
            case Call(args=args):
                waiting.extend(args)
            case _:
                pass
    return frozenset(found)
