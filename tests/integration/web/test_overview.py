"""The first view: engines, their states and signals, and what it says when there is nothing to show."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.browser]

STALLED, LLAMA = "127.0.0.1:9103", "127.0.0.1:8080"


def row(instance: str) -> str:
    return f'tr[data-instance="{instance}"]'


def cell(instance: str, signal: str) -> str:
    return f'{row(instance)} td[data-signal="{signal}"]'


def test_engines_with_their_facts_states_and_reasons(page: Any, api: Any) -> None:
    page.open()
    names = [link.text for link in page.all(".engine-name")]
    assert names[0] == STALLED, "the engine in trouble comes first"
    assert sorted(names) == sorted(e["instance"] for e in api.engines)
    stalled, real = page.text(row(STALLED)), page.text(row(LLAMA))
    for fact in ("stalled", "no progress for 4 min 10 s", "vllm 0.32.0", "Qwen2.5-7B-Instruct", "eu-1b", "simulated"):
        assert fact in stalled
    for fact in ("idle", "nothing to do", "llama.cpp b11434", "SmolLM2-135M-Instruct-Q4_1"):
        assert fact in real
    assert "simulated" not in real


def test_every_state_has_a_word_and_a_shape_of_its_own(page: Any, api: Any) -> None:
    states = ("idle", "busy", "long_prefill", "stalled", "dead")
    for engine, state in zip(api.engines, states, strict=True):
        engine["state"] = state
    api.engines.append(api.engines[0] | {"instance": "gpu-9:8000", "state": "unknown"})
    page.open()
    seen = page.script(
        "return [...document.querySelectorAll('td .pill')].map(p => "
        "[p.innerText.trim(), [...p.querySelectorAll('path')].map(d => d.getAttribute('d')).join()])"
    )
    words, shapes = zip(*seen, strict=True)
    assert set(words) == {"idle", "busy", "long prefill", "stalled", "dead", "unknown"}
    assert len(set(shapes)) == 6


def test_sparklines_and_current_values(page: Any) -> None:
    page.open()
    page.until(lambda: page.all(f"{cell('127.0.0.1:9101', 'queue')} svg"))
    points = page.script(
        "return [...document.querySelectorAll('tr[data-instance=\"127.0.0.1:9101\"] .sparkline .line')]"
        ".map(line => line.getAttribute('d').split(/[ML]/).length - 1)"
    )
    assert len(points) == 7, "TTFT p50 and p99, ITL, output, KV, running, waiting"
    assert min(points) > 150, "a quarter of an hour in steps of 5 s"
    for signal, unit in (("ttft", "ms"), ("itl", "ms"), ("output", "tok/s"), ("kv", "%"), ("queue", "run")):
        assert unit in page.text(cell("127.0.0.1:9101", signal))
    assert page.all(f"{row(STALLED)} .sparkline rect.severity-critical"), "the incident is shaded"
    assert not page.all(f"{row('127.0.0.1:9101')} .sparkline rect")


def test_where_history_is_short_the_lines_use_the_room(page: Any, api: Any) -> None:
    api.began_ms = api.now_ms() - 240_000
    page.open()
    page.until(lambda: "lines: last 4 min" in page.text(".tally"))


def test_one_query_for_all_engines_and_later_only_what_is_new(page: Any, api: Any) -> None:
    page.open()
    kv = "max by (instance) (llm_engine_kv_cache_utilization_ratio)"
    asked = page.until(lambda: (q := [q for q in list(api.queries) if q["query"] == kv]) and len(q) > 1 and q)
    spans = [float(q["end"]) - float(q["start"]) for q in asked]
    assert spans[0] == 900
    assert max(spans[1:]) <= 60


def test_an_unavailable_signal_says_why_and_is_never_zero(page: Any) -> None:
    page.open()
    for signal in ("ttft", "itl", "kv"):
        assert page.text(f"{cell(LLAMA, signal)} .signal-values").split() == ["n/a"]
        assert not page.all(f"{cell(LLAMA, signal)} .sparkline")
    bubble = page.one(f"{cell(LLAMA, 'ttft')} .bubble")
    assert not bubble.is_displayed()
    page.one(f"{cell(LLAMA, 'ttft')} .hint button").click()
    assert bubble.is_displayed()
    assert bubble.text == "llama.cpp exposes no latency histograms"


def test_a_value_that_cannot_be_measured_is_a_dash_with_a_reason(page: Any) -> None:
    page.open()
    button = f"{cell(STALLED, 'itl')} .hint button"
    page.until(lambda: page.text(button).strip() == "–")
    assert page.script("return document.querySelector(arguments[0]).nextElementSibling.textContent", button) == (
        "nothing to measure in the last minute"
    )


def test_a_failing_query_is_told_in_its_cells_only(page: Any, api: Any) -> None:
    page.expected_errors = ("/api/v1/query_range",)
    api.refused = "kv_cache_utilization"
    page.open()
    page.until(lambda: "failed" in page.text(cell("127.0.0.1:9101", "kv")))
    assert "tok/s" in page.text(cell("127.0.0.1:9101", "output"))
    api.refused = ""
    page.until(lambda: "%" in page.text(cell("127.0.0.1:9101", "kv")))


def test_without_engines_it_says_how_to_add_one(page: Any, api: Any) -> None:
    down = {"health": "down", "up": False, "instance": "gpu-1:8000", "url": "http://gpu-1:8000/metrics"}
    api.targets = [api.targets[0] | down | {"last_error": "connection refused"}]
    api.engines.clear()
    api.incidents.clear()
    api.problems.append("targets.json:3: not a list of target groups")
    api.status["discovery"] = {"host": "127.0.0.1", "ports": [8000, 8080, 30000]}
    page.open()
    page.until(lambda: "30000" in page.text("main"))
    text = page.text("main")
    for part in ("No engine yet", "8000, 8080, 30000", "scrape:", "targets:", "http://gpu-1:8000/metrics"):
        assert part in text
    assert "connection refused" in text
    assert "targets.json:3: not a list of target groups" in text
    assert page.text(".overall") == "no engine yet"


def test_loms_tells_what_it_keeps_and_what_it_dropped(page: Any, api: Any) -> None:
    api.status["dropped_samples"] = {"queue_full": 1200.0, "late": 0.0}
    page.open()
    page.until(lambda: "up 2 d 1 h" in page.text("footer"))
    assert "2.83k series, 48.3M samples, 178 MiB" in page.text("footer")
    assert "1.2k samples dropped: queue_full" in page.text("footer")
    assert "late" not in page.text("footer")
    assert "times in Europe/Berlin" in page.text("footer")


def test_silence_is_told_with_its_time_and_ends(page: Any, api: Any) -> None:
    page.expected_errors = ("net::ERR",)
    page.open()
    api.outage = True
    page.until(lambda: page.all(".outage"))
    text = page.text(".outage")
    assert "LOMS does not answer since" in text
    assert "UTC" in text
    assert "no connection" in text
    assert page.text(".overall") == "state unknown", "old news must not pass for all clear"
    assert page.all(".engine-name"), "what was known stays"
    assert "no answer for" in page.text(".connection")
    api.outage = False
    page.until(lambda: not page.all(".outage"))
    assert page.text(".connection") == "live"


def test_a_missing_token_is_named(page: Any, api: Any) -> None:
    page.expected_errors = ("401",)
    api.locked = True
    page.driver.get(page.url)
    page.until(lambda: "LOMS wants its token" in page.text(".outage"))
    assert "?token=" in page.text(".outage")


def test_the_time_is_the_servers(page: Any, api: Any) -> None:
    """A browser whose clock is ten minutes slow still asks for the newest data."""
    real = api.now_ms
    api.now_ms = lambda: real() + 600_000
    page.open()
    page.until(lambda: any(float(q["end"]) * 1000 > real() + 590_000 for q in list(api.queries)))


def test_it_works_below_a_path(page: Any, api: Any) -> None:
    api.below = "/behind/a/proxy"
    page.url += "behind/a/proxy/"
    page.open()
    page.until(lambda: page.all(".sparkline"))
    assert len(page.all(".engine-name")) == 5


def test_a_loms_that_cannot_see_does_not_say_all_quiet(page: Any, api: Any) -> None:
    api.incidents.clear()
    api.trouble = "new samples cannot be stored: the disk is full"
    page.open()
    page.until(
        lambda: "LOMS does not see everything: new samples cannot be stored: the disk is full" in page.text("body")
    )
    assert "state unknown" in page.text("header")
    assert "all quiet" not in page.text("header")
    api.trouble = ""
    page.until(lambda: "all quiet" in page.text("header"))
