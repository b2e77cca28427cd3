from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from loms.agent.contracts import LOST, ContractWatch, Sight
from loms.collect.protocols import Response
from loms.collect.scrape import Scraper
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.model import SampleBatch, Series
from loms.core.settings import Contracts
from loms.engines.engine import Identity
from loms.engines.translate import Translator
from loms.ingest.exposition import ExpositionReader

WRITTEN = Path(__file__).parents[2] / "data" / "written"
GRACE, REMEMBER = 60.0, 3600.0
RENAMED = {"vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"}


class Notes:
    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], str] = {}

    def load(self) -> Mapping[tuple[str, str], str]:
        return dict(self.texts)

    def save(self, job: str, instance: str, payload: str, /) -> None:
        self.save_all({(job, instance): payload})

    def save_all(self, notes: Mapping[tuple[str, str], str], /) -> None:
        self.texts |= notes


class Scene:
    """One engine, scraped from memory, and the watch over its contract."""

    def __init__(self, notes: Notes | None = None) -> None:
        self.clock = ManualClock(1_790_000_000_000)
        self.notes = notes or Notes()
        self.batches: list[SampleBatch] = []
        self._rows: dict[int, Series] = {}
        self.used: Mapping[str, Sequence[str]] = {}
        target = Target("engines", "a:8000", "http://a:8000/metrics")
        self.translator = Translator(target.identity)
        self.scraper = Scraper(
            target,
            fetcher=self,
            reader=ExpositionReader(),
            translator=self.translator,
            sink=lambda _: None,
            clock=self.clock,
        )
        self.begin()

    def begin(self) -> None:
        """A process begins: what the one before knew is in the notes."""
        settings = Contracts(grace=GRACE, remember=REMEMBER)
        users = lambda _, family: self.used.get(family, ())  # noqa: E731
        self.watch = ContractWatch(settings, self.take, self.clock, self.notes, users)

    def take(self, batch: SampleBatch, /) -> None:
        self.batches.append(batch)
        self._rows |= {row.id: row for row in batch.series}

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        return Response(200, "text/plain; version=0.0.4", self.text.encode())

    def scrape(self, text: str, version: str, *, after: float = 5) -> None:
        """Scrape this, and look."""
        self.clock.advance(after)
        self.text = text
        asyncio.run(self.scraper.scrape_now())
        self.translator.identified(Identity(version))
        asyncio.run(self.scraper.scrape_now())
        self.look(self.sight())

    def sight(self) -> Sight:
        last, plan = self.scraper.last, self.translator.newest
        assert last is not None
        assert last.exposition is not None
        assert plan is not None
        worked = any(self.translator.progress(last.exposition).values())
        return Sight("engines", "a:8000", plan, last.exposition.shape, worked)

    def look(self, sight: Sight | None) -> None:
        self.batches.clear()
        if self.watch.due("target", sight):
            self.watch.look("target", sight)
        self.watch.save()

    def lost(self) -> dict[str, Mapping[str, str]]:
        """Metric → labels of the series that say it is lost, of the newest look."""
        return {labels["metric"]: labels for labels, value in self.written() if value == 1}

    def ended(self) -> set[str]:
        return {labels["metric"] for labels, value in self.written() if np.isnan(value)}

    def written(self) -> list[tuple[Mapping[str, str], float]]:
        found = []
        for batch in self.batches:
            for series_id, value in zip(batch.series_ids.tolist(), batch.values.tolist(), strict=True):
                assert self._rows[series_id].name == LOST
                found.append((dict(self._rows[series_id].labels), value))
        return found


def written(name: str) -> str:
    return (WRITTEN / f"{name}.txt").read_text()


def without(text: str, family: str) -> str:
    return "".join(line + "\n" for line in text.splitlines() if not re.search(rf"\b{family}", line))


def test_an_upgrade_that_renames_is_told_at_once() -> None:
    scene = Scene()
    scene.used = {"vllm:gpu_cache_usage_perc": ["alert Full (rules.yaml:4)"]}
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    assert scene.lost() == {}
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    assert scene.lost().keys() >= RENAMED
    labels = scene.lost()["vllm:gpu_cache_usage_perc"]
    assert labels["successor"] == "vllm:kv_cache_usage_perc"
    assert (labels["change"], labels["version_before"], labels["version"]) == ("renamed", "0.9.0", "0.12.0")
    assert labels["used_by"] == "alert Full (rules.yaml:4)"
    assert labels["canonical"] == "llm.engine.kv_cache.utilization goes on"
    assert (labels["instance"], labels["engine"]) == ("a:8000", "vllm")
    assert scene.lost()["vllm:gpu_prefix_cache_hits_total"]["used_by"] == "nothing that LOMS knows of"


def test_it_is_told_until_the_metric_is_back() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    assert scene.lost().keys() >= RENAMED
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    assert not scene.lost().keys() & RENAMED
    assert scene.ended() >= RENAMED


def test_after_a_restart_it_is_still_missed() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.begin()
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    assert scene.lost().keys() >= RENAMED


def test_an_upgrade_while_loms_was_away_is_noticed() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    later = Scene(scene.notes)
    later.scrape(written("vllm-0.12.0"), "0.12.0")
    assert later.lost().keys() >= RENAMED


def test_after_a_day_the_new_set_is_what_is_normal() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0", after=REMEMBER + 10)
    assert scene.lost() == {}
    assert scene.ended() >= RENAMED


