"""The webhook against the original: Alertmanager itself sends the same alerts, and the two payloads must be equal.

And the whole way over a real store and a real HTTP receiver, which is down at first, across a restart.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import wait_until

from loms.alerting.delivery import Delivery
from loms.alerting.incident import opened
from loms.alerting.notice import message
from loms.alerting.notify.webhook import Webhook
from loms.alerting.pipeline import Pipeline
from loms.alerting.receiver import receivers_of
from loms.core.clock import SystemClock, iso_utc
from loms.core.model import Alert, labels_of
from loms.core.settings import Alerting as AlertingSettings
from loms.core.settings import Webhook as WebhookSettings
from loms.store.database import Database
from loms.store.state import State

pytestmark = pytest.mark.integration

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


class Receiver:
    """An HTTP server that keeps what is posted to it and answers ``status``."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.attempts = 0
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.attempts += 1
                if outer.status == 200:
                    outer.bodies.append(json.loads(body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


@pytest.fixture
def alertmanager(tmp_path: Path, receiver: Receiver) -> Iterator[str]:
    """URL of a running Alertmanager that groups by instance and posts to the receiver."""
    hook = {"url": f"http://127.0.0.1:{receiver.port}/", "send_resolved": True}
    # An alert that is older than the wait is sent at once, without those that come in the same request.
    route = {"receiver": "hook", "group_by": ["instance"], "group_wait": "15s", "group_interval": "1s"}
    settings = {"route": route, "receivers": [{"name": "hook", "webhook_configs": [hook]}]}
    (tmp_path / "am.yaml").write_text(yaml.safe_dump(settings))
    spare = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    port = spare.server_address[1]
    spare.server_close()
    command = [
        str(ALERTMANAGER),
        f"--config.file={tmp_path / 'am.yaml'}",
        f"--storage.path={tmp_path / 'am'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.external-url=http://loms.example",
        "--web.route-prefix=/",
        "--cluster.listen-address=",
    ]
    with (tmp_path / "am.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), 60, "Alertmanager is ready")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def _post_to_alertmanager(url: str, alerts: list[Alert], generator: str) -> None:
    body = []
    for alert in alerts:
        one = {
            "labels": dict(alert.labels),
            "annotations": dict(alert.annotations),
            "startsAt": iso_utc(alert.fired_at_ms or 0),
            "generatorURL": generator,
        }
        if alert.resolved_at_ms is not None:
            one["endsAt"] = iso_utc(alert.resolved_at_ms)
        body.append(one)
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _normal(payload: dict[str, Any]) -> dict[str, Any]:
    """With times as moments; Go leaves out trailing zeros of fractions."""
    alerts = []
    for alert in payload["alerts"]:
        moments = {key: datetime.fromisoformat(alert[key]).astimezone(UTC) for key in ("startsAt", "endsAt")}
        alerts.append({**alert, **moments})
    return {**payload, "alerts": alerts}


@pytest.mark.skipif(ALERTMANAGER is None, reason="Alertmanager (package prometheus-alertmanager) is not installed")
def test_the_payload_equals_alertmanagers(alertmanager: str, receiver: Receiver) -> None:
    now_ms = SystemClock().now_ms() // 1000 * 1000
    common = {"instance": 'größe "a":8000', "job": "llm", "severity": "critical"}
    alerts = [
        Alert(
            rule=rule,
            labels=labels_of({"alertname": rule, **common, "zone": zone}),
            annotations=labels_of({"summary": "a <b> & c", "description": rule, "runbook": "docs"}),
            state="firing",
            value=17.0,
            active_at_ms=now_ms - 9000,
            fired_at_ms=now_ms - 4321,
        )
        for rule, zone in (("EngineStalled", "z1"), ("Slow", "z2"))
    ]
    ended = [replace(alert, state="resolved", resolved_at_ms=now_ms - 100) for alert in alerts]
    incident = opened((("instance", common["instance"]),), alerts, now_ms)
    hook = Webhook(WebhookSettings(url="http://h/"))

    for number, state in enumerate((alerts, ended)):
        content = message(
            None,
            replace(incident, alerts=tuple(state)),
            receiver="hook",
            send_resolved=True,
            external_url="http://loms.example",
        )
        assert content is not None
        _post_to_alertmanager(alertmanager, state, content.url)
        wait_until(lambda n=number: len(receiver.bodies) > n, 60, "Alertmanager sends a notification")
        ours, theirs = json.loads(hook.render(content)), receiver.bodies[number]
        assert list(ours) == list(theirs)
        assert _normal(ours) == _normal(theirs)


class Alerting:
    """Pipeline and delivery as one process would have them, over a store on disk."""

    def __init__(self, path: Path, port: int) -> None:
        self._database = Database.open(path, 86_400, SystemClock())
        settings = AlertingSettings(webhooks=[{"url": f"http://127.0.0.1:{port}/", "name": "hook"}])
        self.state = State(self._database, SystemClock())
        receivers = receivers_of(settings)
        self._delivery = Delivery(self.state, receivers)
        self.pipeline = Pipeline(self.state, receivers, self._delivery)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._delivery.run(),))

    def start(self, at_ms: int) -> list[Alert]:
        alerts = self.pipeline.restore(at_ms)
        self._delivery.restore()
        self._thread.start()
        return alerts

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._delivery.stop)
        self._thread.join()
        self._loop.close()
        self._database.close()


def test_nothing_is_lost_or_sent_twice_over_an_outage_and_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    receiver.status = 503
    labels = labels_of({"alertname": "EngineStalled", "instance": "a:8000", "severity": "critical"})
    alert = Alert("EngineStalled", labels, (("summary", "a:8000 is stalled"),), "firing", 17.0, 1000, fired_at_ms=1000)

    first = Alerting(tmp_path / "store", receiver.port)
    try:
        assert first.start(1000) == []
        first.pipeline.process([alert], 1000)
        wait_until(lambda: receiver.attempts >= 2, 60, "it is tried again while the receiver is down")
    finally:
        first.close()

    second = Alerting(tmp_path / "store", receiver.port)
    try:
        assert second.start(20_000) == [alert]
        second.pipeline.process([alert], 21_000)  # still so: nobody is told again
        second.pipeline.process([replace(alert, state="resolved", resolved_at_ms=30_000)], 30_000)
        receiver.status = 200
        wait_until(lambda: not second.state.pending_notifications(), 60, "the outbox is empty")
        assert [(body["status"], len(body["alerts"])) for body in receiver.bodies] == [("firing", 1), ("resolved", 1)]
        (incident,) = second.state.incidents()
        assert (incident.state, incident.opened_at_ms, incident.resolved_at_ms) == ("resolved", 1000, 30_000)
    finally:
        second.close()

    third = Alerting(tmp_path / "store", receiver.port)
    try:
        assert third.start(40_000) == []
        third.pipeline.process([], 41_000)
        assert third.state.pending_notifications() == []
        assert len(receiver.bodies) == 2
    finally:
        third.close()
