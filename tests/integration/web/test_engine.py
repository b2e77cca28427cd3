"""One engine's charts: ranges, cursors, zoom, incidents, and what the engine lacks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.integration, pytest.mark.browser]

FAST, STALLED, LLAMA = "127.0.0.1:9101", "127.0.0.1:9103", "127.0.0.1:8080"
INK = """
const canvas = document.querySelectorAll('.chart canvas')[arguments[0]];
const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
let ink = 0, red = 0;
for (let i = 0; i < pixels.length; i += 4) {
  if (pixels[i + 3] > 200) ink++;
  if (pixels[i + 3] > 0 && pixels[i] > pixels[i + 1] + 60) red++;
}
return [ink, red];
"""


def open_charts(page: Any, instance: str, query: str = "") -> None:
    """The engine's page, with values in its charts."""
    page.open(f"#/engine/{instance}{query}")
    page.until(
        lambda: page.script("return [...document.querySelectorAll('.legend b')].some(b => /\\d/.test(b.innerText))")
    )


def asked_over(api: Any, seconds: Any) -> list[dict[str, str]]:
    """Range queries over so long a time; the last of an earlier range may still come in between."""
    return [q for q in list(api.queries) if float(q["end"]) - float(q["start"]) == seconds]


def press(page: Any, label: str) -> None:
    next(button for button in page.all(".range-presets button") if button.text == label).click()


def test_charts_are_drawn_with_units_and_values(page: Any) -> None:
    open_charts(page, FAST)
    titles = [title.text for title in page.all(".chart h3")]
    assert titles[:3] == ["Time to first token", "Inter-token latency", "Request duration"]
    assert len(titles) == 9
    assert "Throughput tok/s" in titles
    assert [item.text.split()[0] for item in page.all(".chart:first-child .legend li")] == ["p50", "p90", "p99"]
    for index in range(9):
        assert page.script(INK, index)[0] > 300, titles[index]
    assert page.script(INK, 0)[1] == 0, "no incident, so nothing is shaded"
    label = page.one(".chart .plot").get_attribute("aria-label")
    assert label.startswith("Time to first token. p50 ")
    assert "highest" in label


def test_incidents_are_shaded(page: Any) -> None:
    open_charts(page, STALLED, "?range=15m")
    assert page.script(INK, 0)[1] > 1000
    assert "has stopped" in page.text(".incident-rows"), "and named above the charts"


def test_presets_change_what_is_asked_for(page: Any, api: Any) -> None:
    open_charts(page, FAST)
    assert page.text(".range-presets [aria-pressed=true]") == "15m"
    for label, seconds in (("1h", 3600), ("7d", 604_800), ("5m", 300)):
        api.queries.clear()
        press(page, label)
        asked = page.until(partial(asked_over, api, pytest.approx(seconds, rel=0.01)))[0]
        assert page.route == f"#/engine/{FAST}?range={label}"
        assert 100 < seconds / float(asked["step"]) < 700, "the step follows from the width"
        assert f'{{instance="{FAST}"}}' in asked["query"]
        assert float(asked["query"].split("[")[1].split("s]")[0]) >= max(60, float(asked["step"]))
    page.driver.back()
    page.until(lambda: page.text(".range-presets [aria-pressed=true]") == "7d")


def test_a_custom_range_in_local_time_with_utc_beside_it(page: Any, api: Any) -> None:
    open_charts(page, FAST)
    press(page, "custom")
    page.until(lambda: page.all(".range-custom input"))
    set_field = """
    const [input, text] = arguments;
    input.value = text;
    input.dispatchEvent(new Event('input', { bubbles: true }));
    """
    first, last = page.all(".range-custom input")
    page.script(set_field, first, "2026-03-29T01:17:33")
    page.script(set_field, last, "2026-03-29T01:00:00")
    page.until(lambda: "The end must be after the start." in page.text(".range-custom"))
    assert not page.one(".range-custom button").is_enabled()
    page.script(set_field, last, "2026-03-29T03:30:00")
    page.until(lambda: "01:30:00 UTC" in page.text(".range-custom"))
    assert "2026-03-29 01:17:33 CET (00:17:33 UTC)" in page.text(".range-custom")
    api.queries.clear()
    page.one(".range-custom button").click()
    page.until(lambda: api.queries)
    start = datetime(2026, 3, 29, 0, 17, 33, tzinfo=UTC)
    sent = parse_qs(page.route.split("?")[1])
    assert [int(sent["from"][0]), int(sent["to"][0])] == [
        int(start.timestamp() * 1000),
        int((start + timedelta(minutes=72, seconds=27)).timestamp() * 1000),
    ]


