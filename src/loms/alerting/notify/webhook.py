"""A webhook with Alertmanager's payload, so that whatever understands Alertmanager understands LOMS.

Version 4 of the format (prometheus.io/docs/alerting/latest/configuration/#webhook_config), compared in the tests with
what Alertmanager 0.25 sends for the same alerts. Answers of 5xx and 429 and broken connections are worth another try,
other answers are not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from loms.alerting.notice import Message
from loms.alerting.notify.notifier import notifiers
from loms.core import settings
from loms.core.clock import iso_utc
from loms.core.errors import NotifyError
from loms.core.model import Alert, Labels

_NEVER = "0001-01-01T00:00:00Z"
"""Alertmanager's ``endsAt`` of an alert that has not ended."""


@notifiers.register("webhook")
class Webhook:
    """POSTs Alertmanager's JSON, version 4, to a URL."""

    def __init__(self, config: settings.Webhook) -> None:
        self._config = config

    def render(self, message: Message, /) -> str:
        alerts = message.alerts
        return json.dumps(
            {
                "receiver": message.receiver,
                "status": message.status,
                "alerts": [_alert(alert, message.url) for alert in alerts],
                "groupLabels": dict(message.incident.group),
                "commonLabels": _common([alert.labels for alert in alerts]),
                "commonAnnotations": _common([alert.annotations for alert in alerts]),
                "externalURL": message.external_url,
                "version": "4",
                "groupKey": "{}:{"
                + ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in message.incident.group)
                + "}",
                "truncatedAlerts": 0,
            },
            ensure_ascii=False,
        )

    async def send(self, payload: str, /) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "loms", **self._authorization()}
        host = urlsplit(self._config.url).hostname
        try:
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(self._config.url, data=payload.encode(), headers=headers, allow_redirects=False) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) if isinstance(error, OSError) else type(error).__name__
            raise NotifyError(f"webhook {self._config.name!r}: no answer from {host}: {reason}", retry=True) from None
        if not 200 <= status < 300:
            raise NotifyError(
                f"webhook {self._config.name!r}: {host} answered {status}", retry=status >= 500 or status == 429
            )

    def _authorization(self) -> dict[str, str]:
        """The header, where one is configured; a password file is read each time, so that it can be changed."""
        if self._config.bearer_token:
            return {"Authorization": f"Bearer {self._config.bearer_token.get_secret_value()}"}
        basic = self._config.basic_auth
        if basic is None:
            return {}
        password = basic.password.get_secret_value() if basic.password else ""
        if basic.password_file:
            try:
                password = Path(basic.password_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise NotifyError(f"webhook {self._config.name!r}: password file: {error}", retry=True) from None
        pair = base64.b64encode(f"{basic.username}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}


def fingerprint(labels: Labels) -> str:
    """Prometheus's fingerprint of a label set: FNV-1a over names and values, 64 bits, in hex.

    >>> fingerprint(())
    'cbf29ce484222325'
    """
    value = 0xCBF29CE484222325
    for byte in b"".join(name.encode() + b"\xff" + text.encode() + b"\xff" for name, text in labels):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def _alert(alert: Alert, url: str) -> dict[str, object]:
    started = alert.active_at_ms if alert.fired_at_ms is None else alert.fired_at_ms
    return {
        "status": alert.state,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": iso_utc(started),
        "endsAt": _NEVER if alert.resolved_at_ms is None else iso_utc(alert.resolved_at_ms),
        "generatorURL": url,
        "fingerprint": fingerprint(alert.labels),
    }


def _common(sets: Sequence[Labels]) -> dict[str, str]:
    """The pairs that all have."""
    return {key: value for key, value in sets[0] if all((key, value) in other for other in sets[1:])}
