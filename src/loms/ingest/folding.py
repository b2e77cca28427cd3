"""Labels of one target taken off or folded, and from time to time other values given series of their own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from loms.core.clock import Clock
from loms.core.model import Exposition, Labels
from loms.core.settings import Labels as Policy
from loms.ingest.admission import WINDOW_SECONDS, Admission, shares_of
from loms.ingest.merging import Key, way


class Folding:
    """What the policy says about labels, and which values have series of their own at present."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self.changes = 0
        """Grows whenever another value gets series of its own."""
        self._policy = policy
        self._clock = clock
        self._names = frozenset((*policy.refuse, *policy.fold))
        self._refused = frozenset(policy.refuse)
        self._admissions = {label: Admission(fold.top, fold.other) for label, fold in policy.fold.items()}
        self._window_ends = math.inf
        self._since: dict[Key, float] = {}
        """Totals with a folded label, as they were when the window began."""

    @property
    def own(self) -> dict[str, list[str]]:
        """Folded label → the values that have series of their own."""
        return {label: list(admission.own) for label, admission in self._admissions.items()}

    def restore(self, own: Mapping[str, Sequence[str]]) -> None:
        """Go on with these."""
        self.changes += 1
        for label, admission in self._admissions.items():
            admission.restore(own.get(label, ()))

    def governed(self, labels: Labels) -> bool:
        return any(name in self._names for name, _ in labels)

    def shown(self, labels: Labels) -> tuple[Labels, bool]:
        """What stands on the series given out, and whether one of its values is shared with others."""
        out, shared = [], False
        for name, value in labels:
            if name in self._refused:
                continue
            admission = self._admissions.get(name)
            kept = value if admission is None else admission.shown(value)
            shared = shared or kept != value
            out.append((name, kept))
        return tuple(out), shared

    def admit(self, exposition: Exposition, governed: Sequence[int]) -> None:
        """Give series of their own to values that are new, as long as there is room."""
        for label, admission in self._admissions.items():
            values = {value for i in governed for name, value in exposition.shape.labels[i] if name == label}
            if values and math.isinf(self._window_ends):
                self._begin(exposition)
            if admission.wants(values):
                admission.admit(dict.fromkeys(values, 0.0) | self._shares(label, exposition, {}))
                self.changes += 1

    def reconsider(self, exposition: Exposition) -> bool:
        """At the end of a window let values change places; True when some did."""
        if self._clock.monotonic() < self._window_ends:
            return False
        moved = [
            admission.reconsider(self._shares(label, exposition, self._since))
            for label, admission in self._admissions.items()
        ]
        self._begin(exposition)
        self.changes += any(moved)
        return any(moved)

    def restart(self) -> None:
        """The target's counters have begun anew."""
        self._since.clear()

    def _begin(self, exposition: Exposition) -> None:
        self._window_ends = self._clock.monotonic() + WINDOW_SECONDS
        scored = (each for label in self._admissions for each in self._scored(label, exposition))
        self._since = {key: number for _, key, number, total in scored if total}

    def _shares(self, label: str, exposition: Exposition, since: Mapping[Key, float]) -> dict[str, float]:
        """Value of ``label`` → its share of what its totals have grown by; of its gauges where it has no totals."""
        totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        gauges: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for own, key, value, total in self._scored(label, exposition):
            before = since.get(key, 0.0)
            amount = value - before if value >= before else value
            (totals if total else gauges)[key[0]][own] += amount
        return shares_of(totals or gauges)

    def _scored(self, label: str, exposition: Exposition) -> list[tuple[str, Key, float, bool]]:
        """The series that tell how much a value is used: its value of ``label``, itself, its number, whether a total.

        Their order does not depend on that of the text. Buckets only repeat what their count says.
        """
        shape, found = exposition.shape, []
        values = exposition.values.tolist()
        for i, labels in enumerate(shape.labels):
            name = shape.names[i]
            own = next((value for key, value in labels if key == label), "")
            if not own or name.endswith("_bucket"):
                continue
            how = way(name, labels, shape.types, "sum")
            if how in ("total", "sum", "largest") and math.isfinite(values[i]):
                found.append((own, (name, labels), abs(values[i]), how == "total"))
        return sorted(found)
