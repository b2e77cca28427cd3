"""How long `loms replay` takes: hours of simulated engines in Debian's Prometheus, scraped every 15 s.

    python benchmarks/replay.py [--quick] [--json]

The whole: 10 engines, 6 hours evaluated (and the hour and more before them that the rules look back on). Reported are
seconds of wall time and of CPU, samples read per second, peak memory, and what was found: one engine freezes for two
minutes in the middle, the others are well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from integration.promql_compare import prometheus
from support.simulated_history import scrapes, write_openmetrics

LEAD_SECONDS = 4200
"""What the built-in rules look back on before the first evaluation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 engines, 1 hour")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engines, hours = (2, 1) if options.quick else (10, 6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = int(time.time()) - LEAD_SECONDS - hours * 3600 - 600
        span = LEAD_SECONDS + hours * 3600.0
        middle = LEAD_SECONDS + hours * 1800.0
        runs = [
            list(scrapes(span, hang=(middle, middle + 120) if number == 0 else None, seed=number))
            for number in range(engines)
        ]
        samples = sum(len(exposition.values) for run in runs for _, exposition in run if exposition)
        targets = [((("instance", f"engine-{i}:8000"), ("job", "llm")), run) for i, run in enumerate(runs)]
        write_openmetrics(folder / "samples.om", start * 1000, targets)
        load = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.om", "data"]
        subprocess.run(load, check=True, capture_output=True, cwd=folder)
        with prometheus(folder, "global: {}\n") as url:
            command = [sys.executable, "-m", "loms", "replay", "--prometheus", url, "--json"]
            command += ["--since", f"{hours}h", "--until", f"{start + span:.0f}"]
            begun = time.perf_counter()
            with (folder / "found.json").open("w") as out:
                process = subprocess.Popen(command, stdout=out)
                _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - begun
        assert status == 0, "loms replay failed"
        found = json.loads((folder / "found.json").read_text())
    result = {
        "engines": engines,
        "hours": hours,
        "samples": samples,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "samples_per_second": round(samples / wall),
        "evaluations": found["evaluations"],
        "peak_mib": used.ru_maxrss // 1024,
        "incidents": [incident["title"] for incident in found["incidents"]],
    }
    print(json.dumps(result) if options.json else "\n".join(f"{key}: {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
