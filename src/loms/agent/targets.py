"""Configuration → what `loms.collect` needs to know of each target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from loms.collect.targets import Auth, ProbeSettings, Target, Tls
from loms.core.errors import ConfigError
from loms.core.model import labels_of
from loms.core.settings import Config, ScrapeJob
from loms.core.settings import Tls as ClientTls

OWN_JOB = "loms"
"""Job of LOMS's own ``/metrics``."""


def template(config: Config, job: ScrapeJob) -> Target:
    """A target of this job with everything but its address, zone label included."""
    interval = job.interval or config.scrape.interval
    zone = job.deployment_zone or config.deployment_zone
    if job.deployment_zone is None and "deployment_zone" in job.labels:
        zone = job.labels["deployment_zone"]
    auth, tls = job.basic_auth, job.tls
    return Target(
        job=job.name,
        instance="",
        url="",
        interval_seconds=interval,
        timeout_seconds=min(job.timeout or config.scrape.timeout, interval),
        labels=labels_of({**job.labels, "deployment_zone": zone}),
        auth=Auth(
            username=auth.username if auth else "",
            password=_secret(auth.password) if auth else "",
            password_file=_path(auth.password_file) if auth else "",
            bearer_token=_secret(job.bearer_token),
            bearer_token_file=_path(job.bearer_token_file),
        ),
        tls=Tls(
            ca_file=_path(tls.ca_file),
            cert_file=_path(tls.cert_file),
            key_file=_path(tls.key_file),
            server_name=tls.server_name or "",
            insecure_skip_verify=tls.insecure_skip_verify,
        ),
        honor_labels=job.honor_labels,
        honor_timestamps=job.honor_timestamps,
        compression=job.compression,
        sample_limit=config.scrape.limits.samples,
        max_series=config.labels.max_series if job.max_series is None else job.max_series,
        body_limit_bytes=config.scrape.limits.body,
        probe=ProbeSettings(
            enabled=config.probe.enabled and job.probe,
            interval_seconds=config.probe.interval,
            deadline_seconds=config.probe.deadline,
            model=config.probe.model or "",
            api_key=_secret(job.api_key or config.probe.api_key),
        ),
    )


def unnamed(config: Config, job: ScrapeJob) -> Target:
    """The same for targets that nobody named: whatever answers there gets no key."""
    target = template(config, job)
    return replace(target, probe=replace(target.probe, api_key=""))


def static(config: Config) -> list[Target]:
    """The targets that stand in the file itself, in its order."""
    return [_addressed(template(config, job), job, address) for job in config.scrape.jobs for address in job.targets]


def own(config: Config, port: int) -> Target:
    """LOMS's own ``/metrics``."""
    job = ScrapeJob(
        name=OWN_JOB,
        probe=False,
        bearer_token=config.server.token,
        scheme="https" if config.server.tls else "http",
        tls=ClientTls(insecure_skip_verify=True),  # it is this process, whose certificate bears another name
    )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)  # noqa: S104
    return _addressed(template(config, job), job, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _addressed(target: Target, job: ScrapeJob, address: str) -> Target:
    try:
        parts = urlsplit(f"//{address}")
        valid = bool(parts.hostname) and not (parts.path or parts.query or parts.username) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            f"scrape job {job.name!r}: target {address!r} is not host:port", hint="for example 10.0.0.7:8000"
        )
    return replace(target, instance=address, url=f"{job.scheme}://{address}{job.path}")


def _secret(value: SecretStr | None) -> str:
    return value.get_secret_value() if value else ""


def _path(value: Path | None) -> str:
    return str(value.expanduser()) if value else ""
