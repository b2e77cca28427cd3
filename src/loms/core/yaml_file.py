"""YAML that knows where everything stands, so that whoever finds a mistake can name file, line and key."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from loms.core.errors import ConfigError
from loms.core.nearest import did_you_mean

T = TypeVar("T")
Key = tuple[str | int, ...]
"""The way from the top of the file to a value."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it stands. One that is null has neither entries nor items."""

    file: str
    node: yaml.Node
    line: int
    """Of its key, where it has one."""
    key: Key = ()

    @property
    def shape(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return "null" if self.node.tag.endswith(":null") else "plain value"
        return "list" if isinstance(self.node, yaml.SequenceNode) else "mapping"

    @property
    def _content(self) -> Sequence[Any]:
        return () if self.shape == "null" else self.node.value

    def fail(self, reason: str, *, line: int | None = None, hint: str = "") -> NoReturn:
        """Raises `ConfigError`."""
        way = f"{dotted(self.key)}: " if self.key else ""
        raise ConfigError(f"{self.file}:{line or self.line}: {way}{reason}", hint=hint)

    def pairs(self) -> Iterator[tuple[str, Node]]:
        """The entries of a mapping."""
        if self.shape not in ("mapping", "null"):
            self.fail(f"must be a mapping, not a {self.shape}")
        for key, value in self._content:
            yield key.value, Node(self.file, value, key.start_mark.line + 1, (*self.key, key.value))

    def keys(
        self, known: Sequence[str], required: Iterable[str] = (), hints: Mapping[str, str] | None = None
    ) -> dict[str, Node]:
        """The entries of a mapping whose keys must all be ``known``; ``hints`` for keys that are expected mistakes."""
        found = dict(self.pairs())
        for name, value in found.items():
            if name not in known:
                hint = (hints or {}).get(name) or did_you_mean(name, known)
                self.fail(f"unknown key {name!r}; {hint}", line=value.line)
        for name in required:
            if name not in found:
                self.fail(f"key {name!r} is required")
        return found

    def items(self) -> Iterator[Node]:
        """The items of a list."""
        if self.shape not in ("list", "null"):
            self.fail(f"must be a list, not a {self.shape}")
        for index, item in enumerate(self._content):
            yield Node(self.file, item, item.start_mark.line + 1, (*self.key, index))

    def text(self) -> str:
        """A plain value as it is written."""
        if self.shape != "plain value":
            self.fail(f"must be a text, not a {self.shape}")
        return str(self.node.value)

    def convert(self, to: Callable[[str], T]) -> T:
        """``to`` of the text; its `ValueError` becomes this value's error."""
        try:
            return to(self.text())
        except ValueError as error:
            self.fail(str(error))

    def data(self) -> Any:
        """What PyYAML makes of it."""
        try:
            return yaml.constructor.SafeConstructor().construct_document(self.node)
        except yaml.YAMLError as error:
            raise _not_valid(self.file, error) from None
        except ValueError as error:  # a date such as 2024-13-45
            self.fail(f"cannot be read: {error}")


def parse(text: str, file: str) -> Node:
    """The top of a YAML text. Raises `ConfigError` for what is not YAML or has a key twice."""
    try:
        loader = _Loader(text)
        loader.name = file
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise _not_valid(file, error) from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be read") from None
    if node is None:
        start = yaml.Mark(file, 0, 0, 0, "", 0)
        node = yaml.ScalarNode("tag:yaml.org,2002:null", "", start, start)
    return Node(file, node, node.start_mark.line + 1)


def read_text(path: Path, *, hint: str = "") -> str:
    """Raises `ConfigError` for what cannot be read; ``hint`` helps whoever has no such file."""
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None


def read_mapping(path: Path, *, hint: str = "") -> tuple[dict[str, Any], dict[Key, int]]:
    """A file's data, and the line (1-based) of every key. Raises `ConfigError`, also for what is no mapping."""
    top = parse(read_text(path, hint=hint), str(path))
    data = top.data() or {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file must be a mapping of sections, not a {type(data).__name__}")
    try:
        return data, dict(_lines(top))
    except RecursionError:
        raise ConfigError(f"{path}: an alias refers to itself") from None


def files_of(patterns: Iterable[str], setting: str) -> Iterator[Path]:
    """The files that these globs match. Raises `ConfigError` that names the setting, where a plain path is no file."""
    for pattern in patterns:
        found = sorted(glob.glob(str(Path(pattern).expanduser())))
        if not found and not glob.has_magic(pattern):
            raise ConfigError(f"{setting}: {pattern} does not exist")
        yield from map(Path, found)


def dotted(key: Key) -> str:
    """
    >>> dotted(("scrape", "jobs", 0, "name"))
    'scrape.jobs[0].name'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


class _Loader(yaml.SafeLoader):
    """Keys are plain words, none stands twice in a mapping, and what is merged into one (``<<``) stands in it."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            where = f"{self.name}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{where}: a key must be a plain word")
            if key.value in seen:
                raise ConfigError(f"{where}: key {key.value!r} stands there twice")
            seen.add(key.value)
        self.flatten_mapping(node)
        node.value = list({key.value: (key, value) for key, value in node.value}.values())
        return node


def _not_valid(file: str, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return ConfigError(f"{file}{line}: not valid YAML: {reason}")


def _lines(top: Node) -> Iterator[tuple[Key, int]]:
    if top.shape != "plain value":
        for node in top.items() if top.shape == "list" else (value for _, value in top.pairs()):
            yield node.key, node.line
            yield from _lines(node)
