"""Receivers: the configured places that are told about incidents."""

from __future__ import annotations

from dataclasses import dataclass

from loms.alerting.notify.notifier import Notifier, notifiers
from loms.core import settings
from loms.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Receiver:
    """One place, and how it wants to be told."""

    name: str
    channel: str
    """The kind of notifier, for metrics."""
    notifier: Notifier
    send_resolved: bool = True
    timeout_seconds: float = 10.0


def receivers_of(alerting: settings.Alerting) -> tuple[Receiver, ...]:
    """The receivers in the configuration. Raises `ConfigError` when two have one name."""
    notifiers.load()
    found = [
        Receiver(hook.name, "webhook", notifiers["webhook"](hook), hook.send_resolved, hook.timeout)
        for hook in alerting.webhooks
    ]
    for i, receiver in enumerate(found):
        if any(receiver.name == other.name for other in found[:i]):
            raise ConfigError(f"alerting.webhooks: two are named {receiver.name!r}", hint="give each its own name")
    return tuple(found)
