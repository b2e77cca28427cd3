"""Rule files: Prometheus's groups of alerting rules, plus ``detector``, ``config`` and ``kinds``.

Every mistake is one `ConfigError` that names the file, the line and the key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from pydantic import ValidationError

from loms.core.errors import ConfigError, QueryError
from loms.core.nearest import did_you_mean
from loms.core.settings import Section
from loms.core.units import parse_duration
from loms.core.yaml_file import Node, dotted, files_of, read_text
from loms.core.yaml_file import parse as parse_yaml
from loms.detect.detector import detectors
from loms.promql.parse import parse
from loms.rules.rule import Group, Rule, Templates
from loms.rules.template import compile_template

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
_MISTAKES = {"record": "only alerting rules are evaluated; leave recording rules to Prometheus"}


def load_groups(files: Sequence[str], *, builtin: bool = True, interval_seconds: float = 3.0) -> tuple[Group, ...]:
    """The groups of the built-in pack and of all files that the globs in ``files`` match.

    ``interval_seconds`` holds for groups that name none. Raises `ConfigError`.
    """
    groups: list[Group] = []
    if builtin:
        text = resources.files("loms.rules").joinpath("default.yaml").read_text(encoding="utf-8")
        groups += read_groups(text, "builtin:default.yaml", interval_seconds=interval_seconds)
    for path in files_of(files, "rules.files"):
        groups += read_groups(read_text(path), str(path), interval_seconds=interval_seconds)
    return tuple(groups)


def read_groups(text: str, file: str, *, interval_seconds: float = 3.0) -> tuple[Group, ...]:
    """The groups in one rule file. Raises `ConfigError`."""
    top = parse_yaml(text, file)
    if top.shape == "null":
        return ()
    listed = top.keys(("groups",), required=("groups",))["groups"].items()
    groups = tuple(_group(part, interval_seconds) for part in listed)
    for i, group in enumerate(groups):
        if any(group.name == other.name for other in groups[:i]):
            raise ConfigError(f"{file}: two groups are named {group.name!r}", hint="group names are unique in a file")
    return groups


def _group(part: Node, interval_seconds: float) -> Group:
    keys = part.keys(_GROUP_KEYS, required=("name", "rules"))
    seconds = keys["interval"].convert(parse_duration) if "interval" in keys else interval_seconds
    if seconds <= 0:
        keys["interval"].fail("must be longer than 0")
    rules = tuple(_rule(item) for item in keys["rules"].items())
    return Group(keys["name"].text(), part.file, round(seconds * 1000), rules)


def _rule(part: Node) -> Rule:
    keys = part.keys(_RULE_KEYS, ("alert",), _MISTAKES)
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
        line=part.line,
    )


def _checked(part: Node) -> str:
    try:
        parse(part.text())
    except QueryError as error:
        part.fail(error.message, hint=error.hint)
    return part.text()


def _config(named: Node, part: Node | None) -> Section:
    """The detector's settings, checked by its own model."""
    try:
        model = detectors.load()[named.text()]().Config
    except ConfigError as error:
        named.fail(error.message, hint=error.hint)
    if part is None:
        return model()
    settings = part.keys(tuple(model.model_fields))
    try:
        return model.model_validate(part.data() or {})
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Value error, ")
        at = settings.get(str(first["loc"][0]), part) if first["loc"] else part
        part.fail(f"{dotted(first['loc'])}: {reason[:1].lower()}{reason[1:]}", line=at.line)


def _kinds(detector: str, part: Node) -> frozenset[str]:
    known = detectors[detector].kinds
    for item in part.items():
        if item.text() not in known:
            item.fail(f"detector {detector!r} reports no {item.text()!r}; {did_you_mean(item.text(), known)}")
    return frozenset(item.text() for item in part.items())


def _milliseconds(part: Node | None) -> int:
    return round(part.convert(parse_duration) * 1000) if part else 0


def _templates(part: Node | None, reserved: Sequence[str] = ()) -> Templates:
    if part is None:
        return ()
    found = []
    for key, value in part.pairs():
        if not _LABEL_NAME.fullmatch(key) or key in reserved:
            part.fail(f"{key!r} cannot be a name here", line=value.line)
        found.append((key, value.convert(compile_template)))
    return tuple(found)
