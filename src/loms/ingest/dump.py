"""A file of samples over time: OpenMetrics with timestamps, as ``promtool tsdb dump-openmetrics`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loms.core.errors import ExpositionError
from loms.core.model import Floats, Ints, Labels, Metadata, labels_of
from loms.ingest.exposition_lines import Head, Limits, MalformedLineError, clip, parse_comment, parse_head, parse_tail


@dataclass(frozen=True, slots=True)
class Dump:
    """Series (labels with ``__name__``) → samples by time; and what the file says of its families."""

    series: dict[Labels, tuple[Ints, Floats]]
    metadata: dict[str, Metadata]


def read_dump(lines: Iterable[str], name: str) -> Dump:
    """Unlike an exposition, the same series may stand there many times. ``name`` is the file's, for messages.

    Raises `ExpositionError` with the line's number.
    """
    limits, known = Limits(), dict[str, tuple[Head, int]]()
    samples: dict[Head, tuple[list[int], list[float]]] = {}
    metadata: dict[str, Metadata] = {}
    for count, line in enumerate(lines, 1):
        text = line.rstrip("\n")
        try:
            if not text or text.startswith("#"):
                comment = parse_comment(text, openmetrics=True) if text != "# EOF" else None
                if comment and comment.kind == "TYPE":
                    metadata[comment.name] = Metadata(comment.name, comment.text)
                continue
            start = text.rpartition("}")[0] + "}" if "}" in text else text.partition(" ")[0]
            head, end = known.get(start) or parse_head(text, limits)
            known[start] = head, end
            tail = parse_tail(text, end, openmetrics=True, limits=limits)
        except MalformedLineError as error:
            raise ExpositionError(f"{name}: line {count}: {error}: {clip(text)}") from None
        if not tail.timestamp_ms:
            raise ExpositionError(
                f"{name}: line {count}: the sample has no timestamp: {clip(text)}",
                hint="a file to replay holds samples over time, for instance from promtool tsdb dump-openmetrics",
            )
        times, values = samples.setdefault(head, ([], []))
        times.append(tail.timestamp_ms)
        values.append(tail.value)
    return Dump({labels_of((*h.labels, ("__name__", h.name))): _sorted(*s) for h, s in samples.items()}, metadata)


def _sorted(times: list[int], values: list[float]) -> tuple[Ints, Floats]:
    """By time; of equal times the first stays."""
    unique, places = np.unique(np.array(times, dtype=np.int64), return_index=True)
    return unique, np.array(values)[places]
