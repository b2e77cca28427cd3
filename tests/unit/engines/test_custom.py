from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loms.core.errors import ConfigError
from loms.core.model import labels_of
from loms.core.semconv import CATALOGUE
from loms.engines.custom import Declared, read_engine, read_engines
from loms.engines.engine import DEVICE_NAMES, ENGINE_NAMES, Identity
from loms.engines.plan import Sums
from loms.engines.read import read, spoken_for
from loms.ingest.exposition import ExpositionReader

ACME = """
name: acme
match: acme_
labels:
  model_id: model
  dp: engine_index
fixed: {tier: gold}
replicas: [tp]
metrics:
  llm.engine.requests.running: acme_running
  llm_engine_requests_waiting: [acme_queue_length, acme_waiting]
  gen_ai.server.time_to_first_token: acme_first_token_ms * 0.001
  llm.engine.tokens.input: acme_prompt_computed_total + acme_prompt_cached_total
  llm.engine.requests.finished:
  - source: 'acme_done_total{code="200"}'
    fixed: {outcome: success}
    without: [code]
  - source: ['acme_done_total{code!="200"}']
    fixed: {outcome: error}
  llm.engine.request.queue.duration:
  - {source: acme_queued_seconds_total, part: _sum}
  - {source: acme_taken_total, part: _count}
never:
  llm.engine.requests.preempted: acme never preempts
"""

TEXT = """\
# TYPE acme_running gauge
acme_running{model_id="m",dp="0",tp="0"} 3
acme_running{model_id="m",dp="0",tp="1"} 3
# TYPE acme_waiting gauge
acme_waiting{model_id="m",dp="0"} 2
# TYPE acme_first_token_ms histogram
acme_first_token_ms_bucket{model_id="m",le="250"} 4
acme_first_token_ms_bucket{model_id="m",le="+Inf"} 5
acme_first_token_ms_sum{model_id="m"} 1000
acme_first_token_ms_count{model_id="m"} 5
# TYPE acme_prompt_computed_total counter
acme_prompt_computed_total{model_id="m"} 70
# TYPE acme_prompt_cached_total counter
acme_prompt_cached_total{model_id="m"} 30
# TYPE acme_done_total counter
acme_done_total{model_id="m",code="200"} 9
acme_done_total{model_id="m",code="503"} 1
# TYPE acme_queued_seconds_total counter
acme_queued_seconds_total{model_id="m"} 1.5
# TYPE acme_taken_total counter
acme_taken_total{model_id="m"} 10
# TYPE acme_odd gauge
acme_odd 1
# TYPE python_info gauge
python_info 1
"""


@pytest.fixture
def declared(tmp_path: Path):
    """Writes a file and reads it: name and class."""

    def make(text: str, name: str = "engine.yaml") -> tuple[str, type[Declared]]:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_engine(path)

    return make


def meaning(name: str, engine: type[Declared], text: str, identity: Identity | None = None):
    """What an exposition says, and the values of its canonical series."""
    exposition = ExpositionReader().read(text.encode(), "text/plain")
    found = read(name, engine, exposition.shape, {"job": "j"}, identity)
    values = Sums(found.combinations)(exposition.values)
    assert isinstance(values, np.ndarray)
    return found, {(c.name, c.labels): v for c, v in zip(found.combinations, values.tolist(), strict=True)}


def test_a_file_becomes_an_engine(declared) -> None:
    name, engine = declared(ACME)
    assert engine.matches(frozenset({"acme_running"}))
    assert not engine.matches(frozenset({"python_info", "acne_running"}))
    found, values = meaning(name, engine, TEXT)

    def value(name: str, **labels: str) -> float:
        everywhere = {"engine": "acme", "hop": "engine", "job": "j", "model": "m", "engine_index": "0", "tier": "gold"}
        return values[name, labels_of({**everywhere, **labels})]

    assert value("llm_engine_requests_running") == 3
    assert value("llm_engine_requests_waiting") == 2
    assert value("gen_ai_server_time_to_first_token_seconds_sum") == 1.0
    assert value("gen_ai_server_time_to_first_token_seconds_bucket", le="0.25") == 4
    assert value("llm_engine_tokens_input_total") == 100
    assert value("llm_engine_requests_finished_total", outcome="success") == 9
    assert value("llm_engine_requests_finished_total", outcome="error", code="503") == 1
    assert value("llm_engine_request_queue_duration_seconds_sum") == 1.5
    assert value("llm_engine_request_queue_duration_seconds_count") == 10
    assert len(values) == 11
    assert found.unmapped == ("acme_odd",)
    assert found.unavailable["llm_engine_requests_preempted_total"] == "acme never preempts"
    assert found.unavailable["llm_engine_tokens_output_total"].endswith("engine.yaml maps nothing to it")


