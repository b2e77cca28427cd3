"""What is to be known about an inference engine, and the registry of those that are known.

An engine is one class of class attributes and static functions, in a file of its own::

    @engines.register("vllm")
    class Vllm(Engine): ...

Its ``table`` says where each canonical metric comes from; ``never`` gives the reason for each one that it cannot have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from loms.core.registry import Registry
from loms.core.semconv import CATALOGUE
from loms.engines.draft import Draft
from loms.engines.source import parse_source

Get = Callable[[str], Awaitable[Any]]
"""GET of a path below the engine's base URL → decoded JSON, or None where there is no such answer."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an engine says of itself over HTTP; empty where it does not say."""

    version: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A canonical label whose value follows from a raw label's value; values that are not listed give ``default``."""

    source: str
    into: str
    values: Mapping[str, str]
    default: str


@dataclass(frozen=True, slots=True)
class Row:
    """Where one canonical metric (OpenTelemetry name) comes from.

    ``sources`` (`loms.engines.source`) are alternatives, best first: the first one that is wholly present is taken, and
    never a second beside it. A factor scales a histogram's sum and bounds, not its counts. ``part`` (``_sum`` or
    ``_count``) says which one series of a canonical histogram a plain counter stands for.

    Raises `ValueError` where a source cannot be read or makes no such metric.
    """

    canonical: str
    sources: tuple[str, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    lookup: Lookup | None = None
    without: tuple[str, ...] = ()
    """Raw labels that are taken off; what differs in nothing else is added up."""
    part: str = ""
    absent: str = ""
    """Why the sources may be missing; else the message only names them."""

    def __post_init__(self) -> None:
        metric = CATALOGUE.get(self.canonical)
        for source in self.sources:
            term = parse_source(source)[0]
            if metric is None or term.scale is None:
                continue
            if term.inverse and metric.cumulative:
                raise ValueError(f"{source!r}: what is divided by a family is no counter, as {self.canonical} is")
            if metric.instrument == "histogram" and self.part != "_sum":
                raise ValueError(f"{source!r}: a histogram's bounds cannot be multiplied by a family")


class Engine:
    """The face of a registered class, with what holds for most of them."""

    prefix: ClassVar[str]
    """Start of the engine's own raw families, ``vllm:``; anything below it that nobody uses is listed as unmapped."""
    openai: ClassVar[bool] = False
    """Whether it answers ``POST /v1/completions``, so that it can be asked for a token."""
    identified: ClassVar[bool] = False
    """Whether the model's name comes from `identify` alone; then nothing is translated before that has answered."""
    device: ClassVar[bool] = False
    """Whether it tells of GPUs and nothing else: it is no engine that could stall."""
    declared: ClassVar[bool] = False
    """Whether a file of the user's declares it (`loms.engines.custom`); then it is asked before the others."""
    paths: ClassVar[tuple[str, ...]] = ("/metrics",)
    """Where it may be read, most usual first."""
    rename: ClassVar[Mapping[str, str]] = {}
    """Raw label → canonical label, for all families."""
    replicas: ClassVar[frozenset[str]] = frozenset()
    """Raw labels over which one and the same thing is told several times (tensor-parallel ranks, processes of one
    server): the largest counts, and they are never added up."""
    carries: ClassVar[tuple[str, ...]] = ()
    """Engines whose families this one passes on; their tables then hold too, and come first."""
    table: ClassVar[tuple[Row, ...]] = ()
    computed: ClassVar[frozenset[str]] = frozenset()
    """Canonical names that `fixup` alone adds."""
    labels_tell: ClassVar[Mapping[str, str]] = {}
    """Canonical name → raw family whose labels, and not its value, tell it or a factor of it."""
    progress: ClassVar[tuple[str, ...]] = ()
    """Further sources that only a working engine moves, where the canonical counters wait for a request's end."""
    early: ClassVar[frozenset[str]] = frozenset()
    """Canonical counters that a request moves before the engine's core has worked on it: they are no progress."""
    never: ClassVar[Mapping[str, str]] = {}
    """Canonical name → why this engine cannot have it."""
    aside: ClassVar[Mapping[str, str]] = {}
    """Raw family → why it is left as it is on purpose; a ``*`` stands for anything."""

    @classmethod
    def matches(cls, families: frozenset[str]) -> bool:
        """Whether an exposition with these families is this engine's."""
        return any(cls.spell(family).startswith(cls.prefix) for family in families)

    @staticmethod
    def spell(name: str) -> str:
        """A raw name as the text format 0.0.4 has it: ``vllm_num_requests_running`` → ``vllm:num_requests_running``."""
        return name

    @staticmethod
    def expose(answer: Any) -> str:
        """The text exposition that stands for a decoded JSON answer of this engine; empty for any other answer."""
        return ""

    @staticmethod
    def fixup(draft: Draft, identity: Identity | None) -> None:
        """Add what a table cannot say."""

    @staticmethod
    async def identify(get: Get) -> Identity:
        return Identity()


engines: Registry[type[Engine]] = Registry("engine", "loms.engines")

ENGINE_NAMES = tuple(n for n in CATALOGUE if n.startswith(("gen_ai.server.", "llm.engine.", "http.server.")))
"""The part of the catalogue that engines can speak for; the rest belongs to devices and processes."""
DEVICE_NAMES = tuple(n for n in CATALOGUE if n.startswith(("hw.", "llm.gpu.")))
"""What devices can speak for."""

PROGRESS = (
    "llm.engine.requests.finished",
    "llm.engine.tokens.input",
    "llm.engine.tokens.output",
    "llm.engine.iteration.tokens",
    "llm.engine.iteration.duration",
    "llm.engine.requests.preempted",
)
"""Counters that move only when the engine's core works. HTTP counters are not among them: they also count health
checks, which a frozen engine goes on answering; nor are rejections, which an API server hands out by itself."""


def recognise(families: frozenset[str]) -> str | None:
    """The engine whose families these are (names as on the ``# TYPE`` lines), or None.

    Where several match, the one that passes the others' families on.
    """
    found = [(name, engine) for name, engine in _known() if engine.matches(families)]
    carried = {other for name, engine in found for other in engine.carries if other != name}
    return next((name for name, _ in found if name not in carried), None)


def expose(answer: Any) -> str:
    """A text exposition for the JSON answer of an engine that has no exposition; empty when it is nobody's."""
    return next((text for _, engine in _known() if (text := engine.expose(answer))), "")


def known_paths() -> tuple[str, ...]:
    """Every path at which some engine may be read. ``/metrics`` is last: whatever is asked may have it, and what
    TensorRT-LLM answers there is gone for everybody else."""
    paths = dict.fromkeys(path for _, engine in _known() for path in engine.paths)
    return tuple(sorted(paths, key=lambda path: path == "/metrics"))


def add(name: str, engine: type[Engine]) -> None:
    """Register one more engine, after the others have been loaded. Raises `ConfigError` where the name is taken."""
    engines.load().register(name)(engine)
    _known.cache_clear()


@cache
def _known() -> list[tuple[str, type[Engine]]]:
    return sorted(engines.load().items(), key=lambda item: not item[1].declared)
