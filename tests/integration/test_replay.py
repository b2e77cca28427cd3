"""`loms replay` over samples that a real Prometheus and a real VictoriaMetrics hold: hours of simulated engines, of
which one froze and one went away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration.promql_compare import prometheus
from support.peers import missing, victoria_metrics
from support.simulated_history import scrapes, write_openmetrics

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's prometheus is not installed"),
]
HOURS, INTERVAL = 1.5, 15
HANG, GONE = (2700.0, 2820.0), (4200.0, 4380.0)
"""Seconds after the start; the hang ends after two minutes."""
WORST_SECONDS = 15 + INTERVAL + INTERVAL
"""Allowance, the scrape that shows it, and the evaluation after that (docs/detectors.md)."""


@dataclass(frozen=True)
class Stored:
    start: float
    file: Path

    @property
    def end(self) -> float:
        return self.start + HOURS * 3600


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """An engine that froze under load, one that went away, and one that was well."""
    file, start = tmp_path_factory.mktemp("history") / "samples.om", int(time.time()) - 3 * 3600
    span = HOURS * 3600
    runs = [
        list(scrapes(span, hang=HANG, rate=0.5, seed=1)),
        list(scrapes(span, gone=GONE, seed=2)),
        list(scrapes(span, rate=0.5, seed=3)),
    ]
    targets = [((("instance", f"engine-{i}:8000"), ("job", "llm")), run) for i, run in enumerate(runs)]
    write_openmetrics(file, start * 1000, targets)
    return Stored(start, file)


@pytest.fixture(scope="module")
def in_prometheus(stored: Stored, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(stored.file), str(folder / "data")]
    subprocess.run(load, check=True, capture_output=True)
    with prometheus(folder, "global: {}\n") as url:
        yield url


def replayed(stored: Stored, *arguments: str, since: float = 0.0, until: float = HOURS * 3600) -> dict[str, Any]:
    """What ``loms replay --json`` prints for a part of the stored time; without arguments that matter, of all of it."""
    span = ["--since", f"{until - since:.0f}s", "--until", f"{stored.start + until:.0f}"]
    command = [sys.executable, "-m", "loms", "replay", *arguments, *span, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=stored.file.parent)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(stored: Stored, found: dict[str, Any]) -> None:
    """Exactly the hang and the death, each within the delay that the detector's documentation names."""
    frozen, dead = found["incidents"]
    assert (frozen["title"], frozen["severity"]) == ("engine-0:8000 is stalled", "critical")
    after = frozen["opened_at_ms"] / 1000 - stored.start - HANG[0]
    assert 0 < after <= WORST_SECONDS + 2, "counted from the first request within the hang, at 0.5 a second"
    until = frozen["resolved_at_ms"] / 1000 - stored.start - HANG[1]
    assert 0 < until <= 2 * INTERVAL
    assert frozen["alerts"][0]["evidence"]
    assert (dead["title"], dead["severity"]) == ("engine-1:8000 is dead", "critical")
    assert 0 < dead["opened_at_ms"] / 1000 - stored.start - GONE[0] <= 3 * INTERVAL + 10
    assert found["scrape_interval_seconds"] == pytest.approx(INTERVAL, abs=0.5)
    assert [engine["engine"] for engine in found["engines"]] == ["vllm"] * 3
    assert any("synthetic requests" in note for note in found["notes"])


def test_a_prometheus_gives_the_hang_and_the_death_and_nothing_else(stored: Stored, in_prometheus: str) -> None:
    check(stored, replayed(stored, "--prometheus", in_prometheus))


def test_healthy_hours_give_nothing(stored: Stored, in_prometheus: str) -> None:
    found = replayed(stored, "--prometheus", in_prometheus, until=HANG[0] - 60)
    assert found["incidents"] == []
    assert found["evaluations"] >= (HANG[0] - 60) / INTERVAL


@pytest.mark.skipif(bool(missing("victoria-metrics")), reason="Debian's VictoriaMetrics is not installed")
def test_victoria_metrics_gives_the_same(stored: Stored, tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as peer:
        lines = stored.file.read_text().splitlines()
        for first in range(0, len(lines), 200_000):
            part = "\n".join(in_milliseconds(line) for line in lines[first : first + 200_000] if line != "# EOF")
            request = urllib.request.Request(f"{peer.url}/api/v1/import/prometheus", part.encode())
            urllib.request.urlopen(request, timeout=60).close()
        urllib.request.urlopen(f"{peer.url}/internal/force_flush", timeout=60).close()
        check(stored, replayed(stored, "--prometheus", peer.url))


def test_a_file_gives_the_same(stored: Stored) -> None:
    check(stored, replayed(stored, "--file", str(stored.file)))


def in_milliseconds(line: str) -> str:
    head, _, seconds = line.rpartition(" ")
    return f"{head} {round(float(seconds) * 1000)}"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--prometheus", "{url}", "--since", "1h", "--until", "1000000000"], 1, "no series of a known engine"),
        (["--prometheus", "http://127.0.0.1:1"], 3, "nothing answers at http://127.0.0.1:1"),
        (["--prometheus", "{url}/nowhere"], 3, "/nowhere answers HTTP 404"),
        (["--prometheus", "nonsense"], 2, "'nonsense' is not an http or https URL"),
        ([], 2, "there is nothing to replay"),
        (["--prometheus", "{url}", "--file", "missing.om"], 2, "--prometheus and --file are two places"),
        (["--file", "missing.om"], 2, "--file missing.om: No such file or directory"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    in_prometheus: str, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    command = [sys.executable, "-m", "loms", "replay", *(one.format(url=in_prometheus) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr
