"""Remote write with real peers, in and out: each sample arrives exactly once, with its own time and value."""

from __future__ import annotations

import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from support.engine_server import EngineServer
from support.http_host import TEXT, Host
from support.peers import Points, exported, missing, prometheus, queried, victoria_metrics, vmagent
from support.processes import Loms, wait_until

pytestmark = pytest.mark.integration
VLLM = Path(__file__).parents[1] / "data/vllm-0.32.0/loaded.txt"


def counting(odd: bool = True) -> Callable[[str], tuple[str, bytes] | None]:
    """A target of 20 series that grow by their number at each scrape, one that is 0 and one that is infinite.

    ``odd``: and one that is not a number, which VictoriaMetrics does not keep.
    """
    scrapes = count(1)

    def answer(path: str) -> tuple[str, bytes] | None:
        if path != "/metrics":
            return None
        n = next(scrapes)
        lines = [f'work_total{{part="{i}",path="/ä\\"{i}"}} {n * i + 0.25}' for i in range(20)]
        lines += ["idle 0", f"infinite {'+' if n % 2 else '-'}Inf", *(["odd NaN"] if odd else [])]
        return TEXT, ("# TYPE work_total counter\n" + "\n".join(lines) + "\n").encode()

    return answer


def scrape_config(port: int, write_url: str = "") -> str:
    config = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: gen
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
"""
    write = "{{url: '{}/api/v1/write', queue_config: {{batch_send_deadline: 1s, max_backoff: 1s}}}}"
    return config + (f"remote_write: [{write.format(write_url)}]\n" if write_url else "")


def same(one: Points, other: Points) -> bool:
    """Equal, where NaN is equal to NaN, and another program's decimal digits differ in the 13th at most."""

    def close(a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=1e-12) or (math.isnan(a) and math.isnan(b))

    return one.keys() == other.keys() and all(
        one[series].keys() == other[series].keys()
        and all(close(value, other[series][at]) for at, value in one[series].items())
        for series in one
    )


def difference(one: Points, other: Points) -> str:
    """For a failing test's message."""
    lines = [f"{len(one)} series against {len(other)}"]
    for series in sorted(one.keys() | other.keys()):
        a, b = one.get(series, {}), other.get(series, {})
        if not same({series: a}, {series: b}):
            lines.append(f"{series}: {sorted(a.items() ^ b.items())[:6]} of {len(a)} and {len(b)}")
    return "\n".join(lines[:8])


def become_same(one: Callable[[], Points], other: Callable[[], Points]) -> Points:
    """Wait until both read the same; what that is."""
    with suppress(AssertionError):
        wait_until(lambda: same(one(), other()), 45, "the same samples", pause=1)
    ours, theirs = one(), other()
    assert same(ours, theirs), difference(ours, theirs)
    return ours


def samples(points: Points) -> int:
    return max((len(some) for some in points.values()), default=0)


@pytest.mark.skipif(bool(missing("prometheus")), reason="Debian's prometheus is not installed")
def test_prometheus_sends_and_nothing_is_lost_while_nobody_takes_it(tmp_path: Path) -> None:
    with (
        Host(counting()) as target,
        Loms(tmp_path, []) as loms,
        prometheus(tmp_path, scrape_config(target.port, loms.url)) as peer,
    ):
        selector = '{job="gen"}'

        def got(n: int) -> bool:
            return samples(queried(loms.url, selector, time.time())) >= n

        wait_until(lambda: got(3), 60, "the first samples")
        loms.stop()
        before = samples(queried(peer.url, selector, time.time()))
        wait_until(lambda: samples(queried(peer.url, selector, time.time())) > before + 4, 60, "five more scrapes")
        loms.start()
        wait_until(lambda: got(before + 4), 90, "what was scraped meanwhile")
        until = time.time()
        become_same(lambda: queried(loms.url, selector, until), lambda: queried(peer.url, selector, until))
        for expr in ("sum(sum_over_time({}[1h]))", "sum by (part) (count_over_time({}[1h]))"):
            query = expr.format('work_total{job="gen"}')
            ours, others = (
                {tuple(r["metric"].items()): r["value"][1] for r in _query(url, query, until)}
                for url in (loms.url, peer.url)
            )
            assert ours == others
        assert loms.get("/api/status")["dropped_samples"].get("conflicting", 0) == 0


