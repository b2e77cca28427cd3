"""Hours of a simulated engine's scrapes in a second or two: the lab's engine model in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from loms.core.model import Exposition, Labels
from loms.ingest.exposition import ExpositionReader
from loms.lab.exposition import CONTENT_TYPE, MetricsText
from loms.lab.scheduler import EngineConfig, Request, Scheduler
from loms.lab.stats import EngineStats

Scrape = tuple[float, Exposition | None]
"""Seconds since the start, and what was answered (None: nothing, the process is gone)."""


def scrapes(
    seconds: float,
    *,
    interval: float = 15.0,
    rate: float = 0.3,
    hang: tuple[float, float] | None = None,
    gone: tuple[float, float] | None = None,
    seed: int = 0,
    model: str = "sim-8b",
) -> Iterator[Scrape]:
    """Poisson arrivals at ``rate``. The engine's core stands still from the first request within ``hang`` to its end;
    nothing listens during ``gone``."""
    rng, config = np.random.default_rng(seed), EngineConfig(seed=seed)
    scheduler, stats = Scheduler(config), EngineStats(config.max_model_len)
    text, reader = MetricsText(stats, config, model, 0.0), ExpositionReader()
    offset = float(rng.uniform(0, interval))
    now, arrival, number = 0.0, float(rng.exponential(1 / rate)), 0
    for tick in range(int((seconds - offset) // interval) + 1):
        due = offset + tick * interval
        while now < due:
            if hang is not None and hang[0] <= now < hang[1] and scheduler.running:
                now = hang[1]  # what arrives meanwhile waits in a socket
                continue
            while arrival <= now:
                prompt, reply = (tuple(range(int(n))) for n in rng.integers((100, 20), (300, 80)))
                scheduler.submit(Request(f"r{number}", prompt, reply, arrival, "length", len(reply)), now)
                number, arrival = number + 1, arrival + float(rng.exponential(1 / rate))
            step = scheduler.begin(now)
            if step is None:
                stats.gauge(scheduler)
                now = arrival
                continue
            now += step.seconds
            stats.record(scheduler.complete(step, now), scheduler)
        away = gone is not None and gone[0] <= due < gone[1]
        yield due, None if away else reader.read(text.render(), CONTENT_TYPE)


def write_openmetrics(path: Path, start_ms: int, targets: Sequence[tuple[Labels, Sequence[Scrape]]]) -> None:
    """What a Prometheus would have stored, ``up`` and ``scrape_duration_seconds`` included, series after series."""
    with path.open("w") as out:
        for labels, found in targets:
            own = ",".join(f'{name}="{value}"' for name, value in labels)
            lines: dict[str, list[str]] = {}
            for at, exposition in found:
                time = f"{(start_ms + round(at * 1000)) / 1000:.3f}"
                lines.setdefault(f"up{{{own}}}", []).append(f"{int(exposition is not None)} {time}")
                lines.setdefault(f"scrape_duration_seconds{{{own}}}", []).append(f"0.002 {time}")
                if exposition is None:
                    continue
                shape = exposition.shape
                for name, extra, value in zip(shape.names, shape.labels, exposition.values.tolist(), strict=True):
                    inner = "".join(f',{key}="{text}"' for key, text in extra)
                    lines.setdefault(f"{name}{{{own}{inner}}}", []).append(f"{value!r} {time}")
            for series, points in lines.items():
                out.writelines(f"{series} {point}\n" for point in points)
        out.write("# EOF\n")
