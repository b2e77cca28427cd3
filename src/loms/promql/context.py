"""What a function may know beside its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from loms.promql.annotations import Annotations
from loms.promql.syntax import Call
from loms.promql.values import Grid


@dataclass(frozen=True, slots=True)
class Context:
    """``grid``: the times it is asked for; ``query``: those of the whole query; ``call``: where it stands."""

    grid: Grid
    query: Grid
    notes: Annotations
    call: Call
