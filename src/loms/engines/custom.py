"""Engines that somebody declares in a YAML file: families of their own, mapped to canonical metrics.

The keys are explained in docs/howto/custom-engine.md. A declared engine is a class like the others; for every canonical
metric that the file leaves out, the reason is that it does. Its name must be new. Where an exposition is also another
engine's, the declared one has it: whoever writes a file for it knows better. Every mistake is one `ConfigError` that
names file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import ClassVar, cast

from loms.core.errors import ConfigError
from loms.core.families import HISTOGRAM
from loms.core.nearest import did_you_mean
from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.core.yaml_file import Node, files_of, parse, read_text
from loms.engines.draft import OF_DEVICES
from loms.engines.engine import DEVICE_NAMES, ENGINE_NAMES, Engine, Get, Identity, Row, add, engines
from loms.engines.source import parse_source

KEYS = ("name", "match", "openai", "labels", "fixed", "replicas", "carries", "metrics", "never")
ROW_KEYS = ("source", "fixed", "without", "part")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FAMILY = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_PARTS = frozenset({"le", "quantile", "__name__"})
"""What stands on a series because of its type; nothing else may be called so, and it may not be taken off."""
_TARGETS = frozenset({"engine", "instance", "job", "deployment_zone"})
"""What LOMS itself puts on every canonical series."""
_WORDS = {
    _NAME: "the name of an engine (small letters, digits, '.', '_', '-')",
    _LABEL: "the name of a label",
    _FAMILY: "the name of a metric or its beginning",
}


class Declared(Engine):
    """The face of a class that was made from a file."""

    declared: ClassVar[bool] = True
    families: ClassVar[frozenset[str]]
    """All of them must be there; empty where ``prefix`` decides."""
    model: ClassVar[str]
    """Where the file gives one to all series."""

    @classmethod
    def matches(cls, families: frozenset[str]) -> bool:
        return cls.families <= families if cls.families else super().matches(families)

    @classmethod
    async def identify(cls, get: Get) -> Identity:
        return Identity(model=cls.model)


def declare(patterns: Iterable[str], setting: str = "engines") -> tuple[str, ...]:
    """Register the engines of all files that these globs match; their names. ``setting`` is where the globs come from.

    Raises `ConfigError`.
    """
    found = read_engines(patterns, setting)
    for name, engine in found.items():
        add(name, engine)
    return tuple(found)


def read_engines(patterns: Iterable[str], setting: str = "engines") -> dict[str, type[Declared]]:
    """Name and class of the engines that these files declare, for `declare` or for a check only.

    Raises `ConfigError` for a file that does not exist or has a mistake, and for a name that is taken.
    """
    found: dict[str, type[Declared]] = {}
    for path in files_of(patterns, setting):
        name, engine = read_engine(path)
        if name in found:
            raise ConfigError(f"{path}: an engine named {name!r} is declared in another file, too")
        found[name] = engine
    return found


def read_engine(path: Path) -> tuple[str, type[Declared]]:
    """Name and class of the engine that a file declares. Raises `ConfigError`."""
    engines.load()
    top = parse(read_text(path), str(path)).keys(KEYS, ("name", "match", "metrics"))
    name = _text(top["name"], _NAME)
    if name in engines:
        top["name"].fail(f"an engine named {name!r} exists already", hint="choose another name")
    prefix, families = _match(top["match"], name)
    fixed = _fixed(top.get("fixed"))
    rows = tuple(_rows(top["metrics"], fixed))
    if not rows:
        top["metrics"].fail("is empty: nothing would be translated")
    mapped = {row.canonical for row in rows}
    device = all(canonical.startswith(OF_DEVICES) for canonical in mapped)
    left = (n for n in (DEVICE_NAMES if device else ENGINE_NAMES) if n not in mapped and n != "llm.engine.info")
    namespace = {
        "__doc__": f"Declared in {path}.",
        "__module__": __name__,
        "prefix": prefix,
        "families": families,
        "model": fixed.get("model", ""),
        "openai": _flag(top.get("openai")),
        "device": device,
        "rename": _renamed(top.get("labels")),
        "replicas": frozenset(_gone(top.get("replicas"))),
        "carries": _carried(top.get("carries")),
        "table": rows,
        "never": {**dict.fromkeys(left, f"{path} maps nothing to it"), **_never(top.get("never"), mapped)},
    }
    return name, cast("type[Declared]", type(f"Declared_{re.sub('[^a-z0-9]', '_', name)}", (Declared,), namespace))


def _text(node: Node, pattern: re.Pattern[str]) -> str:
    text = node.text()
    if not pattern.fullmatch(text):
        node.fail(f"{text!r} is not {_WORDS[pattern]}")
    return text


def _flag(node: Node | None) -> bool:
    value = node.data() if node else None
    if node and value not in (None, True, False):
        node.fail(f"{value!r} is neither true nor false")
    return bool(value)


def _list(node: Node | None, pattern: re.Pattern[str]) -> tuple[str, ...]:
    return tuple(_text(item, pattern) for item in node.items()) if node else ()


def _labels(node: Node | None) -> dict[str, str]:
    """Label names and texts."""
    found = {}
    for label, value in node.pairs() if node else ():
        if not _LABEL.fullmatch(label):
            value.fail(f"{label!r} is not {_WORDS[_LABEL]}")
        found[label] = value.text()
    return found


def _renamed(node: Node | None) -> dict[str, str]:
    """Raw label → canonical label."""
    found = _labels(node)
    for label, value in node.pairs() if node else ():
        if label in _PARTS:
            value.fail(f"the label {label!r} cannot have another name")
        _refuse(value, found[label], {*_PARTS, *_TARGETS, "hop"})
        if not _LABEL.fullmatch(found[label]):
            value.fail(f"{found[label]!r} is not {_WORDS[_LABEL]}")
    return found


def _fixed(node: Node | None) -> dict[str, str]:
    """Labels that the file adds."""
    for label, value in node.pairs() if node else ():
        _refuse(value, label, _PARTS | _TARGETS)
    return _labels(node)


def _gone(node: Node | None) -> tuple[str, ...]:
    """Labels that are taken off."""
    for item in node.items() if node else ():
        if item.text() in _PARTS:
            item.fail(f"the label {item.text()!r} cannot be taken off")
    return _list(node, _LABEL)


def _refuse(node: Node, label: str, reserved: Set[str]) -> None:
    if label in reserved:
        whose = "stands on a series because of its type" if label in _PARTS else "is LOMS's own"
        hint = "the hop is given under fixed" if label == "hop" else ""
        node.fail(f"the label {label!r} {whose} and cannot be given", hint=hint)


def _match(node: Node, name: str) -> tuple[str, frozenset[str]]:
    """Prefix of the engine's own families, and those that must all be there."""
    if node.shape != "list":
        return _text(node, _FAMILY), frozenset()
    families = _list(node, _FAMILY)
    if not families:
        node.fail("is empty: every exposition would be this engine's")
    return f"{name}_", frozenset(families)


