"""Real processes that several modules of this directory need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def bad_ports() -> Iterator[dict[str, int]]:
    """A process of misbehaving HTTP servers (bad_targets.py): name of the server → port."""
    command = [sys.executable, str(HERE / "bad_targets.py"), str(HERE.parent / "data/tls")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()
