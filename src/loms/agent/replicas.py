"""Two servers that scrape the same target and both push it here: one of them counts, the other stands by.

They tell themselves apart by a label (``external_labels: {replica: a}``), which is therefore no label of the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loms.core.model import Labels

USUAL = frozenset({"__replica__", "prometheus_replica", "replica"})
"""What the documentation of Prometheus Operator, Mimir and Thanos names that label."""
SILENT_SECONDS = 30.0
"""A server of which nothing has come for this long, or for three of its scrape intervals, no longer counts."""

Server = tuple[str, ...]
"""A server by the values of the labels that tell it from others."""


@dataclass(slots=True)
class Replicas:
    """Of one target."""

    apart: frozenset[str] = USUAL
    """Labels by which servers differ."""
    _ups: list[Mapping[str, str]] = field(default_factory=list)
    _leader: Server | None = None
    _heard: float = 0.0
    _gap: float = 0.0
    _told: dict[Labels, tuple[Server, Labels]] = field(default_factory=dict)

    def met(self, up: Mapping[str, str]) -> bool:
        """Another ``up`` of the target, by its labels. Whether that shows a label that tells servers apart."""
        before = self.apart
        for other in self._ups:
            self.apart |= {key for key in up.keys() | other.keys() if up.get(key) != other.get(key)}
        self._ups.append(up)
        if self.apart == before:
            return False
        self._told.clear()
        self._leader = None
        return True

    def told(self, labels: Labels) -> tuple[Server, Labels]:
        """Whose series this is, and its labels without those that tell servers apart."""
        found = self._told.get(labels)
        if found is None:
            own = dict(labels)
            server = tuple(own.get(key, "") for key in sorted(self.apart))
            found = self._told[labels] = server, tuple(pair for pair in labels if pair[0] not in self.apart)
        return found

    def counts(self, server: Server, now: float) -> bool:
        """Whether what ``server`` has just sent counts; ``now`` in seconds of a monotonic clock."""
        if self._leader != server and now - self._heard < max(SILENT_SECONDS, 3 * self._gap) and self._leader:
            return False
        if self._leader == server and now - self._heard > 1:
            self._gap = min(now - self._heard, 300.0)
        self._leader, self._heard = server, now
        return True
