"""``loms up``: server and agent in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loms.cli.config import ConfigOption, load_config
from loms.core.settings import Config, ScrapeJob


def up(
    config: ConfigOption = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", "-t", help="host:port to scrape (repeatable).")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the page and API.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data directory.")] = None,
) -> None:
    """Collect, store, notice, tell: everything in one process. Ctrl-C ends it."""
    from loms.cli.process import serve

    serve(_with_options(load_config(config), target or [], port, data))


def _with_options(config: Config, targets: list[str], port: int | None, data: Path | None) -> Config:
    """The settings with what the command line says on top."""
    server = config.server if port is None else config.server.model_copy(update={"port": port})
    store = config.store if data is None else config.store.model_copy(update={"path": data})
    scrape = config.scrape
    if targets:
        scrape = scrape.model_copy(update={"jobs": (*scrape.jobs, ScrapeJob(name="engines", targets=tuple(targets)))})
    return config.model_copy(update={"server": server, "store": store, "scrape": scrape})
