from __future__ import annotations

from pathlib import Path

import pytest

from loms.cli.config import check
from loms.cli.server import server
from loms.core.errors import ConfigError

TLS = Path(__file__).parents[2] / "data/tls"


def written(folder: Path, text: str) -> Path:
    path = folder / "loms.yaml"
    path.write_text(text)
    return path


def test_several_servers_need_a_store_that_they_share(tmp_path: Path) -> None:
    config = written(tmp_path, f"store: {{path: {tmp_path}}}")
    with pytest.raises(ConfigError, match="need a store that they can share"):
        server(config, shard="1/2")
    assert list(tmp_path.iterdir()) == [config]


def test_a_wrong_shard_is_said_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--shard '3/2'"):
        server(written(tmp_path, "store: {url: 'clickhouse://nobody.invalid'}"), shard="3/2")


@pytest.mark.parametrize(
    ("certificate", "key", "why"),
    [
        (TLS / "none.pem", TLS / "server.key", "No such file"),
        (TLS / "server.pem", TLS / "client.key", "KEY_VALUES_MISMATCH"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_said(tmp_path: Path, certificate: Path, key: Path, why: str) -> None:
    config = written(
        tmp_path,
        f"store: {{path: {tmp_path}}}\nserver: {{port: 0, tls: {{cert_file: {certificate}, key_file: {key}}}}}",
    )
    with pytest.raises(ConfigError, match=rf"server\.tls: .* cannot be used: .*{why}"):
        server(config)


def test_a_wrong_url_is_found_by_config_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(written(tmp_path, "store: {url: 'clickhouse://u:secret@a,b/db'}"))
    with pytest.raises(ConfigError, match=r"store\.url: not of the form") as refused:
        check(written(tmp_path, "store: {url: 'postgres://u:secret@a/db'}"))
    assert "secret" not in f"{refused.value}{refused.value.hint}{capsys.readouterr()}"
