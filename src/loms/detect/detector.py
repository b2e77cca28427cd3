"""What a detector is, and the registry of them.

A detector names its inputs as PromQL over canonical names, and turns the aligned frames that come back into
findings. It reads nothing else: no clock, no store, no memory of its last run. So the same detector runs on the
live store, on history, and on somebody else's Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from loms.core.model import Finding, Frame
from loms.core.registry import Registry
from loms.core.settings import Section

UNKNOWN: Final = "unknown"
"""The kind of a finding that says: the data do not tell. It neither starts nor ends an alert."""


@dataclass(frozen=True, slots=True)
class Input:
    """One PromQL expression and the grid on which a detector wants it.

    The frame covers ``window_seconds`` up to the moment of evaluation in steps of ``step_seconds``; a window of 0 is
    an instant query, a frame of one column. Whoever runs the detector may keep a frame until its grid has moved on by
    one step, so a long step is also a wish to be asked seldom.
    """

    expr: str
    window_seconds: float
    step_seconds: float


class Detector(Protocol):
    """Registered under ``name``, which is also the literal ``type`` of its ``Config``."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """All kinds that its findings can have."""
    reports_state: ClassVar[bool]
    """True when every evaluation gives one finding for every engine, the healthy ones included."""

    @property
    def Config(self) -> type[Section]:  # noqa: N802 (a nested class)
        """Its settings, with the literal ``type`` of its name."""
        ...

    def inputs(self, config: Any) -> Mapping[str, Input]:
        """Input name → what to query, for a ``config`` of type `Config`."""
        ...

    def detect(self, frames: Mapping[str, Frame], at_ms: int, config: Any) -> list[Finding]:
        """Findings at ``at_ms`` from one frame for each input. Pure; never raises on gaps, NaN or empty frames."""
        ...


detectors: Registry[type[Detector]] = Registry("detector", "loms.detect")
