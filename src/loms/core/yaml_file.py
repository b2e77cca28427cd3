"""A YAML file as data and as lines, so that whoever finds a mistake in a value can say where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from loms.core.errors import ConfigError

Key = tuple[str | int, ...]
"""The way from the top of the file to a value."""


def read_mapping(path: Path, *, hint: str = "") -> tuple[dict[str, Any], dict[Key, int]]:
    """The file's data, and the line (1-based) of every key.

    Raises `ConfigError` for what cannot be read, is not YAML, is no mapping, or has a key twice; ``hint`` helps whoever
    has no such file.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text) or {}
        lines: dict[Key, int] = dict(_lines(node, ())) if node else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: an alias refers to itself, or the nesting is too deep") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file must be a mapping of sections, not a {type(data).__name__}")
    twice = next((k for k, line in lines.items() if line < 0), None)
    if twice is not None:
        raise ConfigError(f"{path}:{-lines[twice]}: key {dotted(twice)!r} stands there twice")
    return data, lines


def place(where: str, lines: Mapping[Key, int], key: Key) -> str:
    """File and line of ``key``, or of the nearest key above it that stands in the file."""
    while key and key not in lines:
        key = key[:-1]
    return f"{where}:{lines[key]}" if key in lines else where


def dotted(key: Key) -> str:
    """
    >>> dotted(("scrape", "jobs", 0, "name"))
    'scrape.jobs[0].name'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _lines(node: yaml.Node, at: Key) -> Iterator[tuple[Key, int]]:
    """Key → line; negative where a key is repeated."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            yield (*at, key.value), -line if key.value in seen else line
            seen.add(key.value)
            yield from _lines(value, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _lines(item, (*at, index))
