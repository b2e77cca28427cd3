"""``loms export`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from loms.cli.app import app
from loms.core.errors import ConfigError, LomsError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["export", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_rules_go_to_the_terminal_unless_a_folder_is_named() -> None:
    assert [group["name"] for group in yaml.safe_load(run("prometheus", "-e", "tgi"))["groups"]] == ["loms-tgi"]
    jobs = yaml.safe_load(run("prometheus", "-e", "tgi", "--scrape", "--zone", "eu"))["scrape_configs"]
    assert jobs[0]["relabel_configs"][0]["replacement"] == "eu"


def test_a_folder_gets_whole_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = json.loads(run("prometheus", "-e", "tgi", "-o", str(folder), "--interval", "1m", "--json"))["written"]
    assert written == [str(folder / "loms-rules.yaml"), str(folder / "scrape" / "loms-scrape.yaml")]
    assert [path.name for path in folder.glob("*.yaml")] == ["loms-rules.yaml"], "all that rule_files may glob"
    assert yaml.safe_load((folder / "loms-rules.yaml").read_text())["groups"][0]["interval"] == "1m"


def test_files_that_are_there_are_kept_unless_forced(tmp_path: Path) -> None:
    mine = tmp_path / "scrape" / "loms-scrape.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=r"loms-scrape\.yaml is there already"):
        run("prometheus", "-e", "tgi", "-o", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["scrape"]
    assert "loms-scrape.yaml" in run("prometheus", "-e", "tgi", "-o", str(tmp_path), "--force")
    assert "mine" not in mine.read_text()


def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LomsError, match=r"taken.*cannot be written"):
        run("grafana", "-o", str(tmp_path / "taken"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prometheus", "-e", "vlm"), "no engine named 'vlm'"),
        (("prometheus", "--interval", "soon"), "--interval: 'soon' is not a duration"),
        (("prometheus", "--interval", "10ms"), "--interval: 10ms is too short"),
        (("grafana", "-d", "cost"), "there is none named 'cost'"),
        (("grafana",), "the terminal takes one dashboard only"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        run(*arguments)
    assert error.value.exit_code == 2
    assert error.value.hint or "duration" in message


def test_dashboards_go_to_a_folder_or_one_of_them_to_the_terminal(tmp_path: Path) -> None:
    assert json.loads(run("grafana", "-d", "kv-cache", "--datasource", "Mimir"))["uid"] == "loms-kv-cache"
    run("grafana", "-o", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loms-kv-cache.json", "loms-overview.json"]
