"""Times and values of many series as the JSON text of Prometheus's API, by Arrow's column functions.

Values are formatted one by one only where Arrow writes an exponent and Prometheus does not, or where they are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loms.core.model import Floats, Ints
from loms.server.wire import format_value

_AT_ONCE = 500_000
"""Points written in one piece: their text stays far below the 2 GiB that an Arrow column can hold."""


def points_json(times_ms: Sequence[Ints], values: Sequence[Floats]) -> Iterator[str]:
    """For each series ``[time,"value"],[time,"value"],…``, times in Unix seconds."""
    first, points = 0, 0
    for row, column in enumerate(values):
        points += len(column)
        if points >= _AT_ONCE or row == len(values) - 1:
            yield from _piece(times_ms[first : row + 1], values[first : row + 1])
            first, points = row + 1, 0


def texts(values: Floats) -> pa.Array:
    """Values as `loms.server.wire.format_value` writes them, a column of strings."""
    written = pc.cast(pa.array(values), pa.string())
    odd = pc.match_substring(written, "e").to_numpy(zero_copy_only=False) | ~np.isfinite(values)
    if not odd.any():
        return written
    return pc.replace_with_mask(written, pa.array(odd), pa.array([format_value(one) for one in values[odd].tolist()]))


def _piece(times_ms: Sequence[Ints], values: Sequence[Floats]) -> Iterator[str]:
    at = pc.cast(pa.array(np.concatenate(times_ms) / 1000), pa.string())
    pairs = pc.binary_join_element_wise("[", at, ',"', texts(np.concatenate(values)), '"]', "")
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    joined: Iterator[str] = iter(pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), pairs), ",").to_pylist())
    return joined
