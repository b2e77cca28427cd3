"""Rule files: Prometheus's groups of alerting rules, plus ``detector``, ``config`` and ``kinds``.

Every mistake is one `ConfigError` that names the file, the line and the key.
"""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NoReturn, TypeVar

import yaml
from pydantic import ValidationError

from loms.core.config import Section, parse_duration
from loms.core.errors import ConfigError, QueryError
from loms.detect.detector import detectors
from loms.promql.parse import parse
from loms.rules.rule import Group, Rule, Templates
from loms.rules.template import compile_template

T = TypeVar("T")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_GROUP_KEYS = ("name", "interval", "rules")
_RULE_KEYS = (
    "alert",
    "expr",
    "detector",
    "config",
    "kinds",
    "for",
    "keep_firing_for",
    "labels",
    "annotations",
)


def load_groups(files: Sequence[str], *, builtin: bool = True, interval_seconds: float = 3.0) -> tuple[Group, ...]:
    """The groups of the built-in pack and of all files that the globs in ``files`` match.

    ``interval_seconds`` holds for groups that name none. Raises `ConfigError`.
    """
    groups: list[Group] = []
    if builtin:
        text = resources.files("loms.rules").joinpath("default.yaml").read_text(encoding="utf-8")
        groups += read_groups(text, "builtin:default.yaml", interval_seconds=interval_seconds)
    for pattern in files:
        found = sorted(glob.glob(str(Path(pattern).expanduser())))
        if not found and not glob.has_magic(pattern):
            raise ConfigError(f"rules.files: {pattern} does not exist")
        for path in found:
            try:
                text = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: cannot be read: {error}") from None
            groups += read_groups(text, path, interval_seconds=interval_seconds)
    return tuple(groups)


def read_groups(text: str, file: str, *, interval_seconds: float = 3.0) -> tuple[Group, ...]:
    """The groups in one rule file. Raises `ConfigError`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else file
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if root is None:
        return ()
    top = _Part(file, root, "").keys(("groups",), required=("groups",))
    groups = tuple(_group(part, interval_seconds) for part in top["groups"].items())
    for i, group in enumerate(groups):
        if any(group.name == other.name for other in groups[:i]):
            raise ConfigError(f"{file}: two groups are named {group.name!r}", hint="group names are unique in a file")
    return groups


@dataclass(frozen=True, slots=True)
class _Part:
    """A YAML node with the way to it, for messages."""

    file: str
    node: yaml.Node
    path: str

    def fail(self, reason: str, *, line: int | None = None, hint: str = "") -> NoReturn:
        where = f"{self.file}:{line or self.node.start_mark.line + 1}"
        raise ConfigError(f"{where}: {self.path + ': ' if self.path else ''}{reason}", hint=hint)

    def pairs(self) -> Iterator[tuple[str, int, _Part]]:
        """Key, its line, and the value of each entry of a mapping."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"must be a mapping, not a {_shape(self.node)}")
        seen = set()
        for key, value in self.node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.fail("a key must be a plain word", line=line)
            if key.value in seen:
                self.fail(f"key {key.value!r} stands there twice", line=line)
            seen.add(key.value)
            yield key.value, line, _Part(self.file, value, f"{self.path}.{key.value}".lstrip("."))

    def keys(self, known: Sequence[str], required: Sequence[str] = ()) -> dict[str, _Part]:
        """The entries of a mapping whose keys must all be ``known``."""
        found = {}
        for key, line, part in self.pairs():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                if key == "record":
                    hint = "only alerting rules are evaluated; leave recording rules to Prometheus"
                self.fail(f"unknown key {key!r}; {hint}", line=line)
            found[key] = part
        for key in required:
            if key not in found:
                self.fail(f"key {key!r} is required")
        return found

    def items(self) -> Iterator[_Part]:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"must be a list, not a {_shape(self.node)}")
        for i, item in enumerate(self.node.value):
            yield _Part(self.file, item, f"{self.path}[{i}]")

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag.endswith(":null"):
            self.fail(f"must be a text, not a {_shape(self.node)}")
        return str(self.node.value)

    def convert(self, to: Callable[[str], T]) -> T:
        """``to`` of the text; its `ValueError` becomes this part's error."""
        try:
            return to(self.text())
        except ValueError as error:
            self.fail(str(error))


