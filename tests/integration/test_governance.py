"""``loms up`` with a shop that has too many tenants and users: what is stored, and said, and outlives a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.http_host import TEXT, Host
from support.processes import Loms, wait_until

pytestmark = pytest.mark.integration


class Shop(Host):
    """A target whose text is whatever it is set to; a context manager."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(lambda _: (TEXT, "".join(f"{line}\n" for line in self.lines).encode()))


def orders(counts: dict[str, int]) -> list[str]:
    """Tenant → orders, half of them by each of two users."""
    lines = ["# TYPE shop_orders_total counter"]
    for tenant, count in counts.items():
        for user, part in (("u1", count // 2), ("u2", count - count // 2)):
            lines.append(f'shop_orders_total{{tenant="{tenant}",user_id="{tenant}-{user}"}} {part}')
    return lines


@dataclass
class World:
    loms: Loms
    shop: Shop
    """Its tenants are folded."""
    maze: Shop
    """It has more series than it may."""
    file: Path
    """Targets by file_sd, which must have a label ``env``."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("governance")
    with Shop() as shop, Shop() as maze:
        shop.lines = orders({f"t{i:02}": 100 * i for i in range(30)})
        maze.lines = ["# TYPE maze_doors gauge", *(f'maze_doors{{door="{i}"}} {i}' for i in range(100))]
        maze.lines += ["# TYPE maze_keys gauge", *(f'maze_keys{{key="{i}"}} {i}' for i in range(10))]
        file = folder / "targets.json"
        file.write_text(json.dumps([{"targets": [maze.instance]}]))
        jobs = [
            {"name": "shop", "targets": [shop.instance], "labels": {"env": "test"}},
            {"name": "maze", "targets": [maze.instance], "labels": {"env": "test"}, "max_series": 40},
            {"name": "found", "file_sd": [str(file)]},
        ]
        settings = {
            "scrape": {"interval": "1s", "timeout": "1s", "discover": {"enabled": False}, "jobs": jobs},
            "labels": {"required": ["env"], "fold": {"tenant": {"top": 5}}},
        }
        with Loms(folder, [], settings) as loms:
            wait_until(lambda: loms.value(f'up{{job="shop",instance="{shop.instance}"}}') == 1, 30, "a scrape")
            yield World(loms, shop, maze, file)


def run(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loms", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LOMS_URL": world.loms.url, "COLUMNS": "140"},
        check=False,
    )


def row(world: World, job: str) -> dict[str, object]:
    found: dict[str, object] = next(r for r in world.loms.get("/api/targets")["targets"] if r["job"] == job)
    return found


def stored(world: World | Loms) -> dict[str, float]:
    """Tenant → orders as LOMS has them now."""
    loms = world if isinstance(world, Loms) else world.loms
    result = loms.get("/api/v1/query", query="shop_orders_total")["data"]["result"]
    assert not any("user_id" in each["metric"] for each in result)
    return {each["metric"]["tenant"]: float(each["value"][1]) for each in result}


def test_the_largest_tenants_keep_their_series_and_users_have_none(world: World) -> None:
    wait_until(lambda: len(stored(world)) == 6, 20, "six series")
    assert stored(world) == {
        "t29": 2900, "t28": 2800, "t27": 2700, "t26": 2600, "t25": 2500, "other": 100 * sum(range(25)),
    }  # fmt: skip


def test_growth_goes_to_whom_it_belongs_and_a_new_tenant_to_the_others(world: World) -> None:
    before = stored(world)
    world.shop.lines = orders({f"t{i:02}": 100 * i + (7 if i in (3, 29) else 0) for i in range(30)} | {"new": 5})
    expected = before | {"t29": before["t29"] + 7, "other": before["other"] + 7 + 5}
    wait_until(lambda: stored(world) == expected, 20, "the growth")


def test_what_a_tenant_had_counted_stays_when_it_goes_also_over_a_restart_of_loms(world: World) -> None:
    before = stored(world)
    world.shop.lines = orders({f"t{i:02}": 100 * i + (7 if i in (3, 29) else 0) for i in range(10, 30)} | {"new": 6})
    wait_until(lambda: stored(world)["other"] == before["other"] + 1, 20, "the growth")
    assert world.loms.stop() == 0
    world.shop.lines = orders({f"t{i:02}": 100 * i + (8 if i in (3, 29) else 0) for i in range(10, 30)} | {"new": 6})
    world.loms.start()
    wait_until(lambda: stored(world)["t29"] == before["t29"] + 1, 20, "a scrape")
    assert stored(world) == before | {"t29": before["t29"] + 1, "other": before["other"] + 1}
    assert world.loms.value("max(resets(shop_orders_total[10m]))") == 0


def test_series_beyond_the_limit_are_left_out_and_the_target_says_which(world: World) -> None:
    wait_until(lambda: world.loms.value("count(maze_doors)") == 30, 20, "the doors")
    assert world.loms.value("count(maze_keys)") == 10
    target = row(world, "maze")
    assert target["health"] == "up"
    assert target["last_error"] == (
        f"http://{world.maze.instance}/metrics: 70 series beyond the limit of 40 (labels.max_series) are not stored: "
        "maze_doors (70)"
    )
    assert row(world, "shop")["last_error"] == ""
    wait_until(lambda: world.loms.value('loms_dropped_samples_total{reason="series_cap"}') >= 70, 20, "the count")


def test_a_target_from_a_file_that_lacks_a_label_is_not_scraped_and_is_a_problem(world: World) -> None:
    sentence = (
        f"{world.maze.instance} (job found) has no label 'env', which labels.required asks for: it is not scraped"
    )
    assert world.loms.get("/api/targets")["problems"] == [sentence]
    assert not any(r["job"] == "found" for r in world.loms.get("/api/targets")["targets"])
    world.file.write_text(json.dumps([{"targets": [world.maze.instance], "labels": {"env": "test"}}]))
    wait_until(lambda: not world.loms.get("/api/targets")["problems"], 20, "the new file")
    wait_until(lambda: world.loms.value('up{job="found"}') == 1, 20, "a scrape")


def test_series_tells_where_they_come_from(world: World) -> None:
    labels = json.loads(run(world, "series", "--top", "--by", "label", "--limit", "3", "--json").stdout)
    first = labels["rows"][0]
    assert (first["name"], first["values"], first["metric"]) == ("door", 100, "maze_doors")  # the job "found" may
    metrics = json.loads(run(world, "series", "--by", "metric", "--limit", "100", "--json").stdout)
    assert {r["name"]: r["series"] for r in metrics["rows"]}["shop_orders_total"] == 6
    text = run(world, "series").stdout
    assert "maze_doors" in text
    assert f"shop {world.shop.instance}" in text
    wrong = run(world, "series", "--since", "1h")
    assert (wrong.returncode, wrong.stdout) == (4, "")
    assert "since: at least 1d10m" in wrong.stderr


def test_no_counter_goes_back_and_nothing_is_counted_twice_when_loms_is_killed_just_after_a_change(
    tmp_path: Path,
) -> None:
    sizes = {f"t{i:02}": 100 * i for i in range(10)}
    with Shop() as shop:
        shop.lines = orders(sizes)
        jobs = [{"name": "shop", "targets": [shop.instance]}]
        settings = {
            "scrape": {"interval": "1s", "timeout": "1s", "discover": {"enabled": False}, "jobs": jobs},
            "labels": {"fold": {"tenant": {"top": 2}}},
        }

        def after_a_kill(expected: dict[str, float]) -> None:
            loms.kill()
            loms.start()
            shop.lines = orders(sizes | {"t09": sizes["t09"] + 1})
            wait_until(lambda: stored(loms).get("t09") == expected["t09"] + 1, 20, "a scrape")
            sizes["t09"] += 1
            assert stored(loms) == expected | {"t09": expected["t09"] + 1}
            assert loms.value("max(resets(shop_orders_total[10m]))") == 0

        with Loms(tmp_path, [], settings) as loms:
            # As soon as there are samples; and then others have become the largest.
            wait_until(lambda: stored(loms), 30, "a scrape", pause=0.01)
            assert stored(loms) == {"t09": 900, "t08": 800, "other": 2800}
            loms.kill()
            sizes |= {"t01": 5000, "t02": 6000}
            shop.lines = orders(sizes)
            after_a_kill({"t09": 900, "t08": 800, "other": 2800 + 4900 + 5800})
            # Some go, among them one with a series of its own, whose room another takes.
            gone = sizes.pop("t03") + sizes.pop("t08")
            before = stored(loms)
            sizes["t09"] += 1
            sizes["t07"] += 5
            shop.lines = orders(sizes)
            wait_until(lambda: stored(loms)["t09"] == before["t09"] + 1, 20, "a scrape", pause=0.01)
            now = stored(loms)
            assert gone == 1100
            assert now["other"] == before["other"] + 5
            after_a_kill(now)
            # One of them comes back.
            sizes["t03"] = 310
            shop.lines = orders(sizes)
            wait_until(lambda: stored(loms)["other"] == now["other"] + 10, 20, "its growth", pause=0.01)
            after_a_kill(stored(loms))
