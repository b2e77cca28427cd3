"""Vectorised questions to values on a grid, shape [series, time], NaN where a series has no sample."""

from __future__ import annotations

import numpy as np

from loms.core.model import Bools, Floats, Ints


def last_true(mask: Bools) -> Ints:
    """Column of the last True of each row, -1 where there is none. Shape [series].

    >>> last_true(np.array([[True, False], [False, False]])).tolist()
    [0, -1]
    """
    if mask.shape[1] == 0:
        return np.full(len(mask), -1, dtype=np.int64)
    from_end = np.argmax(mask[:, ::-1], axis=1)
    return np.where(mask.any(axis=1), mask.shape[1] - 1 - from_end, -1).astype(np.int64)


def first_true(mask: Bools) -> Ints:
    """Column of the first True of each row, -1 where there is none. Shape [series]."""
    if mask.shape[1] == 0:
        return np.full(len(mask), -1, dtype=np.int64)
    return np.where(mask.any(axis=1), np.argmax(mask, axis=1), -1).astype(np.int64)


def fill_forward(values: Floats) -> Floats:
    """Gaps take the last value before them; what precedes a row's first value stays NaN.

    >>> fill_forward(np.array([[np.nan, 1.0, np.nan, 3.0]])).tolist()
    [[nan, 1.0, 1.0, 3.0]]
    """
    if values.size == 0:
        return values
    columns = np.where(np.isnan(values), 0, np.arange(values.shape[1]))
    np.maximum.accumulate(columns, axis=1, out=columns)
    filled: Floats = np.take_along_axis(values, columns, axis=1)
    return filled


def last_change(values: Floats) -> Ints:
    """Column at which each row last took another value than before, gaps skipped; -1 where it never did.

    A first value is no change: nothing is known about what was there before.

    >>> last_change(np.array([[5.0, 5.0, np.nan, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]])).tolist()
    [3, -1]
    """
    filled = fill_forward(values)
    before, after = filled[:, :-1], filled[:, 1:]
    moved = np.zeros(values.shape, dtype=np.bool_)
    moved[:, 1:] = (after != before) & ~np.isnan(before)
    return last_true(moved)


def trailing_start(mask: Bools) -> Ints:
    """Column where the unbroken run of True that reaches the end begins; -1 where the last column is False.

    >>> trailing_start(np.array([[True, False, True, True], [True, True, True, False]])).tolist()
    [2, -1]
    """
    start = last_true(~mask) + 1
    return np.where(start < mask.shape[1], start, -1).astype(np.int64)