def _shape(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "null" if node.tag.endswith(":null") else "plain value"
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"


def _group(part: _Part, interval_seconds: float) -> Group:
    keys = part.keys(_GROUP_KEYS, required=("name", "rules"))
    seconds = keys["interval"].convert(parse_duration) if "interval" in keys else interval_seconds
    if seconds <= 0:
        keys["interval"].fail("must be longer than 0")
    rules = tuple(_rule(item) for item in keys["rules"].items())
    return Group(keys["name"].text(), part.file, round(seconds * 1000), rules)


def _rule(part: _Part) -> Rule:
    keys = part.keys(_RULE_KEYS, required=("alert",))
    name = keys["alert"].text()
    if not name:
        keys["alert"].fail("must not be empty")
    if ("expr" in keys) == ("detector" in keys):
        part.fail(f"alert {name!r} needs either 'expr' or 'detector'" + (", not both" if "expr" in keys else ""))
    for key in ("config", "kinds"):
        if key in keys and "detector" not in keys:
            keys[key].fail("belongs to a rule with 'detector'")
    detector = keys["detector"].text() if "detector" in keys else ""
    return Rule(
        name=name,
        expr=_checked(keys["expr"]) if "expr" in keys else "",
        detector=detector,
        config=_config(keys["detector"], keys.get("config")) if detector else None,
        kinds=_kinds(detector, keys["kinds"]) if "kinds" in keys else frozenset(),
        for_ms=_milliseconds(keys.get("for")),
        keep_firing_for_ms=_milliseconds(keys.get("keep_firing_for")),
        labels=_templates(keys.get("labels"), reserved=("alertname", "__name__")),
        annotations=_templates(keys.get("annotations")),
        line=part.node.start_mark.line + 1,
    )


def _checked(part: _Part) -> str:
    try:
        parse(part.text())
    except QueryError as error:
        part.fail(error.message, hint=error.hint)
    return part.text()


def _config(named: _Part, part: _Part | None) -> Section:
    """The detector's settings, checked by its own model."""
    try:
        model = detectors.load()[named.text()]().Config
    except ConfigError as error:
        named.fail(error.message, hint=error.hint)
    if part is None:
        return model()
    lines = {key: line for key, line, _ in part.pairs()}
    try:
        return model.model_validate(yaml.constructor.SafeConstructor().construct_document(part.node))
    except yaml.YAMLError as error:
        part.fail(f"cannot be read: {error}")
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            known = tuple(model.model_fields)
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            part.fail(f"unknown key {key!r}; {hint}", line=lines.get(key))
        dotted = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        part.fail(f"{dotted}: {reason[:1].lower()}{reason[1:]}", line=lines.get(key))


def _kinds(detector: str, part: _Part) -> frozenset[str]:
    known = detectors[detector].kinds
    for item in part.items():
        if item.text() not in known:
            near = difflib.get_close_matches(item.text(), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            item.fail(f"detector {detector!r} reports no {item.text()!r}; {hint}")
    return frozenset(item.text() for item in part.items())


def _milliseconds(part: _Part | None) -> int:
    return round(part.convert(parse_duration) * 1000) if part else 0


def _templates(part: _Part | None, reserved: Sequence[str] = ()) -> Templates:
    if part is None:
        return ()
    found = []
    for key, line, value in part.pairs():
        if not _LABEL_NAME.fullmatch(key) or key in reserved:
            part.fail(f"{key!r} cannot be a name here", line=line)
        found.append((key, value.convert(compile_template)))
    return tuple(found)