def test_it_keeps_to_what_every_engine_must(declared) -> None:
    """As in tests/contract/test_engines.py, which sees only those that are registered when it is collected."""
    _, engine = declared(ACME)
    assert set(ENGINE_NAMES) - spoken_for(engine) == {"llm.engine.info"}
    assert set(engine.never) <= set(CATALOGUE)
    assert not {row.canonical for row in engine.table} & set(engine.never)
    assert not engine.openai
    assert not engine.device


def test_families_that_must_all_be_there(declared) -> None:
    name, engine = declared(
        "name: acme\nmatch: [tokens_served, queue_depth]\nmetrics: {llm.engine.tokens.output: tokens_served}\n"
    )
    assert engine.matches(frozenset({"tokens_served", "queue_depth", "up"}))
    assert not engine.matches(frozenset({"tokens_served"}))
    found, _ = meaning(name, engine, "# TYPE tokens_served counter\ntokens_served 1\n# TYPE queue_depth gauge\n")
    assert found.unmapped == ()


def test_the_model_of_the_file_stands_on_everything(declared) -> None:
    name, engine = declared(
        "name: acme\nmatch: acme_\nfixed: {model: m, hop: router}\n"
        "metrics: {llm.engine.tokens.output: acme_tokens_total, llm.engine.requests.running: acme_running}\n"
    )

    async def get(path: str) -> Any:
        return None

    identity = asyncio.run(engine.identify(get))
    assert identity == Identity(model="m")
    found, values = meaning(name, engine, "# TYPE acme_running gauge\nacme_running 1\n", identity)
    everywhere = {"engine": "acme", "hop": "router", "job": "j", "model": "m"}
    assert dict(found.labels) == everywhere
    assert values["llm_engine_requests_running", labels_of(everywhere)] == 1


def test_a_file_that_maps_devices_only_is_a_device(declared) -> None:
    name, engine = declared(
        "name: amd\nmatch: amd_\nlabels: {card: device_index}\n"
        "metrics: {hw.gpu.utilization: amd_gpu_use_percent * 0.01}\n"
    )
    assert engine.device
    assert set(DEVICE_NAMES) <= spoken_for(engine)
    _, values = meaning(name, engine, '# TYPE amd_gpu_use_percent gauge\namd_gpu_use_percent{card="1"} 50\n')
    assert values == {("hw_gpu_utilization_ratio", labels_of({"device_index": "1", "engine": "amd", "job": "j"})): 0.5}


def test_an_engine_inside_may_be_carried(declared) -> None:
    name, engine = declared(
        "name: acme\nmatch: acme_\ncarries: [vllm]\nmetrics: {llm.engine.requests.running: acme_running}\n"
    )
    text = (
        "# TYPE acme_running gauge\nacme_running 4\n"
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3\n'
    )
    _, values = meaning(name, engine, text)
    running = {dict(labels).get("runtime", ""): v for (n, labels), v in values.items() if n.endswith("_running")}
    assert running == {"vllm": 3}


def test_the_examples_of_the_documentation_can_be_read(declared) -> None:
    text = (Path(__file__).parents[3] / "docs" / "howto" / "custom-engine.md").read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    names = [declared(example)[0] for example in examples if "\nmatch: " in example]
    assert names == ["acme", "smg"]


