"""Engines that somebody declares in a YAML file: families of their own, mapped to canonical metrics.

The keys are explained in docs/howto/custom-engine.md. A declared engine is a class like the others; for every canonical
metric that the file leaves out, the reason is that it does. Its name must be new. Where an exposition is also another
engine's, the declared one has it: whoever writes a file for it knows better. Every mistake is one `ConfigError` that
names file, line and key.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

from loms.core.errors import ConfigError
from loms.core.semconv import BY_PROMETHEUS, CATALOGUE
from loms.core.yaml_file import Key, dotted, place, read_mapping
from loms.engines.draft import HISTOGRAM, OF_DEVICES
from loms.engines.engine import DEVICE_NAMES, ENGINE_NAMES, Engine, Get, Identity, Row, add, engines
from loms.engines.source import parse_source

KEYS = ("name", "match", "openai", "labels", "fixed", "replicas", "carries", "metrics", "never")
ROW_KEYS = ("source", "fixed", "without", "part")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_FAMILY = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
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


def declare(patterns: Iterable[str]) -> tuple[str, ...]:
    """Register the engines of all files that these globs match; their names. Raises `ConfigError`."""
    found = read_engines(patterns)
    for name, engine in found.items():
        add(name, engine)
    return tuple(found)


def read_engines(patterns: Iterable[str]) -> dict[str, type[Declared]]:
    """Name and class of the engines that these files declare, for `declare` or for a check only.

    Raises `ConfigError` for a file that does not exist or has a mistake, and for a name that is taken.
    """
    found: dict[str, type[Declared]] = {}
    for path in _files(patterns):
        name, engine = read_engine(path)
        if name in found:
            raise ConfigError(f"{path}: an engine named {name!r} is declared in another file, too")
        found[name] = engine
    return found


def read_engine(path: Path) -> tuple[str, type[Declared]]:
    """Name and class of the engine that a file declares. Raises `ConfigError`."""
    engines.load()
    data, lines = read_mapping(path)
    file = _File(str(path), data, lines)
    file.only((), KEYS)
    name = file.text(("name",), _NAME)
    if name in engines:
        file.fail(("name",), f"an engine named {name!r} exists already", hint="choose another name")
    prefix, families = _match(file, name)
    fixed = file.texts(("fixed",))
    rows = tuple(_rows(file, fixed))
    if not rows:
        file.fail(("metrics",), "metrics is empty: nothing would be translated")
    mapped = {row.canonical for row in rows}
    device = all(canonical.startswith(OF_DEVICES) for canonical in mapped)
    namespace = {
        "__doc__": f"Declared in {path}.",
        "__module__": __name__,
        "prefix": prefix,
        "families": families,
        "model": fixed.get("model", ""),
        "openai": file.flag(("openai",)),
        "device": device,
        "rename": file.texts(("labels",)),
        "replicas": frozenset(file.list(("replicas",), _LABEL)),
        "carries": _carried(file),
        "table": rows,
        "never": _never(file, mapped, DEVICE_NAMES if device else ENGINE_NAMES),
    }
    return name, cast("type[Declared]", type(f"Declared_{re.sub('[^a-z0-9]', '_', name)}", (Declared,), namespace))


@dataclass(frozen=True, slots=True)
class _File:
    """What a file holds, with a complaint for whatever it should not hold."""

    where: str
    data: Mapping[str, Any]
    lines: Mapping[Key, int]

    def fail(self, key: Key, text: str, hint: str = "") -> NoReturn:
        raise ConfigError(f"{place(self.where, self.lines, key)}: {text}", hint=hint)

    def get(self, key: Key) -> Any:
        value: Any = self.data
        for part in key:
            value = value.get(part) if isinstance(value, Mapping) else value[cast("int", part)]
        return value

    def only(self, key: Key, known: Sequence[str]) -> None:
        """Refuse keys that are not ``known``."""
        for found in self.get(key):
            if found not in known:
                self.fail((*key, found), f"unknown key {dotted((*key, found))!r}; {_nearest(str(found), known)}")

    def text(self, key: Key, pattern: re.Pattern[str]) -> str:
        value = self.get(key)
        if value is None:
            self.fail(key, f"key {dotted(key)!r} is required")
        if not isinstance(value, str) or not pattern.fullmatch(value):
            self.fail(key, f"{dotted(key)}: {value!r} is not {_WORDS[pattern]}")
        return value

    def flag(self, key: Key) -> bool:
        value = self.get(key)
        if value not in (None, True, False):
            self.fail(key, f"{dotted(key)}: {value!r} is neither true nor false")
        return bool(value)

    def list(self, key: Key, pattern: re.Pattern[str]) -> tuple[str, ...]:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            self.fail(key, f"{dotted(key)} must be a list of texts")
        return tuple(self.text((*key, index), pattern) for index in range(len(value or ())))

    def texts(self, key: Key) -> dict[str, str]:
        """A mapping of label names to texts; numbers count as texts."""
        value = self.mapping(key)
        for label, text in value.items():
            if not isinstance(label, str) or not _LABEL.fullmatch(label):
                self.fail((*key, label), f"{dotted(key)}: {label!r} cannot be the name of a label")
            if isinstance(text, bool) or not isinstance(text, (str, int, float)):
                self.fail((*key, label), f"{dotted((*key, label))} must be a text")
        return {label: str(text) for label, text in value.items()}

    def mapping(self, key: Key) -> Mapping[str, Any]:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(key, f"{dotted(key)} must be a mapping")
        return value or {}


def _files(patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        found = sorted(glob.glob(str(Path(pattern).expanduser())))
        if not found and not glob.has_magic(pattern):
            raise ConfigError(f"engines: {pattern} does not exist")
        yield from map(Path, found)


def _match(file: _File, name: str) -> tuple[str, frozenset[str]]:
    """Prefix of the engine's own families, and those that must all be there."""
    key: Key = ("match",)
    if isinstance(file.get(key), list):
        families = file.list(key, _FAMILY)
        if not families:
            file.fail(key, "match is empty: every exposition would be this engine's")
        return f"{name}_", frozenset(families)
    return file.text(key, _FAMILY), frozenset()


