"""The server of one process: store, PromQL engine, rules and alerting, opened and closed in the right order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from loms.alerting.delivery import Delivery
from loms.alerting.owned import OwnState
from loms.alerting.pipeline import Pipeline
from loms.alerting.receiver import receivers_of
from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.core.guard import guard
from loms.core.model import Alert, Sink
from loms.core.settings import Config
from loms.forward.otlp import OtlpOut, otlp_outs_of
from loms.forward.remote_write import RemoteWriteOut, outs_of, resolver
from loms.forward.tee import Tee
from loms.promql.clickhouse import ClickHouseSource
from loms.promql.engine import Engine
from loms.promql.head import Head
from loms.promql.head_source import HeadSource
from loms.promql.labels import StoredLabels
from loms.promql.rollups import Rollups
from loms.promql.source import Limits, Source
from loms.rules.evaluate import Evaluator
from loms.rules.read import load_groups
from loms.rules.rule import Group
from loms.rules.shard import Shard
from loms.server.otlp.receiver import OtlpReceiver
from loms.server.source import querier_of, remote_of
from loms.store.arrivals import Arrivals
from loms.store.database import Database
from loms.store.metadata import MetadataStore
from loms.store.rollups import Roller
from loms.store.state import State
from loms.store.telemetry import TelemetryWriter
from loms.store.writer import Writer

_log = logging.getLogger("loms.server")

_WHOLE = Shard()

READY_SECONDS = 60.0
LONGEST_SLEEP_SECONDS = 5.0
"""Between looks at what is due, so that a clock that was set back does not put the rules to sleep."""
READERS = 5
"""Three for PromQL over HTTP, one for traces, one that rules find free."""
STOP_SECONDS = 12.0
"""How long the end of the process waits for a receiver's answer."""
RECENT_SECONDS = 960.0
"""Beside the lookback, how far back samples are kept in memory: a panel of a quarter of an hour."""
RECALL_WINDOW_MS = 86_400_000
"""How far back a target's newest samples are looked for at start-up."""


class Server:
    """Everything behind the HTTP API. Construction opens the store; `run` evaluates rules until cancelled."""

    def __init__(self, config: Config, clock: Clock, url: str, shard: Shard = _WHOLE) -> None:
        """``url`` is where this server listens; of the rule groups it evaluates those of its ``shard``.

        Raises `ConfigError` for a wrong rule file, `StoreError` when the store cannot be opened.
        """
        self.config = config
        self.clock = clock
        self.started_ms = clock.now_ms()
        groups = load_groups(config.rules.files, builtin=config.rules.builtin, interval_seconds=config.rules.interval)
        receivers, self._remote = receivers_of(config.alerting), remote_of(config)
        self.shard = shard
        self.database = Database.configured(
            config.store, clock, config.receive, readers=READERS, query_timeout_seconds=config.query.timeout
        )
        try:
            queues = config.store.path.expanduser() / "forward"
            self.remote_writes = outs_of(config.remote_write, queues, clock, resolver(self.database.query_columns))
            self.otlp_outs = otlp_outs_of(config.otlp_forward, queues, clock, [out.name for out in self.remote_writes])
            self._outs: list[RemoteWriteOut | OtlpOut] = [*self.remote_writes, *self.otlp_outs]
        except LomsError:
            self.database.close()
            raise
        self.roller = Roller(self.database, clock)
        head = _head(config, self.database, clock)
        self.writer = Writer(
            self.database,
            clock,
            flush_seconds=config.store.flush_interval,
            flush_rows=config.store.flush_rows,
            queue_rows=config.store.queue_rows,
            before=self.roller.note,  # also without rollups, for they may be wanted again
            accepted=head,
        )
        self.sink = Tee(self.writer, self.remote_writes)
        self.listeners: list[Sink] = []
        """Who is told of what others push, beside the store."""
        self.arrivals = Arrivals(Tee(self.sink, self.listeners), self.database, clock)
        limits = Limits(
            max_series=config.query.max_series,
            max_samples=config.query.max_samples,
            timeout_seconds=config.query.timeout,
            lookback_ms=round(config.query.lookback * 1000),
        )
        self.labels = StoredLabels(self.database.query_columns, limits, clock)
        self.metadata = MetadataStore(self.database, clock)
        self.telemetry = TelemetryWriter(
            self.database, flush_seconds=config.store.flush_interval, queue_bytes=config.receive.telemetry_queue
        )
        self.otlp = OtlpReceiver(
            config.receive,
            clock,
            self.arrivals,
            self.telemetry,
            self.metadata.note,
            bounds_ms=self.sink.bounds_ms,
            last_values=self.database.last_values,
            forward=self.otlp_outs,
        )
        rollups = config.store.rollups.enabled and Rollups(
            self.database.query_columns,
            clock,
            samples_seconds=config.store.retention,
            minute_seconds=config.store.rollups.minute,
        )
        store = ClickHouseSource(
            self.database.query_columns,
            self.database.end_query,
            self.database.series_version,
            rollups or None,
            series_since=self.database.series_since,
        )
        source: Source = HeadSource(head, store) if head else store
        self._workers = ThreadPoolExecutor(2, "promql")
        self.engine = Engine(source, limits, clock, self._workers)
        self.state = State(self.database, clock)
        own = groups if shard.count == 1 else [group for group in groups if shard.evaluates(group)]
        self.evaluator = Evaluator(querier_of(self._remote, self.engine, source, limits, clock), own, clock, self.sink)
        kept = self.state if shard.count == 1 else OwnState(self.state, partial(_owns, shard, groups))
        self._delivery = Delivery(kept, receivers)
        self._pipeline = Pipeline(
            kept,
            receivers,
            self._delivery,
            group_by=config.alerting.group_by,
            reopen_within_seconds=config.alerting.reopen_within,
            repeat_interval_seconds=config.alerting.repeat_interval,
            external_url=config.server.external_url or url,
        )
        self._sound_at: float | None = None
        """When an evaluation last went well, by the monotonic clock."""
        self._source_trouble = ""
        """What the log says of the source."""

    def __enter__(self) -> Self:
        for out in self._outs:
            out.start()
        if self.config.store.rollups.enabled and self.shard.number == 1:
            self.roller.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is queued, send on what can be sent, then close the store."""
        for out in self._outs:
            out.stop()
        self.writer.close()
        self.roller.close()
        self.telemetry.close()
        self.metadata.close()
        self._workers.shutdown()
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
        if self.telemetry.trouble:
            return f"new spans and logs cannot be stored: {self.telemetry.trouble}"
        if self._remote and self._remote.trouble:
            return f"rules cannot see what the source has: {self._remote.trouble}"
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
        self._log_source()

    def _log_source(self) -> None:
        """Once when the source fails, and once when it is back."""
        trouble = self._remote.trouble if self._remote else ""
        if bool(trouble) is not bool(self._source_trouble):
            if trouble:
                _log.error("rules cannot see what the source has: %s", trouble)
            else:
                _log.info("the source answers again")
        self._source_trouble = trouble


def _head(config: Config, database: Database, clock: Clock) -> Head | None:
    """What keeps the newest samples in memory; None when that is not wanted, or others write to the store too."""
    if not config.query.recent or database.shared:
        return None
    seconds = min(config.query.lookback + RECENT_SECONDS, config.store.retention)
    return Head(clock, size=config.query.recent, seconds=seconds, from_ms=database.newest_ms())


def _owns(shard: Shard, groups: Sequence[Group], alert: Alert | None) -> bool:
    """Whether a stored alert is this shard's; what belongs to none is the first one's."""
    return shard.number == 1 if alert is None else shard.owns(alert, groups)
