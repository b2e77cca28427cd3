"""What the stall detector can see of each engine: aligned frames → one `EngineView` for every engine and rank.

An engine with data-parallel ranks (label ``engine_index``) is seen once for each rank, because one frozen rank hides
behind the counters of the others.

Everything is measured between the timestamps of scrapes (``timestamp(up)``), never up to the moment of evaluation: a
target that is scraped once a minute shows no progress for a minute and is still healthy.

Each column of the grid stands for all scrapes since the column before, not for the one that happens to be the newest at
its time: the grid starts elsewhere at each evaluation, and with scrapes more frequent than its step it would see now
these, now those. So the values come from windows as long as the step: of counters and gauges the last one
(``activity``), of the load also the least (``least_running``, ``least_waiting``), of ``up`` the best (``answered``), of
failures their number (``failures``).

Canonical series that recording rules make carry the time of the rules' evaluation (``measured_at``), and tell of the
newest scrape before it. That scrape is what they are dated by, as if they had been in it; dated by the newest scrape at
their column's time, they would become younger or older with the phase of the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loms.core.model import Bools, Floats, Frame, Ints, Labels, labels_of
from loms.detect.grid import fill_forward, first_true, last_change, last_true, trailing_start

PROGRESS_TOTAL = "loms_engine_progress_total"
"""What LOMS writes at each scrape: it shows what moves while a probe holds the canonical counters back."""
CANONICAL_PROGRESS = (
    "llm_engine_tokens_output_total",
    "llm_engine_tokens_input_total",
    "llm_engine_iteration_tokens_count",
    "llm_engine_iteration_duration_seconds_count",
    "llm_engine_requests_finished_total",
    "llm_engine_requests_preempted_total",
)
"""Counters of which any movement is progress, for engines that a remote Prometheus scrapes. Steps are among them
because some engines (llama.cpp) count tokens only when a request ends. Rejections are not: an API server hands them
out by itself while the engine is frozen."""
PROGRESS = (PROGRESS_TOTAL, *CANONICAL_PROGRESS)
RUNNING, WAITING = "llm_engine_requests_running", "llm_engine_requests_waiting"
IDENTITY = ("deployment_zone", "engine", "instance", "job", "model", "simulated")

PUSHED_LAG_SECONDS = 10.0
"""So much later than ``up`` canonical series of a target may come that others scrape and push here."""

Target = tuple[str, str]
"""(job, instance)"""


@dataclass(frozen=True, slots=True)
class Contact:
    """How the scrapes of one target went. Times are scrape timestamps."""

    up: bool
    last_ms: int
    interval_seconds: float
    good_ms: int | None
    """The newest good scrape; None when none in the window was good."""
    failures: int
    """Failed scrapes since then."""
    reason: str
    """Of the newest failed scrape, empty when unknown or up."""
    refused: int
    """How many of the newest ones, without another outcome between them, were refused or broken connections."""
    unanswered: int
    """The same of scrapes that were connected and got no answer; attempts without a connection may lie between them."""
    unconnected: int
    """Those attempts."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The newest synthetic request that says something about the engine."""

    failed: bool
    """It failed, and the engine has not moved by itself since (then the prober ends the series)."""
    sent_ms: int
    done_ms: int
    answered_ms: int | None
    """When the newest one that was answered ended, this one or an earlier one."""
    failing_ms: int | None
    """When the first one ended of those that have failed one after the other up to now."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine, or one rank of it. Times are timestamps of scrapes, None where the window does not show it."""

    labels: Labels
    rank: str
    ranks: int
    contact: Contact | None
    probe: Probe | None
    known: bool
    """It was recognised as an engine, now or earlier in the window."""
    current: bool
    """Its counters or gauges are in the newest good scrape."""
    running: float | None
    waiting: float | None
    progress_ms: int | None
    """The newest scrape that found a counter moved."""
    first_ms: int | None
    last_ms: int | None
    """The oldest and the newest scrape that showed its counters or gauges."""
    loaded_ms: int | None
    """The scrape since which requests have been running or waiting without a break; None when none is."""
    prefill_seconds: float | None
    """High quantile of its own prefill times, where it has a history."""


