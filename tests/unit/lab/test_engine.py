from __future__ import annotations

import socket

import pytest

from loms.lab.engine import main


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "0"], "--count must be at least 1"),
        (["--speed", "0"], "--speed must be above 0"),
        (["--port", "65535", "--count", "2"], "--port must be between 0 and 65535"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_cache_too_small_for_the_model_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--num-blocks", "4"]) == 2
    assert "4 blocks of 16 tokens cannot hold" in capsys.readouterr().err
