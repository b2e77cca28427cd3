"""The page over a real LOMS that watches simulated engines, one of which hangs with green health."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.processes import Loms, post, wait_until

from loms.lab.fleet import Fleet

pytestmark = [pytest.mark.integration, pytest.mark.browser]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(2) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def loms(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loms]:
    instances = [url.removeprefix("http://") for url in fleet.urls]
    jobs = [{"name": "simulated", "interval": "2s", "targets": instances}]
    settings = {
        "scrape": {"timeout": "2s", "discover": {"enabled": False}, "jobs": jobs},
        "probe": {"interval": "5s", "deadline": "3s"},
    }
    with Loms(tmp_path_factory.mktemp("loms"), [], settings) as running:
        yield running


def test_a_hang_is_an_incident_on_the_page_and_goes_away(page_of, fleet: Fleet, loms: Loms) -> None:
    page = page_of(loms.url)
    victim = fleet.urls[1].removeprefix("http://")
    wait_until(lambda: loms.engine(victim).get("state") == "idle", 60, f"the first verdict: {loms.get('/api/engines')}")
    page.open("#/")
    page.until(lambda: victim in page.text("main") and "simulated" in page.text("main"))
    assert "all quiet" in page.text("header")
    post(f"{fleet.urls[1]}/lab/faults", {"fault": "hang", "seconds": 25})
    page.until(lambda: "1 open incident" in page.text("header"))
    page.until(lambda: f"{victim} is stalled" in page.text("main"))
    assert "Next step" in page.text("main")
    wait_until(lambda: loms.incidents(victim, "resolved"), 60, "resolving")
    page.until(lambda: "all quiet" in page.text("header"))
    incident = loms.incidents(victim)[0]["id"]
    page.open(f"#/incident/{incident}")
    page.until(lambda: "Timeline" in page.text("main") and len(page.all("main canvas")) > 0)
    page.open(f"#/engine/{victim}")
    page.until(lambda: len(page.all("main canvas")) >= 5)
    page.open("#/query?expr=count(up)")
    page.until(lambda: "3" in page.text("main"))