def test_what_waits_for_a_request_or_a_flag_is_not_missed() -> None:
    scene, text = Scene(), written("vllm-0.12.0")
    drafts = '# TYPE vllm:spec_decode_num_drafts_total counter\nvllm:spec_decode_num_drafts_total{engine="0"} 5\n'
    scene.scrape(text + drafts, "0.12.0")
    scene.scrape(text, "0.12.0")
    scene.scrape(text, "0.12.0", after=GRACE * 2)
    assert scene.lost() == {}


def test_what_a_release_always_has_is_missed_without_an_upgrade_when_the_engine_works_without_it() -> None:
    scene, text = Scene(), written("vllm-0.12.0")
    less = without(text, "vllm:num_preemptions")
    scene.scrape(text, "0.12.0")
    scene.scrape(less, "0.12.0", after=GRACE * 10)
    assert scene.lost() == {}
    scene.scrape(less, "0.12.0", after=GRACE / 2)
    assert scene.lost() == {}
    scene.scrape(less, "0.12.0", after=GRACE)
    (labels,) = scene.lost().values()
    assert labels["metric"] == "vllm:num_preemptions_total"
    assert labels["canonical"] == "llm.engine.requests.preempted is lost with it"
    scene.scrape(text, "0.12.0")
    assert scene.lost() == {}


def test_a_rollback_loses_nothing_that_nobody_uses_yet() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.used = {"vllm:kv_cache_usage_perc": ["a new panel"]}
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    assert set(scene.lost()) == {"vllm:kv_cache_usage_perc"}
    assert scene.lost()["vllm:kv_cache_usage_perc"]["version_before"] == "0.12.0"


def test_a_version_that_is_only_guessed_is_told_as_a_guess() -> None:
    """vLLM exposes the same in 0.9.2 and 0.10.0, and in 0.11.0 with its hidden metrics shown."""
    scene = Scene()
    scene.scrape(written("vllm-0.10.0"), "")
    scene.scrape(written("vllm-0.13.0"), "")
    assert scene.lost()["vllm:gpu_cache_usage_perc"]["version_before"] == "0.9.2 to 0.11.0"


def test_without_a_version_the_set_of_names_says_that_it_is_another() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "")
    scene.scrape(written("vllm-0.12.0"), "")
    labels = scene.lost()["vllm:gpu_cache_usage_perc"]
    assert labels["successor"] == "vllm:kv_cache_usage_perc"
    assert "0.12.0" in labels["version"]


def test_a_family_that_no_contract_knows_is_missed_when_the_engine_has_worked_for_a_while() -> None:
    scene = Scene()
    extra = "# TYPE vllm:our_own_patch gauge\nvllm:our_own_patch 1\n"
    scene.scrape(written("vllm-0.32.0") + extra, "0.32.0")
    scene.scrape(written("vllm-0.32.0"), "0.33.1")
    assert scene.lost() == {}
    scene.scrape(written("vllm-0.32.0"), "0.33.1", after=GRACE)
    assert set(scene.lost()) == {"vllm:our_own_patch"}
    assert scene.lost()["vllm:our_own_patch"]["successor"] == "none"


def test_what_is_odd_is_a_finding() -> None:
    scene = Scene()
    scene.scrape(without(written("vllm-0.12.0"), "vllm:num_preemptions"), "0.12.0")
    (odd,) = scene.watch.findings("target")
    assert (odd.kind, odd.severity) == ("contract_missing", "warning")
    assert dict(odd.labels)["family"] == "vllm:num_preemptions_total"
    assert scene.watch.findings("elsewhere") == ()


def test_many_users_of_a_metric_are_counted() -> None:
    scene = Scene()
    scene.used = {metric: [f"panel {n}" for n in range(8)] for metric in RENAMED}
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    told = scene.lost()["vllm:gpu_cache_usage_perc"]["used_by"]
    assert told == "panel 0; panel 1; panel 2; panel 3; panel 4; and 3 more"


def test_while_the_target_is_down_it_is_missed_all_the_same() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.look(None)
    assert scene.lost().keys() >= RENAMED


def test_what_was_said_of_a_target_that_is_gone_ends() -> None:
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    scene.batches.clear()
    scene.watch.keep_only(["another"])
    assert scene.ended() >= RENAMED
    assert scene.watch.findings("target") == ()


def test_the_same_alert_goes_on_when_its_users_change() -> None:
    """The texts are labels, and another label would be another alert."""
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    before = scene.lost()
    scene.used = {metric: ["a new panel"] for metric in RENAMED}
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    assert scene.lost() == before
    assert scene.ended() == set()


def test_a_metric_that_counts_something_else_since_the_upgrade_is_a_finding() -> None:
    """From vLLM's history: blocks in 0.8, tokens from 0.9 on."""
    scene = Scene()
    scene.scrape(written("vllm-0.8.5"), "0.8.5")
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    odd = [finding for finding in scene.watch.findings("target") if finding.kind == "contract_changed_meaning"]
    assert {dict(finding.labels)["family"] for finding in odd} >= {"vllm:gpu_prefix_cache_hits_total"}
    assert all("counts tokens" in finding.summary for finding in odd)


def test_a_target_that_comes_back_is_known_again() -> None:
    """It left the discovery for a moment, and was upgraded meanwhile."""
    scene = Scene()
    scene.scrape(written("vllm-0.9.0"), "0.9.0")
    scene.watch.keep_only([])
    scene.scrape(written("vllm-0.12.0"), "0.12.0")
    assert scene.lost().keys() >= RENAMED
