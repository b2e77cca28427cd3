"""What the benchmarks share: starting a process, its CPU time and memory, and what machine and commit this is."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, of its children, and of children that have ended."""
    total = 0
    for each in tree(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def rss_mb(pid: int) -> float:
    status = (Path(f"/proc/{each}/status").read_text() for each in tree(pid))
    return sum(int(m[1]) for text in status if (m := re.search(r"VmRSS:\s+(\d+)", text))) / 1024


@contextmanager
def running(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory)
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def commit() -> str:
    git = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return git.stdout.strip() or "unknown"


def machine() -> str:
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = model[1] if model else platform.machine()
    return f"{os.cpu_count()} × {name}, {memory:.0f} GiB, Python {platform.python_version()}"
