from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import pytest
from aiohttp import web

from loms.alerting.incident import opened
from loms.alerting.notice import message
from loms.alerting.notify.webhook import Webhook, fingerprint
from loms.alerting.receiver import receivers_of
from loms.core import settings
from loms.core.errors import ConfigError, NotifyError
from loms.core.model import labels_of

GROUP = (("instance", "a:8000"),)


def payload_of(*alerts, url: str = "http://loms:8090") -> dict[str, object]:
    content = message(None, opened(GROUP, alerts, 0), receiver="hook", send_resolved=True, external_url=url)
    return json.loads(Webhook(settings.Webhook(url="http://h/")).render(content))


def test_the_payload_of_one_firing_alert(alert) -> None:
    """Fields, order and forms as in Alertmanager's documentation of webhook_config, version 4."""
    fired = replace(alert(instance="a:8000", job="llm", summary="a:8000 is stalled"), fired_at_ms=1_700_000_000_123)
    payload = payload_of(fired)
    labels = {"alertname": "Stalled", "instance": "a:8000", "job": "llm", "severity": "critical"}
    url = payload["alerts"][0]["generatorURL"]
    assert url.startswith("http://loms:8090/#/incidents/")
    assert payload == {
        "receiver": "hook",
        "status": "firing",
        "alerts": [
            {
                "status": "firing",
                "labels": labels,
                "annotations": {"summary": "a:8000 is stalled"},
                "startsAt": "2023-11-14T22:13:20.123Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": url,
                "fingerprint": fingerprint(labels_of(labels)),
            }
        ],
        "groupLabels": {"instance": "a:8000"},
        "commonLabels": labels,
        "commonAnnotations": {"summary": "a:8000 is stalled"},
        "externalURL": "http://loms:8090",
        "version": "4",
        "groupKey": '{}:{instance="a:8000"}',
        "truncatedAlerts": 0,
    }


def test_what_alerts_have_in_common(alert) -> None:
    payload = payload_of(
        alert("Dead", "a:8000", summary="same", zone="z"),
        alert("Slow", "a:8000", severity="warning", summary="same"),
        alert("Odd", "a:8000", state="resolved", resolved=5, summary="same"),
    )
    assert payload["status"] == "firing"
    assert payload["commonLabels"] == {"instance": "a:8000"}
    assert payload["commonAnnotations"] == {"summary": "same"}
    ends = {one["labels"]["alertname"]: one["endsAt"] for one in payload["alerts"]}
    assert ends == {"Dead": "0001-01-01T00:00:00Z", "Slow": "0001-01-01T00:00:00Z", "Odd": "1970-01-01T00:00:05.000Z"}
    assert payload_of(alert(state="resolved", resolved=5))["status"] == "resolved"


def test_the_fingerprint_is_prometheus_s() -> None:
    """The value that Alertmanager 0.25 gave to this label set."""
    assert fingerprint(labels_of({"alertname": "EngineStalled", "instance": "a:8000"})) == "19961bdb9a1ab669"


async def _answering(status: int, hook_settings: dict[str, object]) -> list[web.Request]:
    """Send once to a server that answers ``status``; returns the requests it saw."""
    seen = []

    async def take(request: web.Request) -> web.Response:
        seen.append((request.headers.copy(), await request.text(), request.path))
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status == 302 else None)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        hook = Webhook(settings.Webhook(url=f"http://127.0.0.1:{port}/in?token=secret", **hook_settings))
        await hook.send('{"größe": 1}')
    finally:
        await runner.cleanup()
    return seen


@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_good_answer(status) -> None:
    ((headers, body, path),) = asyncio.run(_answering(status, {}))
    assert (headers["Content-Type"], body, path) == ("application/json", '{"größe": 1}', "/in")
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("status", "retry"), [(500, True), (503, True), (429, True), (400, False), (401, False), (404, False), (302, False)]
)
def test_which_answers_are_worth_another_try(status, retry) -> None:
    with pytest.raises(NotifyError, match=f"webhook 'webhook': 127.0.0.1 answered {status}") as caught:
        asyncio.run(_answering(status, {}))
    assert caught.value.retry is retry
    assert "secret" not in caught.value.message


def test_no_connection_is_worth_another_try() -> None:
    hook = Webhook(settings.Webhook(url="http://127.0.0.1:9/in?token=secret", bearer_token="s3cr3t"))
    with pytest.raises(NotifyError, match=r"no answer from 127\.0\.0\.1") as caught:
        asyncio.run(hook.send("{}"))
    assert caught.value.retry
    assert "s3cr3t" not in caught.value.message
    assert "secret" not in caught.value.message


def test_credentials(tmp_path) -> None:
    ((headers, *_),) = asyncio.run(_answering(200, {"bearer_token": "t"}))
    assert headers["Authorization"] == "Bearer t"
    ((headers, *_),) = asyncio.run(_answering(200, {"basic_auth": {"username": "u", "password": "pä"}}))
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == "u:pä"
    (tmp_path / "pw").write_text("from file\n")
    ((headers, *_),) = asyncio.run(_answering(200, {"basic_auth": {"username": "u", "password_file": tmp_path / "pw"}}))
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == "u:from file"
    with pytest.raises(NotifyError, match="password file"):
        asyncio.run(_answering(200, {"basic_auth": {"username": "u", "password_file": tmp_path / "none"}}))


def test_receivers_from_the_configuration() -> None:
    hooks = [{"url": "http://a/", "name": "a", "send_resolved": False, "timeout": "3s"}, {"url": "http://b/"}]
    a, b = receivers_of(settings.Alerting(webhooks=hooks))
    assert (a.name, a.channel, a.send_resolved, a.timeout_seconds) == ("a", "webhook", False, 3.0)
    assert (b.name, b.send_resolved) == ("webhook", True)
    with pytest.raises(ConfigError, match="two are named 'webhook'"):
        receivers_of(settings.Alerting(webhooks=[{"url": "http://a/"}, {"url": "http://b/"}]))
