"""What LOMS would have found in somebody else's samples: scrapes put together again, rules in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loms.agent.history import Archive, Found, History, joined_spans
from loms.alerting.pipeline import Pipeline
from loms.alerting.state import Notification
from loms.core.clock import ManualClock, iso_utc
from loms.core.errors import LomsError
from loms.core.model import Alert, Incident, Labels, Metadata, SampleBatch
from loms.core.settings import Alerting
from loms.core.units import format_duration
from loms.engines.engine import engines
from loms.promql.engine import Engine
from loms.promql.recent import RecentSource
from loms.promql.syntax import NAME
from loms.rules.evaluate import Evaluator
from loms.rules.replay import Reach, evaluations, paced, reach, too_coarse
from loms.rules.rule import Group

UNKNOWN_HERE = (
    "No synthetic requests were sent then: an engine that froze while it was idle is not found.",
    "Nobody watched for metrics that an upgrade lost.",
)
"""What live monitoring sees and a replay cannot."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The findings of one replay."""

    start_ms: int
    end_ms: int
    engines: tuple[tuple[str, str], ...]
    """(engine, instance)"""
    interval_ms: int
    """Between scrapes."""
    evaluations: int
    samples: int
    """Raw ones and canonical ones that were looked at, of the metrics that rules ask for."""
    incidents: tuple[Incident, ...]
    """The oldest first."""
    notes: tuple[str, ...]
    """What is to be known about the answer."""


