"""The server of one process: store, PromQL engine, rules and alerting, opened and closed in the right order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Self

from loms.alerting.delivery import Delivery
from loms.alerting.pipeline import Pipeline
from loms.alerting.receiver import receivers_of
from loms.core.clock import Clock
from loms.core.guard import guard
from loms.core.settings import Config
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.source import Limits
from loms.rules.evaluate import Evaluator
from loms.rules.read import load_groups
from loms.store.database import Database
from loms.store.state import State
from loms.store.writer import Writer

_log = logging.getLogger("loms.server")

READY_SECONDS = 60.0
LONGEST_SLEEP_SECONDS = 5.0
"""Between looks at what is due, so that a clock that was set back does not put the rules to sleep."""
STOP_SECONDS = 12.0
"""How long the end of the process waits for a receiver's answer."""
RECALL_WINDOW_MS = 86_400_000
"""How far back a target's newest samples are looked for at start-up."""


class Server:
    """Everything behind the HTTP API. Construction opens the store; `run` evaluates rules until cancelled."""

    def __init__(self, config: Config, clock: Clock, url: str) -> None:
        """``url`` is where this server listens. Raises `ConfigError` for a wrong rule file, `StoreError` when the store
        cannot be opened.
        """
        self.config = config
        self.clock = clock
        self.started_ms = clock.now_ms()
        groups = load_groups(config.rules.files, builtin=config.rules.builtin, interval_seconds=config.rules.interval)
        receivers = receivers_of(config.alerting)
        self.database = Database.open(
            config.store.path, config.store.retention, clock, query_timeout_seconds=config.query.timeout
        )
        self.writer = Writer(
            self.database,
            clock,
            flush_seconds=config.store.flush_interval,
            flush_rows=config.store.flush_rows,
            queue_rows=config.store.queue_rows,
        )
        limits = Limits(
            max_series=config.query.max_series,
            max_samples=config.query.max_samples,
            timeout_seconds=config.query.timeout,
            lookback_ms=round(config.query.lookback * 1000),
        )
        self.engine = Engine(ClickHouseSource(self.database.query_columns), limits, clock)
        self.state = State(self.database, clock)
        self.evaluator = Evaluator(self.engine, groups, clock, self.writer)
        self._delivery = Delivery(self.state, receivers)
        self._pipeline = Pipeline(
            self.state,
            receivers,
            self._delivery,
            group_by=config.alerting.group_by,
            reopen_within_seconds=config.alerting.reopen_within,
            repeat_interval_seconds=config.alerting.repeat_interval,
            external_url=config.server.external_url or url,
        )
        self._sound_at: float | None = None
        """When an evaluation last went well, by the monotonic clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is queued, then close the store."""
        self.writer.close()
        self.database.close()

    async def run(self) -> None:
        """Go on with what was firing before the last stop; evaluate rules and deliver notifications until cancelled."""
        now = self.clock.now_ms()
        self.evaluator.restore(self._pipeline.restore(now), now)
        self._delivery.restore()
        evaluation = asyncio.create_task(self._evaluate(), name="evaluation")
        delivery = asyncio.create_task(self._delivery.run(), name="delivery")
        try:
            # Without receivers the delivery ends at once, and rightly; only a failure ends the whole.
            ended, _ = await asyncio.wait((evaluation, delivery), return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        finally:
            evaluation.cancel()
            self._delivery.stop()  # a message that is being sent is sent to its end, so that it is not sent again
            await asyncio.wait((evaluation, delivery), timeout=STOP_SECONDS)
            delivery.cancel()

    def trouble(self) -> str:
        """Why what this server says may not be so: nothing is stored, or no rule evaluated. Empty when all is well."""
        if self.writer.trouble:
            return f"new samples cannot be stored: {self.writer.trouble}"
        if self._sound_at is None:
            return "rules have not been evaluated yet"
        age = self.clock.monotonic() - self._sound_at
        return f"no rule could be evaluated for {age:.0f} s" if age > READY_SECONDS else ""

    async def recall(self, ids: Sequence[int], until_ms: int | None = None) -> Mapping[int, tuple[int, float]]:
        """Series id → newest stored (time in ms, value) up to then, for whoever goes on where a process stopped."""
        since = self.clock.now_ms() - RECALL_WINDOW_MS
        return await asyncio.to_thread(self.database.last_values, ids, since, until_ms)

    async def _evaluate(self) -> None:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(self._step, self.clock.now_ms()))
            try:
                with guard("evaluate"):
                    await asyncio.shield(step)
            finally:
                await asyncio.wait((step,))  # the store must not be closed under a step that is under way
            due = self.evaluator.next_due_ms()
            wait = 1.0 if due is None else (due - self.clock.now_ms()) / 1000
            await asyncio.sleep(min(max(0.05, wait), LONGEST_SLEEP_SECONDS))

    def _step(self, at_ms: int) -> None:
        results = self.evaluator.evaluate(at_ms)
        resolved = [alert for result in results for alert in result.alerts if alert.state == "resolved"]
        self._pipeline.process([*self.evaluator.alerts(), *resolved], at_ms)
        if not self.evaluator.groups or any(not result.error for result in results):
            self._sound_at = self.clock.monotonic()