def engine_views(frames: Mapping[str, Frame]) -> list[EngineView]:
    """One view for each engine and rank that ``activity`` shows, else that a probe or a failing scrape names."""
    contacts = _contacts(frames)
    probes = _probes(frames)
    prefill = {target_of(row): float(v) for row, v in zip(*_last(frames["prefill"]), strict=True) if np.isfinite(v)}
    views = _from_activity(frames, contacts, probes, prefill)
    seen = {target_of(dict(view.labels)) for view in views}
    for row in (*frames["probe"].labels, *frames["contact"].labels):
        target = target_of(row)
        contact, probed = contacts.get(target), row.get("__name__", "").startswith("loms_probe_")
        if target not in seen and contact and (probed or not contact.up):
            seen.add(target)
            views.append(_absent(labels_of({k: row.get(k, "") for k in IDENTITY}), contact, probed))
    return sorted(views, key=lambda view: (view.labels, view.rank))


def _absent(labels: Labels, contact: Contact, known: bool) -> EngineView:
    """An engine of which the window holds nothing but how its scrapes went."""
    return EngineView(labels, "", 1, contact, None, known, False, None, None, None, None, None, None, None)


def _from_activity(
    frames: Mapping[str, Frame],
    contacts: Mapping[Target, Contact],
    probes: Mapping[Target, Probe],
    prefill: Mapping[Target, float],
) -> list[EngineView]:
    frame = _filled(frames["activity"])
    if frame.values.size == 0:
        return []
    keys = [_key(row) for row in frame.labels]
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    of_row = np.array([index[key] for key in keys])
    names = np.array([row.get("__name__", "") for row in frame.labels])
    values, count = frame.values, len(index)
    own = names == PROGRESS_TOTAL
    canonical = np.isin(names, CANONICAL_PROGRESS) & ~np.isin(of_row, of_row[own])
    progress = own | (canonical & np.array([row.get("outcome") != "rejected" for row in frame.labels]))

    finite = ~np.isnan(values)
    moved = _latest(last_change(values), of_row, count, progress)
    newest = _latest(last_true(finite), of_row, count)
    oldest = values.shape[1] - 1 - _latest(values.shape[1] - 1 - first_true(finite), of_row, count)
    running, waiting = (_summed(values, of_row, count, names == name) for name in (RUNNING, WAITING))
    loaded = _loaded(_add(running, waiting), frames, index)

    ranks: dict[Labels, int] = {}
    for labels, _ in index:
        ranks[labels] = ranks.get(labels, 0) + 1
    measured = _measured(frames, contacts, frame.times_ms)
    latest: dict[Target, int] = {}
    for (labels, _), i in index.items():
        target = target_of(dict(labels))
        latest[target] = max(latest.get(target, -1), int(newest[i]))
    views = []
    for (labels, rank), i in index.items():
        target = target_of(dict(labels))
        if newest[i] < latest[target]:
            continue  # what the target used to be: another model, or before its model was known
        contact, (times, lag_ms) = contacts.get(target), measured.get(target, (frame.times_ms, 0.0))
        last_ms, good_ms = _time(times, newest[i]), contact.good_ms if contact else None
        views.append(
            EngineView(
                labels=labels,
                rank=rank,
                ranks=ranks[labels],
                contact=contact,
                probe=probes.get(target),
                known=True,
                current=last_ms is not None and good_ms is not None and last_ms >= good_ms - lag_ms,
                running=_number(fill_forward(running[i : i + 1])[0, -1]),
                waiting=_number(fill_forward(waiting[i : i + 1])[0, -1]),
                progress_ms=_time(times, moved[i]),
                first_ms=_time(times, oldest[i]),
                last_ms=last_ms,
                loaded_ms=_time(times, loaded[i]),
                prefill_seconds=prefill.get(target),
            )
        )
    return views


def _measured(
    frames: Mapping[str, Frame], contacts: Mapping[Target, Contact], times_ms: Ints
) -> dict[Target, tuple[Ints, float]]:
    """Target → the scrape in ms that its newest canonical samples tell of, at each grid time, and how far these may be
    behind its newest good scrape.
    """
    scraped = _scrape_times(frames["scraped_at"], times_ms)
    measured = {target_of(row): values * 1000 for row, values in zip(*_rows(frames["measured_at"]), strict=True)}
    step_ms = float(times_ms[1] - times_ms[0]) if len(times_ms) > 1 else 0.0
    found = {}
    for target, scrapes in scraped.items():
        own, contact = measured.get(target, np.full(len(scrapes), np.nan)), contacts.get(target)
        there = ~np.isnan(own)  # not where a failed scrape ended the series after the sample of the same column
        times = np.where(there, np.round(np.where(there, own, 0)), scrapes).astype(np.int64)
        apart_ms = contact.interval_seconds * 1000 if contact else 0.0
        gaps = np.diff(np.unique(own[there]))
        lag_ms = max(PUSHED_LAG_SECONDS * 1000, 1.5 * apart_ms, 1.5 * float(np.median(gaps)) if len(gaps) else 0.0)
        if apart_ms > step_ms:  # else the grid does not show every scrape, and a sample's own time is near enough
            known = np.unique(scrapes)
            before = np.searchsorted(known, times, side="right") - 1
            of_scrape = np.where(before >= 0, known[before], times)
            lag_ms += apart_ms if np.any((of_scrape != times) & there) else 0.0
            times = of_scrape
        found[target] = times, lag_ms
    return found


