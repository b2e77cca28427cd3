"""One YAML file per process → one frozen tree of settings.

A mistake is one sentence with file, line and key, and for an unknown key the nearest known one. Any key can be
overridden from the environment by one rule: ``LOMS__STORE__PATH=/data`` sets ``store.path``; the value is read as
YAML. This is the only module that reads the environment.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    field_validator,
)

from loms.core.errors import ConfigError

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_536_000.0}
_UNIT_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_duration(value: object) -> float:
    """Seconds from ``15s``, ``1m30s``, ``500ms``, ``7d`` (Prometheus's units) or a plain number.

    >>> parse_duration("1m30s"), parse_duration("500ms"), parse_duration(2)
    (90.0, 0.5, 2.0)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    text = str(value)
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 15s, 1m30s or 500ms")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """The shortest spelling that `parse_duration` reads back.

    >>> format_duration(90), format_duration(0.5), format_duration(1_296_000)
    ('1m30s', '500ms', '15d')
    """
    ms = round(seconds * 1000)
    out = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, ms = divmod(ms, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"


def parse_bytes(value: object) -> int:
    """Bytes from ``50MiB``, ``1GB`` or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|[KMG]i?B)?", str(value))
    if not match:
        raise ValueError(f"{value!r} is not a size; write for example 50MiB")
    return int(float(match[1]) * _UNIT_BYTES[match[2] or ""])


Duration = Annotated[
    float, BeforeValidator(parse_duration), Field(ge=0), PlainSerializer(format_duration, when_used="json")
]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]


class Section(BaseModel):
    """A frozen part of the configuration; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BasicAuth(Section):
    username: str
    password: SecretStr | None = None
    password_file: Path | None = None


class Tls(Section):
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


class ScrapeJob(Section):
    """Targets scraped alike. ``host:port`` entries; ``file_sd`` are globs of Prometheus file_sd files."""

    name: str = Field(min_length=1)
    targets: tuple[str, ...] = ()
    file_sd: tuple[str, ...] = ()
    interval: Annotated[Duration, Field(ge=1)] | None = None
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    path: str = Field(default="/metrics", pattern="^/")
    scheme: Literal["http", "https"] = "http"
    labels: Mapping[str, str] = {}
    deployment_zone: str | None = None
    honor_labels: bool = False
    honor_timestamps: bool = True
    compression: bool = False
    """Ask for gzip. Compressing holds an engine's own event loop for a moment, so it is off."""
    bearer_token: SecretStr | None = None
    bearer_token_file: Path | None = None
    basic_auth: BasicAuth | None = None
    tls: Tls = Tls()
    probe: bool = True
    api_key: SecretStr | None = None
    """For the engine's own API, where the probe asks; default: probe.api_key."""


class Discover(Section):
    """Look for engines on this machine's usual ports."""

    enabled: bool = True
    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (8000, 8080, 30000, 8002, 9000, 8001, 8081, 5000, 3000, 11434)
    interval: Duration = 10.0
    forget_after: Duration = 3600.0


class Limits(Section):
    """Bounds on what one target may answer."""

    body: Bytes = 64 * 2**20
    samples: int = Field(default=200_000, gt=0)
    label_value_length: int = Field(default=16_384, gt=0)


