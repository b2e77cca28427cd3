"""What it costs to scrape, parse, translate and store: LOMS beside Prometheus and VictoriaMetrics, in one run.

A server process offers 500 targets with the exposition of a real vLLM. Nearly every value changes at each scrape, and
who asks for gzip gets it, as from vLLM itself (Prometheus and VictoriaMetrics ask; LOMS does not, to spare the engine).
One after the other LOMS (its agent and its store, in a process of their own), Prometheus and VictoriaMetrics scrape all
targets every 5 s; after a warm-up, CPU time (user and system, of all of the process's threads) is set against the
samples that the server handed out meanwhile. `prometheus_client` parses the same texts alone.

``--quick`` takes under a minute; ``--json`` prints one JSON object; ``--profile FILE`` writes where LOMS spends its
time (as pstats; the profiler itself costs time, so the figures of such a run do not count).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from measuring import commit, cpu_seconds, free_port, machine, rss_mb, running
from prometheus_client.parser import text_string_to_metric_families

from loms.agent.runtime import Agent
from loms.core.clock import SystemClock
from loms.core.settings import Config
from loms.ingest.exposition import ExpositionReader
from loms.store.database import Database
from loms.store.writer import Writer

TEXT = Path(__file__).parents[1] / "tests/data/vllm-0.32.0/loaded.txt"
CONSTANT = re.compile(r"python_info|process_start_time_seconds|\w+:\w+_(info|created)\b")
SAMPLE = re.compile(r"^([^#\s].*) (\S+)$", re.MULTILINE)
GZIP = re.compile(rb"\r\naccept-encoding:[^\r]*gzip", re.IGNORECASE)
VARIANTS = 64
INTERVAL = 5
WARM_UP_SECONDS = 25.0
QUICK_WARM_UP_SECONDS = {"loms": 12.0, "prometheus": 17.0, "victoriametrics": 6.0}
"""Two rounds at least. Prometheus begins 10 s after its start; LOMS asks the engines for their version in between."""


# The targets: one process, an address of 127.0.0.0/8 for each target


def variants(path: Path = TEXT) -> list[bytes]:
    """An exposition as it changes from scrape to scrape: counters and buckets grow, gauges move, constants stay."""
    text = path.read_text()

    def later(count: int) -> str:
        def change(match: re.Match[str]) -> str:
            head, value = match[1], float(match[2])
            if CONSTANT.match(head) or not math.isfinite(value):
                return match[0]
            return f"{head} {value + count * (1 + len(head) % 5)!r}"

        return SAMPLE.sub(change, text)

    return [later(count).encode() for count in range(VARIANTS)]


def serve() -> None:
    """Answer scrapes at once; print the port, then for each line of standard input the number of answers so far."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n{}Content-Length: {}\r\n\r\n"
    bodies = variants()
    plain = [head.format("", len(body)).encode() + body for body in bodies]
    packed = [gzip.compress(body) for body in bodies]
    compressed = [head.format("Content-Encoding: gzip\r\n", len(body)).encode() + body for body in packed]
    version = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"version":"0.32.0"}'
    turns: Counter[str] = Counter()

    class Target(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.pending = transport, b""
            self.address = transport.get_extra_info("sockname")[0]

        def data_received(self, data: bytes) -> None:
            self.pending += data
            while b"\r\n\r\n" in self.pending:
                request, _, self.pending = self.pending.partition(b"\r\n\r\n")
                if request.startswith(b"GET /metrics "):
                    turns[self.address] += 1
                    answers = compressed if GZIP.search(request) else plain
                    self.transport.write(answers[turns[self.address] % VARIANTS])
                else:
                    self.transport.write(version)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Target, "0.0.0.0", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(turns.total(), flush=True)

    asyncio.run(run())


def addresses(targets: int, port: int) -> list[str]:
    return [f"127.1.{i // 250}.{i % 250 + 1}:{port}" for i in range(targets)]


class Server:
    def __init__(self) -> None:
        command = [sys.executable, __file__, "--role", "server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._line())

    def served(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._line())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


# LOMS, as the child process that is measured


def run_loms(port: int, targets: int, directory: Path, profile: str) -> None:
    """The agent and the store as ``loms up`` wires them, until SIGTERM."""
    job = {"name": "vllm", "targets": addresses(targets, port), "interval": INTERVAL, "timeout": INTERVAL}
    config = Config.model_validate({"scrape": {"jobs": [job], "discover": {"enabled": False}}})
    clock = SystemClock()
    profiler = cProfile.Profile()

    async def collect(writer: Writer) -> None:
        work = asyncio.create_task(Agent(config, writer, clock).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        with suppress(asyncio.CancelledError):
            await work

    with Database.open(directory, config.store.retention, clock) as database:
        writer = Writer(
            database,
            clock,
            flush_seconds=config.store.flush_interval,
            flush_rows=config.store.flush_rows,
            queue_rows=config.store.queue_rows,
        )
        if profile:
            profiler.enable()
        asyncio.run(collect(writer))
        if profile:
            profiler.disable()
            profiler.dump_stats(profile)
        writer.close()


# Measuring


def measure(
    process: subprocess.Popen[bytes], server: Server, directory: Path, targets: int, warm_up: float, seconds: float
) -> dict[str, float]:
    """CPU seconds per million samples over whole intervals, after the warm-up."""
    samples = len(SAMPLE.findall(TEXT.read_text()))
    time.sleep(warm_up)
    if process.poll() is not None:
        raise SystemExit(f"{process.args!r} ended early with {process.returncode}")
    served, cpu, begun = server.served(), cpu_seconds(process.pid), time.monotonic()
    time.sleep(seconds)
    count, spent = server.served() - served, cpu_seconds(process.pid) - cpu
    millions, expected = count * samples / 1e6, targets * seconds / INTERVAL
    if count < 0.95 * expected:
        print(f"behind: {count} scrapes instead of {expected:.0f}; the last it said:", file=sys.stderr)
        print((directory / "log.txt").read_text(errors="replace")[-2000:], file=sys.stderr)
    if not count:
        return {}
    return {
        "cpu_seconds_per_million": round(spent / millions, 3),
        "rss_mb": round(rss_mb(process.pid)),
        "samples_per_second": round(count * samples / (time.monotonic() - begun)),
        "cpu_cores": round(spent / (time.monotonic() - begun), 3),
    }


def commands(server: Server, options: argparse.Namespace, directory: Path) -> dict[str, list[str] | None]:
    """System → how to start it; None where it is not installed."""
    quoted = ", ".join(f"'{address}'" for address in addresses(options.targets, server.port))
    config = directory / "scrape.yml"
    config.write_text(
        f"global: {{scrape_interval: {INTERVAL}s, scrape_timeout: {INTERVAL}s}}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: [{quoted}]}}]}}]\n"
    )
    listen = f"127.0.0.1:{free_port()}"
    loms = [sys.executable, str(Path(__file__).absolute()), "--role", "loms", "--port", str(server.port)]
    known: dict[str, list[str]] = {
        "loms": [*loms, "--targets", str(options.targets), "--profile", options.profile],
        "prometheus": ["prometheus", f"--config.file={config}", f"--web.listen-address={listen}"],
        "victoriametrics": ["victoria-metrics", f"-promscrape.config={config}", f"-httpListenAddr={listen}"],
    }
    return {name: command if shutil.which(command[0]) else None for name, command in known.items()}


def parsing(seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Samples a second in the steady state, of LOMS's reader and of prometheus_client's parser, on one core."""
    bodies = variants()
    reader = ExpositionReader()
    samples = len(reader.read(bodies[0], "text/plain").values)

    def loms(body: bytes) -> None:
        reader.read(body, "text/plain")

    def prometheus_client(body: bytes) -> None:
        for _ in text_string_to_metric_families(body.decode()):
            pass

    rates = []
    for parse in (loms, prometheus_client):
        count, begun = 0, time.process_time()
        while time.process_time() - begun < seconds / 2:
            parse(bodies[count % VARIANTS])
            count += 1
        rates.append(round(count * samples / (time.process_time() - begun)))
    return {"parse_samples_per_second": rates[0]}, {"parse_samples_per_second": rates[1]}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    seconds = options.seconds or (5.0 if options.quick else 60.0)
    if options.profile:
        options.profile = str(Path(options.profile).absolute())
    ours, theirs = parsing(3.0)
    server = Server()
    results: dict[str, Any] = {}
    samples = len(SAMPLE.findall(TEXT.read_text()))
    try:
        with tempfile.TemporaryDirectory(prefix="loms-ingest-") as name:
            for system, command in commands(server, options, Path(name)).items():
                if system not in options.only:
                    continue
                if command is None:
                    results[system] = {"unavailable": "not installed"}
                    continue
                directory = Path(name, system)
                directory.mkdir()
                warm_up = QUICK_WARM_UP_SECONDS[system] if options.quick else WARM_UP_SECONDS
                print(f"{system}: {warm_up + seconds:g} s", file=sys.stderr)
                with running(command, directory) as process:
                    results[system] = measure(process, server, directory, options.targets, warm_up, seconds)
    finally:
        server.close()
    results.setdefault("loms", {}).update(ours)
    results["prometheus_client"] = theirs
    return {
        **results,
        "setting": {"targets": options.targets, "samples_per_scrape": samples, "interval_seconds": INTERVAL}
        | {"seconds": seconds, "load_average": [round(load, 2) for load in os.getloadavg()]},
        "machine": machine(),
        "commit": commit(),
    }


def show(results: dict[str, Any]) -> None:
    print(f"{'':18}{'CPU-s per million':>18}{'RSS MB':>9}{'samples/s':>12}{'parsing/s':>12}")
    for system, figures in results.items():
        if not isinstance(figures, dict) or system == "setting":
            continue
        columns = ("cpu_seconds_per_million", "rss_mb", "samples_per_second", "parse_samples_per_second")
        row = [f"{figures[c]:,}" if c in figures else str(figures.get("unavailable", "")) for c in columns]
        print(f"{system:18}{row[0]:>18}{row[1]:>9}{row[2]:>12}{row[3]:>12}")
    print(f"{results['setting']}\n{results['machine']}, commit {results['commit']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="5 s per system instead of 60")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--seconds", type=float, help="measured seconds per system")
    parser.add_argument("--targets", type=int, default=500)
    parser.add_argument("--only", nargs="+", default=["loms", "prometheus", "victoriametrics"])
    parser.add_argument("--profile", default="", metavar="FILE")
    parser.add_argument("--role", choices=["compare", "server", "loms"], default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        serve()
    elif options.role == "loms":
        run_loms(options.port, options.targets, Path("store"), options.profile)
    else:
        results = compare(options)
        if options.json:
            print(json.dumps(results))
        else:
            show(results)


if __name__ == "__main__":
    main()
