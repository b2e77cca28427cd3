"""``loms demo``: a real engine, four simulated ones, load, two faults, and what LOMS makes of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from loms.core.clock import SystemClock


def demo(
    port: Annotated[int, typer.Option(help="Port of the page (0: any free one).")] = 8090,
    real: Annotated[bool, typer.Option(help="Run the real llama.cpp engine too.")] = True,
    seconds: Annotated[float, typer.Option(help="Leave after so many seconds (0: when you press Ctrl-C).")] = 0.0,
) -> None:
    """Watch LOMS at work on this machine: a real llama.cpp and four simulated engines; two of them will freeze.

    Everything runs on loopback and in a temporary directory, and is gone afterwards.
    """
    from loms.cli.story import Story
    from loms.lab.llama import require

    if real:
        require()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(Story(Console(highlight=False), SystemClock(), port, real, seconds).run())