def replay(
    archive: Archive,
    metadata: Mapping[str, Metadata],
    groups: Sequence[Group],
    start_ms: int,
    end_ms: int,
    *,
    alerting: Alerting | None = None,
    step_ms: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Replayed:
    """Evaluate ``groups`` from ``start_ms`` to ``end_ms``, each at its interval or every ``step_ms`` if that is longer.

    Without a step nothing is evaluated more often than engines are scraped. As much time before the start is read as
    the rules look back on; where there are no samples, nothing is read or evaluated once the rules have seen that.
    ``progress`` is told the share that is done, 0 to 1. Raises `LomsError` where the archive has no series of a known
    engine, and whatever the archive raises.
    """
    looks = reach(groups)
    history, from_ms = History(archive, metadata), start_ms - looks.window_ms
    found = history.look(from_ms, end_ms)
    if not found.places:
        prefixes = ", ".join(sorted(engine.prefix for _, engine in engines.items()))
        raise LomsError(
            f"there are no series of a known engine between {iso_utc(from_ms)} and {iso_utc(end_ms)}",
            hint=f"known are metrics that begin with {prefixes}",
        )
    clock, source = ManualClock(start_ms), _Recent(looks.wants)
    evaluator = Evaluator(Engine(source.samples), paced(groups, step_ms or found.interval_ms), clock, source.take)
    book = _Book(alerting or Alerting())
    errors: dict[str, None] = {}
    spans = joined_spans((low, min(end_ms, high + _settled_ms(groups, looks))) for low, high in found.spans)
    whole, walked, span_ms, count = sum(high - low for low, high in spans), 0, history.span_ms(found), 0
    for at_ms, until_ms in spans:
        clock.advance(max(0, at_ms - clock.now_ms()) / 1000)
        while at_ms < until_ms:
            before_ms, at_ms = at_ms, min(at_ms + span_ms, until_ms)
            source.put(history.scrape(found, before_ms, at_ms))
            for evaluation in evaluations(evaluator, clock, at_ms):
                book.enter(evaluation.alerts, evaluation.at_ms)
                errors.update(dict.fromkeys(evaluation.errors))
                count += 1
            source.samples.forget(at_ms - looks.window_ms)
            walked += at_ms - before_ms
            progress(walked / whole)
    return Replayed(
        start_ms=start_ms,
        end_ms=end_ms,
        engines=history.engines,
        interval_ms=found.interval_ms,
        evaluations=count,
        samples=source.count,
        incidents=book.incidents(),
        notes=(*_notes(history, found, groups), *errors, *UNKNOWN_HERE),
    )


def _settled_ms(groups: Sequence[Group], looks: Reach) -> int:
    """How long after the last sample an evaluation can still say something new; what comes after that is left out."""
    slowest = max(
        (r.for_ms + r.keep_firing_for_ms + 2 * group.interval_ms for group in groups for r in group.rules), default=0
    )
    return looks.window_ms + slowest


def _notes(history: History, found: Found, groups: Sequence[Group]) -> Iterable[str]:
    for rule, window_ms in too_coarse(reach(groups).expressions, found.interval_ms).items():
        apart, window = format_duration(found.interval_ms // 1000), format_duration(window_ms // 1000)
        yield f"{rule} looks at {window} at a time, and scrapes every {apart} are too far apart for that."
    if history.without_up:
        yield "Some targets have no up: of them it is not known when scrapes failed."


class _Recent:
    """The samples that rules can ask for, out of what scraping and evaluating write."""

    def __init__(self, wants: Callable[[str], bool]) -> None:
        self.samples = RecentSource()
        self.count = 0
        self._wants = wants
        self._known: dict[int, tuple[Labels, ...]] = {}
        """Series id → those of its names that are wanted."""

    def take(self, batch: SampleBatch) -> None:
        self.put((batch,))

    def put(self, batches: Sequence[SampleBatch]) -> None:
        """Batches in which the samples of each series are in order."""
        for batch in batches:
            for series in batch.series:
                known = self._known.setdefault(series.id, ())
                labels = tuple(sorted((*series.labels, (NAME, series.name))))
                if self._wants(series.name) and labels not in known:
                    self._known[series.id] = (*known, labels)
        if not batches:
            return
        ids = np.concatenate([batch.series_ids for batch in batches])
        times = np.concatenate([batch.timestamps_ms for batch in batches])
        values = np.concatenate([batch.values for batch in batches])
        order = np.lexsort((times, ids))
        ids, times, values = ids[order], times[order], values[order]
        unique, first = np.unique(ids, return_index=True)
        for one, low, high in zip(unique.tolist(), first.tolist(), [*first[1:].tolist(), len(ids)], strict=True):
            for labels in self._known[one]:
                self.samples.append(labels, times[low:high], values[low:high])
                self.count += high - low


class _Book:
    """The incidents that alerts make, by the pipeline that also runs live, kept nowhere else."""

    def __init__(self, alerting: Alerting) -> None:
        self._pipeline = Pipeline(
            _Nowhere(),
            (),
            _Nobody(),
            group_by=alerting.group_by,
            reopen_within_seconds=alerting.reopen_within,
        )
        self._incidents: dict[str, Incident] = {}

    def enter(self, alerts: Iterable[Alert], at_ms: int) -> None:
        for incident in self._pipeline.process(alerts, at_ms):
            self._incidents[incident.id] = incident

    def incidents(self) -> tuple[Incident, ...]:
        newest = {incident.id: incident for incident in self._pipeline.open_incidents()}
        return tuple(sorted((self._incidents | newest).values(), key=lambda incident: incident.opened_at_ms))


class _Nowhere:
    """A `loms.alerting.state.State` that keeps nothing."""

    def put_alerts(self, alerts: Iterable[Alert], /) -> None:
        pass

    def open_alerts(self) -> Sequence[Alert]:
        return ()

    def put_incidents(self, incidents: Iterable[Incident], /) -> None:
        pass

    def incidents(self, state: str = "all", limit: int = 100) -> Sequence[Incident]:
        return ()

    def put_notifications(self, notifications: Iterable[object], /) -> None:
        pass

    def pending_notifications(self) -> Sequence[Notification]:
        return ()


class _Nobody:
    """An outbox of no receivers."""

    def put(self, entries: Iterable[object], /) -> None:
        pass

    def waiting(self, receiver: str, /) -> frozenset[str]:
        return frozenset()
