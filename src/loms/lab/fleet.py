"""Several simulated engines in one process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from loms.core.clock import Clock
from loms.lab.child import Child
from loms.lab.engine import DEFAULT_MODEL, EngineAddress


class Fleet:
    """``count`` simulated engines, serving from construction until `stop`; a context manager."""

    def __init__(
        self,
        count: int = 4,
        *,
        port: int = 0,
        name: str = "sim",
        model: str = DEFAULT_MODEL,
        options: Sequence[str] = (),
        deadline_seconds: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        """``port`` 0 takes free ports, else the engines get consecutive ones from there. ``options`` are further
        arguments of ``python -m loms.lab.engine``. Raises `TargetError` when they do not start in time.
        """
        arguments = ["loms.lab.engine", "--end-with-stdin", "--count", str(count), "--port", str(port)]
        arguments += ["--name", name, "--model", model, *options]
        self._child = Child("the simulated fleet", arguments, deadline_seconds=deadline_seconds, clock=clock)
        self.engines = tuple(EngineAddress(**engine) for engine in self._child.announcement["engines"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(engine.url for engine in self.engines)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def stop(self) -> None:
        """End the engines; a second call does nothing."""
        self._child.stop()
