"""Scrapes put together again from samples are what live scraping wrote."""

from __future__ import annotations

import numpy as np
import pytest
from support.rescraped import DATA, OURS, START, STEP, Samples, live, run_of, samples_of, types_of

from loms.agent.history import History
from loms.agent.rescrape import family_types
from loms.collect.targets import Target
from loms.core.model import SampleBatch
from loms.promql.engine import Engine
from loms.promql.recent import RecentSource


def archive_of(samples: Samples, kind: type[Engine] = Engine) -> Engine:
    """A Prometheus that has the raw series of these: no canonical ones, nothing of LOMS's own, no markers."""
    source = RecentSource()
    for labels, points in samples.items():
        name = dict(labels)["__name__"]
        raw = not name.startswith(OURS)
        some = {at: value for at, value in points.items() if value != np.inf}
        if raw and some:
            source.append(labels, np.array([*some], dtype=np.int64), np.array([*some.values()]))
    return kind(source)


@pytest.mark.parametrize("known_types", [True, False])
@pytest.mark.parametrize(
    "run", ["vllm-0.32.0/run-full", "vllm-0.32.0/run-preempted", "sglang-0.5.23/run-full", "triton-2.51.0/run"]
)
def test_it_is_what_live_scraping_wrote(run: str, known_types: bool) -> None:
    texts: list[str | None] = [*run_of(run)]
    texts[3:3] = [None, None]
    target = Target("llm", "e:8000", "http://e:8000/metrics", labels=(("cluster", "north"), ("deployment_zone", "z")))
    written = samples_of(live(texts, target))
    history = History(archive_of(written), types_of(texts) if known_types else {})
    end = START + len(texts) * STEP
    found = history.look(START - 1, end)
    assert found.places == (("llm", "e:8000"),)
    again: list[SampleBatch] = []
    for at in range(START - 1, end, 2 * STEP + 1):  # span by span, so that shapes go on over the ends
        again += history.scrape(found, at, min(at + 2 * STEP + 1, end))
    assert history.engines == ((run.partition("-")[0], "e:8000"),)
    assert not history.without_up
    ours = samples_of(again)
    engine_series = {labels for labels in written if dict(labels)["__name__"].startswith(OURS)}
    assert len(engine_series) > 20
    for labels in engine_series | {labels for labels in written if dict(labels)["__name__"] == "up"}:
        assert ours[labels] == written[labels], labels


def test_a_failed_scrape_has_the_reason_that_its_duration_suggests() -> None:
    text = (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
    target = Target("llm", "e:8000", "http://e:8000/metrics")
    written = samples_of(live([text, None, text, None, text], target))
    duration = next(labels for labels in written if dict(labels)["__name__"] == "scrape_duration_seconds")
    written[duration][START + 3 * STEP] = 10.0
    history = History(archive_of(written), {})
    again = samples_of(history.scrape(history.look(START, START + 5 * STEP), START - 1, START + 5 * STEP))
    reasons = {
        dict(one)["reason"]: points for one, points in again.items() if ("__name__", "loms_scrape_failed") in one
    }
    assert reasons["refused"] == {START + STEP: 1.0, START + 2 * STEP: np.inf}
    assert reasons["timeout"] == {START + 3 * STEP: 1.0, START + 4 * STEP: np.inf}


def test_without_up_every_moment_with_samples_is_a_scrape() -> None:
    text = (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
    written = samples_of(live([text, text], Target("llm", "e:8000", "http://e:8000/metrics")))
    for labels in [labels for labels in written if dict(labels)["__name__"] in ("up", "scrape_duration_seconds")]:
        del written[labels]
    history = History(archive_of(written), {})
    again = samples_of(history.scrape(history.look(START, START + STEP), START - 1, START + STEP))
    assert history.without_up
    running = [labels for labels in again if ("__name__", "llm_engine_requests_running") in labels]
    assert [sorted(again[labels]) for labels in running] == [[START, START + STEP]]


def test_names_that_a_regular_expression_would_read_otherwise_are_found() -> None:
    text = (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
    target = Target('j+"(ö)\\', "a.b[1]|c\n:80", "http://e:8000/metrics")
    history = History(archive_of(samples_of(live([text], target))), {})
    found = history.look(START, START + STEP)
    history.scrape(found, START - 1, START + STEP)
    assert history.engines == (("vllm", "a.b[1]|c\n:80"),)


def test_of_two_servers_that_scraped_the_same_target_one_counts() -> None:
    text = (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
    one = Target("llm", "e:8000", "http://e:8000/metrics", labels=(("replica", "a"),))
    alone = samples_of(live([text] * 4, one))
    both = dict(alone)
    for labels, points in samples_of(live([text] * 3, one)).items():
        other = tuple(("replica", "b") if key == "replica" else (key, value) for key, value in labels)
        both[other] = {at + 7000: value for at, value in points.items()}
    found = []
    for samples in (alone, both):
        history = History(archive_of(samples), {})
        span = (START, START + 4 * STEP)
        found.append(samples_of(history.scrape(history.look(*span), START - 1, span[1])))
    assert found[0] == found[1]


class Prometheus2(Engine):
    """Counts the left edge of a window in."""

    def query(self, expr: str, at_ms: int, *_: object):  # type: ignore[no-untyped-def]
        selector, _, length = expr.removesuffix("ms]").rpartition("[")
        return super().query(f"{selector}[{int(length) + 1}ms]", at_ms)


def test_a_scrape_on_the_edge_of_two_spans_counts_once() -> None:
    text = (DATA / "vllm-0.32.0" / "loaded.txt").read_text()
    written = samples_of(live([text] * 3, Target("llm", "e:8000", "http://e:8000/metrics")))
    history = History(archive_of(written, Prometheus2), {})
    found = history.look(START, START + 2 * STEP)
    again = [one for at in range(3) for one in history.scrape(found, START + (at - 1) * STEP, START + at * STEP)]
    assert [batch.timestamps_ms[0] for batch in again] == [START, START + STEP, START + 2 * STEP]


def test_types_come_from_the_api_or_else_from_names_and_labels() -> None:
    names = ("h_bucket", "h_sum", "h_count", "s", "s_count", "c_total", "g", "g_count", "x_total")
    labels = ((("le", "1"),), (), (), (("quantile", "0.5"),), (), (), (), (), ())
    guessed = {"h": "histogram", "s": "summary", "c_total": "counter", "g": "untyped", "g_count": "untyped"}
    assert family_types(names, labels, {"x": "gauge"}) == {**guessed, "x_total": "gauge"}
