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
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from loms.core.errors import ConfigError
from loms.core.nearest import did_you_mean
from loms.core.units import Bytes, Duration, format_duration, parse_bytes, parse_duration
from loms.core.yaml_file import Key, dotted, read_mapping

__all__ = ["Bytes", "Config", "Duration", "Section", "format_duration", "load", "parse_bytes", "parse_duration", "show"]


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
    max_series: int | None = Field(default=None, ge=0)
    """Of each of these targets; default: labels.max_series."""


class Discover(Section):
    """Look for engines on this machine's usual ports."""

    enabled: bool = True
    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (8000, 8080, 30000, 8002, 9000, 8001, 8081, 5000, 3000, 9400, 11434)
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


class Fold(Section):
    """At most ``top`` values of a label keep series of their own; the others are added up under ``other``."""

    top: int = Field(default=20, gt=0)
    other: str = Field(default="other", min_length=1)


class Labels(Section):
    """Which labels may stand on stored series, and how many series a target may have."""

    required: tuple[str, ...] = ()
    """Every target must have these; without them it is not scraped."""
    refuse: tuple[str, ...] = (
        "user_id",
        "session_id",
        "conversation_id",
        "request_id",
        "order_id",
        "trace_id",
        "span_id",
    )
    """Taken off every series; what becomes equal is added up."""
    fold: Mapping[str, Fold] = {}
    gauges: Literal["sum", "max"] = "sum"
    """What becomes of gauges that are put together."""
    max_series: int = Field(default=50_000, ge=0)
    """Of one target, canonical series not counted; 0 for no limit."""

    @model_validator(mode="after")
    def _governable(self) -> Self:
        kept = ("le", "quantile", "job", "instance", "__name__")
        for label in (*self.refuse, *self.fold):
            if label in kept:
                raise ValueError(f"{label!r} cannot be refused or folded: the series would lose their meaning")
        if both := next((label for label in self.refuse if label in self.fold), None):
            raise ValueError(f"{both!r} is both refused and folded")
        return self


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


class UsedBy(Section):
    """Files (paths, folders, globs) that name metrics: what a lost one is held against."""

    rules: tuple[str, ...] = ()
    grafana: tuple[str, ...] = ()
    keda: tuple[str, ...] = ()
    hpa: tuple[str, ...] = ()


class Contracts(Section):
    """What becomes of a metric that an engine exposed before an upgrade, and not after it."""

    grace: Duration = 600.0
    """So long a metric may stay away that might only wait for a request, before it counts as lost."""
    remember: Duration = 86_400.0
    """So long after the upgrade it is missed; then the new set of metrics is what is normal."""
    used_by: UsedBy = UsedBy()


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
    labels: Labels = Labels()
    engines: tuple[str, ...] = ()
    """Globs of files that declare engines of one's own."""
    probe: Probe = Probe()
    contracts: Contracts = Contracts()
    query: Query = Query()
    rules: Rules = Rules()
    alerting: Alerting = Alerting()


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
    """The effective settings as YAML, secrets blanked; feeding it back gives the same settings but for those."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


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
