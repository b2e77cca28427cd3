"""What a query's answer should be read with: warnings and hints, in Prometheus's words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loms.core.model import Floats, Labels
from loms.promql.syntax import NAME

_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


class Annotations:
    """Collects the annotations of one query, each text once; ``place`` is ``line:column`` of what it is about."""

    def __init__(self) -> None:
        self._warnings: dict[str, None] = {}
        self._infos: dict[str, None] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def infos(self) -> tuple[str, ...]:
        return tuple(self._infos)

    def warn(self, text: str, place: str) -> None:
        self._warnings[f"PromQL warning: {text} ({place})"] = None

    def info(self, text: str, place: str) -> None:
        self._infos[f"PromQL info: {text} ({place})"] = None

    def check_quantile(self, q: Floats, place: str) -> None:
        """Warns of quantiles outside [0, 1], each kind once."""
        if np.isnan(q).any():
            self.warn("quantile value should be between 0 and 1, got NaN", place)
        for extreme in (np.fmax.reduce(q, initial=0.0), np.fmin.reduce(q, initial=1.0)):
            if not 0 <= extreme <= 1:
                self.warn(f"quantile value should be between 0 and 1, got {number_text(extreme)}", place)

    def check_ratio(self, ratio: Floats, place: str) -> None:
        for extreme, bound in ((ratio.max(), 1), (ratio.min(), -1)):
            if abs(extreme) > 1 and extreme * bound > 0:
                text = f"got {number_text(extreme)}, capping to {bound}"
                self.warn(f"ratio value should be between -1 and 1, {text}", place)

    def check_counters(self, series: Iterable[Labels], place: str) -> None:
        """Tells of metrics that ``rate`` is asked of and whose name is not a counter's."""
        for name in {value for labels in series for key, value in labels if key == NAME}:
            if not name.endswith(_COUNTER_SUFFIXES):
                ends = "name does not end in _total/_sum/_count/_bucket"
                self.info(f'metric might not be a counter, {ends}: "{name}"', place)


def number_text(value: float) -> str:
    """A number as Go's ``%g`` writes it."""
    if np.isnan(value) or np.isinf(value):
        return "NaN" if np.isnan(value) else "+Inf" if value > 0 else "-Inf"
    short = np.format_float_positional(value, trim="-")
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return short
    return np.format_float_scientific(value, trim="-", exp_digits=2)
