"""``loms export``: recording rules for Prometheus and dashboards for Grafana."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from loms.cli.client import JsonOption
from loms.core.errors import ConfigError, LomsError, MissingPackageError
from loms.core.nearest import did_you_mean
from loms.core.units import parse_duration

app = typer.Typer(
    help="LOMS's canonical series and dashboards for your own Prometheus and Grafana.", no_args_is_help=True
)

RULES, SCRAPE = "loms-rules.yaml", "scrape/loms-scrape.yaml"
"""The second in a folder of its own, so that a glob over the first's, rule_files: [rules/*.yaml], is of rules alone."""

OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="DIR|-", help="Folder for the files, or - for the terminal.")
]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that are there already.")]


@app.command("prometheus")
def prometheus(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine", "-e", help="Only this engine (repeatable). Default: all known ones, or those of --engine-file."
        ),
    ] = None,
    engine_file: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="YAML file that declares an engine of your own (repeatable)."),
    ] = None,
    output: OutputOption = "-",
    scrape: Annotated[
        bool, typer.Option("--scrape", help="With -: print the scrape configuration instead of the rules.")
    ] = False,
    zone: Annotated[str, typer.Option(help="deployment_zone of the scraped targets.")] = "local",
    interval: Annotated[str, typer.Option(help="How often the rules are evaluated; your scrape interval.")] = "15s",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recording rules that give the canonical series in your own Prometheus.

    Into a folder go loms-rules.yaml, for rule_files, and scrape/loms-scrape.yaml, what the scrape configuration needs
    for it.
    """
    from loms.export.recording import exportable, group_of
    from loms.export.rule_file import rule_file
    from loms.export.scrape_file import scrape_file

    seconds = _interval(interval)
    names = exportable(engine or [], engine_file or [])
    texts = {RULES: rule_file([group_of(name) for name in names], seconds), SCRAPE: scrape_file(names, zone)}
    if output == "-":
        sys.stdout.write(texts[SCRAPE if scrape else RULES])
        return
    _write(Path(output), texts, force, as_json)


@app.command("grafana")
def grafana(
    dashboard: Annotated[
        list[str] | None, typer.Option("--dashboard", "-d", help="overview or kv-cache (repeatable). Default: both.")
    ] = None,
    output: OutputOption = "-",
    datasource: Annotated[
        str, typer.Option(help="Name or uid of the data source that is chosen at first. Default: Grafana's default.")
    ] = "",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dashboards over the canonical series, as JSON that Grafana imports.

    The data source may be LOMS itself, or a Prometheus with the rules of loms export prometheus.
    """
    from loms.export.boards import BOARDS

    try:
        from loms.export.dashboard import dashboard_json
    except ImportError as error:
        raise MissingPackageError(
            f"the Grafana SDK is not installed ({error.name})", hint="pip install 'loms[server]'"
        ) from None

    names = dashboard or list(BOARDS)
    for name in names:
        if name not in BOARDS:
            raise ConfigError(f"--dashboard: there is none named {name!r}", hint=did_you_mean(name, BOARDS))
    if output == "-" and len(names) > 1:
        raise ConfigError(
            "the terminal takes one dashboard only", hint=f"--dashboard {names[0]}, or --output DIR for all of them"
        )
    texts = {f"{BOARDS[name].uid}.json": dashboard_json(BOARDS[name], datasource) for name in names}
    if output == "-":
        sys.stdout.write(next(iter(texts.values())))
        return
    _write(Path(output), texts, force, as_json)


def _interval(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--interval: {error}") from None
    if seconds < 1:
        raise ConfigError(f"--interval: {text} is too short", hint="at least 1s")
    return seconds


def _write(folder: Path, texts: Mapping[str, str], force: bool, as_json: bool) -> None:
    """Each file whole or not at all; none if one is there already and must not be overwritten."""
    paths = {folder / name: text for name, text in texts.items()}
    for path in paths:
        if path.exists() and not force:
            raise ConfigError(f"{path} is there already", hint="--force overwrites it")
    try:
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, path)
    except OSError as error:
        raise LomsError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None
    if as_json:
        print(json.dumps({"written": [str(path) for path in paths]}))
    else:
        print("\n".join(f"wrote {path}" for path in paths))
