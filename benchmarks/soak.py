"""Whether LOMS stays as it is for an hour: memory, query times and parts under a full load, with rules and dashboards.

`loms up` scrapes as many engines (each with a real vLLM's exposition) as make 100,000 samples a second, evaluates its
own rules, and answers a dashboard's queries all the while. Every ten seconds the process's memory and CPU, the store's
parts and rows, dropped samples and the time of each query are noted. Reported are the four quarters of the run after
its warm-up, and how much memory and the median query grew from the first to the last of them.

``--seconds`` sets the length (default: an hour), ``--quick`` takes a minute; ``--json`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest import INTERVAL, SAMPLE, TEXT, Server, addresses
from measuring import commit, cpu_seconds, free_port, machine, rss_mb, running

LOOK_SECONDS = 10.0
SPAN_SECONDS = 900
"""What a panel shows."""
PANELS = (
    "sum by (model_name) (rate(vllm:generation_tokens_total[1m]))",
    "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))",
    "histogram_quantile(0.99, sum by (le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[1m])))",
    "topk(5, llm_engine_kv_cache_utilization_ratio)",
    "sum(vllm:num_requests_running)",
    "max by (engine) (llm_engine_requests_waiting)",
    "count(up)",
    "sum(rate(loms_written_samples_total[1m]))",
)


@dataclass
class Look:
    """What one moment showed."""

    at: float
    rss_mb: float
    cpu_seconds: float
    parts: int
    rows: int
    bytes_on_disk: int
    dropped: float
    query_seconds: list[float] = field(default_factory=list)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return json.load(answer)


def look(url: str, pid: int, begun: float) -> Look:
    status = get(f"{url}/api/status")
    store = status["store"]
    seen = Look(
        time.monotonic() - begun,
        rss_mb(pid),
        cpu_seconds(pid),
        store["parts"],
        store["samples"],
        store["bytes_on_disk"],
        sum(status["dropped_samples"].values()),
    )
    now = time.time()
    for panel in PANELS:
        asked = {"query": panel, "start": now - SPAN_SECONDS, "end": now, "step": 15}
        at = time.monotonic()
        get(f"{url}/api/v1/query_range?{urllib.parse.urlencode(asked)}")
        seen.query_seconds.append(time.monotonic() - at)
    return seen


def quarter(looks: list[Look]) -> dict[str, float]:
    first, last = looks[0], looks[-1]
    queries = sorted(seconds for one in looks for seconds in one.query_seconds)
    span = last.at - first.at
    return {
        "rows_per_second": round((last.rows - first.rows) / span),
        "cpu_cores": round((last.cpu_seconds - first.cpu_seconds) / span, 3),
        "rss_mb": round(statistics.median(one.rss_mb for one in looks)),
        "rss_mb_max": round(max(one.rss_mb for one in looks)),
        "parts_max": max(one.parts for one in looks),
        "query_p50_ms": round(1000 * statistics.median(queries), 1),
        "query_p99_ms": round(1000 * queries[int(0.99 * (len(queries) - 1))], 1),
        "bytes_per_row": round(last.bytes_on_disk / last.rows, 2),
        "dropped": last.dropped - first.dropped,
    }


def watch(url: str, process: Any, seconds: float) -> list[Look]:
    begun, looks = time.monotonic(), list[Look]()
    while (now := time.monotonic() - begun) < seconds:
        if process.poll() is not None:
            raise SystemExit(f"loms up ended early with {process.returncode}")
        looks.append(look(url, process.pid, begun))
        print(f"\r{now:6.0f} of {seconds:.0f} s, {looks[-1].rss_mb:.0f} MB", end="", file=sys.stderr, flush=True)
        time.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - begun - now)))
    print(file=sys.stderr)
    return looks


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            get(f"{url}/api/status")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("loms up did not come up in a minute")


def soak(options: argparse.Namespace) -> dict[str, Any]:
    samples = len(SAMPLE.findall(TEXT.read_text()))
    targets = round(options.rate * INTERVAL / samples)
    server = Server()
    try:
        with tempfile.TemporaryDirectory(prefix="loms-soak-") as name:
            directory, port = Path(name), free_port()
            job = {
                "name": "vllm",
                "targets": addresses(targets, server.port),
                "interval": INTERVAL,
                "timeout": INTERVAL,
            }
            (directory / "loms.yaml").write_text(
                json.dumps(
                    {
                        "server": {"port": port},
                        "store": {"path": str(directory / "store")},
                        "scrape": {"jobs": [job], "discover": {"enabled": False}},
                        "receive": {"otlp_http_port": None, "otlp_grpc_port": None},
                    }
                )
            )
            command = [sys.executable, "-m", "loms", "up", "--config", str(directory / "loms.yaml")]
            with running(command, directory) as process:
                url = f"http://127.0.0.1:{port}"
                wait_for(url)
                served = server.served()
                looks = watch(url, process, options.seconds)
                scraped = (server.served() - served) * samples / options.seconds
    finally:
        server.close()
    warm = [one for one in looks if one.at >= options.seconds / 6]
    size = len(warm) // 4
    quarters = [quarter(warm[i * size : (i + 1) * size + 1]) for i in range(4)]
    return {
        "quarters": quarters,
        "rss_growth": round(quarters[-1]["rss_mb"] / quarters[0]["rss_mb"] - 1, 3),
        "query_p50_growth": round(quarters[-1]["query_p50_ms"] / quarters[0]["query_p50_ms"] - 1, 3),
        "setting": {"targets": targets, "samples_per_second": round(scraped), "seconds": options.seconds}
        | {"panels": len(PANELS), "load_average": [round(load, 2) for load in os.getloadavg()]},
        "machine": machine(),
        "commit": commit(),
    }


def show(results: dict[str, Any]) -> None:
    columns = list(results["quarters"][0])
    print("".join(f"{column:>18}" for column in ["quarter", *columns]))
    for number, figures in enumerate(results["quarters"], 1):
        print("".join(f"{value:>18,}" for value in [number, *figures.values()]))
    print(f"memory {results['rss_growth']:+.1%}, median query {results['query_p50_growth']:+.1%} from first to last")
    print(f"{results['setting']}\n{results['machine']}, commit {results['commit']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--seconds", type=float, help="length of the run (default 3600)")
    parser.add_argument("--rate", type=float, default=100_000, help="samples a second to scrape")
    options = parser.parse_args()
    options.seconds = options.seconds or (60.0 if options.quick else 3600.0)
    results = soak(options)
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
