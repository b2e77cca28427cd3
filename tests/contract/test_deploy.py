"""What stands in ``deploy/`` is read by those it is written for, as far as they are here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from loms.core.config import load
from loms.store.address import Address

CLICKHOUSE = Path(__file__).parents[2] / "deploy/clickhouse"
ASK = """
import sys, chdb
connection = chdb.connect(f"{sys.argv[1]}?config-file={sys.argv[2]}")
for sql in sys.argv[3:]:
    sys.stdout.write(connection.query(sql, "JSONCompact").bytes().decode().replace("\\n", "") + "\\n")
"""


def answers(folder: Path, config: str, *queries: str) -> list[list[list[object]]]:
    """What an engine with this configuration says, from a process of its own."""
    environment = {**os.environ, "SHARD": "2", "REPLICA": "1", "CLUSTER_SECRET": "x"}
    command = [sys.executable, "-c", ASK, str(folder / "data"), str(CLICKHOUSE / config), *queries]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line)["data"] for line in done.stdout.splitlines()]


def test_the_cluster_is_the_one_that_loms_is_told_of(tmp_path: Path) -> None:
    config = load(CLICKHOUSE / "loms.yaml", {"LOMS__SERVER__TOKEN": "x"})
    hosts, macros = answers(
        tmp_path,
        "cluster.xml",
        "SELECT shard_num, host_name FROM system.clusters WHERE cluster = 'loms' AND internal_replication ORDER BY ALL",
        "SELECT macro, substitution FROM system.macros ORDER BY macro",
    )
    assert config.store.clickhouse.cluster == "loms"
    assert [(int(str(shard)), host) for shard, host in hosts] == [
        (1, "clickhouse-11"),
        (1, "clickhouse-12"),
        (2, "clickhouse-21"),
        (2, "clickhouse-22"),
    ]
    assert macros == [["replica", "1"], ["shard", "2"]]


def test_the_policy_has_a_cold_volume(tmp_path: Path) -> None:
    (volumes,) = answers(
        tmp_path,
        "storage.xml",
        "SELECT volume_name FROM system.storage_policies WHERE policy_name = 'tiered' ORDER BY ALL",
    )
    assert volumes == [["cold"], ["hot"]]


def test_compose_starts_what_the_files_name() -> None:
    services = yaml.safe_load((CLICKHOUSE / "compose.yaml").read_text())["services"]
    servers = {name for name in services if name.startswith("clickhouse-")}
    assert {(services[name]["environment"]["SHARD"], services[name]["environment"]["REPLICA"]) for name in servers} == {
        (name[-2], name[-1]) for name in servers
    }
    assert len(servers) == 4
    for number in (1, 2):
        loms = services[f"loms-{number}"]
        assert f"{number}/2" in loms["command"]
        address = Address.parse(loms["environment"]["LOMS__STORE__URL"].replace("${CLICKHOUSE_PASSWORD}", "x"))
        assert {host for host, _ in address.hosts} <= servers
        assert servers == loms["depends_on"].keys()
