"""What storing costs: 265,000 series at 5 s (53,000 samples a second) through the writer into the embedded database.

CPU seconds are the whole process's, background merges included, less what making the samples takes. The paced run
counts for a deployment; the burst shows the ceiling.

    python benchmarks/store.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from loms.core.clock import SystemClock
from loms.core.model import Floats, Ids, SampleBatch, Series, labels_of
from loms.store.database import Database
from loms.store.writer import Writer

TARGETS, SERIES, INTERVAL = 500, 530, 5
NAMES = 100
FLUSHED = 600.0


class Fleet:
    """Targets with counters (30 %), gauges (10 %) and values that stand still."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(1)
        self.series = [
            [
                Series.of(f"metric_{n % NAMES}", labels_of({"instance": f"host-{t}:8000", "job": "vllm", "n": str(n)}))
                for n in range(SERIES)
            ]
            for t in range(TARGETS)
        ]
        self.ids: list[Ids] = [np.array([one.id for one in row], dtype=np.uint64) for row in self.series]
        self.values: Floats = self.random.integers(0, 50, (TARGETS, SERIES)).astype(float)
        self.kind = np.arange(SERIES) % 10
        self.told: set[int] = set()

    def second(self, number: int, now_ms: int) -> list[SampleBatch]:
        batches = []
        for target in range(number % INTERVAL, TARGETS, INTERVAL):
            values = self.values[target] = self.values[target] + np.where(
                self.kind < 3, self.random.integers(0, 5, SERIES), 0
            )
            values[self.kind == 9] = self.random.random((self.kind == 9).sum())
            times = np.full(SERIES, now_ms + int(self.random.integers(0, 1000)))
            new = () if target in self.told else tuple(self.series[target])
            self.told.add(target)
            batches.append(SampleBatch(self.ids[target], times, values, new))
        return batches


def resident() -> dict[str, float]:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[name].split()[0]) / 1024 for key, name in (("rss_mb", "VmRSS"), ("anonymous_mb", "RssAnon"))}


def paced(database: Database, fleet: Fleet, seconds: int) -> dict[str, float]:
    writer = Writer(database, SystemClock())
    for number in range(INTERVAL):  # the series' rows, once
        for batch in fleet.second(number, time.time_ns() // 1_000_000):
            writer(batch)
    assert writer.flush(FLUSHED)
    cpu, made, rows, begin = time.process_time(), 0.0, 0, time.monotonic()
    for number in range(seconds):
        before = time.thread_time()
        batches = fleet.second(number, time.time_ns() // 1_000_000)
        made += time.thread_time() - before
        for batch in batches:
            writer(batch)
            rows += len(batch)
        time.sleep(max(0.0, begin + number + 1 - time.monotonic()))
    writer.close()
    cpu = time.process_time() - cpu - made
    return {"samples": rows, "cpu_seconds_per_million": cpu / rows * 1e6, "cores": cpu / (time.monotonic() - begin)}


def burst(database: Database, fleet: Fleet, flushes: int) -> dict[str, float]:
    writer = Writer(database, SystemClock(), queue_rows=10**9)
    batches = [batch for number in range(INTERVAL) for batch in fleet.second(number, time.time_ns() // 1_000_000)]
    cpu, begin, rows = time.process_time(), time.monotonic(), 0
    for _ in range(flushes):
        for batch in batches:
            writer(batch)
            rows += len(batch)
        assert writer.flush(FLUSHED)
    writer.close()
    wall = time.monotonic() - begin
    return {"samples_per_second": rows / wall, "cpu_seconds_per_million": (time.process_time() - cpu) / rows * 1e6}


def new_series(database: Database, fleet: Fleet) -> dict[str, float]:
    writer = Writer(database, SystemClock())
    cpu = time.process_time()
    for row in fleet.series:
        writer(SampleBatch(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0), tuple(row)))
    assert writer.flush(FLUSHED)
    writer.close()
    return {
        "series": TARGETS * SERIES,
        "cpu_seconds_per_million": (time.process_time() - cpu) / (TARGETS * SERIES) * 1e6,
    }


def idle(seconds: int) -> float:
    cpu = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / seconds


def measure(quick: bool) -> dict[str, object]:
    fleet = Fleet()
    before = resident()
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        database = Database.open(Path(directory), 15 * 86_400, SystemClock())
        result: dict[str, object] = {"open_seconds": time.monotonic() - begin, "before": before, "opened": resident()}
        result["idle_cores"] = idle(5 if quick else 20)
        result["new_series"] = new_series(database, fleet)
        result["paced"] = paced(database, fleet, 20 if quick else 120)
        result["burst"] = burst(database, fleet, 5 if quick else 20)
        figures = database.figures()
        result["bytes_per_sample"] = figures.bytes_on_disk / figures.samples
        database.command("OPTIMIZE TABLE samples FINAL")
        figures = database.figures()
        result["bytes_per_sample_merged"] = figures.bytes_on_disk / figures.samples
        result["written"] = resident()
        begin = time.monotonic()
        database.close()
        result["close_seconds"] = time.monotonic() - begin
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    result = {"cpus": os.cpu_count(), **measure(options.quick)}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {json.dumps(value)}")


if __name__ == "__main__":
    main()
