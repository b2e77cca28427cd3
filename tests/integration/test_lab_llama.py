"""The real llama.cpp server with the real small model: started, driven, frozen, resumed, stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loms.core.errors import MissingPackageError
from loms.lab.llama import LlamaServer, require
from loms.lab.load import Lengths, LoadGenerator, LoadProfile, LoadReport

pytestmark = [pytest.mark.integration, pytest.mark.real]


@pytest.fixture(scope="module")
def llama() -> Iterator[LlamaServer]:
    try:
        require()
    except MissingPackageError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    with LlamaServer() as server:
        yield server


def drive(server: LlamaServer, profile: LoadProfile) -> LoadReport:
    return asyncio.run(LoadGenerator(server.url, server.model, profile).run())


def fetch(server: LlamaServer, path: str) -> str:
    async def get() -> str:
        async with aiohttp.ClientSession() as session, session.get(server.url + path) as response:
            assert response.status == 200
            return await response.text()

    return asyncio.run(get())


def counters(server: LlamaServer) -> dict[str, float]:
    families = text_string_to_metric_families(fetch(server, "/metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_what_it_says_about_itself(llama: LlamaServer) -> None:
    assert '"smollm2-135m"' in fetch(llama, "/v1/models")
    assert fetch(llama, "/slots").startswith("[")
    assert "total_slots" in fetch(llama, "/props")
    assert fetch(llama, "/health") == '{"status":"ok"}'


def test_the_load_generator_counts_what_the_engine_counts(llama: LlamaServer) -> None:
    before = counters(llama)
    profile = LoadProfile(
        rate=4, seconds=2, prompt_words=Lengths(30), output_tokens=Lengths(12), stream_share=0.5, prefix_words=20
    )
    report = drive(llama, profile)
    records = report.records
    assert {record.outcome for record in records} == {"ok"}
    after = counters(llama)

    def gained(name: str) -> float:
        return after[f"llamacpp:{name}"] - before[f"llamacpp:{name}"]

    assert gained("tokens_predicted_total") == sum(record.completion_tokens for record in records)
    assert gained("prompt_tokens_cached_total") == sum(record.cached_tokens for record in records)
    assert gained("prompt_tokens_total") == sum(record.prompt_tokens - record.cached_tokens for record in records)
    for record in records:
        assert record.completion_tokens <= 12
        if record.planned.stream:
            assert record.ttft_seconds is not None
            assert 0 < record.ttft_seconds <= record.e2e_seconds


def test_frozen_it_answers_nothing_and_resumed_it_serves_again(llama: LlamaServer) -> None:
    one = LoadProfile(
        rate=1000, seconds=0.01, max_in_flight=1, prompt_words=Lengths(5), output_tokens=Lengths(3), timeout_seconds=1.0
    )
    llama.freeze()
    try:
        (silent,) = drive(llama, one).records
        assert (silent.outcome, silent.status) == ("timeout", 0)
        assert llama.running
    finally:
        llama.resume()
    patient = LoadProfile(
        rate=1000,
        seconds=0.01,
        max_in_flight=1,
        prompt_words=Lengths(5),
        output_tokens=Lengths(3),
        timeout_seconds=60.0,
    )
    (served,) = drive(llama, patient).records
    assert served.outcome == "ok"


def test_a_frozen_server_can_be_stopped(llama: LlamaServer) -> None:
    with LlamaServer(slots=1, context_tokens=512) as second:
        address = ("127.0.0.1", int(second.url.rpartition(":")[2]))
        second.freeze()
    assert not second.running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
