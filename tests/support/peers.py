"""Other people's programs that speak remote write: Debian's Prometheus, VictoriaMetrics and its agent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.processes import free_port, status, wait_until

_INFINITE = re.compile(r"(?<=[\[,])(-?)\+?Inf(?=[\],])")
"""How VictoriaMetrics writes infinite values, which JSON lacks and Python reads as Infinity."""
Points = dict[str, dict[int, float]]
"""Series, as sorted JSON of its labels → time in ms → value."""


def missing(*programs: str) -> str:
    """Which of these are not installed; empty when all are."""
    return ", ".join(program for program in programs if shutil.which(program) is None)


class Peer:
    """A process that answers HTTP; a context manager. After `stop`, `start` starts it again on the same data."""

    def __init__(self, command: Sequence[str], port: int, ready: str, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._ready = ready
        self._log = log

    def __enter__(self) -> Peer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            wait_until(lambda: status(f"{self.url}{self._ready}") == 200, 60, f"the start of {self._command[0]}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def prometheus(folder: Path, config: str, *options: str) -> Peer:
    (folder / "prometheus.yml").write_text(config)
    port = free_port()
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'prometheus'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", *options),
    ]
    return Peer(command, port, "/-/ready", folder / "prometheus.log")


def vmagent(folder: Path, config: str, *urls: str) -> Peer:
    (folder / "vmagent.yml").write_text(config)
    port = free_port()
    command = [
        *("vmagent", f"-promscrape.config={folder / 'vmagent.yml'}", f"-httpListenAddr=127.0.0.1:{port}"),
        *(f"-remoteWrite.tmpDataPath={folder / 'vmagent'}", *(f"-remoteWrite.url={url}" for url in urls)),
    ]
    return Peer(command, port, "/health", folder / "vmagent.log")


def victoria_metrics(folder: Path) -> Peer:
    port = free_port()
    command = [
        *("victoria-metrics", f"-storageDataPath={folder / 'vm'}", f"-httpListenAddr=127.0.0.1:{port}"),
        *(
            "-retentionPeriod=1",
            "-memory.allowedBytes=256MiB",
            "-search.latencyOffset=0s",
            "-maxLabelsPerTimeseries=128",
        ),
    ]
    return Peer(command, port, "/health", folder / "vm.log")


def exported(url: str, selector: str) -> Points:
    """All stored samples of a VictoriaMetrics but staleness markers."""
    query = urllib.parse.urlencode({"match[]": selector})
    with urllib.request.urlopen(f"{url}/api/v1/export?{query}", timeout=30) as answer:
        rows = [json.loads(_INFINITE.sub(r"\1Infinity", line.decode())) for line in answer]
    found: Points = {}
    for row in rows:
        points = zip(row["timestamps"], row["values"], strict=True)
        some = found.setdefault(json.dumps(row["metric"], sort_keys=True), {})
        some.update({time: float(value) for time, value in points if value is not None})
    return {series: points for series, points in found.items() if points}


def queried(url: str, selector: str, at: float, window: str = "30m") -> Points:
    """Samples by the Prometheus API; staleness markers are not among them."""
    query = urllib.parse.urlencode({"query": f"{selector}[{window}]", "time": f"{at:.3f}"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=30) as answer:
        data: dict[str, Any] = json.load(answer)
    return {
        json.dumps(one["metric"], sort_keys=True): {round(t * 1000): float(v) for t, v in one["values"]}
        for one in data["data"]["result"]
    }