def test_dragging_zooms(page: Any, api: Any) -> None:
    open_charts(page, FAST, "?range=1h")
    over = page.one(".chart .u-over")
    width = over.size["width"]
    drag = ActionChains(page.driver).move_to_element_with_offset(over, -width // 4, 0).click_and_hold()
    drag.move_by_offset(width // 4, 0).move_by_offset(width // 4, 0).release().perform()
    page.until(lambda: "from=" in page.route)
    zoomed = parse_qs(page.route.split("?")[1])
    span = (int(zoomed["to"][0]) - int(zoomed["from"][0])) / 1000
    assert span == pytest.approx(1800, rel=0.05), "half of the chart is half of the hour"
    page.until(lambda: page.text(".range-fixed"))
    page.driver.back()
    page.until(lambda: page.text(".range-presets [aria-pressed=true]") == "1h")


def test_cursors_move_together_and_the_tooltip_tells_time_and_values(page: Any) -> None:
    open_charts(page, FAST)
    page.hover(page.one(".chart .u-over"))
    tooltip = page.until(lambda: page.text(".tooltip"))
    assert len(page.all(".tooltip")) == 1
    assert "UTC" in tooltip
    assert "p99" in tooltip
    assert "ms" in tooltip
    lines = page.script(
        "const left = (line) => new DOMMatrix(getComputedStyle(line).transform).m41;"
        "return [...document.querySelectorAll('.u-cursor-x')].map(left)"
    )
    assert len(lines) == 9
    assert min(lines) > 100
    assert max(lines) - min(lines) <= 1


def test_arrow_keys_read_a_chart(page: Any) -> None:
    open_charts(page, FAST)
    plot = page.one(".chart .plot")
    plot.send_keys(Keys.HOME)
    first = page.until(lambda: page.text(".tooltip-time"))
    plot.send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.text(".tooltip-time") not in ("", first))
    plot.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.all(".tooltip"))


def test_what_the_engine_lacks_is_named_with_the_reason(page: Any, api: Any) -> None:
    open_charts(page, LLAMA)
    assert [title.text for title in page.all(".chart h3")] == ["Throughput tok/s", "Batch and queue requests"]
    text = page.text(".not-drawn")
    assert "Time to first token\nn/a: llama.cpp exposes no latency histograms" in text
    assert "Preemptions\nn/a: llama.cpp does not preempt" in text
    assert not any("time_to_first_token" in q["query"] for q in api.queries)


def test_what_is_not_as_the_release_promises_is_told(page: Any, api: Any) -> None:
    text = "vLLM 0.32.0 should expose vllm:num_requests_running, and this target does not"
    odd = {"kind": "contract_missing", "severity": "warning", "family": "vllm:num_requests_running", "text": text}
    open_charts(page, FAST)
    assert not page.all("section[aria-labelledby=contract-title]")
    api.engines[0]["contract"] = [odd]
    page.until(lambda: page.all("section[aria-labelledby=contract-title]"))
    assert f"missing · vllm:num_requests_running\n{text}" in page.text("section[aria-labelledby=contract-title]")


def test_details_of_the_target(page: Any) -> None:
    open_charts(page, FAST)
    text = page.text("section[aria-labelledby=details-title]")
    for part in (f"http://{FAST}/metrics", "static", "every 5 s, 532 samples", "Qwen2.5-7B-Instruct", "eu-1a"):
        assert part in text


def test_an_unknown_engine(page: Any) -> None:
    page.open("#/engine/nowhere:1")
    assert "No engine of this name is known" in page.text(".problem")


def test_the_queues_and_rates_go_on_by_themselves(page: Any, api: Any) -> None:
    open_charts(page, FAST, "?range=5m")
    api.queries.clear()
    page.until(lambda: len({q["end"] for q in list(api.queries)}) > 1)
    assert all(float(q["end"]) - float(q["start"]) <= 60 for q in api.queries), "only the newest stretch"
