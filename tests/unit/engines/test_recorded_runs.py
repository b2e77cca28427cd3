"""Whole runs of real engines, scraped before, during and after a load: nothing doubles, nothing goes back."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from loms.core.families import HISTOGRAM
from loms.core.semconv import BY_PROMETHEUS
from loms.engines.contracts.contract import compare, contract_of, observe
from loms.engines.engine import Identity, engines

DATA = Path(__file__).parents[2] / "data"
RUNS = {
    "vllm-0.32.0/run-full": ("vllm", "0.32.0"),
    "vllm-0.32.0/run-preempted": ("vllm", "0.32.0"),
    "vllm-0.32.0/run-dummy": ("vllm", "0.32.0"),
    "llamacpp-11434.0.0/run": ("llama.cpp", "b11434"),
    "xllamacpp-2026.10.11549/run": ("llama.cpp", "b11549"),
    "sglang-0.5.23/run-full": ("sglang", "0.5.23"),
    "sglang-0.5.23/run-retracted": ("sglang", "0.5.23"),
    "triton-2.51.0/run": ("triton", "2.51.0"),
    "triton-2.51.0/run-streaming": ("triton", "2.51.0"),
    "triton-2.51.0/run-crash": ("triton", "2.51.0"),
}
each_run = pytest.mark.parametrize("run", RUNS)


def scrapes(run: str) -> list[bytes]:
    """In the order in which they were made."""
    files = sorted((DATA / run).glob("*.txt.gz"), key=lambda path: int(path.name.partition(".")[0]))
    return [gzip.decompress(path.read_bytes()) for path in files]


def test_every_run_is_here() -> None:
    assert {f"{path.parent.name}/{path.name}" for path in DATA.glob("*/run*")} == RUNS.keys()
    assert all(len(scrapes(run)) >= 2 for run in RUNS)


@each_run
def test_canonical_counters_only_grow(scraped, run: str) -> None:
    engine, version = RUNS[run]
    target = scraped(Identity(version, "m" if engine == "llama.cpp" else ""))
    before: dict[tuple[str, object], float] = {}
    for text in scrapes(run):
        target.scrape(text)
        assert target.plan.engine == engine
        assert target.plan.unmapped == ()
        now = {key: value for key, value in target.values.items() if grows(key[0])}
        assert not any(math.isnan(value) for value in now.values())
        assert before.keys() <= now.keys(), "a series of counters has gone"
        assert all(now[key] >= value for key, value in before.items())
        before = now
    assert any(value > 0 for value in before.values())


def grows(name: str) -> bool:
    bases = (name, *(name.removesuffix(part) for part in HISTOGRAM if name.endswith(part)))
    metric = next((BY_PROMETHEUS[base] for base in bases if base in BY_PROMETHEUS), None)
    return metric is not None and metric.cumulative


@each_run
def test_the_contract_of_its_release_holds_all_the_while(scraped, run: str) -> None:
    engine, version = RUNS[run]
    contract = contract_of(engine)
    assert contract is not None
    for text in scrapes(run):
        shape = scraped().read(text)[0].shape
        findings = compare(contract, observe(shape, engine, version, engines.load()[engine].spell))
        assert [finding.summary for finding in findings if finding.severity != "info"] == []


def test_the_end_of_a_run_read_by_eye(scraped) -> None:
    """Eight clients asked for 256 tokens each, of a KV cache too small for all of them, and read them to the end."""
    target = scraped(Identity("0.32.0"))
    target.scrape(scrapes("vllm-0.32.0/run-preempted")[-1])
    assert target.value("llm_engine_requests_preempted_total") == 10
    assert target.value("llm_engine_requests_finished_total", finish_reason="length") == 8
    assert target.value("llm_engine_tokens_input_total") == 560
    assert target.value("llm_engine_tokens_output_total") == 2106
