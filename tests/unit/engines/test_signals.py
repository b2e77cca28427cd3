from __future__ import annotations

from pathlib import Path

from loms.core.model import Shape
from loms.engines.contracts.contract import contract_of
from loms.engines.engine import Identity, engines
from loms.engines.read import read
from loms.engines.signals import Signal, signals
from loms.ingest.exposition import ExpositionReader


def signals_of(name: str, path: Path, version: str, without: str = "") -> dict[str, Signal]:
    text = path.read_text()
    if without:
        text = "".join(line + "\n" for line in text.splitlines() if without not in line)
    shape: Shape = ExpositionReader().read(text.encode(), "text/plain").shape
    meaning = read(name, engines.load()[name], shape, {"job": "j", "instance": "i"}, Identity(version))
    return {signal.canonical: signal for signal in signals(meaning, shape, contract_of(name), version)}


def test_a_renamed_a_computed_a_partial_and_an_absent_signal(data: Path) -> None:
    found = signals_of("llama.cpp", data / "llamacpp-11434.0.0" / "loaded.txt", "b11434")
    running = found["llm.engine.requests.running"]
    assert (running.status, running.sources) == ("available", ("llamacpp:requests_processing",))
    tokens = found["llm.engine.tokens.input"]
    assert tokens.status == "derived"
    assert tokens.sources == ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
    prefill = found["llm.engine.request.prefill.duration"]
    assert prefill.status == "partial"
    assert "only the sum" in prefill.reason
    ttft = found["gen_ai.server.time_to_first_token"]
    assert (ttft.status, ttft.kind) == ("absent", "never")
    assert "no latency histograms" in ttft.reason
    assert "loms_probe_duration_seconds" in ttft.instead


def test_a_version_too_old_and_a_flag_not_set(data: Path) -> None:
    """vLLM got time per output token in 0.11 and always needs a flag for speculative decoding."""
    found = signals_of("vllm", data / "written" / "vllm-0.9.0.txt", "0.9.0")
    tpot = found["gen_ai.server.time_per_output_token"]
    assert (tpot.status, tpot.kind) == ("absent", "version")
    assert "0.11.0" in tpot.reason
    assert "0.9.0" in tpot.reason
    drafts = found["llm.engine.spec_decode.drafts"]
    assert (drafts.status, drafts.kind, drafts.flag) == ("absent", "flag", "--speculative-config")


def test_a_promised_family_that_is_not_there_is_said_to_be_missing(data: Path) -> None:
    found = signals_of("vllm", data / "vllm-0.32.0" / "loaded.txt", "0.32.0", without="num_preemptions")
    assert "should expose vllm:num_preemptions_total" in found["llm.engine.requests.preempted"].reason


def test_device_signals_are_listed_for_devices_and_for_engines_that_tell_them(data: Path) -> None:
    assert not any(name.startswith("hw.") for name in signals_of("vllm", data / "vllm-0.32.0" / "loaded.txt", "0.32.0"))
    devices = signals_of("dcgm", data / "written" / "dcgm-4.5.3.txt", "4.5.3")
    assert devices["hw.gpu.memory.usage"].status == "derived"
    assert not any(name.startswith("llm.engine.") for name in devices)


def test_what_is_worked_out_names_all_that_it_is_worked_out_from(data: Path) -> None:
    found = signals_of("vllm", data / "vllm-0.32.0" / "loaded.txt", "0.32.0")
    capacity, usage, info = (found[f"llm.engine.{n}"] for n in ("kv_cache.capacity", "kv_cache.usage", "info"))
    assert (capacity.status, capacity.sources) == ("derived", ("vllm:cache_config_info",))
    assert capacity.reason == "labels of vllm:cache_config_info"
    assert usage.sources == ("vllm:kv_cache_usage_perc", "vllm:cache_config_info")
    assert (info.status, info.sources, info.reason) == ("derived", (), "what the engine says of itself")
    ratio = signals_of("tgi", data / "written" / "tgi-3.3.7.txt", "3.3.7")["llm.engine.kv_cache.utilization"]
    assert ratio.sources == ("tgi_batch_current_max_tokens", "tgi_batch_max_total_tokens")


def test_every_signal_that_is_there_says_where_it_comes_from(data: Path) -> None:
    for name, file, version in (
        ("vllm", "vllm-0.32.0/loaded.txt", "0.32.0"),
        ("sglang", "sglang-0.5.23/loaded.txt", "0.5.23"),
        ("llama.cpp", "llamacpp-11434.0.0/loaded.txt", "b11434"),
        ("tensorrt-llm", "written/tensorrt-llm-1.3.0.txt", "1.3.0"),
        ("triton", "written/triton-2.64.0-tensorrtllm.txt", "2.64.0"),
        ("dynamo", "written/dynamo-1.6.1-worker.txt", "1.6.1"),
    ):
        for signal in signals_of(name, data / file, version).values():
            assert signal.sources or signal.reason, (name, signal.canonical)
