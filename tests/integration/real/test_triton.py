"""``loms up`` beside a real Triton: queue, compute and batches, as its client and Triton itself count them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration.real.triton_server import MODEL, Triton, install
from support.processes import Loms, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.real]

CLIENTS = 24
"""Three times what one execution takes, so that most of them wait."""


@dataclass(frozen=True)
class World:
    loms: Loms
    triton: Triton

    def value(self, name: str, **labels: str) -> float:
        wanted = {"instance": self.triton.instance, **labels}
        return self.loms.value(f"{name}{{{','.join(f'{key}={text!r}' for key, text in wanted.items())}}}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    reason = install()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("triton")
    scrape = {"interval": "1s", "timeout": "1s"}
    with Triton(folder / "triton.log") as triton, Loms(folder, [triton.instance], {"scrape": scrape}) as loms:
        wait_until(lambda: loms.engine(triton.instance).get("engine") == "triton", 60, "the first scrape")
        yield World(loms, triton)


@dataclass(frozen=True)
class Seen:
    """What a client saw."""

    status: int
    rows: int
    seconds: float


def ask(triton: Triton, rows: int, timeout_us: int = 0, first: float = 0.0) -> Seen:
    begun = time.perf_counter()
    status = triton.infer(rows, first=first, timeout_us=timeout_us)
    return Seen(status, rows, time.perf_counter() - begun)


def test_queue_compute_batches_and_outcomes(world: World) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        patient = list(clients.map(lambda i: ask(world.triton, 1 + i % 2), range(240)))
        hurried = list(clients.map(lambda _: ask(world.triton, 1, timeout_us=60_000), range(72)))
    broken = ask(world.triton, 1, first=-9.0)
    seen = [*patient, *hurried]
    done = [each for each in seen if each.status == 200]
    refused = [each for each in seen if each.status == 503]
    assert Counter(each.status for each in patient) == {200: 240}
    assert 0 < len(refused) == len(seen) - len(done)
    assert broken.status == 500

    told = world.triton.statistics()
    stats = told["inference_stats"]
    assert stats["success"]["count"] == len(done)

    finished = "llm_engine_requests_finished_total"
    wait_until(lambda: world.value(finished, outcome="success") == len(done), 30, "the last answer's scrape")
    wait_until(lambda: world.value(finished, error_type="BACKEND") == 1, 30, "the broken one's")
    assert world.value(finished, outcome="rejected", model=MODEL, model_version="1") == len(refused)
    assert world.value(finished, error_type="CANCELED") == 0
    assert world.value(finished, error_type="OTHER") == 0

    # Sums in seconds; the exposition cuts each request's nanoseconds off at microseconds.
    cut = 1e-6 * len(done)
    for name, parts in (
        ("gen_ai_server_request_duration_seconds", ("success",)),
        ("llm_engine_request_queue_duration_seconds", ("queue",)),
        ("llm_engine_request_inference_duration_seconds", ("compute_input", "compute_infer", "compute_output")),
    ):
        seconds = sum(stats[part]["ns"] for part in parts) / 1e9
        assert world.value(f"{name}_sum", model=MODEL) == pytest.approx(seconds, abs=cut * len(parts)), name
        assert world.value(f"{name}_count", model=MODEL) == len(done), name
    whole = world.value("gen_ai_server_request_duration_seconds_sum")
    queued = world.value("llm_engine_request_queue_duration_seconds_sum")
    computed = world.value("llm_engine_request_inference_duration_seconds_sum")
    # The clients' clocks: Triton's time lies within theirs, and what lies between is HTTP on a busy machine.
    waited = sum(each.seconds for each in done)
    assert 0.5 * waited < whole <= waited
    assert queued + computed <= whole
    assert computed >= 0.05 * len(done)  # the model sleeps so long, for whoever shares a batch

    executions = world.value("llm_engine_iteration_requests_count")
    assert executions == told["execution_count"]
    assert (
        world.value("llm_engine_iteration_requests_sum") == sum(each.rows for each in done) == told["inference_count"]
    )
    assert sum(each.rows for each in done) / executions > 2  # they were put together

    most = world.loms.value(f'max_over_time(llm_engine_requests_waiting{{instance="{world.triton.instance}"}}[2m])')
    assert 0 < most <= CLIENTS
    assert world.value("llm_engine_requests_waiting") == 0


def test_nothing_is_unknown_and_what_is_missing_has_a_reason(world: World) -> None:
    row = world.loms.engine(world.triton.instance)
    assert row["unmapped"] == []
    assert "summary" not in " ".join(row["unavailable"])
    assert "sum and count" in row["unavailable"]["llm_engine_request_queue_duration_seconds"]
    assert "--allow-gpu-metrics" in row["unavailable"]["hw_gpu_utilization_ratio"]


def test_it_comes_to_rest(world: World) -> None:
    """An idle Triton, of which nobody can tell whether it works, opens no incident."""
    wait_until(lambda: world.loms.engine(world.triton.instance).get("state") == "idle", 60, "the verdict")
    assert world.loms.incidents(world.triton.instance) == []


def test_triton_ends_with_its_processes(world: World, tmp_path: Path) -> None:
    with Triton(tmp_path / "log") as second:
        assert second.infer() == 200
        group = second.group
    assert not [stat for stat in Path("/proc").glob("[0-9]*/stat") if group_of(stat) == group]


def group_of(stat: Path) -> int:
    """Process group of a ``/proc/PID/stat``; -1 where the process is gone."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:
        return -1
