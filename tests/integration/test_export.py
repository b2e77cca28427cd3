"""What `loms export` writes, in a real Prometheus: the same canonical series as LOMS makes of the same expositions."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from integration.promql_compare import Query, http_query, prometheus
from support.engine_server import EngineServer
from support.http_host import TEXT, Host
from support.processes import Loms, wait_until

from loms.core.model import Labels, Series, labels_of
from loms.core.semconv import BY_PROMETHEUS
from loms.engines.engine import Engine, Identity, engines, recognise
from loms.engines.translate import Translator
from loms.export.boards import BOARDS
from loms.export.dashboard import dashboard_json
from loms.export.recording import group_of
from loms.export.rule_file import rule_file
from loms.export.scrape_file import scrape_file
from loms.ingest.exposition import ExpositionReader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Debian's prometheus is not installed"),
]

DATA = Path(__file__).parents[1] / "data"
ZONE = "lab"
UNNAMED = {"llama.cpp": "smollm2-135m", "tgi": "llama-8b"}
"""Engines whose metrics do not name the model: the target's labels do."""
MOVING = (
    "vllm-0.32.0/loaded",
    "sglang-0.5.23/loaded",
    "triton-2.51.0/loaded",
    "llamacpp-11434.0.0/loaded",
    "written/dynamo-1.6.1-frontend",
    "written/tgi-3.3.7",
)
"""What the dashboards are shown: counters that grow from scrape to scrape."""
FORMER_CACHE = ("llm_engine_prefix_cache_lookup_tokens_total", "llm_engine_prefix_cache_hit_tokens_total")
LEFT_OUT = {
    # The version is asked of the engine's API.
    ".*": {"llm_engine_info"},
    # vLLM's figures stand in the labels of cache_config_info.
    ".*/vllm.*|vllm.*|.*dynamo.*worker": {"llm_engine_kv_cache_capacity", "llm_engine_kv_cache_usage"},
    # Blocks or tokens: the version would tell.
    ".*/vllm-0.(8.5|9.0)": {*FORMER_CACHE, "llm_engine_tokens_input_cached_total"},
}
"""Exposition (a regular expression) → canonical families that PromQL cannot make of it."""

Canonical = dict[tuple[str, Labels], float]


@dataclass(frozen=True)
class Recording:
    """One exposition and whose it is."""

    name: str
    text: bytes
    engine: str
    version: str

    @property
    def target(self) -> dict[str, str]:
        model = {"model": UNNAMED[self.engine]} if self.engine in UNNAMED else {}
        return {"job": self.engine, "instance": self.name, "deployment_zone": ZONE, **model}


def recordings() -> dict[str, Recording]:
    """All expositions beside these tests that Prometheus could scrape, and one in OpenMetrics's spelling."""
    texts = {str(path.relative_to(DATA).with_suffix("")): path.read_bytes() for path in sorted(DATA.glob("*/*.txt"))}
    texts["openmetrics/vllm-0.32.0"] = texts["vllm-0.32.0/loaded"].replace(b"vllm:", b"vllm_")
    texts["ray/vllm-0.32.0"] = texts["vllm-0.32.0/loaded"].replace(b"vllm:", b"ray_vllm_")
    found = {}
    for name, text in texts.items():
        shape = ExpositionReader().read(text, "text/plain").shape
        engine = recognise(frozenset(shape.types) | frozenset(shape.names))
        if engine is not None and engines[engine].expose is Engine.expose:
            version = re.search(r"(?:vllm|sglang)-(\d[\d.]*\d)", name)
            found[name] = Recording(name, text, engine, version[1] if version else "")
    return found


def translated(recording: Recording) -> Canonical:
    """What LOMS makes of it; bucket bounds as numbers."""
    target = labels_of(recording.target)
    translator = Translator(target)
    translator.identified(Identity(recording.version, recording.target.get("model", "")))
    exposition = ExpositionReader().read(recording.text, "text/plain; version=0.0.4")
    shape = exposition.shape
    ids = [Series.of(n, labels_of({**dict(ls), **recording.target})).id for n, ls in zip(shape.names, shape.labels)]  # noqa: B905
    plan = translator.plan(shape, np.array(ids, dtype=np.uint64))
    raw = dict(zip(ids, exposition.values.tolist(), strict=True))
    found = {(s.name, s.labels): raw[s.id] for s in plan.aliases}
    derived = plan.derive(exposition.values).tolist()
    found |= {(s.name, s.labels): value for s, value in zip(plan.derived, derived, strict=True)}
    return {(name, bounded(labels)): value for (name, labels), value in found.items() if not name.startswith("loms_")}


def bounded(labels: Labels) -> Labels:
    return labels_of((key, repr(float(value)) if key == "le" else value) for key, value in labels)


@dataclass(frozen=True)
class Exported:
    """A Prometheus that works with the exported files."""

    url: str
    ask: Query
    at_ms: int
    recordings: dict[str, Recording]
    moving: dict[str, str]
    """Instance → engine of what moves."""

    def query(self, expr: str) -> dict[Labels, float]:
        answer = self.ask(expr, self.at_ms, self.at_ms, None)
        return {labels: next(iter(points.values())) for labels, points in answer.items()}


