"""``loms doctor``: what a target gives, what it does not and why; and what of one's rules and dashboards is dead."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loms.cli.client import JsonOption, shown
from loms.cli.printout import Printout
from loms.core.errors import ConfigError

if TYPE_CHECKING:
    from loms.agent.examine import Examination
    from loms.engines.signals import Signal
    from loms.lint.files import Sources
    from loms.lint.problem import Problem, Report

_STATUS = {
    "available": ("●", "green"),
    "derived": ("●", "green"),
    "partial": ("◐", "yellow"),
    "absent": ("○", "dim"),
}
_STYLE = {"error": "bold red", "critical": "bold red", "warning": "yellow", "info": "cyan", "none": "dim"}
_WRONG = ("contract_missing", "contract_changed_type")
"""What makes an exit code: the release promises it. What is merely unknown or set otherwise does not."""
_EACH = "a file, folder or glob (repeatable)."
_PANEL = "Files to hold against the target"


def doctor(
    target: Annotated[
        str, typer.Argument(help="host:port, a URL, a file with a saved exposition, or - for standard input.")
    ],
    rules: Annotated[list[str] | None, typer.Option(rich_help_panel=_PANEL, help=f"Prometheus rules: {_EACH}")] = None,
    grafana: Annotated[
        list[str] | None, typer.Option(rich_help_panel=_PANEL, help=f"Grafana dashboards: {_EACH}")
    ] = None,
    keda: Annotated[
        list[str] | None, typer.Option(rich_help_panel=_PANEL, help=f"KEDA ScaledObjects and ScaledJobs: {_EACH}")
    ] = None,
    hpa: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_PANEL, help=f"HorizontalPodAutoscalers and prometheus-adapter rules: {_EACH}"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_PANEL, help="A label that your Prometheus adds to every series (repeatable)."),
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_PANEL, help="Write the rewrites to this file; apply it with: patch -p1."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_PANEL,
            metavar="REGEX",
            help="Names that are another job's although they look like the engine's (repeatable).",
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(help="The engine's version, where it does not say it.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="File of an engine of your own (repeatable).")] = None,
    token: Annotated[str, typer.Option(envvar="LOMS_TARGET_TOKEN", help="Bearer token of the target.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say which signals a target gives, which not and why; and what in rules, dashboards and scalers does not fit it.

    Exit code 0: all is well.
    1: a promised metric is missing, or a file uses what does not work.
    2: an argument or one of your files cannot be read. 3: the target cannot.
    """
    from loms.agent.examine import examine, replica_values
    from loms.engines.contracts.contract import contract_names, contract_of
    from loms.engines.custom import declare
    from loms.lint.check import check
    from loms.lint.patch import patch as diff

    declare(engine or [], "--engine")
    if version is not None and not version.strip():
        raise ConfigError(f"--version {version!r} is no version", hint="without the option it is asked or worked out")
    found = asyncio.run(examine(target, version=version or "", token=token))
    sources: Sources = {"rules": rules or (), "grafana": grafana or (), "keda": keda or (), "hpa": hpa or ()}
    report: Report | None = None
    rewrites = ""
    if any(sources.values()):
        others = [contract for name in contract_names() if (contract := contract_of(name)) is not None]
        report = check(
            sources,
            found.observed,
            found.contract,
            others=others,
            extra_labels=label or (),
            values=replica_values(found),
            ignore=ignore or (),
        )
        rewrites = diff(report.problems)
    if patch is not None:
        _write(patch, rewrites)
    if as_json:
        print(json.dumps(as_data(found, report, rewrites), indent=2))
    else:
        out = Printout()
        _print_target(out, found)
        if report is not None:
            _print_report(out, report, rewrites, patch)
    wrong = any(finding.kind in _WRONG for finding in found.findings)
    if wrong or (report is not None and report.count("error")):
        raise typer.Exit(1)


def as_data(found: Examination, report: Report | None, rewrites: str) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "target": found.source,
        "engine": found.engine,
        "version": found.version,
        "releases": list(found.releases),
        "model": found.model,
        "signals": [asdict(signal) for signal in found.signals],
        "contract": [
            {"kind": odd.kind, "severity": odd.severity, "family": dict(odd.labels)["family"], "text": odd.summary}
            for odd in found.findings
        ],
        "unmapped": list(found.meaning.unmapped),
        "lint": {**report.as_json(), "patch": rewrites} if report is not None else None,
    }


