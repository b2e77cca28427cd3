"""All commands in one Typer application, and the one place where an error becomes a sentence and an exit code."""

from __future__ import annotations

import sys

import typer

from loms import __version__
from loms.cli import config, demo, doctor, export, incidents, query, replay, series, server, top, traces, up
from loms.core.errors import LomsError

app = typer.Typer(
    help="LOMS watches large-language-model serving: it notices what goes wrong, and says why.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"loms {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and leave."),
) -> None:
    """LOMS watches large-language-model serving: it notices what goes wrong, and says why."""


app.command("up")(up.up)
app.command("server")(server.server)
app.command("demo")(demo.demo)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("query")(query.query)
app.command("incidents")(incidents.incidents)
app.command("series")(series.series)
app.command("traces")(traces.traces)
app.command("replay")(replay.replay)
app.add_typer(export.app, name="export")
app.add_typer(config.app, name="config")


def run() -> None:
    """Run the command line; a `LomsError` is printed as one sentence with its hint."""
    try:
        app()
    except LomsError as error:
        print(f"loms: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  → {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
