"""Binary operators on whole grids, with Prometheus's vector matching at each time of the grid."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from loms.core.model import Bools, Floats, Ints, Labels
from loms.promql.syntax import COMPARISONS, NAME, SET_OPERATORS, Binary, Matching
from loms.promql.values import EvaluationError, Scalar, Value, Vector, flags_of, merged, nameless, without_name

_ARITHMETIC: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
_COMPARISON: Mapping[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def label_text(labels: Labels) -> str:
    """Labels as Prometheus's messages write them: ``{__name__="up", job="vllm"}``."""
    return "{" + ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels) + "}"


def binary(node: Binary, left: Value, right: Value) -> Value:
    """The value of ``left op right``; both have been evaluated on the same grid."""
    if isinstance(left, Vector) and isinstance(right, Vector):
        if node.op in SET_OPERATORS:
            return _set_operation(node.op, left, right, node.matching)
        return _matched(node, left, right)
    assert not isinstance(left, str)
    assert not isinstance(right, str)
    if isinstance(left, Vector):
        assert not isinstance(right, Vector)
        return _with_scalar(node, left, left.values, right)
    if isinstance(right, Vector):
        return _with_scalar(node, right, left, right.values)
    if node.op in COMPARISONS:
        return _COMPARISON[node.op](left, right).astype(np.float64)
    return _ARITHMETIC[node.op](left, right)


def _with_scalar(node: Binary, vector: Vector, left: Floats, right: Floats) -> Vector:
    if node.op not in COMPARISONS:
        return nameless(vector, _ARITHMETIC[node.op](left, right))
    holds = _COMPARISON[node.op](left, right)
    if node.returns_bool:
        return nameless(vector, holds.astype(np.float64))
    return replace(vector, present=vector.present & holds)


def _signatures(vector: Vector, matching: Matching) -> list[Labels]:
    """What of each series' labels must be equal for a match."""
    if matching.on:
        wanted = frozenset(matching.labels)
        return [tuple(pair for pair in labels if pair[0] in wanted) for labels in vector.labels]
    ignored = frozenset((*matching.labels, NAME))
    return [tuple(pair for pair in labels if pair[0] not in ignored) for labels in vector.labels]


def _numbered(keys: Sequence[Hashable]) -> tuple[Ints, int]:
    """Equal keys get equal numbers from 0; the numbers and how many there are."""
    number: dict[Hashable, int] = {}
    return np.fromiter((number.setdefault(key, len(number)) for key in keys), np.int64, len(keys)), len(number)


def _counts(groups: Ints, size: int, present: Bools) -> Ints:
    """How many rows of each group are present, shape [group, time]."""
    counts = np.zeros((size, present.shape[1]), dtype=np.int64)
    np.add.at(counts, groups, present)
    return counts


def _set_operation(op: str, left: Vector, right: Vector, matching: Matching) -> Vector:
    groups, size = _numbered([*_signatures(left, matching), *_signatures(right, matching)])
    of_left, of_right = groups[: len(left)], groups[len(left) :]
    if op == "or":
        in_left = _counts(of_left, size, left.present) > 0
        rest = right.present & ~in_left[of_right]
        labels, values = [*left.labels, *right.labels], np.concatenate((left.values, right.values))
        return merged(labels, values, np.concatenate((left.present, rest)), unnamed=flags_of(left, right))
    in_right = (_counts(of_right, size, right.present) > 0)[of_left]
    return replace(left, present=left.present & (in_right if op == "and" else ~in_right))


def _matched(node: Binary, left: Vector, right: Vector) -> Vector:
    """Arithmetic and comparison of two vectors: the many side's series each meet one of the one side."""
    swapped = node.matching.cardinality == "one-to-many"
    many, one = (right, left) if swapped else (left, right)
    many, one = _filled(many, one, node.matching)
    _refuse_ambiguity(many, one, node.matching, "left" if swapped else "right")
    one = _reduced(many, one, node.matching)
    left, right = (one, many) if swapped else (many, one)
    many_signatures = _signatures(many, node.matching)
    rows = _rows_by_signature(one, node.matching)
    pairs = [(i, j) for i, signature in enumerate(many_signatures) for j in rows.get(signature, ())]
    of_many, of_one = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    of_left, of_right = (of_one, of_many) if swapped else (of_many, of_one)
    met = many.present[of_many] & one.present[of_one]
    present = met
    values = left.values[of_left]
    if node.op not in COMPARISONS:
        values = _ARITHMETIC[node.op](values, right.values[of_right])
    else:
        holds = _COMPARISON[node.op](values, right.values[of_right])
        if node.returns_bool:
            values = holds.astype(np.float64)
        else:
            present = met & holds
    delayed = many.unnamed is not None or one.unnamed is not None
    labels = [_result_labels(node, many.labels[i], one.labels[j], delayed) for i, j in pairs]
    _refuse_repetition(node.matching, [many_signatures[i] for i, _ in pairs], labels, met, present)
    unnamed = np.full(len(pairs), node.returns_bool) if delayed else None
    if unnamed is not None and many.unnamed is not None and node.op in COMPARISONS:
        unnamed |= many.unnamed[of_many]
    return merged(labels, values, present, unnamed=unnamed)