def _print_target(out: Printout, found: Examination) -> None:
    title = found.contract.title if found.contract else found.engine
    version = _version(found.version, found.releases)
    model = f", model {shown(found.model)}" if found.model else ""
    out.say(f"[bold]{shown(title)} {shown(version)}[/] at {shown(found.source)}{model}")
    counts = Counter[str](signal.status for signal in found.signals)
    out.say("\n" + ", ".join(f"{counts[status]} {status}" for status in _STATUS if counts[status]) + "\n")
    rows = []
    for signal in found.signals:
        sign, style = _STATUS[signal.status]
        rows.append((f"[{style}]{sign}[/] {signal.canonical}", f"[{style}]{signal.status}[/]", _why(signal)))
    out.rows(("[dim]  signal[/]", "", "[dim]from, or why not[/]"), rows)
    if found.findings:
        out.say(f"\n[bold]Against the contract of {shown(title)} {shown(version)}[/]")
        for odd in found.findings:
            out.say(f"[{_STYLE[odd.severity]}]{odd.kind.removeprefix('contract_')}[/]  {shown(odd.summary)}", 2)
    elif found.contract:
        out.say(f"\n[green]✓[/] It exposes what {shown(title)} {shown(version)} should.")
    if found.meaning.unmapped:
        out.say(f"\n[dim]without a canonical name: {shown(', '.join(found.meaning.unmapped))}[/]")


def _why(signal: Signal) -> str:
    parts = []
    if sources := [source for source in signal.sources if source not in signal.reason]:
        parts.append(f"[dim]{shown(' + '.join(sources))}[/]")
    if signal.reason:
        parts.append(shown(signal.reason))
    if signal.flag and signal.flag not in signal.reason:
        parts.append(f"set [bold]{shown(signal.flag)}[/]")
    if signal.instead:
        parts.append(f"[cyan]instead:[/] {shown(signal.instead)}")
    return "; ".join(parts)


def _print_report(out: Printout, report: Report, rewrites: str, patch: Path | None) -> None:
    looked = f"{_count(report.expressions, 'expression')} in {_count(len(report.files), 'file')}"
    wrong = f"{_count(report.count('error'), 'error')}, {_count(report.count('warning'), 'warning')}"
    out.say(f"\n[bold]{looked}[/]: {wrong}")
    for file, problems in groupby(report.problems, key=lambda problem: problem.place.file):
        _print_file(out, file, list(problems))
    if not report.problems:
        out.say("[green]✓[/] Everything in them fits this target.")
    if rewrites and patch is None:
        out.say("\n[bold]Patch[/] [dim](--patch FILE writes it; apply it with patch -p1)[/]\n")
        print(rewrites, end="")
    elif rewrites:
        out.say(f"\nThe rewrites are in {shown(str(patch))}; apply them with: patch -p1 < {shown(str(patch))}")
    elif patch is not None:
        out.say(f"\nThere is nothing to rewrite, and {shown(str(patch))} is empty.")


def _print_file(out: Printout, file: str, problems: Sequence[Problem]) -> None:
    """What is wrong, each once, with its places. What the patch rewrites, it shows."""
    out.say(f"\n[bold]{shown(file)}[/]")
    same: dict[tuple[str, str, str], list[Problem]] = {}
    for problem in problems:
        same.setdefault((problem.severity, problem.kind, problem.text), []).append(problem)
    for (severity, kind, text), found in same.items():
        out.say(f"[{_STYLE[severity]}]{severity} {kind}[/]  {shown(text)}", 2)
        for problem in found:
            out.say(f"[dim]line {problem.place.line}:[/] {shown(problem.place.where)}", 4)
            if problem.rewrite and not problem.edits:
                out.say(f"[red]- {shown(problem.expression.strip())}[/]", 6)
                out.say(f"[green]+ {shown(problem.rewrite.strip())}[/]", 6)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _version(stated: str, releases: tuple[str, str]) -> str:
    """What the engine says, or what its metrics do."""
    oldest, newest = releases
    if oldest == newest == stated:
        return stated or "version unknown"
    return f"{oldest if oldest == newest else f'{oldest} to {newest}'} (by its metrics)"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--patch {path}: {error.strerror or error}") from None
