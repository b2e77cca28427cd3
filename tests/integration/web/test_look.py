"""What the page looks like and to whom: widths, themes, contrast, keyboard, and hostile names."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.integration, pytest.mark.browser]

ROUTES = (
    "#/",
    "#/incidents",
    "#/incident/stall-1",
    "#/engine/127.0.0.1:9103",
    "#/engine/127.0.0.1:8080",
    "#/query?expr=sum by (instance) (rate(llm_engine_tokens_output_total[1m]))",
)
EVERYTHING = (
    "gen_ai_server_time_to_first_token_seconds",
    "llm_engine_inter_token_latency_seconds",
    "llm_engine_tokens_output_total",
    "llm_engine_kv_cache_utilization_ratio",
    "llm_engine_requests_running",
    "llm_engine_requests_waiting",
)
HOSTILE = '<img src=x onerror="window.hacked=1">' + "very-long-model-name-without-a-place-to-break" * 3
CONTRAST = """
// WCAG 2.2, 1.4.3: every text that is shown against what lies behind it.
const rgb = (text) => {
  const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  return text.startsWith('color(srgb') ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
};
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] > 0) throw new Error('half-transparent ground of ' + at.className);
  }
};
const poor = [];
let count = 0;
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !element.checkVisibility() || element.closest('.visually-hidden, .skip')) continue;
  const style = getComputedStyle(element);
  const [a, b] = [luminance(rgb(style.color)), luminance(behind(element))].sort((x, y) => y - x);
  count++;
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) poor.push([element.className, element.innerText, contrast.toFixed(2)]);
}
return [count, poor];
"""


def settled(page: Any) -> None:
    """Values have arrived."""
    page.until(lambda: not page.script("return /…|loading|running…/.test(document.querySelector('main').innerText)"))


@pytest.mark.parametrize("route", ROUTES)
def test_no_sideways_scrolling_on_a_phone(page: Any, api: Any, route: str) -> None:
    for engine in api.engines:
        engine |= {"model": HOSTILE, "zone": "a-zone-with-a-long-name-" * 3}
    api.engines[0]["unavailable"] = dict.fromkeys(EVERYTHING, "it does not say, for a reason that takes some words")
    odd = {"kind": "contract_unknown", "severity": "info", "family": "vllm:" + "a_long_name_" * 6, "text": "no " * 40}
    api.engines[0]["contract"] = [odd]
    api.incidents[0]["title"] += " and-a-word-that-is-too-long-for-any-phone-to-show" * 2
    page.open(route, width=390, height=844)
    settled(page)
    page.script("document.querySelectorAll('.hint button').forEach((button) => (button.ariaExpanded = 'true'))")
    assert page.script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]


@pytest.mark.parametrize("route", ROUTES)
def test_text_is_legible_in_light_and_dark(page: Any, api: Any, route: str) -> None:
    for engine, state in zip(api.engines, ("idle", "dead", "stalled", "long_prefill", "unknown"), strict=True):
        engine["state"] = state
    page.open(route)
    settled(page)
    for theme in ("light", "dark"):
        page.script("document.documentElement.dataset.theme = arguments[0]", theme)
        count, poor = page.script(CONTRAST)
        assert count > 20
        assert poor == []


def test_the_colours_follow_the_system_until_told_otherwise(page: Any) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.open(scheme="dark")
    dark = page.script(ground)
    page.open(scheme="light")
    light = page.script(ground)
    assert sum(map(int, light[4:-1].split(","))) > 600 > 150 > sum(map(int, dark[4:-1].split(",")))
    button = page.one("button.theme")
    assert button.get_attribute("aria-label") == "Colours: auto"
    button.click()
    button.click()
    page.until(lambda: page.script(ground) == dark)
    page.open(scheme="light")
    assert page.script(ground) == dark, "remembered"
    page.one("button.theme").click()
    page.until(lambda: page.script(ground) == light)


def test_charts_change_colours_with_the_theme(page: Any) -> None:
    page.open("#/engine/127.0.0.1:9101?from=1774742400000&to=1774746000000")  # a fixed range is not polled and redrawn
    settled(page)
    picture = "return document.querySelector('.chart canvas').toDataURL().length && " + (
        "[...document.querySelector('.chart canvas').getContext('2d').getImageData(0, 0, 600, 150).data]"
        ".reduce((sum, v, i) => sum + (i % 4 === 2 ? v : 0), 0)"
    )
    before = page.until(lambda: page.script(picture))
    page.one("button.theme").click()
    page.one("button.theme").click()
    page.until(lambda: page.script(picture) != before)
    page.one("button.theme").click()


@pytest.mark.parametrize("route", ["#/", "#/engine/127.0.0.1:9103", "#/incident/stall-1"])
def test_names_are_text_and_never_markup(page: Any, api: Any, route: str) -> None:
    api.engines[2] |= {"model": HOSTILE, "version": HOSTILE, "zone": HOSTILE, "state_reason": HOSTILE}
    lead = api.incidents[0]["alerts"][0]
    api.incidents[0]["title"] = HOSTILE
    lead["labels"][HOSTILE] = HOSTILE
    lead["annotations"] = {"summary": HOSTILE, "next_step": HOSTILE, "description": HOSTILE, HOSTILE: HOSTILE}
    lead["evidence"][1]["text"] = HOSTILE
    page.open(route)
    settled(page)
    assert HOSTILE in page.text("main")
    assert not page.all("img:not([src='web/icon.svg'])")
    assert page.script("return window.hacked ?? null") is None


def test_the_keyboard_reaches_everything(page: Any) -> None:
    page.open()
    reached = []
    for _ in range(40):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.script("return document.activeElement.innerText || document.activeElement.ariaLabel"))
    for stop in ("Skip to content", "Overview", "Query", "127.0.0.1:9104", "timeline and evidence", "n/a"):
        assert any(stop in text for text in reached if text), (stop, reached)
    assert any("Colours" in text for text in reached if text)


def test_the_skip_link_leads_to_the_content(page: Any) -> None:
    page.open()
    ActionChains(page.driver).send_keys(Keys.TAB, Keys.ENTER).perform()
    assert page.script("return document.activeElement.id") == "main"
    assert page.route == "#/"


def test_news_are_read_out_by_a_live_region_that_is_there_from_the_start(page: Any) -> None:
    page.open()
    region = page.one("#news")
    assert region.get_attribute("aria-live") == "assertive"
    assert region.get_attribute("textContent") == "", "what is open at the first look is no news"
