"""The tree of settings: one frozen section per part of LOMS. `loms.core.config` reads it from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from loms.core.units import Bytes, Duration


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


class ClickHouse(Section):
    """A ClickHouse cluster (or one server) in the place of the embedded store; what concerns no cluster is not here."""

    cluster: str = ""
    """Name of the cluster in its configuration; empty: one server, plain tables."""
    tls: Tls = Tls()
    storage_policy: str = Field(default="", pattern=r"^\w*$")
    """Of the samples, where they have a cold volume."""
    cold_volume: str = Field(default="", pattern=r"^\w*$")
    """Volume of the storage policy that samples move to after ``cold_after``; empty: they stay where they are."""
    cold_after: Duration = Field(default=3 * 86_400.0, ge=3600)

    @model_validator(mode="after")
    def _has_policy(self) -> Self:
        if bool(self.cold_volume) != bool(self.storage_policy):
            raise ValueError("storage_policy and cold_volume go together: the volume is one of the policy's")
        return self


class Rollups(Section):
    """Coarser copies of the samples, which outlive them and which long, coarse queries read."""

    enabled: bool = True
    minute: Duration = Field(default=90 * 86_400.0, ge=86_400)
    """How long 1-minute rollups are kept."""
    hour: Duration = Field(default=730 * 86_400.0, ge=86_400)
    """How long 1-hour rollups are kept."""


class Store(Section):
    path: Path = Path("~/.local/share/loms")
    url: SecretStr | None = None
    """``clickhouse://user:password@host:8123/database`` (``clickhouses`` for TLS); default: embedded, in ``path``."""
    clickhouse: ClickHouse = ClickHouse()
    rollups: Rollups = Rollups()
    retention: Duration = Field(default=15 * 86_400.0, ge=60)
    flush_interval: Duration = Field(default=1.0, gt=0)
    flush_rows: int = Field(default=250_000, gt=0)
    queue_rows: int = Field(default=2_000_000, gt=0)


class Receive(Section):
    """What others may send here: remote write and OTLP, both on the server's own port too."""

    body: Bytes = 32 * 2**20
    """Largest request, compressed."""
    decompressed: Bytes = 128 * 2**20
    """Largest request once decompressed."""
    labels: int = Field(default=128, gt=0)
    """Most labels of a series, or attributes of a point, span or record."""
    label_value_length: int = Field(default=16_384, gt=0)
    labels_length: Bytes = Field(default=64 * 2**10, ge=2**10)
    """Names and values of one series' labels together."""
    otlp_http_port: int | None = Field(default=4318, ge=0, le=65_535)
    """OTLP's usual ports. None: not at all; in use by somebody else: said, and left out."""
    otlp_grpc_port: int | None = Field(default=4317, ge=0, le=65_535)
    traces_retention: Duration = Field(default=7 * 86_400.0, ge=3600)
    logs_retention: Duration = Field(default=7 * 86_400.0, ge=3600)
    otlp_message: Bytes = Field(default=32 * 2**20, ge=2**16)
    """Largest OTLP request once decompressed: as a message it may take thirty times that in memory."""
    telemetry_queue: Bytes = Field(default=64 * 2**20, ge=2**20)
    """Spans and log records that wait to be written; beyond it senders are told to come again."""
    keep_prompts: bool = False
    """Keep what users wrote and models answered; else their length and hash stand in its place."""


class Forward(Section):
    """One place that what comes in is sent on to, through a queue on disk."""

    url: str = Field(pattern=r"^(https?|grpcs?)://")
    name: str = ""
    """For logs and self-metrics; default: the URL's host."""
    headers: Mapping[str, SecretStr] = {}
    bearer_token: SecretStr | None = None
    basic_auth: BasicAuth | None = None
    tls: Tls = Tls()
    timeout: Duration = Field(default=30.0, gt=0)
    queue: Bytes = Field(default=2**30, ge=2**20)
    """Largest size of the queue on disk; beyond it the oldest is dropped and counted."""


class RemoteWrite(Forward):
    """Samples, by Prometheus remote write."""

    version: Literal["1.0", "2.0"] = "1.0"
    keep: tuple[str, ...] = ()
    """Regular expressions on metric names; empty: all."""


class OtlpForward(Forward):
    """What comes in by OTLP, as it came."""

    signals: tuple[Literal["metrics", "traces", "logs"], ...] = ("metrics", "traces", "logs")


class Source(Section):
    """Where rules and detectors look: the own store, or somebody else's Prometheus."""

    type: Literal["store", "prometheus"] = "store"
    url: str = Field(default="", pattern=r"^(https?://.*)?$")
    bearer_token: SecretStr | None = None
    basic_auth: BasicAuth | None = None
    headers: Mapping[str, SecretStr] = {}
    tls: Tls = Tls()

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if self.type == "prometheus" and not self.url:
            raise ValueError("a source of type prometheus needs a url")
        return self


class Query(Section):
    timeout: Duration = Field(default=30.0, gt=0)
    max_series: int = Field(default=50_000, gt=0)
    max_samples: int = Field(default=20_000_000, gt=0)
    lookback: Duration = 300.0
    recent: Bytes = 256 * 2**20
    """For the samples of the last minutes in memory, which rules and "now" panels read; 0: none. Not in a cluster."""


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


class ServerTls(Section):
    """The certificate that the server shows, in PEM files."""

    cert_file: Path
    key_file: Path


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8090, ge=0, le=65_535)
    token: Annotated[SecretStr, Field(min_length=1)] | None = None
    tls: ServerTls | None = None
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
    receive: Receive = Receive()
    remote_write: tuple[RemoteWrite, ...] = ()
    otlp_forward: tuple[OtlpForward, ...] = ()
    source: Source = Source()
    rules: Rules = Rules()
    alerting: Alerting = Alerting()
