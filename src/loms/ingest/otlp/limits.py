"""What is put up with in a request, and what of it was not taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Signal = Literal["metrics", "traces", "logs"]
SIGNALS: tuple[Signal, ...] = ("metrics", "traces", "logs")


@dataclass(frozen=True, slots=True)
class Limits:
    """``oldest_ns`` and ``newest_ns`` bound the time of a point, span or record."""

    attributes: int = 128
    """Most labels of a series, attributes of a span or record."""
    label_length: int = 16_384
    """Longest label of a series, in characters."""
    oldest_ns: int = 1
    newest_ns: int = 2**63 - 1
    labels_length: int = 64 * 2**10
    """Names and values of one series' labels together, in bytes."""
    expanded: int = 128 * 2**20
    """Bytes that one request may become: labels that are new, each series' for itself, or attributes of a resource and
    scope, which each row has.
    """
    samples: int = 2_000_000
    """Most samples of one request's histograms and summaries."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Points, spans or records of one request that were not taken, by reason in words, for its answer."""

    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, count: int = 1) -> None:
        self.reasons[reason] += count

    @property
    def count(self) -> int:
        return self.reasons.total()

    def __str__(self) -> str:
        """One sentence; '' when nothing was refused."""
        return "; ".join(f"{count} {reason}" for reason, count in self.reasons.most_common(5))