class Scrape(Section):
    interval: Duration = Field(default=5.0, ge=1)
    timeout: Duration = Field(default=4.0, gt=0)
    jobs: tuple[ScrapeJob, ...] = ()
    discover: Discover = Discover()
    limits: Limits = Limits()
    drop: tuple[str, ...] = ()
    """Regular expressions on raw metric names that are not stored; canonical series are not affected."""
    own_metrics: bool = True
    """Scrape LOMS's own ``/metrics`` too."""

    @field_validator("drop")
    @classmethod
    def _expressions(cls, drop: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in drop:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return drop

    @field_validator("jobs")
    @classmethod
    def _names_differ(cls, jobs: tuple[ScrapeJob, ...]) -> tuple[ScrapeJob, ...]:
        names = [job.name for job in jobs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two jobs are named {twice!r}")
        return jobs


class Probe(Section):
    """The synthetic one-token request to an engine that shows no progress."""

    enabled: bool = True
    interval: Duration = Field(default=15.0, ge=1)
    deadline: Duration = Field(default=8.0, gt=0)
    model: str | None = None
    api_key: SecretStr | None = None
    """For engines of jobs that have none of their own; engines found by their port get none."""


class Store(Section):
    path: Path = Path("~/.local/share/loms")
    retention: Duration = Field(default=15 * 86_400.0, ge=60)
    flush_interval: Duration = Field(default=1.0, gt=0)
    flush_rows: int = Field(default=250_000, gt=0)
    queue_rows: int = Field(default=2_000_000, gt=0)


class Query(Section):
    timeout: Duration = Field(default=30.0, gt=0)
    max_series: int = Field(default=50_000, gt=0)
    max_samples: int = Field(default=50_000_000, gt=0)
    lookback: Duration = 300.0


class Rules(Section):
    interval: Duration = Field(default=3.0, ge=0.5)
    files: tuple[str, ...] = ()
    builtin: bool = True


class Webhook(Section):
    """A receiver of Alertmanager's webhook payload (version 4)."""

    url: str = Field(pattern=r"^https?://")
    name: str = "webhook"
    send_resolved: bool = True
    timeout: Duration = 10.0
    bearer_token: SecretStr | None = None
    basic_auth: BasicAuth | None = None


class Alerting(Section):
    group_by: tuple[str, ...] = ("instance",)
    repeat_interval: Duration = 4 * 3600.0
    reopen_within: Duration = 120.0
    webhooks: tuple[Webhook, ...] = ()


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8090, ge=0, le=65_535)
    token: Annotated[SecretStr, Field(min_length=1)] | None = None
    external_url: str | None = None


class Config(Section):
    """The whole file."""

    deployment_zone: str = "local"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    server: Server = Server()
    store: Store = Store()
    scrape: Scrape = Scrape()
    probe: Probe = Probe()
    query: Query = Query()
    rules: Rules = Rules()
    alerting: Alerting = Alerting()


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """Read ``path`` (None: defaults only), apply ``LOMS__…`` overrides, check everything.

    Raises `ConfigError` with file, line and key.
    """
    source, lines = _read(path) if path else ({}, {})
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
    return config


def show(config: Config) -> str:
    """The effective settings as YAML, secrets blanked; feeding it back gives the same settings but for those."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


Key = tuple[str | int, ...]
_ENVIRONMENT = 0
"""Stands for a line number where a key came from the environment."""


def _read(path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="loms config show prints a complete example") from None
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
        raise ConfigError(f"{path}:{-lines[twice]}: key {_dotted(twice)!r} stands there twice")
    return data, lines


def _lines(node: yaml.Node, at: Key) -> Iterator[tuple[Key, int]]:
    """Key path → line (1-based); negative where a key is repeated."""
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
    place = _place(where, lines, key)
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(key[-1]), _known(key[:-1]), n=1, cutoff=0.5)
        known = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(_known(key[:-1]))}"
        return f"{place}: unknown key {_dotted(key)!r}; {known}"
    if first["type"] == "missing":
        return f"{place}: key {_dotted(key)!r} is required"
    reason = first["msg"].removeprefix("Value error, ")
    return f"{place}: {_dotted(key)}: {reason[:1].lower()}{reason[1:]}"


def _place(where: str, lines: Mapping[Key, int], key: Key) -> str:
    """File and line of ``key`` or of the nearest section above it that stands in the file."""
    while key and key not in lines:
        key = key[:-1]
    line = lines.get(key)
    if line == _ENVIRONMENT:
        return f"environment variable {_variable(key)}"
    return where if line is None else f"{where}:{line}"


def _variable(key: Key) -> str:
    return f"LOMS__{'__'.join(map(str, key)).upper()}"


def _dotted(key: Key) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def _known(key: Key) -> list[str]:
    """Field names of the section at ``key``."""
    section: type[BaseModel] = Config
    for part in key:
        if isinstance(part, str):
            section = next(_sections(section.model_fields[part].annotation))
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)
