from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from loms.engines.engine import Identity
from loms.engines.llamacpp import LlamaCpp
from loms.engines.vllm import Vllm

OLD = (
    "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 10\n"
    "# TYPE llamacpp:n_decode_total counter\nllamacpp:n_decode_total 3\n"
)


def test_a_build_that_does_not_count_cached_tokens_has_no_input_tokens(scraped) -> None:
    """Its prompt tokens are not all of them; a wrong number is worse than none."""
    target = scraped(Identity("b5000", "m"))
    target.scrape(OLD)
    _, plan = target.read(OLD)
    assert "llm_engine_tokens_input_total" not in target.names()
    assert "cached" in plan.unavailable["llm_engine_tokens_input_total"]
    assert target.value("llm_engine_iteration_duration_seconds_count", model="m") == 3


def test_nothing_is_translated_before_the_engine_has_named_its_model(scraped) -> None:
    target = scraped()
    target.scrape(OLD)
    _, plan = target.read(OLD)
    assert (plan.engine, target.values) == ("llama.cpp", {})
    assert target.translator.unidentified.is_set()
    target.translator.identified(Identity("b1", "m"))
    target.scrape(OLD)
    assert target.value("llm_engine_info", version="b1", model="m") == 1
    assert not target.translator.unidentified.is_set()


def answering(answers: dict[str, Any]) -> Any:
    async def get(path: str) -> Any:
        return answers.get(path)

    return get


@pytest.mark.parametrize("folder", ["llamacpp-11434.0.0", "xllamacpp-2026.10.11549"])
def test_identity_comes_from_props(data: Path, folder: str) -> None:
    """Both recorded builds know no build number, and say so."""
    props = json.loads((data / folder / "props.json").read_text())
    assert asyncio.run(LlamaCpp.identify(answering({"/props": props}))) == Identity("b0-unknown", "smollm2-135m")


def test_identity_without_props_has_at_least_the_model(data: Path) -> None:
    models = json.loads((data / "xllamacpp-2026.10.11549" / "v1_models.json").read_text())
    assert asyncio.run(LlamaCpp.identify(answering({"/v1/models": models}))) == Identity("", "smollm2-135m")
    assert asyncio.run(LlamaCpp.identify(answering({"/props": {"model_path": "/models/a.gguf"}}))) == Identity(
        "", "a.gguf"
    )
    assert asyncio.run(LlamaCpp.identify(answering({}))) == Identity()


def test_identity_of_vllm(data: Path) -> None:
    version = json.loads((data / "vllm-0.32.0" / "version.json").read_text())
    assert asyncio.run(Vllm.identify(answering({"/version": version}))) == Identity("0.32.0")
    assert asyncio.run(Vllm.identify(answering({"/version": ["odd"]}))) == Identity()
