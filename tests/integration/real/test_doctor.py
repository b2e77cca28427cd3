"""``loms doctor`` on real engines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from integration.real.conftest import Vllm

from loms.lab.llama import LlamaServer

pytestmark = [pytest.mark.integration, pytest.mark.real]


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loms", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_no_time_to_first_token_and_what_to_do_instead(llama: LlamaServer) -> None:
    told = doctor(llama.url.removeprefix("http://"))
    assert told.returncode == 0, told.stderr
    assert "time_to_first_token" in told.stdout
    assert "llama.cpp has no latency histograms" in " ".join(told.stdout.split())

    found: dict[str, Any] = json.loads(doctor(llama.url, "--json").stdout)
    assert (found["engine"], found["model"]) == ("llama.cpp", "smollm2-135m")
    signals = {signal["canonical"]: signal for signal in found["signals"]}
    ttft = signals["gen_ai.server.time_to_first_token"]
    assert (ttft["status"], ttft["kind"]) == ("absent", "never")
    assert "loms_probe_duration_seconds" in ttft["instead"]
    for name in ("llm.engine.requests.running", "llm.engine.tokens.output", "llm.engine.tokens.input"):
        assert signals[name]["status"] in ("available", "derived"), name
    assert found["unmapped"] == []


def test_a_real_vllm_keeps_its_contract(vllm: Vllm) -> None:
    told = doctor(vllm.url, "--json")
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    assert (found["engine"], found["unmapped"]) == ("vllm", [])
    assert found["version"].startswith("0.32.0")
    assert [odd["family"] for odd in found["contract"] if odd["severity"] != "info"] == []
    signals = {signal["canonical"]: signal["status"] for signal in found["signals"]}
    assert signals["gen_ai.server.time_to_first_token"] == "available"
    assert signals["llm.engine.kv_cache.capacity"] == "derived"


def test_an_address_that_is_no_exposition_is_one_sentence(llama: LlamaServer) -> None:
    told = doctor(f"{llama.url}/health")
    assert told.returncode == 3
    assert told.stdout == ""
    assert told.stderr.startswith("loms: ")
    assert "/health" in told.stderr