def _filled(many: Vector, one: Vector, matching: Matching) -> tuple[Vector, Vector]:
    """The two sides with the values that stand for series without a partner at a time.

    As in Prometheus, ``fill_left`` is for the many side also under ``group_right``.
    """
    return (
        many if matching.fill_left is None else _stand_ins(many, one, matching, matching.fill_left),
        one if matching.fill_right is None else _stand_ins(one, many, matching, matching.fill_right),
    )


def _stand_ins(side: Vector, other: Vector, matching: Matching, fill: float) -> Vector:
    """``side`` with a series of the value ``fill`` for each match group that only ``other`` has at a time."""
    groups, size = _numbered([*_signatures(other, matching), *_signatures(side, matching)])
    of_other, of_side = groups[: len(other)], groups[len(other) :]
    alone = (_counts(of_other, size, other.present) > 0) & (_counts(of_side, size, side.present) == 0)
    wanted = dict(zip(of_other.tolist(), _signatures(other, matching), strict=True))
    labels, rows = tuple(wanted.values()), np.array(list(wanted), np.int64)
    new = Vector(labels, np.full((len(rows), alone.shape[1]), fill), alone[rows])
    values, present = np.concatenate((side.values, new.values)), np.concatenate((side.present, new.present))
    return Vector((*side.labels, *labels), values, present, flags_of(side, new))


def _rows_by_signature(vector: Vector, matching: Matching) -> dict[Labels, list[int]]:
    rows: dict[Labels, list[int]] = {}
    for row, signature in enumerate(_signatures(vector, matching)):
        rows.setdefault(signature, []).append(row)
    return rows


def _reduced(many: Vector, one: Vector, matching: Matching) -> Vector:
    """The one side with only the labels that matter, so that series which follow one another in time are one."""
    labels = [
        tuple(pair for pair in old if pair in signature or pair[0] in matching.include)
        for old, signature in zip(one.labels, _signatures(one, matching), strict=True)
    ]
    return merged(labels, one.values, one.present & many.present.any(axis=0), unnamed=one.unnamed)


def _refuse_ambiguity(many: Vector, one: Vector, matching: Matching, side: str) -> None:
    """Two series of the one side may share a signature only where they are not present at the same time."""
    for signature, found in _rows_by_signature(one, matching).items():
        if len(found) == 1:
            continue
        clash = (one.present[found].sum(axis=0) > 1) & many.present.any(axis=0)
        if clash.any():
            there = sorted(one.labels[row] for row in found if one.present[row, int(clash.argmax())])
            raise EvaluationError(
                f"found duplicate series for the match group {label_text(signature)} on the {side} hand-side of the "
                f"operation: [{label_text(there[0])}, {label_text(there[1])}];many-to-many matching not allowed: "
                "matching labels must be unique on one side"
            )


def _refuse_repetition(
    matching: Matching, signatures: list[Labels], labels: list[Labels], met: Bools, present: Bools
) -> None:
    """Each match group gives one result (one-to-one, filtered away or not), or results of different labels."""
    explicit = matching.cardinality != "one-to-one"
    present = present if explicit else met
    groups, size = _numbered(list(zip(signatures, labels, strict=True)) if explicit else signatures)
    if size < len(signatures) and (_counts(groups, size, present) > 1).any():
        raise EvaluationError(
            "multiple matches for labels: "
            + (
                "grouping labels must ensure unique matches"
                if explicit
                else "many-to-one matching must be explicit (group_left/group_right)"
            )
        )


def _result_labels(node: Binary, many: Labels, one: Labels, delayed: bool) -> Labels:
    matching = node.matching
    changed = node.op not in COMPARISONS or (node.returns_bool and not delayed)
    result = dict(without_name(many) if changed else many)
    if matching.cardinality == "one-to-one":
        if matching.on:
            result = {name: value for name, value in result.items() if name in matching.labels}
        else:
            result = {name: value for name, value in result.items() if name not in matching.labels}
    if matching.include:
        offered = dict(one)
        for name in matching.include:
            result.pop(name, None)
            if name in offered:
                result[name] = offered[name]
    return tuple(sorted(result.items()))


def negated(value: Value) -> Value:
    """``-value``; a vector loses its metric names."""
    assert not isinstance(value, str)
    return nameless(value, -value.values) if isinstance(value, Vector) else -value


def scalar_of(vector: Vector) -> Scalar:
    """``scalar(vector)``: its only element at each time, NaN where there is none or more than one."""
    alone = vector.present.sum(axis=0) == 1
    only: Floats = np.where(vector.present, vector.values, 0.0).sum(axis=0)
    return np.where(alone, only, np.nan)