def with_transfers(folder: Path) -> Path:
    """vLLM's recording and the KV connector that it was made without."""
    path = folder / "transfers.txt"
    name, labels = "vllm:nixl_xfer_time_seconds", 'engine="0",model_name="m"'
    path.write_text(
        (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
        + f"# TYPE {name} histogram\n"
        + f'{name}_bucket{{{labels},le="0.01"}} 50\n{name}_bucket{{{labels},le="0.1"}} 90\n'
        + f'{name}_bucket{{{labels},le="+Inf"}} 100\n{name}_sum{{{labels}}} 3\n{name}_count{{{labels}}} 100\n'
        + f"# TYPE vllm:nixl_bytes_transferred histogram\nvllm:nixl_bytes_transferred_sum{{{labels}}} 1e9\n"
    )
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    folder, found = tmp_path_factory.mktemp("prometheus"), recordings()
    names = [name for name, engine in engines.items() if engine.expose is Engine.expose]
    (folder / "rules.yaml").write_text(rule_file([group_of(name) for name in names], 1.0))
    config = yaml.safe_load(scrape_file(names, ZONE))
    with ExitStack() as stack:
        texts = {f"/{name}": recording.text for name, recording in found.items()}
        server = stack.enter_context(Host({path: (TEXT, text) for path, text in texts.items()}.get))
        files = {name: DATA / f"{name}.txt" for name in MOVING} | {"vllm-0.32.0/loaded": with_transfers(folder)}
        movers = {stack.enter_context(EngineServer(path, "")).instance: found[n] for n, path in files.items()}
        for job in config["scrape_configs"]:
            of_engine = [recording for recording in found.values() if recording.engine == job["job_name"]]
            job["metrics_path"] = "/metrics"
            job["static_configs"] = [
                {
                    "targets": [server.instance],
                    "labels": {"__metrics_path__": f"/{r.name}", **_static(r), "instance": r.name},
                }
                for r in of_engine
            ] + [
                {"targets": [instance], "labels": _static(r)}
                for instance, r in movers.items()
                if r.engine == job["job_name"]
            ]
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        config["rule_files"] = ["rules.yaml"]
        url = stack.enter_context(prometheus(folder, json.dumps(config)))
        ask = http_query(url)

        def evaluated() -> bool:
            now_ms = int(time.time() * 1000)
            seen = ask("count_over_time(llm_engine_requests_waiting[1m]) >= 6", now_ms, now_ms, None)
            up = ask("up == 1", now_ms, now_ms, None)
            return len(up) == len(found) + len(movers) and len(seen) > len(movers)

        wait_until(evaluated, 120, f"six evaluations ({folder}/prometheus.log)")
        moving = {instance: recording.engine for instance, recording in movers.items()}
        yield Exported(url, ask, int(time.time() * 1000), found, moving)


def test_prometheus_has_the_same_canonical_series_as_loms(exported: Exported) -> None:
    names = "|".join(f"{name}(_bucket|_sum|_count)?" for name in BY_PROMETHEUS)
    theirs: dict[str, Canonical] = {name: {} for name in exported.recordings}
    for labels, value in exported.query(f'{{__name__=~"{names}", engine!=""}}').items():
        own = dict(labels)
        if own["instance"] in theirs:
            theirs[own["instance"]][own.pop("__name__"), bounded(labels_of(own))] = value
    compared = 0
    for name, recording in exported.recordings.items():
        left_out = {family for where, families in LEFT_OUT.items() if re.fullmatch(where, name) for family in families}
        ours = translated(recording)
        ours = {key: value for key, value in ours.items() if key[0] not in left_out}
        assert theirs[name].keys() == ours.keys(), name
        for key, value in ours.items():
            there = theirs[name][key]
            assert there == pytest.approx(value, rel=1e-9) or (math.isnan(there) and math.isnan(value)), (name, key)
        compared += len(ours)
    assert compared > 5000


def test_what_is_left_out_is_not_merely_forgotten(exported: Exported) -> None:
    """Every exception above is one that LOMS itself can give and Prometheus does not have."""
    for where, families in LEFT_OUT.items():
        found = [name for name in exported.recordings if re.fullmatch(where, name)]
        ours = {name for recording in found for name, _ in translated(exported.recordings[recording])}
        assert families <= ours, where


def filled(expr: str, instances: str) -> str:
    """A panel's query with the variables filled in, as Grafana does it when everything is chosen."""
    expr = expr.replace("$__rate_interval", "4s").replace("[5m]", "[4s]").replace("$instance", instances)
    return re.sub(r"\$[a-z_]+", ".*", expr)


def names_in(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:llm|gen_ai)_\w+(?=\{)", expr))


def test_every_panel_shows_what_prometheus_has(exported: Exported) -> None:
    """A panel's query gives numbers wherever Prometheus has every series that it is made of."""
    recorded = {dict(labels)["__name__"] for labels in exported.query('{engine!="", instance=~"127.+"}')}
    instances = "|".join(instance.replace(".", "[.]") for instance in exported.moving)
    queries = [query.expr for board in BOARDS.values() for panel in board.panels for query in panel.queries]
    for expr in queries:
        if names_in(expr) <= recorded:
            values = exported.query(filled(expr, instances)).values()
            assert any(math.isfinite(value) for value in values), (expr, values)
    # The one metric that no target here has: an engine's own ratio, only where it has no counters.
    assert {name for expr in queries for name in names_in(expr)} - recorded == {"llm_engine_prefix_cache_hit_ratio"}


def test_every_variable_offers_what_there_is(exported: Exported) -> None:
    offered = {}
    for variable in json.loads(dashboard_json(BOARDS["overview"]))["templating"]["list"][1:]:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
        asked = urllib.parse.urlencode({"match[]": re.sub(r"\$\w+", ".*", selector)})
        with urllib.request.urlopen(f"{exported.url}/api/v1/label/{label}/values?{asked}") as answer:
            offered[label] = set(json.load(answer)["data"])
    assert offered["engine"] == {recording.engine for recording in exported.recordings.values()} - {"dcgm"}
    assert offered["deployment_zone"] == {ZONE}
    assert offered["hop"] == {"engine", "frontend", "router"}
    assert offered["model"] >= {"smollm2-135m", "meta-llama/Llama-3.1-8B-Instruct"}
    assert offered["instance"] >= set(exported.moving)


def test_loms_is_a_data_source_for_the_dashboards(tmp_path: Path) -> None:
    with (
        EngineServer(with_transfers(tmp_path), "0.32.0") as engine,
        Loms(tmp_path, [engine.instance], {"scrape": {"interval": "1s"}, "probe": {"enabled": False}}) as loms,
    ):
        count = "count_over_time(llm_engine_requests_running[1m]) >= 6"
        wait_until(lambda: loms.get("/api/v1/query", query=count)["data"]["result"], 60, "six scrapes")
        recorded = set(loms.get("/api/v1/label/__name__/values")["data"])
        shown = 0
        for board in BOARDS.values():
            for panel in board.panels:
                for query in panel.queries:
                    # 'finite' would ask for a finished request of each outcome; an answer is enough here.
                    answer = loms.get("/api/v1/query", query=filled(query.expr, ".*"))["data"]["result"]
                    assert bool(answer) or not names_in(query.expr) <= recorded, query.expr
                    shown += bool(answer)
        assert shown > 40
        asked = {"match[]": '{__name__=~"(llm_engine|gen_ai_server)_.+", le=""}'}
        assert loms.get("/api/v1/label/engine/values", **asked)["data"] == ["vllm"]


def export_acme(folder: Path, *arguments: str) -> list[str]:
    """The groups that are written for a declared engine."""
    command = [sys.executable, "-m", "loms", "export", "prometheus", "-o", str(folder)]
    subprocess.run([*command, "--engine-file", str(DATA / "export" / "acme.yaml"), *arguments], check=True)
    return [group["name"] for group in yaml.safe_load((folder / "loms-rules.yaml").read_text())["groups"]]


def test_a_file_of_ones_own_is_exported_alone_unless_others_are_named(tmp_path: Path) -> None:
    assert export_acme(tmp_path / "alone") == ["loms-acme"]
    assert export_acme(tmp_path / "beside", "-e", "tgi") == ["loms-tgi", "loms-acme"]


def test_hand_worked_rules_of_a_declared_engine(tmp_path: Path) -> None:
    """Every form that a table can take, against values worked out by hand (tests/data/export/acme-test.yaml)."""
    export_acme(tmp_path)
    shutil.copy(DATA / "export" / "acme-test.yaml", tmp_path)
    result = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "acme-test.yaml")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_a_folder_of_rules_can_be_named_by_a_glob(tmp_path: Path) -> None:
    """Of what is in a folder that rule_files names, Prometheus starts with rules only."""
    export_acme(tmp_path / "rules")
    scrapes = tmp_path / "rules" / "scrape" / "loms-scrape.yaml"
    config = {"rule_files": ["rules/*.yaml"], **yaml.safe_load(scrapes.read_text())}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "1 rule files found" in result.stdout


@pytest.mark.parametrize("name", [name for name, engine in engines.load().items() if engine.expose is Engine.expose])
def test_promtool_accepts_the_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "rules.yaml").write_text(rule_file([group_of(name)], 15.0))
    (tmp_path / "scrape.yaml").write_text(scrape_file([name], ZONE))
    for kind, file in (("rules", "rules.yaml"), ("config", "scrape.yaml")):
        command = ["promtool", "check", kind, str(tmp_path / file)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


def _static(recording: Recording) -> dict[str, str]:
    """Labels that a scrape configuration gives a target; the zone comes from its relabelling."""
    return {"model": recording.target["model"]} if "model" in recording.target else {}
