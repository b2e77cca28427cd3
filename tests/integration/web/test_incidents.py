"""Incidents on the page: they come, they explain themselves, they go."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.browser]

CARD = 'article[data-id="stall-1"]'


def test_an_incident_appears_within_a_poll_and_goes_away_as_resolved(page: Any, api: Any) -> None:
    stall = api.incidents.pop(0)
    page.open()
    assert page.text(".overall") == "all quiet"
    assert not page.all("article.incident")
    api.incidents.append(stall)
    page.until(lambda: page.all(CARD))
    assert page.text(".overall") == "1 open incident"
    assert page.text("#news") == f"New critical incident: {stall['title']}."
    assert page.script("return document.title") == "(1) LOMS"
    text = page.text(CARD)
    for part in ("critical", stall["title"], "Take it out of the load balancer", "23 requests wait"):
        assert part in text
    assert page.text(f"{CARD} .evidence li:nth-child(4) .evidence-value") == f"{100 * api.frozen_kv:.3g} %"
    api.resolve("stall-1")
    page.until(lambda: not page.all("article.incident"))
    assert page.text(".overall") == "all quiet"
    assert page.text("#news") == f"Resolved: {stall['title']}."
    assert "resolved critical" in page.text('.incident-rows li[data-id="stall-1"]')


def test_times_stand_there_in_local_time_and_utc(page: Any, api: Any) -> None:
    page.open()
    since = page.text(f"{CARD} .since")
    ((local, utc),) = re.findall(r"since (\d\d):\d\d:\d\d CES?T \((\d\d):\d\d:\d\d UTC\)", since)
    assert (int(local) - int(utc)) % 24 in (1, 2), "Berlin is one or two hours ahead"
    assert re.match(r"4 min \d+ s since", since)
    assert re.search(r"\d\d:\d\d:\d\d CES?T", page.text(".clock"))
    assert re.search(r"\d\d:\d\d:\d\d UTC", page.text(".clock"))
    assert not re.search(r"\dT\d\d:", page.text(CARD)), "stamps within texts are made local too"


def test_evidence_has_small_charts_with_the_incident_shaded(page: Any) -> None:
    page.open()
    page.until(lambda: len(page.all(f"{CARD} .evidence .sparkline")) == 4)
    assert len(page.all(f"{CARD} .evidence li")) == 5, "the one without an expression has words only"
    assert len(page.all(f"{CARD} .evidence rect.severity-critical")) == 4


def test_the_worst_come_first_and_many_become_lines(page: Any, api: Any) -> None:
    for n in range(6):
        api.incidents.append(api.incidents[0] | {"id": f"more-{n}", "severity": "warning", "title": f"warning {n}"})
    page.open()
    assert page.all("article.incident")[0].get_attribute("data-id") == "stall-1"
    assert len(page.all("article.incident")) == 3
    assert "warning" in page.text("section .incident-rows")
    assert page.text(".overall") == "7 open incidents"


def test_the_incidents_own_page(page: Any, api: Any) -> None:
    page.open("#/incident/stall-1")
    page.until(lambda: len(page.all(".evidence-chart canvas")) == 4)
    text = page.text("main")
    for part in ("EngineStalled", "deployment_zone", "eu-1b", "makes no progress", "/health answers 200 all the while"):
        assert part in text
    events = [item.text for item in page.all(".timeline li")]
    assert len(events) == 2
    assert "condition first met" in events[0]
    assert "firing, after the condition held for 15" in events[1].replace("\u00a0", " ")
    assert page.one('a[href="https://runbooks.example/engine-stalled"]').get_attribute("rel") == "noopener noreferrer"
    api.resolve("stall-1")
    page.until(lambda: len(page.all(".timeline li")) == 4)
    assert "resolved critical" in page.text(".page-head")


def test_a_resolved_incident_is_drawn_over_its_own_time(page: Any, api: Any) -> None:
    page.open("#/incident/latency-1")
    page.until(lambda: page.all(".evidence-chart canvas"))
    (asked,) = {(float(q["start"]), float(q["end"])) for q in api.queries}
    (alert,) = api.incidents[1]["alerts"]
    assert asked[0] < alert["active_at_ms"] / 1000 < alert["resolved_at_ms"] / 1000 < asked[1]
    assert asked[1] * 1000 < api.now_ms() - 3_600_000


def test_nothing_is_asked_of_the_future(page: Any, api: Any) -> None:
    """An incident that ended just now is drawn with some room after it; PromQL would fill that with the present."""
    api.resolve("stall-1")
    page.open("#/incident/stall-1")
    page.until(lambda: page.all(".evidence-chart canvas"))
    assert all(float(q["end"]) * 1000 <= api.now_ms() for q in api.queries)


def test_commands_in_texts_are_set_as_code(page: Any, api: Any) -> None:
    api.incidents[0]["alerts"][0]["annotations"]["next_step"] = "Run `py-spy dump --pid PID`, then `<b>`."
    page.open()
    assert [code.text for code in page.all(f"{CARD} .next-step code")] == ["py-spy dump --pid PID", "<b>"]


def test_from_the_incident_to_the_engine_at_that_time(page: Any, api: Any) -> None:
    page.open("#/incident/latency-1")
    link = page.until(lambda: page.all('main a[href^="#/engine/127.0.0.1:9102?from="]'))[0]
    link.click()
    page.until(lambda: page.all(".charts canvas"))
    assert page.text(".range-presets [aria-pressed=true]") == "custom"


def test_a_runbook_that_is_a_script_is_no_link(page: Any, api: Any) -> None:
    api.incidents[0]["alerts"][0]["annotations"]["runbook_url"] = "javascript:alert(1)"
    page.open("#/incident/stall-1")
    page.until(lambda: page.all(".timeline li"))
    assert not page.all("a[href^='javascript']")


def test_an_unknown_incident_is_told_in_the_servers_words(page: Any) -> None:
    page.expected_errors = ("404",)
    page.open("#/incident/none")
    page.until(lambda: page.text(".problem") == "there is no incident of this id")


def test_the_list_of_all(page: Any) -> None:
    page.open("#/incidents")
    assert [item.get_attribute("data-id") for item in page.all(".incident-rows li")] == ["stall-1", "latency-1"]
    assert "lasted 7 min" in page.text('li[data-id="latency-1"]')
