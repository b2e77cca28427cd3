"""What is scraped, and how: one frozen value per endpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from loms.core.model import Labels, labels_of

DiscoveredBy = Literal["static", "file_sd", "ports"]


@dataclass(frozen=True, slots=True)
class Tls:
    """How an ``https`` endpoint is verified, and how we prove who we are. Paths are PEM files."""

    ca_file: str = ""
    """Empty: the system's authorities."""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name the certificate must carry, when it is not the URL's host."""
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class Auth:
    """Credentials sent with each request. A file is read again when it changes, so that tokens can rotate."""

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    bearer_token: str = field(default="", repr=False)
    bearer_token_file: str = ""


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """The synthetic one-token request to an engine that shows no progress (`loms.collect.probe`)."""

    enabled: bool = True
    interval_seconds: float = 15.0
    deadline_seconds: float = 10.0
    model: str = ""
    """Empty: the model that the engine names itself."""
    api_key: str = field(default="", repr=False)
    url: str = ""
    """Base URL of the engine's API. Empty: scheme, host and port of the target's URL."""


@dataclass(frozen=True)
class Target:
    """One endpoint to scrape. Two targets are the same when everything but ``discovered_by`` is equal."""

    job: str
    instance: str
    """host:port, as Prometheus has it."""
    url: str
    """Whole URL of the exposition, query string included."""
    interval_seconds: float = 5.0
    timeout_seconds: float = 5.0
    """Never more than the interval counts."""
    labels: Labels = ()
    """Configured labels beside job and instance, ``deployment_zone`` for instance."""
    auth: Auth = Auth()
    tls: Tls = Tls()
    honor_labels: bool = False
    honor_timestamps: bool = True
    follow_redirects: bool = True
    """At most ten, and never on to another scheme than http or https."""
    sample_limit: int = 0
    """An exposition with more samples is a failed scrape; 0 for no limit of its own."""
    body_limit_bytes: int = 64 << 20
    """Of the answer, before and after decompression."""
    probe: ProbeSettings = ProbeSettings()
    discovered_by: DiscoveredBy = field(default="static", compare=False)

    @cached_property
    def identity(self) -> Labels:
        """The labels that every series of this target carries: job, instance and the configured ones."""
        return labels_of({**dict(self.labels), "job": self.job, "instance": self.instance})

    @cached_property
    def offset_seconds(self) -> float:
        """Where in its interval this target is scraped: stable over restarts, spread over targets."""
        digest = hashlib.blake2b(f"{self.url}\xff{self.identity}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 * self.interval_seconds