def _loaded(load: Floats, frames: Mapping[str, Frame], index: Mapping[tuple[Labels, str], int]) -> Ints:
    """Column since which each group has had requests without a break, one between two columns included."""
    above: Bools = fill_forward(load) > 0
    least: Floats = np.full(load.shape, np.nan)
    for frame in (frames["least_running"], frames["least_waiting"]):
        keyed = [(i, index.get(_key(row))) for i, row in enumerate(frame.labels)]
        rows = np.array([i for i, group in keyed if group is not None], dtype=np.int64)
        groups = np.array([group for _, group in keyed if group is not None], dtype=np.int64)
        if len(rows):
            one = _summed(frame.values[rows], groups, len(index), np.ones(len(rows), dtype=np.bool_))
            least = _add(least, one)
    broken = last_true(~above | (least == 0))
    # Where the break lies within a column, the column's newest scrape shows requests again.
    within = (broken >= 0) & above[np.arange(len(above)), broken]
    start = np.where(within, broken, broken + 1)
    return np.where(start < load.shape[1], start, -1).astype(np.int64)


def target_labels(frames: Mapping[str, Frame]) -> dict[Target, Mapping[str, str]]:
    """What each target's own series carry: the labels of its job beside job and instance, for routing."""
    return {
        target_of(row): {name: text for name, text in row.items() if name != "__name__"}
        for row in frames["contact"].labels
        if row.get("__name__") == "up"
    }


def _contacts(frames: Mapping[str, Frame]) -> dict[Target, Contact]:
    frame = frames["contact"]
    up_rows = {target_of(row): i for i, row in enumerate(frame.labels) if row.get("__name__") == "up"}
    failed: dict[Target, list[int]] = {}
    for i, row in enumerate(frame.labels):
        if row.get("__name__") == "loms_scrape_failed":
            failed.setdefault(target_of(row), []).append(i)
    scraped = _scrape_times(frames["scraped_at"], frame.times_ms)
    answered = {target_of(row): values for row, values in zip(*_rows(frames["answered"]), strict=True)}
    counts: dict[Target, dict[str, Floats]] = {}
    for row, values in zip(*_rows(frames["failures"]), strict=True):
        counts.setdefault(target_of(row), {})[row.get("reason", "")] = np.nan_to_num(values)
    contacts = {}
    for target, i in up_rows.items():
        up, times = frame.values[i], scraped.get(target, frame.times_ms)
        if np.isnan(up[-1]):
            continue
        good = int(last_true((up == 1)[None, :] | (answered.get(target, up) > 0)[None, :])[0])
        begin = good + 1 if good < 0 or up[good] == 1 else good  # a good one and a failed one may share a column
        run = _Run({reason: row[begin:] for reason, row in counts.get(target, {}).items()})
        gaps = np.diff(np.unique(times[~np.isnan(up)]))
        contacts[target] = Contact(
            up=bool(up[-1] == 1),
            last_ms=int(times[-1]),
            interval_seconds=float(np.median(gaps)) / 1000 if len(gaps) else 0.0,
            good_ms=int(times[good]) if good >= 0 else None,
            failures=max(run.total, len(np.unique(times[begin:][up[begin:] == 0]))),
            reason=_reason(frame, failed.get(target, ())) if up[-1] != 1 else "",
            refused=run.newest("refused", "connection"),
            unanswered=run.newest("timeout", beside="connect_timeout"),
            unconnected=run.newest("connect_timeout", beside="timeout"),
        )
    return contacts


@dataclass(frozen=True, slots=True)
class _Run:
    """Failed scrapes since the last good one: by reason their number in each column."""

    counts: Mapping[str, Floats]

    @property
    def total(self) -> int:
        return int(sum(row.sum() for row in self.counts.values()))

    def newest(self, *reasons: str, beside: str = "") -> int:
        """How many have been for these reasons since the newest one that was for none of them, nor for ``beside``."""
        others = [row > 0 for reason, row in self.counts.items() if reason not in (*reasons, beside)]
        begin = 1 + max((int(last_true(other[None, :])[0]) for other in others), default=-1)
        return int(sum(row[begin:].sum() for reason, row in self.counts.items() if reason in reasons))


