"""Where the scrape loop meets the parts it must not import: parser, translator, HTTP client, probe.

The loop (`loms.collect.scrape.Scraper`, one per target) owns the raw series: their labels, ids, staleness and
timestamps. It asks a translator what a shape means once, and again at each scrape whether that still holds; an
unchanged shape under an unchanged plan costs no work per series.

At every good scrape the loop does, in this order::

    exposition = reader.read(body, content_type)
    plan = translator.plan(exposition.shape, raw_ids)     # same object as before → nothing is registered
    derived_values = plan.derive(exposition.values)
    sink(one batch: raw samples, derived samples, meta samples, stale markers, new series rows)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loms.collect.targets import Target
from loms.core.model import Exposition, Floats, Ids, Ints, Series, Shape


class Reader(Protocol):
    """Bytes → exposition. One per target, because it remembers the target's shape.

    An unchanged shape must come back as the same `Shape` object. Raises `ExpositionError`.
    """

    def read(self, body: bytes, content_type: str, /) -> Exposition: ...


class Plan(Protocol):
    """What one shape means in canonical terms. Immutable: a new meaning is a new object.

    All attributes are read once, when the scraper first meets the object; `derive` runs at each scrape.
    """

    @property
    def engine(self) -> str:
        """``vllm``, ``llama.cpp``, …; empty when no engine was recognised."""

    @property
    def version(self) -> str:
        """The engine's version as far as it is known, else empty."""

    @property
    def model(self) -> str:
        """The served model, else empty."""

    @property
    def aliases(self) -> tuple[Series, ...]:
        """Canonical names of raw series: rows with the *raw* ids. They have no samples of their own."""

    @property
    def derived(self) -> tuple[Series, ...]:
        """Canonical series with samples of their own, in the order of `derive`'s result."""

    @property
    def keep(self) -> Ints | None:
        """Positions in the shape of the raw samples that are stored, ascending; None for all.

        A raw series that is left out gets no row, no samples and no stale marker, so an alias must not point at
        it: its canonical series belongs into `derived`.
        """

    def derive(self, values: Floats, /) -> Floats:
        """Values of `derived`, shape [len(derived)], from the exposition's values, shape [len(shape.names)].

        NaN writes nothing for that series at this scrape. Must not change its argument.
        """


class Translator(Protocol):
    """One per target; remembers what is needed between scrapes (a restart, the probes to leave out)."""

    def plan(self, shape: Shape, raw_ids: Ids, /) -> Plan:
        """``raw_ids[i]`` is the id under which ``shape.names[i]`` is stored (target labels merged in).

        Called at every good scrape; returns the same object as long as shape and meaning are the same. ``raw_ids``
        is the same array object as long as the shape is.
        """


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer, already decompressed."""

    status: int
    content_type: str
    body: bytes


class Fetcher(Protocol):
    """GET of a target's URL. One for the whole pool; keeps connections.

    Raises `TargetError` and nothing else; a status other than 200 is such an error. Its reasons: ``refused`` and
    ``connection`` (broken or reset) say that nobody is there, ``timeout`` that somebody is and does not answer. The
    others say nothing about an engine: ``connect_timeout``, ``incomplete`` (an answer that was under way), ``late``
    (LOMS itself was), ``dns``, ``unreachable``, ``tls``, ``too_large``, ``http``.

    Nothing takes longer than ``timeout_seconds``, or half as long again where a new connection had to be made.
    """

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response: ...


@dataclass(frozen=True, slots=True)
class ScrapeOutcome:
    """What one scrape brought. ``exposition`` is None when it failed; then reason and message say why."""

    at_ms: int
    """The scrape's start, the timestamp of its samples."""
    duration_seconds: float
    exposition: Exposition | None = None
    plan: Plan | None = None
    reason: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.exposition is not None


class Scraping(Protocol):
    """The face of a target's scraper that the probe uses."""

    @property
    def target(self) -> Target: ...

    @property
    def last(self) -> ScrapeOutcome | None:
        """The newest outcome, regular or asked for; None before the first."""

    async def scrape_now(self) -> ScrapeOutcome:
        """Scrape at once, store the samples like any other scrape's, and return them.

        Serialised with the regular loop. Never raises for a target's fault: look at ``ok``.
        """


Recognise = Callable[[frozenset[str]], str | None]
"""Family names of an exposition → the engine's name, or None."""


class Discovery(Protocol):
    """Says which targets there are, whenever it is asked."""

    @property
    def poll_seconds(self) -> float:
        """Pause between two questions."""

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read at the last `refresh`, one sentence each."""

    async def refresh(self, last_good_ms: Callable[[Target], int | None], /) -> Sequence[Target]:
        """All targets known now. ``last_good_ms`` tells when a target's last good scrape began."""