def _carried(node: Node | None) -> tuple[str, ...]:
    for item in node.items() if node else ():
        if item.text() not in engines:
            item.fail(f"there is no engine {item.text()!r}; {did_you_mean(item.text(), engines)}")
    return _list(node, _NAME)


def _rows(metrics: Node, fixed: Mapping[str, str]) -> Iterator[Row]:
    seen: dict[str, str] = {}
    for written, value in metrics.pairs():
        canonical = _canonical(written, value)
        _once(canonical, written, value, seen)
        several = value.shape == "list" and any(item.shape == "mapping" for item in value.items())
        for item in value.items() if several else (value,):
            try:
                yield _row(item, canonical, fixed)
            except ValueError as error:
                item.fail(str(error))


def _row(node: Node, canonical: str, fixed: Mapping[str, str]) -> Row:
    if node.shape != "mapping":
        return Row(canonical, _sources(node), fixed)
    keys = node.keys(ROW_KEYS, ("source",))
    part = keys["part"].text() if "part" in keys else ""
    if part and part not in HISTOGRAM[1:]:
        keys["part"].fail(f"{part!r} is neither _sum nor _count")
    if part and CATALOGUE[canonical].instrument != "histogram":
        keys["part"].fail(f"{canonical} is no histogram and has no part {part}")
    labels, without = _fixed(keys.get("fixed")), _gone(keys.get("without"))
    return Row(canonical, _sources(keys["source"]), {**fixed, **labels}, without=without, part=part)


def _sources(node: Node) -> tuple[str, ...]:
    alternatives = tuple(node.items()) if node.shape == "list" else (node,)
    if not alternatives:
        node.fail("names no source")
    for one in alternatives:
        one.convert(parse_source)
    return tuple(one.text() for one in alternatives)


def _canonical(written: str, node: Node) -> str:
    """The OpenTelemetry name of a key, which may be spelled in either way."""
    if written in BY_PROMETHEUS:
        return BY_PROMETHEUS[written].name
    if written not in CATALOGUE:
        node.fail(f"there is no canonical metric {written!r}; {did_you_mean(written, [*CATALOGUE, *BY_PROMETHEUS])}")
    return written


def _once(canonical: str, written: str, node: Node, seen: dict[str, str]) -> None:
    """Refuse a metric that stands there in both spellings."""
    if canonical in seen:
        node.fail(f"is the same metric as {seen[canonical]!r} above", hint="several sources of one metric are a list")
    seen[canonical] = written


def _never(node: Node | None, mapped: set[str]) -> dict[str, str]:
    """Canonical metric → the file's reason."""
    reasons: dict[str, str] = {}
    seen: dict[str, str] = {}
    for written, value in node.pairs() if node else ():
        canonical = _canonical(written, value)
        _once(canonical, written, value, seen)
        if canonical in mapped:
            value.fail(f"{canonical} is mapped under metrics")
        if not value.text().strip():
            value.fail("must be a reason")
        reasons[canonical] = value.text()
    return reasons
