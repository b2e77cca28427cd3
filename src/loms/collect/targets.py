"""What is scraped, and how: one frozen value per endpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal
from urllib.parse import unquote, urlsplit

from loms.core.errors import TargetError
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
    deadline_seconds: float = 8.0
    model: str = ""
    """Empty: the model that the engine names itself."""
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a URL leads: what to connect to, what to ask for, and what to call it in messages."""

    secure: bool
    host: str
    port: int
    authority: str
    """Host header: host, and port where it stands in the URL."""
    path: str
    """Path and query."""
    username: str
    password: str = field(repr=False)
    shown: str
    """The URL without credentials."""

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises `TargetError` for what is not an http(s) URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not host or parts.scheme not in ("http", "https") or any(c <= " " or c == "\x7f" for c in url):
            raise TargetError(f"{url!r} is not an http or https URL", reason="http")
        authority = parts.netloc.rpartition("@")[2]
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(
            secure=parts.scheme == "https",
            host=host,
            port=port or (443 if parts.scheme == "https" else 80),
            authority=authority,
            path=path,
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            shown=f"{parts.scheme}://{authority}{path}",
        )


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
    max_series: int = 0
    """How many series of it are stored; 0 for all."""
    body_limit_bytes: int = 64 << 20
    """Of the answer, before and after decompression."""
    compression: bool = False
    """Ask for gzip. Off, because compressing 60 kB holds an engine's own event loop for a millisecond or more."""
    probe: ProbeSettings = ProbeSettings()
    discovered_by: DiscoveredBy = field(default="static", compare=False)

    @cached_property
    def address(self) -> Address:
        """Of ``url``; raises `TargetError`."""
        return Address.of(self.url)

    @cached_property
    def identity(self) -> Labels:
        """The labels that every series of this target carries: job, instance and the configured ones."""
        return labels_of({**dict(self.labels), "job": self.job, "instance": self.instance})

    @cached_property
    def offset_seconds(self) -> float:
        """Where in its interval this target is scraped: stable over restarts, spread over targets.

        On a grid of 20 places: with many targets one waking of the process then serves several of them. Waking costs
        more than the scrape itself (measured with 500 targets: 0.3 ms of CPU per scrape on this grid, 0.9 ms on one of
        100 places).
        """
        digest = hashlib.blake2b(f"{self.url}\xff{self.identity}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % 20 / 20 * self.interval_seconds
