"""``info(v, {…})``: the labels of info metrics (``target_info``) joined to series of the same instance and job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from loms.core.model import Bools, Ints, Labels
from loms.promql import regexes
from loms.promql.operators import label_text
from loms.promql.syntax import NAME, At, Matcher, Matchers, Node, Selector, Subquery, children
from loms.promql.values import EvaluationError, Vector, merged

_IDENTIFYING = ("instance", "job")
_NOT_JOINED = -1


def reference(node: Node) -> tuple[At | None, int]:
    """The ``@`` time and the offset at which the first selector of an expression reads."""
    if isinstance(node, Selector):
        return node.at, node.offset_ms
    for child in children(node):
        at, offset_ms = reference(child)
        if isinstance(node, Subquery) and at is None:
            return node.at, offset_ms + node.offset_ms
        return at, offset_ms
    return None, 0


class Enrichment:
    """One call of ``info``: ``matchers`` are those of its second argument."""

    def __init__(self, base: Vector, matchers: Matchers) -> None:
        names = [one for one in matchers if one.name == NAME]
        if not names:
            names = [Matcher(NAME, "=", "target_info")]
        elif all(one.op.startswith("!") for one in names):
            names = [Matcher(NAME, "=~", ".+_info"), *names]
        self._base = base
        self._data = [one for one in matchers if one.name != NAME]
        self._names = names
        metrics = [dict(labels).get(NAME, "") for labels in base.labels]
        self._is_info = [all(_fits(one, name) for one in names) for name in metrics]

    def matchers(self) -> Matchers | None:
        """What selects the info series, None if none can match."""
        wanted = [labels for labels, skip in zip(self._base.labels, self._is_info, strict=True) if not skip]
        values = {
            name: sorted({value for labels in wanted for key, value in labels if key == name}) for name in _IDENTIFYING
        }
        found = [Matcher(name, "=~", "|".join(map(re.escape, own))) for name, own in values.items() if own]
        return (*self._names, *found, *self._data) if found else None

    def joined(self, infos: Vector) -> Vector:
        """The base series with their info labels; the values of ``infos`` are the times of its samples."""
        by_signature: dict[Labels, dict[str, list[int]]] = {}
        for row, labels in enumerate(infos.labels):
            by_signature.setdefault(_signature(labels), {}).setdefault(dict(labels)[NAME], []).append(row)
        labels_of: list[Labels] = []
        origin: list[int] = []
        present: list[Bools] = []
        keeps_plain = all(_fits(one, "") for one in self._data)
        for row, labels in enumerate(self._base.labels):
            there = self._base.present[row]
            offered = {} if self._is_info[row] else by_signature.get(_signature(labels), {})
            for joined, when in _combinations(infos, offered, there):
                if joined or keeps_plain or self._is_info[row]:
                    labels_of.append(self._with(labels, joined))
                    origin.append(row)
                    present.append(there & when)
        rows, mask = np.array(origin, np.int64), np.array(present, np.bool_)
        unnamed = None if self._base.unnamed is None else self._base.unnamed[rows]
        values = self._base.values[rows]
        return merged(labels_of, values, mask.reshape(values.shape), unnamed=unnamed).compact()

    def _with(self, base: Labels, joined: Sequence[Labels]) -> Labels:
        wanted, found = {one.name for one in self._data}, dict(base)
        added: dict[str, str] = {}
        for name, value in (pair for labels in joined for pair in labels if pair[0] != NAME):
            if wanted and name not in wanted:
                continue
            if added.get(name, value) != value:
                raise EvaluationError(f"conflicting label: {name}")
            if name not in found:
                added[name] = value
        return tuple(sorted({**found, **added}.items()))


def _signature(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] in _IDENTIFYING)


def _newest(infos: Vector, rows: Sequence[int], there: Bools) -> Ints:
    """Of several info series, at each time the row with the newest sample. Raises where two are as new."""
    times = np.where(infos.present[rows], infos.values[rows], -np.inf)
    newest = times.max(axis=0)
    twice = ((times == newest).sum(axis=0) > 1) & np.isfinite(newest) & there
    if twice.any():
        at = int(twice.argmax())
        same = [
            label_text(infos.labels[row]) for row, time in zip(rows, times[:, at], strict=True) if time == newest[at]
        ]
        raise EvaluationError(
            f"found duplicate series for info metric: existing {same[0]} @ {int(newest[at] * 1000)}, new {same[1]} @ "
            f"{int(newest[at] * 1000)}"
        )
    found: Ints = np.where(np.isfinite(newest), np.array(rows)[times.argmax(axis=0)], _NOT_JOINED)
    return found


def _combinations(
    infos: Vector, offered: Mapping[str, Sequence[int]], there: Bools
) -> Iterator[tuple[list[Labels], Bools]]:
    """The info series of one base series, a set for each stretch of time with the same ones."""
    if not offered:
        yield [], np.ones(len(there), np.bool_)
        return
    chosen = np.stack([_newest(infos, rows, there) for rows in offered.values()])
    combinations, which = np.unique(chosen, axis=1, return_inverse=True)
    for number, combination in enumerate(combinations.T):
        yield [infos.labels[row] for row in combination if row != _NOT_JOINED], which.ravel() == number


def _fits(matcher: Matcher, value: str) -> bool:
    found = regexes.matches(matcher.value, [value])[0] if "~" in matcher.op else matcher.value == value
    return found is not matcher.op.startswith("!")