HEAD = "name: acme\nmatch: acme_\n"
METRIC = "metrics: {llm.engine.requests.running: acme_running}\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("match: a_\n" + METRIC, 1, "key 'name' is required"),
        ("name: acme\n" + METRIC, 1, "key 'match' is required"),
        ("name: Acme!\nmatch: a_\n" + METRIC, 1, "'Acme!' is not the name of an engine"),
        ("match: a_\nname: vllm\n" + METRIC, 2, "an engine named 'vllm' exists already"),
        ("name: acme\nmatch: []\n" + METRIC, 2, "match: is empty"),
        ("name: acme\nmatch: [a b]\n" + METRIC, 2, "match[0]: 'a b'"),
        (HEAD + "metrcs: {}\n", 3, "unknown key 'metrcs'; did you mean 'metrics'?"),
        ("", 1, "key 'name' is required"),
        (HEAD, 1, "key 'metrics' is required"),
        (HEAD + "metrics:\n", 3, "metrics: is empty"),
        (HEAD + "metrics: [a]\n", 3, "metrics: must be a mapping, not a list"),
        (HEAD + "metrics:\n  llm.engine.request.running: a\n", 4, "did you mean 'llm.engine.requests.running'?"),
        (HEAD + "metrics:\n  llm_engine_request_running: a\n", 4, "did you mean 'llm_engine_requests_running'?"),
        (HEAD + "metrics:\n  llm.engine.requests.running: a b\n", 4, "cannot read 'b'"),
        (HEAD + "metrics:\n  llm.engine.requests.running: 7\n", 4, "a metric's name is expected at '7'"),
        (HEAD + "metrics:\n  llm.engine.requests.running:\n", 4, "running: must be a text, not a null"),
        (HEAD + "metrics:\n  llm.engine.requests.running: 'a{b=~\"(?!x).+\"}'\n", 4, "cannot read '(?!x).+'"),
        (HEAD + "metrics:\n  llm.engine.requests.running: []\n", 4, "names no source"),
        (HEAD + "metrics:\n  llm.engine.requests.running:\n  - a\n  - '*'\n", 6, "a metric's name is expected"),
        (HEAD + "metrics:\n  llm.engine.requests.running:\n    sources: a\n", 5, "did you mean 'source'?"),
        (HEAD + "metrics:\n  llm.engine.requests.running:\n    fixed: {a: b}\n", 4, "key 'source' is required"),
        (HEAD + "metrics:\n  llm.engine.tokens.output:\n    source: a\n    part: _sum\n", 6, "is no histogram"),
        (
            HEAD + "metrics:\n  llm.engine.iteration.tokens:\n    source: a\n    part: sum\n",
            6,
            "neither _sum nor _count",
        ),
        (HEAD + "metrics:\n  llm.engine.tokens.output: a / b\n", 4, "what is divided by a family is no counter"),
        (HEAD + METRIC + "openai: perhaps\n", 4, "neither true nor false"),
        (HEAD + METRIC + "labels: {a-b: model}\n", 4, "'a-b' is not the name of a label"),
        (HEAD + METRIC + "labels: {a: [b]}\n", 4, "labels.a: must be a text, not a list"),
        (HEAD + METRIC + "labels:\n  b: model\n  a: le\n", 6, "labels.a: the label 'le' stands on a series because of"),
        (HEAD + METRIC + "labels: {a: quantile}\n", 4, "labels.a: the label 'quantile' stands on"),
        (HEAD + METRIC + "labels: {a: __name__}\n", 4, "labels.a: the label '__name__' stands on"),
        (HEAD + METRIC + "labels: {a: job}\n", 4, "labels.a: the label 'job' is LOMS's own and cannot be given"),
        (HEAD + METRIC + "labels: {a: instance}\n", 4, "the label 'instance' is LOMS's own"),
        (HEAD + METRIC + "labels: {a: engine}\n", 4, "the label 'engine' is LOMS's own"),
        (HEAD + METRIC + "labels: {a: hop}\n", 4, "the label 'hop' is LOMS's own"),
        (HEAD + METRIC + "labels: {a: deployment_zone}\n", 4, "the label 'deployment_zone' is LOMS's own"),
        (HEAD + METRIC + "labels: {le: bound}\n", 4, "labels.le: the label 'le' cannot have another name"),
        (HEAD + METRIC + "labels: {a: b-c}\n", 4, "labels.a: 'b-c' is not the name of a label"),
        (HEAD + METRIC + "fixed: {job: x}\n", 4, "fixed.job: the label 'job' is LOMS's own"),
        (HEAD + METRIC + "replicas: [tp, le]\n", 4, "replicas[1]: the label 'le' cannot be taken off"),
        (HEAD + "metrics:\n  llm.engine.tokens.output: {source: a, without: [le]}\n", 4, "'le' cannot be taken off"),
        (HEAD + "metrics:\n  llm.engine.tokens.output: {source: a, fixed: {le: x}}\n", 4, "fixed.le: the label 'le'"),
        (
            HEAD + "metrics:\n  llm.engine.requests.running: a\n  llm_engine_requests_running: b\n",
            5,
            "metrics.llm_engine_requests_running: is the same metric as 'llm.engine.requests.running' above",
        ),
        (
            HEAD + METRIC + "never:\n  llm.engine.requests.started: a\n  llm_engine_requests_started_total: b\n",
            6,
            "is the same metric as 'llm.engine.requests.started' above",
        ),
        (HEAD + METRIC + "replicas: tp_rank\n", 4, "replicas: must be a list, not a plain value"),
        (HEAD + METRIC + "carries: [vlm]\n", 4, "there is no engine 'vlm'; did you mean 'vllm'?"),
        (HEAD + METRIC + "never:\n  llm.engine.requests.running: x\n", 5, "is mapped under metrics"),
        (HEAD + METRIC + "never:\n  llm.engine.requests.started: ''\n", 5, "must be a reason"),
        (
            HEAD + METRIC + "never:\n  llm.engine.requests.startet: x\n",
            5,
            "did you mean 'llm.engine.requests.started'?",
        ),
        (HEAD + HEAD, 3, "key 'name' stands there twice"),
        ("- a\n", 1, "must be a mapping, not a list"),
        ("name: [\n", 2, "not valid YAML"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_line_and_key(declared, text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        declared(text)
    assert message in raised.value.message
    assert f"engine.yaml:{line}: " in raised.value.message


def test_what_is_left_empty_or_merged_from_elsewhere(declared) -> None:
    text = (
        "name: acme\nmatch: acme_\nlabels:\nopenai:\nfixed: &all {tier: 1.10}\nmetrics:\n"
        "  llm.engine.requests.running: {source: acme_running, fixed: {<<: *all, zone: yes}}\n"
    )
    _, engine = declared(text)
    assert (engine.rename, engine.openai, engine.table[0].fixed) == ({}, False, {"tier": "1.10", "zone": "yes"})


def test_files_are_found_by_globs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nmatch: {name}_\n{METRIC}")
    assert list(read_engines([str(tmp_path / "*.yaml")])) == ["one", "two"]
    assert read_engines([str(tmp_path / "*.yml")]) == {}
    with pytest.raises(ConfigError, match=r"^engines: .*three\.yaml does not exist"):
        read_engines([str(tmp_path / "three.yaml")])
    with pytest.raises(ConfigError, match=r"^--engine: .*three\.yaml does not exist"):
        read_engines([str(tmp_path / "three.yaml")], "--engine")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"name: acme\nmatch: {name}_\n{METRIC}")
    with pytest.raises(ConfigError, match=r"two\.yaml: an engine named 'acme' is declared in another file, too"):
        read_engines([str(tmp_path / "*.yaml")])


def test_the_version_may_stand_on_an_info_metric(declared) -> None:
    _, engine = declared(ACME)
    info = '# TYPE acme_build_info gauge\nacme_build_info{version="2.1.0",commit="ab"} 1\n'
    shape = ExpositionReader().read((TEXT + info).encode(), "text/plain").shape
    target = {"job": "j", "instance": "i"}
    assert read("acme", engine, shape, target, Identity()).version == "2.1.0"
    assert read("acme", engine, shape, target, Identity("3.0.0")).version == "3.0.0", "what it says itself counts"
    other = TEXT.replace("python_info 1", 'python_info{version="3.12"} 1')
    shape = ExpositionReader().read(other.encode(), "text/plain").shape
    assert read("acme", engine, shape, target, Identity()).version == ""
