"""Prometheus text and OpenMetrics → `Exposition`, fast where the text keeps its shape.

An engine prints the same lines at each scrape, and only the numbers at their ends differ. The first reading parses
every line and keeps a *template*: the comments, and the text of each line up to its value. Later readings compare
against it and convert the numbers, without looking into a line. Where something differs, only lines with an unknown
series are parsed. A cache never changes the answer: whatever does not fit exactly is read in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem, itemgetter
from weakref import WeakValueDictionary

import numpy as np

from loms.core.errors import ExpositionError
from loms.core.model import Exposition, Floats, Ints, Labels, Shape
from loms.ingest.exposition_lines import (
    Head,
    Limits,
    MalformedLineError,
    Tail,
    clip,
    number,
    parse_comment,
    parse_head,
    parse_tail,
    plain,
)

__all__ = ["ExpositionReader", "Limits", "TooManySamplesError"]

_OPENMETRICS = "application/openmetrics-text"
_READABLE = ("text/plain", _OPENMETRICS, "application/octet-stream", "")
_EOF = "# EOF"

Pick = Callable[[Sequence[str]], Sequence[str]]
_take: Callable[[str, slice], str] = getitem


class TooManySamplesError(ExpositionError):
    """The exposition has more samples than `Limits.samples`."""

    reason = "too_many_samples"


class _Template:
    """The fixed part of a text: what every line must begin with for the values to be taken from its end.

    ``pattern`` has an entry per line: a comment as it stands, or the series' text with the blank before the value;
    ``heads`` gives the meaning of the latter. ``keep`` holds the positions of the samples that count where the text
    repeats a series.
    """

    __slots__ = (
        "__weakref__",
        "_comments",
        "_pick_comments",
        "_pick_samples",
        "_slices",
        "_starts",
        "heads",
        "keep",
        "openmetrics",
        "pattern",
        "shape",
    )

    def __init__(
        self, openmetrics: bool, pattern: tuple[str, ...], heads: dict[str, Head], shape: Shape, keep: Ints | None
    ) -> None:
        self.openmetrics = openmetrics
        self.pattern = pattern
        self.heads = heads
        self.shape = shape
        self.keep = keep
        self._pick_comments = _picker([i for i, text in enumerate(pattern) if _is_comment(text)])
        self._pick_samples = _picker([i for i, text in enumerate(pattern) if not _is_comment(text)])
        self._comments = self._pick_comments(pattern)
        self._starts = self._pick_samples(pattern)
        self._slices = tuple(slice(len(text), None) for text in self._starts)

    def values(self, lines: list[str]) -> Floats | None:
        """The numbers, if ``lines`` differ from the template in nothing else; None otherwise.

        Each step is one C-level pass over all lines: this is where scraping spends its time.
        """
        if len(lines) != len(self.pattern) or self._pick_comments(lines) != self._comments:
            return None
        samples = self._pick_samples(lines)
        if not all(map(str.startswith, samples, self._starts)):
            return None
        tokens = list(map(_take, samples, self._slices))
        if not plain("".join(tokens)):
            return None
        try:
            return np.fromiter(map(float, tokens), np.float64, len(tokens))
        except ValueError:
            return None

    def exposition(self, values: Floats, timestamps_ms: Ints | None = None) -> Exposition:
        if self.keep is None:
            return Exposition(self.shape, values, timestamps_ms)
        timestamps_ms = timestamps_ms if timestamps_ms is None else timestamps_ms[self.keep]
        return Exposition(self.shape, values[self.keep], timestamps_ms, len(values) - len(self.keep))


_templates: WeakValueDictionary[tuple[bool, tuple[str, ...]], _Template] = WeakValueDictionary()
"""Templates in use, shared by targets that expose the same text (a fleet of one engine and one model)."""
_newest: WeakValueDictionary[tuple[bool, Limits, int], _Template] = WeakValueDictionary()
"""The newest template by format, limits and number of lines: what a target of the same fleet is first compared with."""


class ExpositionReader:
    """Reads one target's expositions; keeps one template, whatever the target sends.

    >>> reader = ExpositionReader()
    >>> first = reader.read(b"# TYPE up gauge\\nup 1\\n", "text/plain; version=0.0.4")
    >>> second = reader.read(b"# TYPE up gauge\\nup 0\\n", "text/plain; version=0.0.4")
    >>> first.shape is second.shape, second.values.tolist()
    (True, [0.0])
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._template: _Template | None = None

    def read(self, body: bytes, content_type: str, /) -> Exposition:
        """Parse one answer. An unchanged shape is the same `Shape` object.

        Raises `ExpositionError`: one sentence with the line's number and what is wrong with it.
        """
        openmetrics = _is_openmetrics(content_type)
        lines = _decode(body).split("\n")
        own, twin = self._template, _newest.get((openmetrics, self._limits, len(lines)))
        for template in (own, twin):
            if template is None or template.openmetrics != openmetrics:
                continue
            values = template.values(lines)
            if values is not None:
                self._template = template
                return template.exposition(values)
        reading = _Reading(openmetrics, own.heads if own is not None else {}, self._limits)
        reading.read(lines)
        self._template = _template_of(reading, own)
        _newest[openmetrics, self._limits, len(lines)] = self._template
        times = np.array(reading.timestamps_ms, np.int64) if any(reading.timestamps_ms) else None
        return self._template.exposition(np.array(reading.values, np.float64), times)


