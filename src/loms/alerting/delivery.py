"""Delivering notifications: in order, until each is taken, refused for good, or crowded out.

Each receiver has a queue and a task of its own, so that one that is down holds up no other. What is queued is in the
store too (`loms.alerting.state`), so it survives a restart. A message is sent at least once: should LOMS be killed
between an answer and the note that it came, that one message goes out again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from loms.alerting.receiver import Receiver
from loms.alerting.state import Entry, State, receiver_of
from loms.core import selfmetrics
from loms.core.errors import NotifyError, StoreError
from loms.core.guard import guard

CAPACITY = 1000
"""Entries waiting for one receiver; beyond that the oldest is dropped."""
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0

_log = logging.getLogger("loms.alerting")


class Delivery:
    """Takes outbox entries from any thread and sends them from its own tasks.

    ``sleep`` and ``rng`` are for tests; retries wait 1, 2, 4 … 60 seconds, each with a jitter of ±25 %.
    """

    def __init__(
        self,
        state: State,
        receivers: Sequence[Receiver],
        *,
        capacity: int = CAPACITY,
        rng: random.Random | None = None,
        sleep: Callable[[float], Coroutine[None, None, None]] = asyncio.sleep,
    ) -> None:
        self._state = state
        self._queues = {receiver.name: _Queue(receiver, capacity) for receiver in receivers}
        self._rng = rng or random.Random()  # noqa: S311 (spreads retries, guards nothing)
        self._sleep = sleep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def restore(self) -> None:
        """Queue what was still pending at the last stop; entries for receivers that no longer exist are dropped."""
        pending = [Entry(one.key, one.payload, one.attempts) for one in self._state.pending_notifications()]
        self.put(sorted(pending, key=lambda entry: entry.key))

    def put(self, entries: Iterable[Entry]) -> None:
        """Queue entries that are already stored. From any thread."""
        for entry in entries:
            queue = self._queues.get(receiver_of(entry.key))
            if queue is None:
                self._close(entry, "none", "dropped", "no_receiver")
            else:
                for crowded_out in queue.append(entry):
                    _log.warning("receiver %r: too much is waiting; a notification is dropped", queue.receiver.name)
                    self._close(crowded_out, queue.receiver.channel, "dropped", "outbox_full")
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def waiting(self, receiver: str) -> frozenset[str]:
        """Keys of the entries on their way to ``receiver``. From any thread."""
        queue = self._queues.get(receiver)
        return queue.keys() if queue else frozenset()

    async def run(self) -> None:
        """Deliver until `stop` is called or the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue in self._queues.values():
                    tasks.create_task(self._work(queue))
        finally:
            self._loop = None

    def stop(self) -> None:
        """Let `run` return after the attempts that are under way. From the loop's thread."""
        self._stopped.set()
        self._wake()

    def _wake(self) -> None:
        for queue in self._queues.values():
            queue.filled.set()

    async def _work(self, queue: _Queue) -> None:
        while not self._stopped.is_set():
            queue.filled.clear()
            entry = queue.first()
            if entry is None:
                await queue.filled.wait()
            elif pause := await self._attempt(queue, entry):
                await self._pause(pause)

    async def _attempt(self, queue: _Queue, entry: Entry) -> float:
        """Send one entry; returns the seconds to wait before it is tried again, 0 when it is done with."""
        receiver, outcome, retry = queue.receiver, "failed", False
        with guard(f"notify {receiver.name}"):
            try:
                async with asyncio.timeout(receiver.timeout_seconds):
                    await receiver.notifier.send(entry.payload)
                outcome = "ok"
            except TimeoutError:
                retry = True
                self._report(queue, f"{receiver.name}: no answer in {receiver.timeout_seconds:g} s")
            except NotifyError as error:
                retry = error.retry
                self._report(queue, error.message)
        selfmetrics.notifications.labels(receiver.channel, outcome).inc()
        if retry:
            queue.update(replace(entry, attempts=entry.attempts + 1))
            wait = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * (1 << min(entry.attempts, 16)))
            return wait * self._rng.uniform(0.75, 1.25)
        queue.remove(entry)
        if outcome == "ok":
            if queue.trouble:
                _log.info("receiver %r takes notifications again", receiver.name)
            queue.trouble = ""
            await asyncio.to_thread(self._close, entry, receiver.channel, "sent")
        else:
            _log.error("receiver %r refused a notification, which is given up", receiver.name)
            await asyncio.to_thread(self._close, entry, receiver.channel, "dropped", "refused")
        return 0.0

    async def _pause(self, seconds: float) -> None:
        """Wait, or until LOMS stops."""
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._stopped.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _close(self, entry: Entry, channel: str, state: Literal["sent", "dropped"], reason: str = "") -> None:
        if reason:
            selfmetrics.notifications_dropped.labels(channel, reason).inc()
        try:
            self._state.put_notifications([replace(entry, state=state)])
        except StoreError as error:
            _log.error("the outbox cannot be written: %s", error.message)

    def _report(self, queue: _Queue, trouble: str) -> None:
        """Log a trouble when it begins or changes, not at each attempt."""
        if trouble != queue.trouble:
            _log.warning("%s; trying again where that can help", trouble)
        queue.trouble = trouble


class _Queue:
    """Entries on their way to one receiver, oldest first. Filled from any thread, emptied by one task."""

    def __init__(self, receiver: Receiver, capacity: int) -> None:
        self.receiver = receiver
        self.filled = asyncio.Event()
        self.trouble = ""
        self._entries: dict[str, Entry] = {}
        self._capacity = capacity
        self._lock = threading.Lock()

    def append(self, entry: Entry) -> list[Entry]:
        """Returns what had to make room."""
        with self._lock:
            self._entries[entry.key] = entry
            surplus = max(0, len(self._entries) - self._capacity)
            return [self._entries.pop(key) for key in list(self._entries)[:surplus]]

    def first(self) -> Entry | None:
        with self._lock:
            return next(iter(self._entries.values()), None)

    def keys(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._entries)

    def update(self, entry: Entry) -> None:
        with self._lock:
            if entry.key in self._entries:
                self._entries[entry.key] = entry

    def remove(self, entry: Entry) -> None:
        with self._lock:
            self._entries.pop(entry.key, None)
