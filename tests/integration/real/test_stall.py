"""``loms up`` with its defaults beside real engines: quiet while they work or rest, and not when they freeze.

The engine core of vLLM is stopped (SIGSTOP) while its API server goes on answering ``/health`` and ``/metrics``.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loms.lab.load import Lengths, LoadGenerator, LoadProfile, LoadReport

pytestmark = [pytest.mark.integration, pytest.mark.real]

INPUT, OUTPUT = "llm_engine_tokens_input_total", "llm_engine_tokens_output_total"
FINISHED = "llm_engine_requests_finished_total"
NOTICED_SECONDS = 30
"""From the freezing to the open incident."""
RESOLVED_SECONDS = 45


class Load(threading.Thread):
    """Requests in the background; `join` for the report."""

    def __init__(self, url: str, model: str, profile: LoadProfile) -> None:
        super().__init__(daemon=True)
        self._generator = LoadGenerator(url, model, profile)
        self.report: LoadReport | None = None

    def run(self) -> None:
        self.report = asyncio.run(self._generator.run())

    @property
    def in_flight(self) -> int:
        return self._generator.in_flight


def drive(server, profile: LoadProfile) -> LoadReport:
    load = Load(server.url, server.model, profile)
    load.start()
    load.join(120)
    assert load.report is not None
    assert {record.outcome for record in load.report.records} == {"ok"}, load.report.summary()
    return load.report


def instance(server) -> str:
    found: str = server.url.rpartition("/")[2]
    return found


def counters(loms, server) -> dict[str, float]:
    return {name: loms.value(f'sum({name}{{instance="{instance(server)}"}})') for name in (INPUT, OUTPUT, FINISHED)}


SINGLE = 0
"""A seed that gives exactly one arrival at this rate and time."""
BURST = {"max_in_flight": 64, "timeout_seconds": 100, "extra": {"ignore_eos": True}}


def test_long_prompts_a_full_queue_and_rest_open_no_incident(loms, vllm, llama, wait_until) -> None:
    """And what the API says was counted is what the clients counted."""
    one = LoadProfile(rate=20, seconds=0.05, prompt_words=Lengths(880), output_tokens=Lengths(8), seed=SINGLE, **BURST)
    # A dozen at once on four places: most of them wait for most of the time.
    many = LoadProfile(rate=40, seconds=0.3, prompt_words=Lengths(40), output_tokens=Lengths(80), **BURST)
    for server in (vllm, llama):
        wait_until(lambda s=server: not math.isnan(counters(loms, s)[INPUT]), 30, "the first counters")
        before = counters(loms, server)
        records = [record for profile in (one, many) for record in drive(server, profile).records]
        assert max(record.prompt_tokens for record in records) >= 900
        assert len(records) > 8
        expected = {INPUT: sum(r.prompt_tokens for r in records), OUTPUT: sum(r.completion_tokens for r in records)}
        if server is vllm:
            expected[FINISHED] = len(records)
        grown: dict[str, float] = {}

        def counted(server=server, before=before, expected=expected, grown=grown) -> bool:
            after = counters(loms, server)
            grown.update({name: after[name] - before[name] for name in expected})
            return grown == expected

        def told(server=server, expected=expected, grown=grown) -> str:
            probes = loms.get("/api/v1/query", query=f'loms_probe_requests_total{{instance="{instance(server)}"}}')
            return f"counting {expected}, not {grown}, at {server.url} (probes: {probes['data']['result']})"

        wait_until(counted, 20, told)
    for server in (vllm, llama):
        wait_until(lambda s=server: loms.engine(instance(s))["state"] == "idle", 30, "rest")
        assert loms.incidents(instance(server)) == []


@contextmanager
def frozen(server) -> Iterator[float]:
    """Frozen inside the block; gives the moment."""
    server.freeze()
    try:
        yield time.monotonic()
    finally:
        server.resume()


def await_stalled(loms, vllm, since: float, wait_until: Callable[..., None]) -> None:
    """An incident opens in time, although the health check is green all the while."""
    health = set()

    def noticed() -> bool:
        health.add(vllm.health())
        return bool(loms.incidents(instance(vllm), "open"))

    wait_until(noticed, NOTICED_SECONDS - (time.monotonic() - since), "noticing that the engine is frozen")
    print(f"noticed after {time.monotonic() - since:.1f} s")
    assert health == {200}
    (incident,) = loms.incidents(instance(vllm), "open")
    assert [alert["rule"] for alert in incident["alerts"]] == ["EngineStalled"]
    assert incident["severity"] == "critical"
    assert incident["alerts"][0]["evidence"]
    assert loms.engine(instance(vllm))["state"] == "stalled"


def await_resolved(loms, vllm, wait_until: Callable[..., None]) -> None:
    wait_until(lambda: not loms.incidents(instance(vllm), "open"), RESOLVED_SECONDS, "resolving the incident")
    wait_until(lambda: loms.engine(instance(vllm))["state"] in ("idle", "busy"), 30, "a healthy state")


def test_an_engine_core_frozen_under_load_is_noticed_though_health_is_green(loms, vllm, llama, wait_until) -> None:
    load = Load(vllm.url, vllm.model, LoadProfile(rate=2, seconds=12, output_tokens=Lengths(100), **BURST))
    load.start()
    wait_until(lambda: loms.engine(instance(vllm))["state"] == "busy", 20, "the load")
    with frozen(vllm) as since:
        await_stalled(loms, vllm, since, wait_until)
    await_resolved(loms, vllm, wait_until)
    load.join(100)
    assert load.report is not None
    assert {record.outcome for record in load.report.records} == {"ok"}
    assert loms.incidents(instance(llama)) == []


def test_an_engine_core_frozen_while_idle_is_noticed_though_nothing_runs_or_waits(
    loms, vllm, llama, wait_until
) -> None:
    wait_until(lambda: loms.engine(instance(vllm))["state"] == "idle", 60, "rest")
    known = loms.incidents(instance(vllm))
    before = counters(loms, vllm)
    with frozen(vllm) as since:
        await_stalled(loms, vllm, since, wait_until)
        assert loms.value(f'llm_engine_requests_running{{instance="{instance(vllm)}"}}') == 0
        assert loms.value(f'loms_probe_success{{instance="{instance(vllm)}"}}') == 0
    await_resolved(loms, vllm, wait_until)
    incidents = loms.incidents(instance(vllm))
    assert {incident["state"] for incident in incidents} == {"resolved"}
    assert len(incidents) - len(known) in (0, 1)  # the same one again, where the last one ended a moment ago
    ends = [max((one["resolved_at_ms"] for one in each), default=0) for each in (known, incidents)]
    assert ends[0] < ends[1]
    # Requests that were given up while it was frozen are not its users'.
    assert counters(loms, vllm) == before
    assert loms.incidents(instance(llama)) == []


def test_probes_stay_out_of_the_counters_when_loms_itself_restarts(vllm, start_loms, wait_until) -> None:
    often = {"probe": {"interval": "2s"}}

    def probes(loms) -> float:
        return loms.value('loms_probe_requests_total{outcome="ok"}')

    with start_loms(vllm, **often) as first:
        wait_until(lambda: probes(first) >= 2, 60, "the second probe")
        before = counters(first, vllm)
        assert counters(first, vllm)[FINISHED] < raw_finished(first)
    with start_loms(vllm, **often) as second:
        wait_until(lambda: probes(second) >= 2, 60, "the second probe")
        assert counters(second, vllm) == before


def raw_finished(loms) -> float:
    value: float = loms.value("sum(vllm:request_success_total)")
    return value
