"""``loms up`` beside engines that take more than a scrape: one declared in a file, and Ollama, found by its port."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.http_host import TEXT, Host
from support.processes import Loms, wait_until

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data"
ACME = """
name: acme
match: acme_
labels: {model_id: model}
metrics:
  llm.engine.requests.running: acme_running
  gen_ai.server.time_to_first_token: acme_first_token_ms * 0.001
"""
METRICS = """\
# TYPE acme_running gauge
acme_running{model_id="m"} 3
# TYPE acme_first_token_ms histogram
acme_first_token_ms_bucket{model_id="m",le="250"} 4
acme_first_token_ms_bucket{model_id="m",le="+Inf"} 5
acme_first_token_ms_sum{model_id="m"} 1000
acme_first_token_ms_count{model_id="m"} 5
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="inside"} 9
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loms, Host, Host]]:
    folder = tmp_path_factory.mktemp("loms")
    (folder / "acme.yaml").write_text(ACME)
    ollama_answers = {
        "/api/ps": ("application/json; charset=utf-8", (DATA / "ollama" / "ps.json").read_bytes()),
        "/api/version": ("application/json; charset=utf-8", b'{"version": "0.15.2"}'),
    }
    with (
        Host({"/metrics": (TEXT, METRICS.encode())}.get) as acme,
        Host(ollama_answers.get) as ollama,
        Loms(
            folder,
            [],
            {
                "engines": [str(folder / "acme*.yaml")],
                "scrape": {
                    "interval": "1s",
                    "timeout": "1s",
                    "discover": {"ports": [ollama.port], "interval": "1s"},
                    "jobs": [{"name": "acme", "targets": [acme.instance]}],
                },
            },
        ) as loms,
    ):
        yield loms, acme, ollama


def test_a_declared_engine(world: tuple[Loms, Host, Host]) -> None:
    loms, acme, _ = world
    wait_until(lambda: loms.engine(acme.instance).get("engine") == "acme", 30, "the first scrape")
    wait_until(lambda: loms.value('llm_engine_requests_running{engine="acme",model="m"}') == 3, 30, "a gauge")
    # Counters wait for what the store remembers.
    seconds = 'gen_ai_server_time_to_first_token_seconds_sum{engine="acme"}'
    wait_until(lambda: loms.value(seconds) == 1, 30, "a histogram")
    assert loms.value('gen_ai_server_time_to_first_token_seconds_bucket{engine="acme",le="0.25"}') == 4
    # The file wins over the built-in engine whose metrics are there, too, and does not carry it.
    assert loms.value(f'count({{__name__="llm_engine_requests_running",instance="{acme.instance}"}})') == 1
    reasons = loms.engine(acme.instance)["unavailable"]
    assert reasons["llm_engine_tokens_output_total"].endswith("acme.yaml maps nothing to it")


def test_ollama_is_found_where_it_can_be_read(world: tuple[Loms, Host, Host]) -> None:
    loms, _, ollama = world
    wait_until(lambda: loms.engine(ollama.instance).get("version") == "0.15.2", 30, "Ollama's version")
    memory = 'llm_engine_gpu_memory_usage_bytes{engine="ollama",model="mistral:latest",job="discovered"}'
    wait_until(lambda: loms.value(memory) == 5137025024, 30, "its memory")
    assert loms.value('llm_engine_kv_cache_capacity{model="smollm2:135m"}') == 8192
    assert loms.value(f'ollama_models_loaded{{instance="{ollama.instance}"}}') == 2


def test_a_mistake_in_a_declaration_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "acme.yaml").write_text(ACME.replace("requests.running", "request.running"))
    config = tmp_path / "loms.yaml"
    config.write_text(json.dumps({"engines": [str(tmp_path / "acme.yaml")], "store": {"path": str(tmp_path / "data")}}))
    for command in (["config", "check", str(config)], ["up", "--config", str(config)]):
        done = subprocess.run([sys.executable, "-m", "loms", *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        said = " ".join((done.stdout + done.stderr).split())
        assert "acme.yaml:6" in said
        assert "did you mean 'llm.engine.requests.running'?" in said