def _carried(file: _File) -> tuple[str, ...]:
    carried = file.list(("carries",), _NAME)
    for index, other in enumerate(carried):
        if other not in engines:
            file.fail(("carries", index), f"carries: there is no engine {other!r}; {_nearest(other, list(engines))}")
    return carried


def _rows(file: _File, fixed: Mapping[str, str]) -> Iterator[Row]:
    for written in file.mapping(("metrics",)):
        key: Key = ("metrics", written)
        canonical, value = _canonical(file, key), file.get(key)
        several = isinstance(value, list) and any(isinstance(item, dict) for item in value)
        for at in [(*key, index) for index in range(len(value))] if several else [key]:
            try:
                yield _row(file, at, canonical, fixed)
            except ValueError as error:
                file.fail(at, f"{dotted(at)}: {error}")


def _row(file: _File, key: Key, canonical: str, fixed: Mapping[str, str]) -> Row:
    if not isinstance(file.get(key), dict):
        return Row(canonical, _sources(file, key), fixed)
    file.only(key, ROW_KEYS)
    part = file.get((*key, "part")) or ""
    if part and part not in HISTOGRAM[1:]:
        file.fail((*key, "part"), f"{dotted((*key, 'part'))}: {part!r} is neither _sum nor _count")
    if part and CATALOGUE[canonical].instrument != "histogram":
        file.fail((*key, "part"), f"{canonical} is no histogram and has no part {part}")
    return Row(
        canonical,
        _sources(file, (*key, "source")),
        {**fixed, **file.texts((*key, "fixed"))},
        without=file.list((*key, "without"), _LABEL),
        part=part,
    )


def _sources(file: _File, key: Key) -> tuple[str, ...]:
    value = file.get(key)
    alternatives = value if isinstance(value, list) else [value]
    if not alternatives:
        file.fail(key, f"{dotted(key)} names no source")
    for index, source in enumerate(alternatives):
        at = (*key, index) if isinstance(value, list) else key
        if not isinstance(source, str):
            file.fail(at, f"{dotted(at)} must be a source, such as acme_queue_ms * 0.001")
        try:
            parse_source(source)
        except ValueError as error:
            file.fail(at, f"{dotted(at)}: {error}")
    return tuple(alternatives)


def _canonical(file: _File, key: Key) -> str:
    """The OpenTelemetry name of a key, which may be spelled in either way."""
    written = str(key[-1])
    if written in CATALOGUE:
        return written
    if written in BY_PROMETHEUS:
        return BY_PROMETHEUS[written].name
    known = [*CATALOGUE, *BY_PROMETHEUS]
    return file.fail(key, f"there is no canonical metric {written!r}; {_nearest(written, known)}")


def _never(file: _File, mapped: set[str], wanted: Iterable[str]) -> dict[str, str]:
    """The file's reasons, and the file itself for whatever it does not speak of."""
    reasons: dict[str, str] = {}
    for written, reason in file.mapping(("never",)).items():
        key: Key = ("never", written)
        canonical = _canonical(file, key)
        if canonical in mapped:
            file.fail(key, f"never: {canonical} is mapped under metrics")
        if not isinstance(reason, str) or not reason.strip():
            file.fail(key, f"{dotted(key)} must be a reason")
        reasons[canonical] = reason
    left = (name for name in wanted if name not in mapped and name != "llm.engine.info")
    return {**dict.fromkeys(left, f"{file.where} maps nothing to it"), **reasons}


def _nearest(found: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(found, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known[:12])}"
