"""The series that a target's scrapes are stored under: label rules, ids, and what is new about them.

Source of the rules: Prometheus (scrape/target.go and scrape/scrape.go; "Automatically generated labels and time
series" in its documentation).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loms.collect.protocols import Plan
from loms.collect.targets import Target
from loms.core.model import Ids, Ints, Labels, Series, Shape, labels_of

META_NAMES = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)


def merge_labels(own: Labels, target: Labels, honor_labels: bool) -> Labels:
    """A sample's labels and its target's, which win; the sample's own becomes ``exported_<name>`` on a clash.

    With ``honor_labels`` the sample's own label wins.

    >>> merge_labels((("job", "x"), ("le", "1")), (("instance", "h:1"), ("job", "vllm")), honor_labels=False)
    (('exported_job', 'x'), ('instance', 'h:1'), ('job', 'vllm'), ('le', '1'))
    """
    merged = {**dict(own), **dict(target)}
    if len(merged) == len(own) + len(target):
        return tuple(sorted(own + target))
    if honor_labels:
        return labels_of({**dict(target), **dict(own)})
    names = {name for name, _ in target}
    for name, value in sorted((pair for pair in own if pair[0] in names), key=lambda pair: len(pair[0])):
        exported = f"exported_{name}"
        while exported in merged:
            exported = f"exported_{exported}"
        merged[exported] = value
    return labels_of(merged)


def next_ms(at_ms: int, last_ms: int) -> int:
    """The timestamp of a series' next sample at ``at_ms``, when its last one was at ``last_ms``.

    Two samples must not share a timestamp, so time goes on by a millisecond at least. But a clock that was put back by
    more than a second is followed: samples of the future would not be stored, nor found.

    >>> next_ms(1_000, 1_000), next_ms(990, 1_000), next_ms(2_000, 1_000), next_ms(1_000, 3_600_000)
    (1001, 1001, 2000, 1000)
    """
    return at_ms if last_ms - at_ms > 1000 else max(at_ms, last_ms + 1)


def raw_series(shape: Shape, target: Target) -> list[Series]:
    """The stored series of each sample of ``shape``, in its order."""
    identity, honor = target.identity, target.honor_labels
    return [
        Series.of(name, merge_labels(labels, identity, honor))
        for name, labels in zip(shape.names, shape.labels, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the numbers of one shape go under one plan: the columns of a batch that stay the same.

    ``ids`` is raw (those that are kept), then derived, then `META_NAMES`; ``lasting`` is ``ids`` without the last.
    """

    shape: Shape
    plan: Plan | None
    raw_ids: Ids
    """Of every sample of the shape, kept or not."""
    keep: Ints | None
    kept_ids: Ids
    ids: Ids
    lasting: Ids

    @classmethod
    def of(cls, shape: Shape, raw_ids: Ids, plan: Plan | None, meta_ids: Ids) -> Layout:
        keep = plan.keep if plan else None
        kept = raw_ids if keep is None else raw_ids[keep]
        unique, first = np.unique(kept, return_index=True)
        if len(unique) < len(kept):  # two series that the target's labels made one: the first counts
            first.sort()
            keep = first if keep is None else keep[first]
            kept = raw_ids[keep]
        derived = ids_of(plan.derived) if plan else ids_of(())
        lasting = np.concatenate((kept, derived))
        return cls(shape, plan, raw_ids, keep, kept, np.concatenate((lasting, meta_ids)), lasting)


def ids_of(series: Iterable[Series]) -> Ids:
    return np.array([s.id for s in series], dtype=np.uint64)


def announced(plan: Plan | None) -> set[Series]:
    """The canonical rows of a plan."""
    return {*plan.aliases, *plan.derived} if plan else set()
