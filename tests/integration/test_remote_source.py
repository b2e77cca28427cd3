"""Rules and `loms query` over a real Prometheus; spans sent to LOMS, listed and drawn by `loms traces`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.otlp_spans import RECORDED, recorded
from support.peers import prometheus
from support.processes import Loms, free_port, status, wait_until

from loms.core.clock import SystemClock

pytestmark = pytest.mark.integration

RULES = """
groups:
  - name: there
    interval: 1s
    rules:
      - alert: NobodyThere
        expr: up{job="gone"} == 0 unless on (instance) ALERTS{alertname="Silencer"}
        labels: {severity: critical}
        annotations: {summary: "{{ $labels.instance }} does not answer"}
"""


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "loms", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("prometheus"), reason="Debian's prometheus is not installed")
def test_rules_look_at_somebody_elses_prometheus(tmp_path: Path) -> None:
    gone = f"127.0.0.1:{free_port()}"
    (tmp_path / "rules.yaml").write_text(RULES)
    jobs = [{"job_name": "gone", "static_configs": [{"targets": [gone]}]}]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    with prometheus(tmp_path, json.dumps(config)) as peer:
        settings = {
            "source": {"type": "prometheus", "url": peer.url},
            "rules": {"files": [str(tmp_path / "rules.yaml")], "builtin": False},
        }
        wait_until(lambda: json.loads(run("query", "--source", peer.url, "--json", "up"))["result"], 30, "a scrape")
        drawn = run("query", "--source", peer.url, "--since", "1m", "up")
        assert f'up{{instance="{gone}", job="gone"}}' in " ".join(drawn.split())
        with Loms(tmp_path, [], settings) as loms:
            wait_until(lambda: loms.incidents(gone), 30, "the incident")
            (incident,) = loms.incidents(gone)
            assert (incident["title"], incident["state"]) == (f"{gone} does not answer", "open")
            # Its own state is its own: the alert is in its store, and nothing of the other's is.
            wait_until(lambda: loms.value("count(ALERTS)") == 1, 20, "the alert in the store")
            assert loms.get("/api/v1/query", query='up{job="gone"}')["data"]["result"] == []
            peer.stop()
            wait_until(lambda: any(one["error"] for one in loms.get("/api/rules")["rules"]), 30, "the failure")
            (error,) = {one["error"] for one in loms.get("/api/rules")["rules"]}
            assert error.startswith(f"nothing answers at {peer.url}: ")
            assert loms.incidents(gone)[0]["state"] == "open", "what cannot be asked resolves nothing"
            assert status(f"{loms.url}/readyz") == 503
            assert error in loms.get("/api/incidents")["trouble"]
            peer.start()
            wait_until(lambda: status(f"{loms.url}/readyz") == 200, 60, "the source's return")
            log = loms.log.read_text()
            assert [log.count(text) for text in ("what the source has: nothing", "the source answers again")] == [1, 1]


def test_spans_are_listed_and_drawn(tmp_path: Path) -> None:
    rows = recorded("vllm-0.32.0")
    shift = SystemClock().now_ms() * 1_000_000 - max(row["Timestamp"] for row in rows) - 60 * 10**9
    with Loms(tmp_path, []) as loms:
        for line in (RECORDED / "vllm-0.32.0.jsonl").read_text().splitlines():
            body = json.loads(line)
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        for name in ("startTimeUnixNano", "endTimeUnixNano"):
                            span[name] = str(int(span[name]) + shift)
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{loms.url}/v1/traces", json.dumps(body).encode(), headers)
            urllib.request.urlopen(request, timeout=20).close()
        count = len({row["TraceId"] for row in rows})
        asked = ("traces", "--url", loms.url, "--json", "--limit", "1000")
        wait_until(lambda: len(json.loads(run(*asked))["traces"]) == count, 30, "all traces")
        slow = json.loads(run(*asked, "--min-duration", "3s", "--service", "vllm-lab"))["traces"]
        assert {one["trace_id"] for one in slow} == {row["TraceId"] for row in rows if row["Duration"] >= 3 * 10**9}
        listed = run("traces", "--url", loms.url)
        assert "llm_request" in listed
        longest = max({row["TraceId"] for row in rows}, key=lambda one: sum(row["TraceId"] == one for row in rows))
        drawn = run("traces", "--url", loms.url, longest)
        for row in rows:
            assert row["TraceId"] != longest or row["SpanName"] in drawn
        lone = subprocess.run(
            [sys.executable, "-m", "loms", "traces", "--url", loms.url, "123"], capture_output=True, text=True
        )
        assert (lone.returncode, lone.stdout) == (4, "")
        assert "there is no trace" in lone.stderr
