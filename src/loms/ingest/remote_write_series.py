"""The series of remote-write requests: which label sets are taken, and those seen lately.

Source of the rules: the remote-write specifications 1.0 and 2.0 and what Prometheus's own receiver does
(storage/remote/write_handler.go): labels that come unsorted are sorted, an empty value is no label.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from loms.core.model import Series, labels_of

NAME = "__name__"
_SHOWN = 120
"""Characters of somebody else's text that a message repeats."""
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Policy:
    """The most labels of a series, the most characters of a label's value, the most bytes of all labels together, and
    the most bytes of labels that the series of one request may have, written out.
    """

    labels: int = 128
    label_value_length: int = 16_384
    labels_length: int = 64 * 2**10
    expanded: int = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a series is never taken: ``reason`` is a label value of ``loms_dropped_samples_total``."""

    reason: str
    text: str


def series_of(pairs: Sequence[tuple[str | None, str | None]], policy: Policy) -> Series | Refusal:
    """The series with these labels, in any order; None stands for what is not UTF-8."""
    if len(pairs) > policy.labels + 1:  # the name is no label
        return Refusal("too_many_labels", f"a series has {len(pairs) - 1} labels; {policy.labels} are allowed")
    labels: dict[str, str] = {}
    for name, value in pairs:
        if name is None or value is None:
            return Refusal("invalid_labels", f"a label is not UTF-8: {_shown(labels)}")
        if not name:
            return Refusal("invalid_labels", f"a label has no name: {_shown(labels)}")
        if name in labels:
            return Refusal("invalid_labels", f"the label {name[:_SHOWN]!r} stands twice: {_shown(labels)}")
        longest = max(len(name), len(value))
        if longest > policy.label_value_length:
            what = f"label {name[:_SHOWN]!r} has {longest} characters; {policy.label_value_length} are allowed"
            return Refusal("label_too_long", f"the {what}")
        labels[name] = value
    length = sum(map(bytes_of, labels)) + sum(map(bytes_of, labels.values()))
    if length > policy.labels_length:
        text = f"the labels of a series have {length} bytes; {policy.labels_length} are allowed (receive.labels_length)"
        return Refusal("labels_too_long", f"{text}: {_shown(labels)}")
    metric = labels.pop(NAME, "")
    if not metric:
        return Refusal("invalid_labels", f"a series has no {NAME}: {_shown(labels)}")
    return Series.of(metric, labels_of(labels))


def bytes_of(text: str) -> int:
    """In UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _shown(labels: dict[str, str]) -> str:
    text = ", ".join(f"{name[:_SHOWN]}={value[:_SHOWN]!r}" for name, value in islice(labels.items(), _SHOWN))
    return f"{{{text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}}}"


class Lately(Generic[K]):
    """Series by what they are called on the wire, bounded in number and bytes.

    Two generations: when the younger is full it becomes the older, and what was not asked for since goes.
    """

    def __init__(self, most: int = 100_000, most_bytes: int = 32 * 2**20) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.young: dict[K, Series] = {}
        """For loops that look up much; `get` finds what is older too."""
        self._old: dict[K, Series] = {}

    def get(self, key: K, size: int) -> Series | None:
        """``size``: of the key, in bytes."""
        found = self.young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found, size)
        return found

    def put(self, key: K, series: Series, size: int) -> None:
        if len(self.young) >= self._most or self._bytes + size > self._most_bytes:
            self._old, self.young, self._bytes = self.young, {}, 0
        self.young[key] = series
        self._bytes += size


class Texts:
    """Texts decoded once, so that label sets share them; bounded like `Lately`. None for what is not UTF-8."""

    def __init__(self, most: int = 200_000) -> None:
        self._most = most
        self._known: dict[bytes, str] = {}

    def get(self, raw: bytes) -> str | None:
        found = self._known.get(raw)
        if found is None:
            try:
                found = raw.decode()
            except UnicodeDecodeError:
                return None
            if len(raw) <= _SHOWN:
                if len(self._known) >= self._most:
                    self._known = {}
                self._known[raw] = found
        return found
