"""``loms replay``: what LOMS would have found in somebody else's Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loms.cli.client import JsonOption, shown
from loms.cli.config import ConfigOption, load_config
from loms.core import log
from loms.core.clock import SystemClock, iso_utc, local_and_utc
from loms.core.errors import ConfigError
from loms.core.settings import Config, Source
from loms.core.units import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loms.agent.history import Archive
    from loms.agent.replay import Replayed
    from loms.core.model import Incident, Metadata

_STYLE = {"critical": "bold red", "warning": "yellow", "info": "cyan", "none": "dim"}


def replay(
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="A Prometheus-compatible API (default: the source in the configuration).")
    ] = "",
    file: Annotated[Path | None, typer.Option(help="Or a file of OpenMetrics with timestamps.")] = None,
    since: Annotated[str, typer.Option(help="How far back from the end: 6h, 7d, …")] = "6h",
    until: Annotated[str, typer.Option(help="The end (Unix seconds or RFC 3339; default: now, or the file's).")] = "",
    rules: Annotated[
        list[str] | None, typer.Option(help="Rule file or glob beside the built-in rules (repeatable).")
    ] = None,
    builtin: Annotated[bool, typer.Option(help="Whether the built-in rules are evaluated.")] = True,
    step: Annotated[str, typer.Option(help="Evaluate no more often than this (default: the scrape interval).")] = "",
    token: Annotated[str, typer.Option(envvar="LOMS_SOURCE_TOKEN", help="Bearer token of the Prometheus.")] = "",
    timeout: Annotated[str, typer.Option(help="For one query.")] = "120s",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the scrapes that a Prometheus has stored together again, and evaluate the rules over them in virtual time.

    Nothing is written anywhere. Exit code 0, whether something was found or not.
    """
    from loms.agent.replay import replay as replayed
    from loms.rules.read import load_groups
    from loms.server.wire import parse_time

    settings = load_config(config)
    log.configure("error")
    if file is not None and prometheus:
        raise ConfigError("--prometheus and --file are two places to look at", hint="name one of them")
    files = (*settings.rules.files, *(rules or ()))
    groups = load_groups(files, builtin=builtin, interval_seconds=settings.rules.interval)
    archive, metadata, newest_ms = (
        _dump(file) if file is not None else _remote(settings, prometheus, token, _seconds("--timeout", timeout))
    )
    end_ms = parse_time("--until", until) if until else newest_ms
    start_ms = end_ms - round(_seconds("--since", since) * 1000)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=1.0)
        found = replayed(
            archive,
            metadata,
            groups,
            start_ms,
            end_ms,
            alerting=settings.alerting,
            step_ms=round(_seconds("--step", step) * 1000) if step else 0,
            progress=lambda share: bar.update(task, completed=share),
        )
    warnings = tuple(getattr(archive, "warnings", ()))
    if as_json:
        print(json.dumps(_as_data(found, warnings), indent=2))
    else:
        _print(Console(highlight=False), found, warnings)


def _remote(
    settings: Config, url: str, token: str, timeout_seconds: float
) -> tuple[Archive, Mapping[str, Metadata], int]:
    from loms.promql.remote import RemotePrometheus

    source = settings.source
    if url:
        # Credentials in the configuration are for the address beside them, and for no other.
        known = source if source.url.rstrip("/") == url.rstrip("/") else Source()
        source = known.model_copy(update={"type": "prometheus", "url": url})
    if not source.url:
        raise ConfigError("there is nothing to replay", hint="name it: loms replay --prometheus URL, or --file FILE")
    if token:
        source = source.model_copy(update={"bearer_token": SecretStr(token)})
    remote = RemotePrometheus(source, timeout_seconds=timeout_seconds)
    return remote, remote.metadata(), SystemClock().now_ms()


def _dump(path: Path) -> tuple[Archive, Mapping[str, Metadata], int]:
    from loms.ingest.dump import read_dump
    from loms.promql.engine import Engine
    from loms.promql.recent import RecentSource

    try:
        with path.open(encoding="utf-8") as lines:
            dump = read_dump(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--file {path}: {getattr(error, 'strerror', None) or error}") from None
    source = RecentSource()
    for labels, (times, values) in dump.series.items():
        source.append(labels, times, values)
    newest = max((int(times[-1]) for times, _ in dump.series.values()), default=0)
    return Engine(source), dump.metadata, newest


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if seconds <= 0:
        raise ConfigError(f"{option} must be longer than 0")
    return seconds


def _as_data(found: Replayed, warnings: tuple[str, ...]) -> dict[str, Any]:
    """What ``--json`` prints."""
    from loms.server.api import incident_json

    return {
        "start": iso_utc(found.start_ms),
        "end": iso_utc(found.end_ms),
        "engines": [{"engine": engine, "instance": instance} for engine, instance in found.engines],
        "scrape_interval_seconds": found.interval_ms / 1000,
        "evaluations": found.evaluations,
        "samples": found.samples,
        "incidents": [incident_json(one) for one in found.incidents],
        "notes": list(found.notes),
        "warnings": list(warnings),
    }


def _print(console: Console, found: Replayed, warnings: tuple[str, ...]) -> None:
    kinds = ", ".join(sorted({engine for engine, _ in found.engines})) or "no engine recognised"
    count = f"{len(found.engines)} engine{'' if len(found.engines) == 1 else 's'}"
    console.print(f"[bold]{local_and_utc(found.start_ms)} … {local_and_utc(found.end_ms)}[/]")
    console.print(f"{count} ({kinds}), scraped every {format_duration(found.interval_ms / 1000)}")
    console.print()
    for incident in found.incidents:
        _print_incident(console, incident, found.end_ms)
    if not found.incidents:
        console.print("[green]●[/] Nothing would have been reported.")
    console.print()
    for note in (*found.notes, *warnings):
        console.print(f"[dim]{shown(note)}[/]")


def _print_incident(console: Console, incident: Incident, end_ms: int) -> None:
    style = _STYLE[incident.severity]
    over = incident.resolved_at_ms
    lasted = format_duration(max(1, ((over or end_ms) - incident.opened_at_ms) // 1000))
    state = f"lasted {lasted}" if over else f"still on at the end, after {lasted}"
    console.print(f"[{style}]● {incident.severity}[/]  [bold]{shown(incident.title)}[/]  {state}")
    console.print(f"  [dim]{local_and_utc(incident.opened_at_ms)}[/]")
    for alert in incident.alerts:
        text = dict(alert.annotations).get("finding") or dict(alert.annotations).get("summary", "")
        console.print(f"  {shown(alert.rule)}: {shown(text)}")
        for fact in alert.evidence:
            console.print(f"    • {shown(fact.text)}")
