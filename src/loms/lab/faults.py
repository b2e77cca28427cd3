"""Faults that can be switched on in a simulated engine, and how they are asked for over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Ends by itself after this time; without it, when it is cleared."""


class Hang(_Fault):
    """The engine's core stops: HTTP goes on answering, metrics keep their last values, nobody is served."""

    fault: Literal["hang"]


class Slow(_Fault):
    """Every step takes ``factor`` times as long."""

    fault: Literal["slow"]
    factor: Annotated[float, Field(gt=0, le=1000)] = 4.0


class KvLeak(_Fault):
    """``share`` of the blocks of every finished request is never given back; clearing gives them all back."""

    fault: Literal["kv_leak"]
    share: Annotated[float, Field(gt=0, le=1)] = 0.5


Fault = Annotated[Hang | Slow | KvLeak, Field(discriminator="fault")]
FAULTS: tuple[str, ...] = ("hang", "slow", "kv_leak")


class Faulty(Protocol):
    """What a fault takes hold of."""

    def hang(self, on: bool) -> None: ...

    def slow(self, factor: float) -> None: ...

    def leak(self, share: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Active:
    fault: Hang | Slow | KvLeak
    timer: asyncio.TimerHandle | None


class FaultBoard:
    """The faults that are on in one engine, at most one of each kind; a new one replaces the old."""

    def __init__(self, engine: Faulty) -> None:
        self._engine = engine
        self._active: dict[str, _Active] = {}

    def switch_on(self, fault: Hang | Slow | KvLeak) -> None:
        """Needs a running event loop, which ends faults that last for some seconds."""
        self._stop_timer(fault.fault)
        timer = None
        if fault.seconds is not None:
            timer = asyncio.get_running_loop().call_later(fault.seconds, self.clear, fault.fault)
        self._active[fault.fault] = _Active(fault, timer)
        match fault:
            case Hang():
                self._engine.hang(True)
            case Slow():
                self._engine.slow(fault.factor)
            case KvLeak():
                self._engine.leak(fault.share)

    def clear(self, name: str) -> None:
        """Undo one fault; nothing happens if it is not on."""
        if name not in self._active:
            return
        self._stop_timer(name)
        del self._active[name]
        match name:
            case "hang":
                self._engine.hang(False)
            case "slow":
                self._engine.slow(1.0)
            case "kv_leak":
                self._engine.leak(0.0)

    def clear_all(self) -> None:
        for name in tuple(self._active):
            self.clear(name)

    def describe(self) -> list[dict[str, Any]]:
        """The faults that are on, with their parameters and the seconds that are left (None: until cleared)."""
        answer = []
        for active in self._active.values():
            left = None
            if active.timer is not None:
                left = round(max(0.0, active.timer.when() - asyncio.get_running_loop().time()), 3)
            answer.append({**active.fault.model_dump(exclude={"seconds"}), "seconds_left": left})
        return answer

    def _stop_timer(self, name: str) -> None:
        active = self._active.get(name)
        if active is not None and active.timer is not None:
            active.timer.cancel()
