"""A simulated engine as a real process, driven by the load generator: its figures against the client's own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loms.core.clock import SystemClock
from loms.lab.fleet import Fleet
from loms.lab.load import Lengths, LoadGenerator, LoadProfile, LoadReport

pytestmark = pytest.mark.integration

MODEL = "simulated-8b"
SLACK_SECONDS = 0.25
"""How much later than the engine a client on a busy machine may see something."""


class Metrics:
    """One scrape. Values are found by family and extra labels; histograms as (bound, cumulative count)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = {
            (
                sample.name,
                frozenset(set(sample.labels.items()) - {("engine", "0"), ("model_name", MODEL)}),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[f"vllm:{name}", frozenset(labels.items())]

    def buckets(self, name: str) -> list[tuple[float, float]]:
        found = [
            (float(dict(labels)["le"]), value)
            for (sample, labels), value in self._samples.items()
            if sample == f"vllm:{name}_bucket"
        ]
        return sorted(found)


class Client:
    """Plain HTTP to one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = json.dumps(body).encode() if body is not None else None
        async with self.session.request(method, self.url + path, data=data) as response:
            assert response.headers["Server"] == "loms-lab"
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def metrics(self) -> Metrics:
        status, text = await self.call("GET", "/metrics")
        assert status == 200
        return Metrics(text)

    async def fault(self, **body: object) -> None:
        status, answer = await self.call("POST", "/lab/faults", body)
        assert status == 200, answer

    async def ask(self, max_tokens: int, prompt: str = "Tell me about the sea.") -> aiohttp.ClientResponse:
        """A streaming request; returns when the engine has accepted it."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        response = await self.session.post(f"{self.url}/v1/completions", json=body)
        assert response.status == 200
        return response

    async def until(self, condition: Callable[[Metrics], bool], seconds: float = 30.0) -> Metrics:
        async with asyncio.timeout(seconds):
            while True:
                metrics = await self.metrics()
                if condition(metrics):
                    return metrics
                await asyncio.sleep(0.02)


def run(fleet: Fleet, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with aiohttp.ClientSession() as session:
            await scenario(Client(session, fleet.urls[0]))

    asyncio.run(inside())


async def drive(url: str, **profile: Any) -> LoadReport:
    return await LoadGenerator(url, MODEL, LoadProfile(**profile)).run()


@pytest.fixture
def engine() -> Iterator[Fleet]:
    """A fresh engine of default size."""
    with Fleet(1) as fleet:
        yield fleet


def test_it_says_what_it_is(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        assert await client.call("GET", "/health") == (200, "")
        assert await client.call("GET", "/version") == (200, {"version": "0.32.0", "simulated": True})
        _, models = await client.call("GET", "/v1/models")
        (card,) = models["data"]
        assert (card["id"], card["owned_by"], card["max_model_len"]) == (MODEL, "loms-lab (simulated)", 4096)
        assert "\nloms_simulated_info 1.0\n" in (await client.metrics()).text

    run(engine, scenario)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_errors_have_openais_shape(engine: Fleet, path: str) -> None:
    async def scenario(client: Client) -> None:
        prompt = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
        for body, status, kind, param in (
            ({**prompt, "model": "nope"}, 404, "NotFoundError", "model"),
            ({**prompt, "max_tokens": -5}, 400, "BadRequestError", "max_tokens"),
            ({**prompt, "max_tokens": 5000}, 400, "BadRequestError", "max_tokens"),
            ({"model": MODEL}, 400, "BadRequestError", "messages" if "chat" in path else "prompt"),
        ):
            got, answer = await client.call("POST", path, body)
            error = answer["error"]
            assert (got, error["code"], error["type"], error["param"]) == (status, status, kind, param)
        async with client.session.post(client.url + path, data=b"{bad") as response:
            assert response.status == 400
            assert "not JSON" in (await response.json())["error"]["message"]
        assert (await client.call("GET", "/v1/nothing"))[0] == 404
        metrics = await client.metrics()
        assert metrics("prompt_tokens_total") == 0

    run(engine, scenario)


def test_token_counts_equal_the_clients_exactly(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        shape: dict[str, Any] = {
            "rate": 25,
            "seconds": 2,
            "prompt_words": Lengths(80, 0.4),
            "output_tokens": Lengths(12, 0.5),
        }
        reports = await asyncio.gather(
            drive(client.url, seed=1, stream_share=0.5, prefix_words=40, **shape),
            drive(client.url, seed=2, stream_share=0.5, chat=False, **shape),
        )
        records = [record for report in reports for record in report.records]
        assert {record.outcome for record in records} == {"ok"}
        assert {record.planned.stream for record in records} == {True, False}
        for record in records:
            assert record.completion_tokens == record.planned.max_tokens
            if record.planned.stream:
                assert record.chunks == record.completion_tokens
        prompt, completion = (sum(r.prompt_tokens for r in records), sum(r.completion_tokens for r in records))
        cached = sum(record.cached_tokens for record in records)
        metrics = await client.metrics()
        assert metrics("prompt_tokens_total") == metrics("request_prompt_tokens_sum") == prompt
        assert metrics("generation_tokens_total") == metrics("request_generation_tokens_sum") == completion
        assert metrics("prompt_tokens_cached_total") == metrics("prefix_cache_hits_total") == cached > 0
        assert metrics("prefix_cache_queries_total") == prompt
        assert metrics("iteration_tokens_total_sum") == prompt - cached + completion
        assert metrics("request_success_total", finished_reason="length") == len(records)
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
            assert metrics(f"{name}_count") == len(records)
        assert metrics("inter_token_latency_seconds_count") == completion - len(records)
        assert metrics("num_requests_running") == metrics("num_requests_waiting") == 0
        assert metrics("kv_cache_usage_perc") == 0

    run(engine, scenario)


def lies_in_the_servers_bucket(before: Metrics, after: Metrics, name: str, client_value: float) -> bool:
    """Whether the one value counted in between fell into the bucket of the client's, give or take the slack."""
    bounds = [bound for bound, _ in after.buckets(name)]
    counts = [new - old for (_, new), (_, old) in zip(after.buckets(name), before.buckets(name), strict=True)]
    assert counts[-1] == 1
    at = counts.index(1)
    lower = bounds[at - 1] if at else 0.0
    return lower <= client_value <= bounds[at] + SLACK_SECONDS


def test_one_requests_latencies_lie_in_the_buckets_that_the_engine_counted_them_in() -> None:
    async def scenario(client: Client) -> None:
        before = await client.metrics()
        for number in range(5):
            words = Lengths(50 + 150 * number)
            report = await drive(
                client.url,
                rate=1000,
                seconds=0.01,
                max_in_flight=1,
                prompt_words=words,
                output_tokens=Lengths(15),
                seed=number,
            )
            (record,) = report.records
            after = await client.metrics()
            assert record.ttft_seconds is not None
            for name, seen in (
                ("time_to_first_token_seconds", record.ttft_seconds),
                ("e2e_request_latency_seconds", record.e2e_seconds),
            ):
                counted = after(f"{name}_sum") - before(f"{name}_sum")
                assert counted <= seen <= counted + SLACK_SECONDS
                assert lies_in_the_servers_bucket(before, after, name, seen)
            spent = after("inter_token_latency_seconds_sum") - before("inter_token_latency_seconds_sum")
            assert sum(record.gaps) == pytest.approx(spent, abs=SLACK_SECONDS)
            before = after

    with Fleet(1, options=["--speed", "0.25"]) as fleet:
        run(fleet, scenario)


def test_a_loads_latencies_fill_the_same_buckets_for_client_and_engine() -> None:
    def compare(metrics: Metrics, name: str, seen: list[float]) -> None:
        """The client sees each value a little later than the engine, never earlier."""
        seen = sorted(seen)
        assert metrics(f"{name}_count") == len(seen)
        for bound, counted in metrics.buckets(name)[:-1]:
            assert sum(value <= bound for value in seen) <= counted
            assert counted <= sum(value <= bound + SLACK_SECONDS for value in seen)

    async def scenario(client: Client) -> None:
        report = await drive(client.url, rate=2.5, seconds=5, prompt_words=Lengths(100, 0.5), output_tokens=Lengths(15))
        metrics = await client.metrics()
        compare(metrics, "time_to_first_token_seconds", [r.ttft_seconds for r in report.records if r.ttft_seconds])
        compare(metrics, "e2e_request_latency_seconds", [record.e2e_seconds for record in report.records])
        middle = median(gap for record in report.records for gap in record.gaps)
        buckets = metrics.buckets("inter_token_latency_seconds")
        at = bisect_left([counted for _, counted in buckets], buckets[-1][1] / 2)
        assert buckets[at - 1][0] - 0.02 <= middle <= buckets[at][0] + 0.02

    with Fleet(1, options=["--speed", "0.25"]) as fleet:
        run(fleet, scenario)


def test_equal_prefixes_are_hits(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        body = {"prompt": "the sea has many ships " * 20 + "and so on", "max_tokens": 3}
        usages = []
        for _ in range(3):
            _, answer = await client.call("POST", "/v1/completions", body)
            usages.append(answer["usage"])
        prompt = usages[0]["prompt_tokens"]
        hit = (prompt - 1) // 16 * 16  # whole blocks, and one token must be computed
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, hit, hit]
        metrics = await client.metrics()
        assert metrics("prefix_cache_hits_total") == 2 * hit
        assert metrics("request_prefill_kv_computed_tokens_sum") == 3 * prompt - 2 * hit

    run(engine, scenario)


def test_a_small_pool_preempts_and_everybody_gets_all_tokens() -> None:
    async def scenario(client: Client) -> None:
        report = await drive(
            client.url,
            rate=400,
            seconds=0.02,
            prompt_words=Lengths(30),
            output_tokens=Lengths(120),
            extra={"ignore_eos": True},
        )
        assert len(report.records) >= 4
        assert {(r.outcome, r.completion_tokens, r.chunks) for r in report.records} == {("ok", 120, 120)}
        metrics = await client.metrics()
        assert metrics("num_preemptions_total") == metrics("request_num_preemptions_sum") > 0
        assert metrics("generation_tokens_total") == 120 * len(report.records)
        assert metrics("prompt_tokens_total") == sum(record.prompt_tokens for record in report.records)
        assert metrics("kv_cache_usage_perc") == 0

    with Fleet(1, options=["--num-blocks", "20", "--max-model-len", "320", "--speed", "8"]) as fleet:
        run(fleet, scenario)


def test_a_client_that_leaves_frees_its_blocks(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        response = await client.ask(2000)
        for _ in range(3):
            await response.content.readuntil(b"\n\n")
        assert (await client.metrics())("kv_cache_usage_perc") > 0
        response.close()
        metrics = await client.until(lambda m: m("num_requests_running") == 0)
        assert metrics("kv_cache_usage_perc") == 0
        assert 3 <= metrics("generation_tokens_total") < 2000
        assert metrics("e2e_request_latency_seconds_count") == 0
        for reason in ("length", "stop", "abort"):
            assert metrics("request_success_total", finished_reason=reason) == 0

    run(engine, scenario)


def test_a_plain_request_is_aborted_too_when_the_client_leaves(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        body = {"prompt": "Go on.", "max_tokens": 3000, "ignore_eos": True}
        asking = asyncio.create_task(client.call("POST", "/v1/completions", body))
        await client.until(lambda m: m("num_requests_running") == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await client.until(lambda m: m("num_requests_running") == m("kv_cache_usage_perc") == 0)

    run(engine, scenario)


async def rest_of(response: aiohttp.ClientResponse) -> str:
    async with asyncio.timeout(60):
        return (await response.read()).decode()


def test_a_hang_under_load_freezes_every_number_and_serves_all_when_it_ends(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        asked = [await client.ask(150) for _ in range(3)]
        await client.until(lambda m: m("num_requests_running") == 3 and m("generation_tokens_total") > 10)
        await client.fault(fault="hang")
        frozen = await client.metrics()
        asked.append(await client.ask(5))
        assert (await client.call("GET", "/health"))[0] == 200
        assert (await client.call("GET", "/v1/models"))[0] == 200
        assert await client.call("GET", "/lab/faults") == (200, {"faults": [{"fault": "hang", "seconds_left": None}]})
        await asyncio.sleep(0.3)  # many steps of a healthy engine
        assert (await client.metrics()).text == frozen.text
        assert frozen("num_requests_running") == 3
        assert await client.call("DELETE", "/lab/faults/hang") == (200, {"faults": []})
        for text in [await rest_of(response) for response in asked]:
            assert text.endswith("data: [DONE]\n\n")
        metrics = await client.metrics()
        assert metrics("request_success_total", finished_reason="length") == 4
        assert metrics("generation_tokens_total") == 3 * 150 + 5
        assert metrics("time_to_first_token_seconds_count") == 4

    run(engine, scenario)


def test_a_hang_while_idle_shows_nothing_at_all(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        await client.fault(fault="hang")
        frozen = await client.metrics()
        stays, leaves = await client.ask(5), await client.ask(7)
        leaves.close()
        await asyncio.sleep(0.3)
        assert (await client.metrics()).text == frozen.text
        assert frozen("num_requests_running") == frozen("num_requests_waiting") == 0
        await client.call("DELETE", "/lab/faults")
        assert (await rest_of(stays)).endswith("data: [DONE]\n\n")
        metrics = await client.until(lambda m: m("num_requests_running") == 0)
        assert metrics("request_success_total", finished_reason="length") == 1

    run(engine, scenario)


def test_a_hang_with_a_duration_ends_by_itself(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        await client.fault(fault="hang", seconds=0.3)
        assert (await rest_of(await client.ask(3))).endswith("data: [DONE]\n\n")
        assert await client.call("GET", "/lab/faults") == (200, {"faults": []})

    run(engine, scenario)


def test_slow_stretches_the_time_between_tokens(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        async def mean_gap() -> float:
            before = await client.metrics()
            await rest_of(await client.ask(20))
            after = await client.metrics()
            name = "inter_token_latency_seconds"
            return (after(f"{name}_sum") - before(f"{name}_sum")) / (after(f"{name}_count") - before(f"{name}_count"))

        normal = await mean_gap()
        await client.fault(fault="slow", factor=8)
        slow = await mean_gap()
        await client.call("DELETE", "/lab/faults/slow")
        again = await mean_gap()
        assert slow > 2 * max(normal, again)

    run(engine, scenario)


def test_a_kv_leak_fills_the_cache_until_it_is_cleared(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        await client.fault(fault="kv_leak", share=0.5)
        levels = []
        for number in range(4):
            await rest_of(await client.ask(20, prompt=f"{number} birds and " * 20))
            metrics = await client.until(lambda m: m("num_requests_running") == 0)
            levels.append(metrics("kv_cache_usage_perc"))
        assert 0 < levels[0] < levels[1] < levels[2] < levels[3]
        await client.call("DELETE", "/lab/faults")
        await client.until(lambda m: m("kv_cache_usage_perc") == 0)

    run(engine, scenario)


def test_wrong_faults_are_refused(engine: Fleet) -> None:
    async def scenario(client: Client) -> None:
        status, answer = await client.call("POST", "/lab/faults", {"fault": "explode"})
        assert status == 400
        assert "'hang'" in answer["error"]["message"]
        status, answer = await client.call("DELETE", "/lab/faults/explode")
        assert status == 404
        assert "hang, slow, kv_leak" in answer["error"]["message"]

    run(engine, scenario)


def test_a_fleet_serves_apart_and_stops_whole() -> None:
    async def scenario(client: Client) -> None:
        await rest_of(await client.ask(4))
        counts = [(await Client(client.session, url).metrics())("generation_tokens_total") for url in fleet.urls]
        assert counts == [4, 0, 0]

    with Fleet(3, name="unit", model=MODEL) as fleet:
        assert [engine.name for engine in fleet.engines] == ["unit-0", "unit-1", "unit-2"]
        run(fleet, scenario)
        addresses = [("127.0.0.1", int(url.rpartition(":")[2])) for url in fleet.urls]
    assert not fleet.running
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)


def test_a_fleet_takes_the_ports_it_is_given() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Fleet(1, port=port) as fleet:
        assert fleet.urls == (f"http://127.0.0.1:{port}",)


def test_a_fleet_ends_with_a_parent_that_is_killed() -> None:
    code = "from loms.lab.fleet import Fleet; f = Fleet(1); print(f.pid, f.urls[0], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        clock = SystemClock()
        end = clock.monotonic() + 30
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        while clock.monotonic() < end:
            try:
                socket.create_connection(address, timeout=5).close()
            except ConnectionRefusedError:
                break
        else:
            os.kill(int(pid), signal.SIGKILL)
            pytest.fail("the fleet outlived its parent")
