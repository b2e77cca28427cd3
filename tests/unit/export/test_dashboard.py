"""The dashboards' JSON: whole, consistent, and made of the catalogue's names."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins

from loms.core.semconv import BY_PROMETHEUS
from loms.engines.contracts.contract import contract_names, contract_of, observe
from loms.engines.engine import engines
from loms.export.boards import BOARDS
from loms.export.dashboard import dashboard, dashboard_json
from loms.ingest.exposition import ExpositionReader
from loms.lint.check import check
from loms.lint.files import Sources
from loms.promql.parse import parse

DATA = Path(__file__).parents[2] / "data"
SERIES = {f"{name}{part}" for name in BY_PROMETHEUS for part in ("", "_bucket", "_sum", "_count")}
boards = pytest.mark.parametrize("name", list(BOARDS))


def model(name: str, datasource: str = "") -> Any:
    return json.loads(dashboard_json(BOARDS[name], datasource))


def targets(made: Any) -> Iterator[tuple[Any, Any]]:
    for panel in made["panels"]:
        for target in panel.get("targets", ()):
            yield panel, target


@boards
def test_grafanas_own_reader_loses_nothing(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        register_default_plugins()
    made = model(name)
    assert json.loads(json.dumps(dashboard.Dashboard.from_json(made), cls=JSONEncoder)) == made


@boards
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    made = model(name)
    assert made["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in made["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] <= at["x"] + at["w"] <= 24
        own = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not own & cells, panel["title"]
        cells |= own
    height = max(y for _, y in cells) + 1
    assert len(cells) == 24 * height, "lines of panels that leave a gap"


@boards
def test_every_variable_that_is_used_is_defined_and_the_other_way_round(name: str) -> None:
    made = model(name)
    defined = [variable["name"] for variable in made["templating"]["list"]]
    text = json.dumps(made["panels"]) + "".join(str(variable["query"]) for variable in made["templating"]["list"])
    used = set(re.findall(r"\$\{?(\w+)\}?", text)) - {"__rate_interval"}
    assert used == set(defined) == {"datasource", "deployment_zone", "engine", "model", "instance", "hop"}
    for later, variable in enumerate(made["templating"]["list"]):
        assert set(re.findall(r"\$(\w+)", str(variable["query"]))) <= set(defined[:later])


@boards
def test_queries_are_made_of_canonical_names(name: str) -> None:
    for panel, target in targets(model(name)):
        expr = target["expr"].replace("$__rate_interval", "5m")
        parse(re.sub(r"\$\w+", "x", expr))
        names = set(re.findall(r"\b[a-z]\w*(?=\{)", expr))
        assert names
        assert names <= SERIES, panel["title"]
        assert 'hop=~"$hop"' in expr


@boards
def test_rates_span_the_interval_that_grafana_works_out(name: str) -> None:
    """But for the ratio whose threshold is defined over five minutes."""
    windows = {
        (panel["title"], window)
        for panel, target in targets(model(name))
        for window in re.findall(r"rate\(\w+\{[^}]*\}\[([^\]]+)\]\)", target["expr"])
    }
    others = {title for title, window in windows if window != "$__rate_interval"}
    assert others <= {"Found in the prefix cache, 5 min"}


@boards
def test_quantiles_never_mix_engines_or_hops(name: str) -> None:
    for _, target in targets(model(name)):
        for by in re.findall(r"histogram_quantile\([^,]+, sum by \(([^)]*)\)", target["expr"]):
            assert {"le", "engine", "hop"} <= set(by.split(", "))


@boards
def test_panels_say_what_to_do_and_in_which_unit(name: str) -> None:
    made = model(name)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in made["panels"]:
        if panel["type"] == "row":
            continue
        assert len(panel["description"]) > 60
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == source
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH")[: len(panel["targets"])]
        assert all(target["datasource"] == source and target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize(
    ("name", "title", "value", "colour"),
    [
        ("overview", "KV cache in use", 0.85, "red"),
        ("overview", "Whole request", 2.5, "red"),
        ("overview", "Between tokens", 0.2, "red"),
        ("kv-cache", "Fullest", 0.85, "red"),
        ("kv-cache", "In use", 0.85, "red"),
        ("kv-cache", "Found in the prefix cache, 5 min", 0.85, "green"),
        ("kv-cache", "P99 of transfers", 0.05, "red"),
    ],
)
def test_thresholds(name: str, title: str, value: float, colour: str) -> None:
    panel = next(panel for panel in model(name)["panels"] if panel["title"] == title)
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert {"value": value, "color": colour} in steps
    assert steps[0]["value"] is None
    if colour == "green":
        assert steps[0]["color"] == "red"


def test_a_chosen_data_source_is_the_variables_first_value() -> None:
    chosen = model("overview", "Mimir")["templating"]["list"][0]
    assert (chosen["type"], chosen["query"], chosen["current"]["value"]) == ("datasource", "prometheus", "Mimir")
    assert "current" not in model("overview")["templating"]["list"][0]


@pytest.mark.parametrize("recording", ["vllm-0.32.0/loaded", "sglang-0.5.23/loaded", "llamacpp-11434.0.0/loaded"])
def test_the_linter_finds_nothing_wrong(tmp_path: Path, recording: str) -> None:
    for board in BOARDS.values():
        (tmp_path / f"{board.uid}.json").write_text(dashboard_json(board))
    shape = ExpositionReader().read((DATA / f"{recording}.txt").read_bytes(), "text/plain").shape
    engine = {"v": "vllm", "s": "sglang", "l": "llama.cpp"}[recording[0]]
    seen = observe(shape, engine, "", engines.load()[engine].spell)
    others = [contract for name in contract_names() if (contract := contract_of(name)) is not None]
    report = check(Sources(grafana=[str(tmp_path)]), seen, contract_of(engine), others=others)
    assert report.problems == ()
    assert len(report.files) == 2
