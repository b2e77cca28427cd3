from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from loms.collect.discovery import FileDiscovery, PortDiscovery, Static
from loms.collect.protocols import Response
from loms.collect.targets import Target
from loms.core.clock import ManualClock
from loms.core.errors import TargetError
from loms.core.model import labels_of
from loms.ingest.exposition import ExpositionReader

TEMPLATE = Target(job="j", instance="", url="", interval_seconds=5.0, labels=labels_of({"deployment_zone": "z"}))


def never(_: Target) -> int | None:
    return None


class Files:
    """A directory of file_sd files whose every writing has a time of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.ticks = 1_000_000_000

    def write(self, name: str, content: object) -> Path:
        path = self.path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        self.ticks += 1
        os.utime(path, ns=(self.ticks, self.ticks))
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def refresh(discovery: FileDiscovery) -> Sequence[Target]:
    return asyncio.run(discovery.refresh(never))


def test_static_targets() -> None:
    target = replace(TEMPLATE, instance="h:1", url="http://h:1/metrics")
    assert asyncio.run(Static([target]).refresh(never)) == (target,)


class TestFiles:
    def test_json_and_yaml_through_a_glob(self, files: Files) -> None:
        files.write("a.json", [{"targets": ["h1:8000", "h2:8000"], "labels": {"rack": "7"}}])
        files.write("b.yml", "- targets: ['h3:8000']\n")
        files.write("c.txt", "not mine")
        found = refresh(FileDiscovery([f"{files.path}/*.json", f"{files.path}/*.yml"], TEMPLATE))
        assert [t.url for t in found] == [f"http://h{i}:8000/metrics" for i in (1, 2, 3)]
        assert found[0].identity == labels_of({"job": "j", "instance": "h1:8000", "rack": "7", "deployment_zone": "z"})
        assert {t.discovered_by for t in found} == {"file_sd"}

    def test_special_labels(self, files: Files) -> None:
        labels = {
            "__scheme__": "https",
            "__metrics_path__": "/m",
            "__param_model": "a b",
            "__scrape_interval__": "1m",
            "__scrape_timeout__": "500ms",
            "__meta_x": "dropped",
            "job": "other",
            "instance": "name",
            "deployment_zone": "y",
        }
        (target,) = refresh(
            FileDiscovery([str(files.write("a.json", [{"targets": ["h:1"], "labels": labels}]))], TEMPLATE)
        )
        assert (target.job, target.instance, target.url) == ("other", "name", "https://h:1/m?model=a+b")
        assert (target.interval_seconds, target.timeout_seconds) == (60.0, 0.5)
        assert target.labels == labels_of({"deployment_zone": "y"})

    def test_the_jobs_scheme_and_path_hold_where_the_file_is_silent(self, files: Files) -> None:
        path = files.write("a.json", [{"targets": ["h:1"]}])
        (target,) = refresh(FileDiscovery([str(path)], TEMPLATE, scheme="https", path="/m"))
        assert target.url == "https://h:1/m"

    def test_changes_are_seen(self, files: Files) -> None:
        discovery = FileDiscovery([f"{files.path}/*.json"], TEMPLATE)
        assert refresh(discovery) == []
        path = files.write("a.json", [{"targets": ["h1:1"]}])
        assert [t.instance for t in refresh(discovery)] == ["h1:1"]
        files.write("a.json", [{"targets": ["h2:1"]}])
        assert [t.instance for t in refresh(discovery)] == ["h2:1"]
        path.unlink()
        assert refresh(discovery) == []

    @pytest.mark.parametrize(
        ("name", "content", "complaint"),
        [
            ("a.json", '[{"targets":\n oops]', "a.json:2: not valid JSON"),
            ("a.yml", "- targets: [x\n- y: {", "a.yml:2: not valid YAML"),
            ("a.json", {"targets": []}, "must be a list of target groups"),
            ("a.json", [{"targets": "h:1"}], "group 1 has no list of targets"),
            ("a.json", [{"targets": []}, 7], "group 2 has no list of targets"),
            ("a.json", [{"targets": [], "labels": {"rack": 7}}], "labels of group 1 must be texts"),
            ("a.json", [{"targets": [], "label": {}}], "unknown key 'label'"),
            ("a.json", [{"targets": ["http://h:1/x"]}], "a target is host:port"),
            ("a.json", [{"targets": ["h:99999"]}], "is not an http or https URL"),
            ("a.json", [{"targets": ["h:1"], "labels": {"__scrape_interval__": "soon"}}], "'soon' is not a duration"),
            ("a.json", [{"targets": ["h:1"], "labels": {"__scrape_interval__": "10ms"}}], "at least 1 s"),
        ],
    )
    def test_a_broken_file_keeps_its_targets_and_says_why(
        self, files: Files, name: str, content: object, complaint: str
    ) -> None:
        files.write(name, '[{"targets": ["h1:1"]}]')
        files.write("other.json", [{"targets": ["h2:1"]}])
        discovery = FileDiscovery([f"{files.path}/*"], TEMPLATE)
        before = refresh(discovery)
        assert len(before) == 2
        assert discovery.problems == ()
        files.write(name, content)
        for _ in range(2):
            assert refresh(discovery) == before
            assert len(discovery.problems) == 1
            assert complaint in discovery.problems[0]
        files.write(name, '[{"targets": []}]')
        assert [t.instance for t in refresh(discovery)] == ["h2:1"]
        assert discovery.problems == ()


class Machine:
    """A host whose ports answer with the given texts at one path; what is not listed refuses."""

    def __init__(self, ports: dict[int, str], path: str = "/metrics") -> None:
        self.ports = ports
        self.path = path
        self.asked: list[int] = []

    async def fetch(self, target: Target, timeout_seconds: float, /) -> Response:
        port = target.address.port
        self.asked.append(port)
        if port not in self.ports:
            raise TargetError("connection refused", reason="refused")
        if target.address.path != self.path:
            raise TargetError("the answer is HTTP 404", reason="http")
        return Response(200, "text/plain", self.ports[port].encode())


class TestPorts:
    vllm = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"

    def discovery(self, machine: Machine, clock: ManualClock, paths: Sequence[str] = ("/metrics",)) -> PortDiscovery:
        return PortDiscovery(
            host="127.0.0.1",
            ports=(8000, 8080, 30000),
            template=TEMPLATE,
            fetcher=machine,
            make_reader=lambda _: ExpositionReader(),
            recognise=lambda families: "vllm" if "vllm:num_requests_running" in families else None,
            clock=clock,
            paths=paths,
            forget_after_seconds=100.0,
        )

    def test_only_known_engines_become_targets(self) -> None:
        machine = Machine({8000: self.vllm, 8080: "go_goroutines 7\n", 30000: "<html>"})
        (target,) = asyncio.run(self.discovery(machine, ManualClock(1)).refresh(never))
        assert (target.instance, target.url) == ("127.0.0.1:8000", "http://127.0.0.1:8000/metrics")
        assert target.discovered_by == "ports"
        assert target.labels == TEMPLATE.labels

    def test_a_known_engine_is_not_asked_again(self) -> None:
        machine = Machine({8000: self.vllm})
        discovery = self.discovery(machine, ManualClock(1))
        asyncio.run(discovery.refresh(never))
        machine.asked.clear()
        asyncio.run(discovery.refresh(never))
        assert machine.asked == [8080, 30000]

    def test_another_path_is_tried_where_somebody_answers(self) -> None:
        machine = Machine({8000: self.vllm, 8080: "go_goroutines 7\n"}, "/prometheus/metrics")
        discovery = self.discovery(machine, ManualClock(1), ("/metrics", "/prometheus/metrics", "/api/ps"))
        (target,) = asyncio.run(discovery.refresh(never))
        assert (target.instance, target.url) == ("127.0.0.1:8000", "http://127.0.0.1:8000/prometheus/metrics")
        # The silent port is asked once, the stranger at each path, the engine until it was found.
        assert sorted(machine.asked) == [8000, 8000, 8080, 8080, 8080, 30000]
        machine.asked.clear()
        asyncio.run(discovery.refresh(never))
        assert sorted(machine.asked) == [8080, 8080, 8080, 30000]

    def test_a_silent_engine_stays_until_it_has_been_gone_long_enough(self) -> None:
        clock = ManualClock(1_000_000)
        machine = Machine({8000: self.vllm})
        discovery = self.discovery(machine, clock)
        (target,) = asyncio.run(discovery.refresh(never))
        machine.ports.clear()
        clock.advance(99)
        good = clock.now_ms()
        assert asyncio.run(discovery.refresh(lambda _: good)) == [target]
        clock.advance(100)
        assert asyncio.run(discovery.refresh(lambda _: good)) == [target]
        clock.advance(1)
        assert asyncio.run(discovery.refresh(lambda _: good)) == []
        machine.ports[8000] = self.vllm
        assert asyncio.run(discovery.refresh(never)) == [target]