@pytest.mark.skipif(bool(missing("prometheus")), reason="Debian's prometheus is not installed")
def test_an_engine_that_a_prometheus_scrapes_is_an_engine_here(tmp_path: Path) -> None:
    with (
        EngineServer(VLLM, "0.32.0") as engine,
        Loms(tmp_path, []) as loms,
        prometheus(tmp_path, scrape_config(int(engine.instance.rpartition(":")[2]), loms.url)),
    ):

        def row() -> dict[str, object]:
            return next((one for one in loms.get("/api/engines") if one["instance"] == engine.instance), {})

        wait_until(lambda: row().get("state") in ("idle", "busy"), 90, "the state of a pushed engine")
        assert (row()["engine"], row()["job"], row()["up"]) == ("vllm", "gen", True)
        until = time.time()
        raw = queried(loms.url, "vllm:num_requests_running", until)
        canonical = queried(loms.url, "llm_engine_requests_running", until)
        newest = [max(points.items()) for series in (raw, canonical) for points in series.values()]
        assert len(newest) == 2
        assert newest[0][1] == newest[1][1]
        assert loms.get("/api/incidents")["incidents"] == []


@pytest.mark.skipif(bool(missing("vmagent", "victoria-metrics")), reason="Debian's VictoriaMetrics is not installed")
def test_vmagent_sends_to_loms_what_it_sends_to_victoria_metrics(tmp_path: Path) -> None:
    with Host(counting(odd=False)) as target, Loms(tmp_path, []) as loms, victoria_metrics(tmp_path) as peer:
        urls = (f"{loms.url}/api/v1/write", f"{peer.url}/api/v1/write")
        with vmagent(tmp_path, scrape_config(target.port), *urls):
            wait_until(lambda: samples(queried(loms.url, '{job="gen"}', time.time())) > 4, 60, "five samples")
        # vmagent has sent all when it has ended.
        become_same(lambda: queried(loms.url, '{job="gen"}', time.time()), lambda: exported(peer.url, '{job="gen"}'))


@pytest.mark.skipif(bool(missing("victoria-metrics")), reason="Debian's VictoriaMetrics is not installed")
def test_loms_sends_to_victoria_metrics_which_is_down_for_a_while(tmp_path: Path) -> None:
    with EngineServer(VLLM, "0.32.0") as engine, victoria_metrics(tmp_path) as peer:
        settings = {
            "remote_write": [{"url": f"{peer.url}/api/v1/write", "name": "vm"}],
            "scrape": {"interval": 1, "own_metrics": False, "timeout": 1},
            "probe": {"enabled": False},
        }
        with Loms(tmp_path, [engine.instance], settings) as loms:
            selector = f'{{instance="{engine.instance}"}}'

            def scraped() -> int:
                return samples(queried(loms.url, selector, time.time()))

            wait_until(lambda: samples(exported(peer.url, selector)) >= 3, 60, "the first samples")
            peer.stop()
            before = scraped()
            wait_until(lambda: scraped() > before + 4, 60, "scrapes while the receiver is down")
            loms.kill()
            killed_ms = time.time() * 1000
            loms.start()
            before = scraped()
            wait_until(lambda: scraped() > before + 2, 60, "scrapes after the restart")
            peer.start()
            wait_until(lambda: not loms.get("/api/status")["remote_write"][0]["queued_bytes"], 90, "an empty queue")
            until = time.time() - 2
            ours = become_same(
                lambda: _but(queried(loms.url, selector, until), killed_ms, until),
                lambda: _but(exported(peer.url, selector), killed_ms, until),
            )
            names = {series.split('"__name__": "')[1].split('"')[0] for series in ours}
            assert {"vllm:num_requests_running", "gen_ai_server_request_duration_seconds_bucket", "up"} <= names, names


def test_loms_sends_to_loms_by_the_second_version(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Host(counting()) as target, Loms(tmp_path / "two", []) as receiver:
        settings = {
            "remote_write": [{"url": f"{receiver.url}/api/v1/write", "version": "2.0", "keep": ["work_.*", "idle"]}],
            "scrape": {"interval": 1, "timeout": 1},
        }
        with Loms(tmp_path / "one", [target.instance], settings) as sender:
            selector = f'{{instance="{target.instance}"}}'
            wait_until(lambda: samples(queried(receiver.url, selector, time.time())) > 4, 60, "five samples")
            until = time.time() - 3
            kept = f'{{__name__=~"work_.*|idle",instance="{target.instance}"}}'
            ours = become_same(lambda: queried(sender.url, kept, until), lambda: queried(receiver.url, selector, until))
            assert len(ours) == 21
            standing = sender.get("/api/status")["remote_write"]
            assert [(one["destination"], one["trouble"]) for one in standing] == [(receiver.url[7:], "")]


def _but(points: Points, around_ms: float, until: float) -> Points:
    """Up to ``until``, without the two seconds before a kill, whose samples may be in one of the two places."""
    kept = {
        series: {t: v for t, v in some.items() if not around_ms - 2000 < t <= around_ms + 100 and t < until * 1000}
        for series, some in points.items()
    }
    return {series: some for series, some in kept.items() if some}


def _query(url: str, expr: str, at: float) -> list[dict[str, dict[str, str]]]:
    query = urllib.parse.urlencode({"query": expr, "time": f"{at:.3f}"})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=30) as answer:
        found: list[dict[str, dict[str, str]]] = json.load(answer)["data"]["result"]
        return found