def _reason(frame: Frame, rows: Sequence[int]) -> str:
    """Of the failure series with a sample in the last column, the one that began last."""
    current = [i for i in rows if not np.isnan(frame.values[i, -1])]
    if not current:
        return ""
    began = trailing_start(~np.isnan(frame.values[current]))
    return frame.labels[current[int(np.argmax(began))]].get("reason", "")


def _probes(frames: Mapping[str, Frame]) -> dict[Target, Probe]:
    frame = frames["probe"]
    rows: dict[Target, dict[str, int]] = {}
    for i, row in enumerate(frame.labels):
        rows.setdefault(target_of(row), {})[row.get("__name__", "")] = i
    done = _scrape_times(frames["probed_at"], frame.times_ms)
    values = fill_forward(frame.values)
    probes = {}
    for target, found in rows.items():
        success, took = found.get("loms_probe_success"), found.get("loms_probe_duration_seconds")
        if success is None or took is None or target not in done or np.isnan(values[[success, took], -1]).any():
            continue
        done_ms = int(done[target][-1])
        probes[target] = Probe(
            failed=bool(frame.values[success, -1] == 0),
            sent_ms=done_ms - round(float(values[took, -1]) * 1000),
            done_ms=done_ms,
            answered_ms=_time(done[target], int(last_true(values[success : success + 1] == 1)[0])),
            failing_ms=_time(done[target], int(trailing_start(frame.values[success : success + 1] == 0)[0])),
        )
    return probes


def _scrape_times(frame: Frame, times_ms: Ints) -> dict[Target, Ints]:
    """Target → timestamp in ms of the newest sample at each grid time; the grid's own time before the first one."""
    filled = fill_forward(frame.values) * 1000
    if filled.shape[1:] != times_ms.shape:
        return {}
    rounded = np.where(np.isnan(filled), times_ms, np.round(filled)).astype(np.int64)
    return {target_of(row): rounded[i] for i, row in enumerate(frame.labels)}


def _filled(frame: Frame) -> Frame:
    """Without the rows that have no value at all."""
    there: Bools = np.any(~np.isnan(frame.values), axis=1)
    labels = tuple(row for row, keep in zip(frame.labels, there.tolist(), strict=True) if keep)
    return Frame(labels, frame.times_ms, frame.values[there])


def _latest(columns: Ints, of_row: Ints, count: int, rows: Bools | None = None) -> Ints:
    """The greatest column among the rows of each group. Shape [count]."""
    out = np.full(count, -1, dtype=np.int64)
    if rows is None:
        np.maximum.at(out, of_row, columns)
    else:
        np.maximum.at(out, of_row[rows], columns[rows])
    return out


def _summed(values: Floats, of_row: Ints, count: int, rows: Bools) -> Floats:
    """Sum by group and column over those rows that have a value, NaN where none has. Shape [count, time]."""
    chosen, groups = values[rows], of_row[rows]
    total, present = np.zeros((count, values.shape[1])), np.zeros((count, values.shape[1]), dtype=np.bool_)
    np.add.at(total, groups, np.nan_to_num(chosen))
    np.logical_or.at(present, groups, ~np.isnan(chosen))
    return np.where(present, total, np.nan)


def _add(a: Floats, b: Floats) -> Floats:
    """a + b, where one missing side counts as nothing and two missing sides stay missing."""
    return np.where(np.isnan(a) & np.isnan(b), np.nan, np.nan_to_num(a) + np.nan_to_num(b))


def _rows(frame: Frame) -> tuple[tuple[Mapping[str, str], ...], Floats]:
    return frame.labels, frame.values


def _last(frame: Frame) -> tuple[tuple[Mapping[str, str], ...], Floats]:
    return frame.labels, frame.last if frame.values.size else np.empty(0)


def _key(row: Mapping[str, str]) -> tuple[Labels, str]:
    """Engine and rank."""
    return labels_of({k: row.get(k, "") for k in IDENTITY}), row.get("engine_index", "")


def target_of(row: Mapping[str, str]) -> Target:
    return row.get("job", ""), row.get("instance", "")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _time(times: Ints, column: int) -> int | None:
    return None if column < 0 else int(times[column])
