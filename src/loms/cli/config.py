"""``loms config``: check a configuration file, or show the settings in force."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loms.core.clock import SystemClock
from loms.core.config import load, show
from loms.core.errors import ConfigError
from loms.core.settings import Config

app = typer.Typer(help="Check a configuration file, or show the settings in force.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file (default: ./loms.yaml if there is one).")
]


def load_config(path: Path | None) -> Config:
    """The named file, else ``./loms.yaml`` where it exists, else defaults; environment overrides applied."""
    default = Path("loms.yaml")
    return load(path or (default if default.exists() else None))


@app.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="Configuration file.")] = None,
) -> None:
    """Check a configuration file and the files that it names. Exit code 2 when something is wrong."""
    from loms.agent.targets import static
    from loms.agent.users import UsersOfMetrics
    from loms.alerting.receiver import receivers_of
    from loms.engines.custom import read_engines
    from loms.rules.read import load_groups
    from loms.store.address import Address

    settings = load_config(file)
    groups = load_groups(settings.rules.files, builtin=settings.rules.builtin)
    rules = sum(len(group.rules) for group in groups)
    targets, receivers = static(settings), receivers_of(settings.alerting)
    engines = read_engines(settings.engines)
    if settings.store.url is not None:
        Address.parse(settings.store.url.get_secret_value())
    users = UsersOfMetrics(settings, SystemClock())
    users.read()
    if users.problem:
        raise ConfigError(f"contracts.used_by: {users.problem}")
    name = file or (Path("loms.yaml") if Path("loms.yaml").exists() else "defaults")
    counts = f"{len(targets)} static targets, {rules} rules, {len(receivers)} receivers"
    counts += f", {len(engines)} engines of your own" if engines else ""
    print(f"{name}: ok ({counts})")


@app.command("show")
def show_config(config: ConfigOption = None) -> None:
    """Print the settings in force as YAML, defaults included, secrets blanked."""
    sys.stdout.write(show(load_config(config)))
