"""``loms replay`` and ``loms query --source`` on the command line, where nothing need answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.http_host import Host
from typer.testing import CliRunner

from loms.cli.app import app
from loms.core.errors import ConfigError, LomsError, TargetError


def error_of(*arguments: str) -> LomsError:
    result = CliRunner().invoke(app, [*arguments])
    assert isinstance(result.exception, LomsError), result.output
    return result.exception


def test_two_places_at_once_are_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.om").write_text("# EOF\n")
    error = error_of("replay", "--prometheus", "http://127.0.0.1:1", "--file", str(tmp_path / "samples.om"))
    assert isinstance(error, ConfigError)
    assert error.message.startswith("--prometheus and --file are two places")


@pytest.mark.parametrize("data", ["null", "{}", '{"resultType": "vector", "result": [{"metric": {}}]}'])
@pytest.mark.parametrize("since", [(), ("--since", "1h")])
def test_an_answer_of_another_shape_is_one_sentence(data: str, since: tuple[str, ...]) -> None:
    body = f'{{"status": "success", "data": {data}}}'.encode()
    with Host(lambda _: ("application/json", body)) as host:
        error = error_of("query", "--source", f"http://{host.instance}", *since, "up")
    assert isinstance(error, TargetError)
    assert f"http://{host.instance} does not answer" in error.message
