"""``loms server``: one of several servers over one store, without the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loms.cli.config import ConfigOption, load_config
from loms.core.errors import ConfigError
from loms.core.settings import Config
from loms.rules.shard import Shard


def server(
    config: ConfigOption = None,
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Evaluate the I-th share of N of the rule groups.")
    ] = "1/1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the page and API.")] = None,
    data: Annotated[Path | None, typer.Option(help="Directory for what is this process's own.")] = None,
) -> None:
    """Store, answer, evaluate, tell: all of LOMS but collecting. Several may share a ClickHouse (store.url)."""
    from loms.cli.process import serve

    part = Shard.parse(shard)
    settings = load_config(config)
    if part.count > 1 and settings.store.url is None:
        raise ConfigError(
            "--shard: several servers need a store that they can share", hint="set store.url to a ClickHouse"
        )
    serve(_with_options(settings, port, data, part), collect=False, shard=part)


def _with_options(config: Config, port: int | None, data: Path | None, shard: Shard) -> Config:
    """The settings with what the command line says on top."""
    listening = config.server if port is None else config.server.model_copy(update={"port": port})
    path = config.store.path if shard.count == 1 else config.store.path / f"shard-{shard.number}"
    store = config.store.model_copy(update={"path": data or path})
    return config.model_copy(update={"server": listening, "store": store})
