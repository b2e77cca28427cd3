"""The command line: one file per command, wired together in `loms.cli.app`."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``loms`` script. The bare package is the SDK, so the commands' own packages may be absent."""
    try:
        from loms.cli.app import run
    except ModuleNotFoundError as error:
        sys.exit(f"loms: the package {error.name!r} is not installed; the commands need: pip install 'loms[server]'")
    run()