class _Reading:
    """One text, line by line; series whose text is known already are not parsed again."""

    def __init__(self, openmetrics: bool, known: dict[str, Head], limits: Limits) -> None:
        self.openmetrics = openmetrics
        self.pattern: list[str] = []
        self.heads: dict[str, Head] = {}
        self.series: list[Head] = []
        self.values: list[float] = []
        self.timestamps_ms: list[int] = []
        self.types: dict[str, str] = {}
        self.help: dict[str, str] = {}
        self.units: dict[str, str] = {}
        self._known = known
        self._limits = limits
        self._ended = False

    def read(self, lines: list[str]) -> None:
        for count, line in enumerate(lines, 1):
            try:
                if _is_comment(line):
                    self._comment(line, last=count == len(lines))
                else:
                    self._sample(line)
            except MalformedLineError as error:
                raise ExpositionError(f"line {count}: {error}: {clip(line)}") from None
        if self.openmetrics and not self._ended:
            raise ExpositionError(
                "the OpenMetrics text does not end with '# EOF'", hint="it was cut off, or is not OpenMetrics"
            )

    def _comment(self, line: str, last: bool) -> None:
        if self._ended and not (last and not line):
            raise MalformedLineError("there is text after '# EOF'")
        self.pattern.append(line)
        self._ended = self._ended or (self.openmetrics and line == _EOF)
        comment = parse_comment(line, self.openmetrics)
        if comment is not None and comment.kind == "TYPE":
            self.types.setdefault(comment.name, comment.text)
        elif comment is not None and comment.kind == "HELP":
            self.help.setdefault(comment.name, comment.text)
        elif comment is not None:
            self.units.setdefault(comment.name, comment.text.strip(" \t"))

    def _sample(self, line: str) -> None:
        if self._ended:
            raise MalformedLineError("there is text after '# EOF'")
        if len(self.series) >= self._limits.samples:
            raise TooManySamplesError(
                f"there are more than {self._limits.samples} samples", hint="raise the limit or expose less"
            )
        start, head, tail = self._look_up(line) or self._parse(line)
        self.heads[start] = head
        self.pattern.append(start)
        self.series.append(head)
        self.values.append(tail.value)
        self.timestamps_ms.append(tail.timestamp_ms)

    def _parse(self, line: str) -> tuple[str, Head, Tail]:
        """The series' text with a blank, its meaning, and what follows."""
        head, end = parse_head(line, self._limits)
        return f"{line[:end]} ", head, parse_tail(line, end, self.openmetrics, self._limits)

    def _look_up(self, line: str) -> tuple[str, Head, Tail] | None:
        """The same for a line whose series' text is known; None where only parsing can tell."""
        start, blank, token = line.rpartition(" ")
        head = self._known.get(start + blank)
        try:
            if head is not None:
                return start + blank, head, Tail(number(token), 0)
            start = line.partition(" # ")[0].rpartition(" ")[0].rpartition(" ")[0]
            head = self._known.get(f"{start} ")
            if head is not None:
                return f"{start} ", head, parse_tail(line, len(start), self.openmetrics, self._limits)
        except MalformedLineError:
            return None
        return None


def _template_of(reading: _Reading, before: _Template | None) -> _Template:
    """The template of a text just read: the one before if only values and timestamps differ, a twin's, or a new one."""
    key = (reading.openmetrics, tuple(reading.pattern))
    if before is not None and (before.openmetrics, before.pattern) == key:
        return before
    twin = _templates.get(key)
    if twin is not None:
        return twin
    first = {head: i for i, head in reversed(list(enumerate(reading.series)))}
    keep = None
    if len(first) < len(reading.series):
        keep = np.array(sorted(first.values()), np.int64)
        reading.series = [reading.series[i] for i in keep]
    names: tuple[str, ...] = tuple(map(itemgetter(0), reading.series))
    labels: tuple[Labels, ...] = tuple(map(itemgetter(1), reading.series))
    shape = Shape(names, labels, reading.types, reading.help, reading.units)
    template = _Template(*key, reading.heads, shape, keep)
    _templates[key] = template
    return template


def _is_comment(line: str) -> bool:
    """True for blank lines too."""
    return line[:1] in ("", "#") or line.lstrip(" \t")[:1] in ("", "#")


def _picker(positions: list[int]) -> Pick:
    """Takes the lines at ``positions``, at C speed."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda lines: tuple(lines[i] for i in positions)


def _is_openmetrics(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in _READABLE:
        raise ExpositionError(
            f"the content type is {clip(media_type)}, which is not a metrics text",
            hint="is this the metrics path? TensorRT-LLM, for one, has its metrics under /prometheus/metrics",
        )
    return media_type == _OPENMETRICS


def _decode(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise ExpositionError(
            f"line {line}: the text is not UTF-8 (byte 0x{body[error.start]:02x} at position {error.start})"
        ) from None
