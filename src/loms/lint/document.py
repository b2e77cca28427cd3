"""YAML and JSON as one kind of tree that remembers where everything stands.

Every mistake is one `ConfigError` that names the file, the line and the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from loms.core.errors import ConfigError
from loms.lint.place import Excerpt, Source, Style, file_offset

_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader is some twenty times as fast, where libyaml is there; both count characters alike."""
_BOM = "\ufeff"
_STYLES: dict[str | None, Style] = {"'": "single", '"': "double", "|": "block", ">": "block"}


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A mapping, a list, a text, or None for anything else. ``name`` and ``parent`` are the way to it."""

    value: dict[str, Node] | list[Node] | str | None
    source: Source
    outer: Excerpt | None
    start: int
    end: int
    style: Style
    name: str = ""
    parent: Node | None = None

    @property
    def path(self) -> str:
        return f"{self.parent.path if self.parent else ''}{self.name}"

    @property
    def line(self) -> int:
        return self.source.line(file_offset(self.source, self.outer, self.start))

    def fail(self, reason: str, *, hint: str = "") -> NoReturn:
        path = self.path.lstrip(".")
        raise ConfigError(f"{self.source.file}:{self.line}: {path + ': ' if path else ''}{reason}", hint=hint)

    def get(self, *keys: str) -> Node | None:
        """What stands at the end of these keys; None where there is no such way."""
        node: Node | None = self
        for key in keys:
            node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
        return node

    def word(self, *keys: str) -> str:
        """The text there, or ``""``."""
        node = self.get(*keys)
        return node.value if node is not None and isinstance(node.value, str) else ""

    def each(self, *keys: str) -> Sequence[Node]:
        """The entries of the list there; none where nothing stands there."""
        node = self.get(*keys)
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, list):
            node.fail(f"must be a list, not a {node.shape}")
        return node.value

    def entries(self, *keys: str) -> Iterator[tuple[str, Node]]:
        """The entries of the mapping there; none where there is no mapping."""
        node = self.get(*keys)
        if node is not None and isinstance(node.value, dict):
            yield from node.value.items()

    def text(self, key: str) -> Node:
        """The entry ``key``, which must be there and be a text."""
        node = self.get(key)
        if node is None:
            self.fail(f"key {key!r} is required")
        if not isinstance(node.value, str):
            node.fail(f"must be a text, not a {node.shape}")
        return node

    @property
    def shape(self) -> str:
        if isinstance(self.value, dict):
            return "mapping"
        return "list" if isinstance(self.value, list) else "text" if isinstance(self.value, str) else "plain value"

    @property
    def excerpt(self) -> Excerpt:
        assert isinstance(self.value, str)
        return Excerpt(self.value, self.source, self.start, self.end, self.style, self.outer)


def yaml_documents(source: Source, outer: Excerpt | None = None) -> tuple[Node, ...]:
    """The documents of a YAML file, or of a YAML text inside a file. Raises `ConfigError`."""
    text = source.text if outer is None else outer.text
    try:
        roots = [root for root in yaml.compose_all(text.removeprefix(_BOM), Loader=_LOADER) if root is not None]
        return tuple(_yaml_node(root, source, outer, "", None, {}) for root in roots)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = source.line(file_offset(source, outer, mark.index if mark else 0))
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{source.file}:{line}: not valid YAML: {reason}") from None
    except RecursionError:
        raise ConfigError(f"{source.file}: nested too deeply to be read") from None


def json_document(source: Source, outer: Excerpt | None = None) -> Node:
    """A JSON file, or a JSON text inside a file. Raises `ConfigError`."""
    text = source.text if outer is None else outer.text
    try:
        value = json.loads(text.removeprefix(_BOM), object_pairs_hook=_Pairs)
        return _json_node(value, _Strings(source, outer, _JSON_STRING.finditer(text)), "", None)
    except json.JSONDecodeError as error:
        line = source.line(file_offset(source, outer, error.pos))
        raise ConfigError(f"{source.file}:{line}: not valid JSON: {error.msg.lower()}") from None
    except RecursionError:
        raise ConfigError(f"{source.file}: nested too deeply to be read") from None


def _yaml_node(
    node: yaml.Node, source: Source, outer: Excerpt | None, name: str, parent: Node | None, seen: dict[int, Node | None]
) -> Node:
    """``seen`` keeps what an anchor stands for, so that many aliases cost one copy; None while it is being read."""
    if id(node) in seen:
        known = seen[id(node)]
        if known is None:
            mark = node.start_mark.line + 1
            raise ConfigError(f"{source.file}:{mark}: an anchor stands for something that contains itself")
        return known
    seen[id(node)] = None
    style: Style = "plain"
    value: dict[str, Node] | list[Node] | str | None = None
    if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
        value, style = node.value, _STYLES.get(node.style, "plain")
    elif isinstance(node, yaml.MappingNode):
        value = {}
    elif isinstance(node, yaml.SequenceNode):
        value = []
    shift = len(_BOM) if (source.text if outer is None else outer.text).startswith(_BOM) else 0
    start, end = node.start_mark.index + shift, node.end_mark.index + shift
    made = Node(value, source, outer, start, end, style, name, parent)
    if isinstance(value, dict):
        for key, child in node.value:
            inner = _yaml_node(child, source, outer, f".{key.value}", made, seen)
            if key.tag.endswith(":merge"):
                merged = inner.value if isinstance(inner.value, list) else [inner]
                value.update({k: v for one in reversed(merged) for k, v in one.entries() if k not in value})
            else:
                value[str(key.value)] = inner
    elif isinstance(value, list):
        value += [_yaml_node(child, source, outer, f"[{i}]", made, seen) for i, child in enumerate(node.value)]
    seen[id(node)] = made
    return made


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in the order of the text, a key that stands there twice included."""


@dataclass(slots=True)
class _Strings:
    """The strings of a JSON text in their order, which is also the order of a walk through what it decodes to."""

    source: Source
    outer: Excerpt | None
    rest: Iterator[re.Match[str]]
    start: int = 0
    end: int = 0

    def step(self) -> None:
        self.start, self.end = next(self.rest).span()


def _json_node(value: Any, strings: _Strings, name: str, parent: Node | None) -> Node:
    if isinstance(value, str):
        strings.step()
    content: dict[str, Node] | list[Node] | str | None = None
    if isinstance(value, _Pairs):
        content = {}
    elif isinstance(value, list):
        content = []
    elif isinstance(value, str):
        content = value
    made = Node(content, strings.source, strings.outer, strings.start, strings.end, "json", name, parent)
    if isinstance(content, dict):
        for key, child in value:
            strings.step()
            content[key] = _json_node(child, strings, f".{key}", made)
    elif isinstance(content, list):
        content += [_json_node(child, strings, f"[{i}]", made) for i, child in enumerate(value)]
    return made
