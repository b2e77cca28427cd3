"""One YAML file per process → one frozen tree of settings.

A mistake is one sentence with file, line and key, and for an unknown key the nearest known one. Any key can be
overridden from the environment by one rule: ``LOMS__STORE__PATH=/data`` sets ``store.path``; the value is read as
YAML. This is the only module that reads the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from loms.core.errors import ConfigError
from loms.core.log import redact
from loms.core.nearest import did_you_mean
from loms.core.settings import Config
from loms.core.yaml_file import Key, dotted, read_mapping


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """Read ``path`` (None: defaults only), apply ``LOMS__…`` overrides, check everything.

    Raises `ConfigError` with file, line and key.
    """
    source, lines = read_mapping(path, hint="loms config show prints a complete example") if path else ({}, {})
    for key, value in _overrides(os.environ if environ is None else environ):
        _set(source, key, value)
        lines[key] = _ENVIRONMENT
    where = str(path) if path else "configuration"
    try:
        config = Config.model_validate(source)
    except ValidationError as error:
        raise ConfigError(_explain(error, where, lines)) from None
    if not config.server.token and config.server.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(
            f"{_place(where, lines, ('server', 'host'))}: server.host {config.server.host!r} is reachable from other "
            "machines, so server.token must be set",
            hint="set server.token, or listen on 127.0.0.1",
        )
    _require_labels(config, where, lines)
    return config


def _require_labels(config: Config, where: str, lines: Mapping[Key, int]) -> None:
    """Targets that stand in the file get their labels there, too; those of ``file_sd`` may bring their own."""
    for index, job in enumerate(config.scrape.jobs):
        has = {"job", "instance", "deployment_zone", *(name for name, value in job.labels.items() if value)}
        if job.targets and (lacking := next((name for name in config.labels.required if name not in has), None)):
            raise ConfigError(
                f"{_place(where, lines, ('scrape', 'jobs', index))}: job {job.name!r} has no label {lacking!r}, which "
                "labels.required asks for",
                hint=f"add it to the job: labels: {{{lacking}: …}}",
            )


def show(config: Config) -> str:
    """The effective settings as YAML, secrets blanked; feeding it back gives the same settings but for those.

    Whoever knows the path of a webhook may post there, so of its URL only the host is told.
    """
    tree = config.model_dump(mode="json")
    for webhook in tree["alerting"]["webhooks"]:
        webhook["url"] = _WEBHOOK_PATH.sub(r"\1/***", webhook["url"])
    return yaml.safe_dump(_without_credentials(tree), sort_keys=False, allow_unicode=True)


_WEBHOOK_PATH = re.compile(r"(//[^/?#]*)[/?#].+", re.DOTALL)


def _without_credentials(tree: Any) -> Any:
    """The same with user names' passwords and tokens of URLs blanked, wherever a URL stands."""
    if isinstance(tree, dict):
        return {key: _without_credentials(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without_credentials(value) for value in tree]
    return redact(tree) if isinstance(tree, str) and "://" in tree else tree


_ENVIRONMENT = 0
"""Stands for a line number where a key came from the environment."""


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[Key, Any]]:
    for name in sorted(environ):
        if name.startswith("LOMS__"):
            try:
                value = yaml.safe_load(environ[name])
            except yaml.YAMLError:
                raise ConfigError(f"environment variable {name}: not valid YAML") from None
            yield tuple(part.lower() for part in name.removeprefix("LOMS__").split("__")), value


def _set(tree: dict[str, Any], key: Key, value: Any) -> None:
    for part in key[:-1]:
        tree = tree.setdefault(str(part), {})
        if not isinstance(tree, dict):
            raise ConfigError(f"environment variable {_variable(key)}: {part} is not a section")
    tree[str(key[-1])] = value


def _explain(error: ValidationError, where: str, lines: Mapping[Key, int]) -> str:
    first = error.errors()[0]
    key: Key = first["loc"]
    at = _place(where, lines, key)
    if first["type"] == "extra_forbidden":
        return f"{at}: unknown key {dotted(key)!r}; {did_you_mean(key[-1], _known(key[:-1]))}"
    if first["type"] == "missing":
        return f"{at}: key {dotted(key)!r} is required"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{at}: {dotted(key)}: {reason[:1].lower()}{reason[1:]}"


def _place(where: str, lines: Mapping[Key, int], key: Key) -> str:
    """File and line of ``key`` or of the nearest section above it that stands in the file."""
    known = next((key[:n] for n in range(len(key), 0, -1) if key[:n] in lines), ())
    if lines.get(known) == _ENVIRONMENT:
        return f"environment variable {_variable(known)}"
    return f"{where}:{lines[known]}" if known in lines else where


def _variable(key: Key) -> str:
    return f"LOMS__{'__'.join(map(str, key)).upper()}"


def _known(key: Key) -> list[str]:
    """Field names of the section at ``key``."""
    section: type[BaseModel] = Config
    for part in key:
        if isinstance(part, str) and part in section.model_fields:  # the keys of a mapping are the user's
            section = next(_sections(section.model_fields[part].annotation), section)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
