"""What a notifier is, and the registry of them."""

from __future__ import annotations

from typing import Any, Protocol

from loms.alerting.notice import Message
from loms.core.registry import Registry


class Notifier(Protocol):
    """Puts a message into its receiver's form and sends it; nothing else.

    Retries, timeouts, order and bookkeeping are the business of `loms.alerting.delivery`.
    """

    def __init__(self, config: Any) -> None:
        """``config`` is this notifier's section of the configuration."""

    def render(self, message: Message, /) -> str:
        """The text to send, which is kept until it is delivered. Pure."""
        ...

    async def send(self, payload: str, /) -> None:
        """Send what `render` made. Raises `NotifyError`, which says whether trying again can help."""
        ...


notifiers: Registry[type[Notifier]] = Registry("notifier", "loms.alerting.notify")
